//! The code of `docs/tour.md` compiles and runs: every block of it stands in here too, line by line.

#![allow(dead_code, reason = "what needs a server is compiled, not run")]
#![allow(clippy::unused_async, reason = "what is sold here needs no waiting")]

mod attribute;
mod coming_from;
mod core;
mod layer;
mod testing;

use std::error::Error;

use lock_tests::text::compiled_blocks;

type Result<T = (), E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// What the shop of the tour does under its locks.
async fn sell(fence: u64) -> Result {
    if fence == 0 { Err("not under a lock".into()) } else { Ok(()) }
}

#[test]
fn every_block_of_the_tour_is_compiled_here() {
    let sources = [include_str!("core.rs"), include_str!("attribute.rs"), include_str!("layer.rs")];
    let blocks = compiled_blocks(include_str!("../../docs/tour.md"), &sources);
    assert!(blocks > 40, "only {blocks} blocks of code were found in the tour");
}

#[test]
fn every_link_of_the_readme_into_the_tour_leads_to_a_heading() {
    let tour = include_str!("../../docs/tour.md");
    let former = tour.split("<a id=\"").skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()));
    let headings: Vec<_> = tour.lines().filter_map(anchor).chain(former).collect();
    let mut links = 0;
    for link in include_str!("../../README.md").split("docs/tour.md#").skip(1) {
        let link = link.split(')').next().expect("split gives one part at least");
        assert!(headings.iter().any(|heading| heading == link), "{link} is not among {headings:?}");
        links += 1;
    }
    assert!(links > 5, "only {links} links were found in the README");
}

/// What a link to a heading is called.
fn anchor(line: &str) -> Option<String> {
    let text = line.strip_prefix('#')?.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    Some(kept.map(|c| if c == ' ' { '-' } else { c }).collect())
}
