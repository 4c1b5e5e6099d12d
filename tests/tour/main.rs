//! The code of `docs/tour.md` compiles and runs: every block of it stands in here too, line by line.

#![allow(dead_code, reason = "what needs a server is compiled, not run")]
#![allow(clippy::unused_async, reason = "what is sold here needs no waiting")]

mod attribute;
mod core;
mod layer;

use std::error::Error;

type Result<T = (), E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// What the shop of the tour does under its locks.
async fn sell(fence: u64) -> Result {
    if fence == 0 { Err("not under a lock".into()) } else { Ok(()) }
}

#[test]
fn every_block_of_the_tour_is_compiled_here() {
    let sources = [include_str!("core.rs"), include_str!("attribute.rs"), include_str!("layer.rs")].map(lines);
    let mut blocks = 0;
    for block in include_str!("../../docs/tour.md").split("```rust\n").skip(1) {
        let block = block.split("\n```").next().expect("split gives one part at least");
        assert!(
            sources.iter().any(|source| source.contains(&lines(block))),
            "docs/tour.md has a block that is not compiled:\n{block}"
        );
        blocks += 1;
    }
    assert!(blocks > 40, "only {blocks} blocks of code were found in the tour");
}

#[test]
fn every_link_of_the_readme_into_the_tour_leads_to_a_heading() {
    let headings: Vec<_> = include_str!("../../docs/tour.md").lines().filter_map(anchor).collect();
    let mut links = 0;
    for link in include_str!("../../README.md").split("docs/tour.md#").skip(1) {
        let link = link.split(')').next().expect("split gives one part at least");
        assert!(headings.iter().any(|heading| heading == link), "{link} is not among {headings:?}");
        links += 1;
    }
    assert!(links > 20, "only {links} links were found in the README");
}

/// The lines without their indentation, and without those that are empty.
fn lines(code: &str) -> String {
    let lines = code.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.fold("\n".to_owned(), |all, line| all + line + "\n")
}

/// What a link to a heading is called.
fn anchor(line: &str) -> Option<String> {
    let text = line.strip_prefix('#')?.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    Some(kept.map(|c| if c == ' ' { '-' } else { c }).collect())
}
