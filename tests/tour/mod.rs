//! The code of `docs/tour.md` compiles and runs: every block of it stands in here too, line by line.

#![allow(dead_code, reason = "what needs a server is compiled, not run")]
#![allow(clippy::unused_async, reason = "what is sold here needs no waiting")]

mod attribute;
mod coming_from;
mod cookbook;
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
fn every_block_of_the_page_on_traces_and_metrics_is_compiled() {
    let sources = [include_str!("../../examples/observe/src/main.rs"), include_str!("../recipes/src/lib.rs")];
    assert_eq!(compiled_blocks(include_str!("../../docs/observe.md"), &sources), 2);
}
