//! Code that stands in a text, and is compiled elsewhere.

/// Counts the blocks of Rust in a text, each of which has to stand in one of the `sources` too, line by line; how far
/// lines are indented does not matter, nor do those that are empty.
///
/// # Panics
/// When one does not.
#[track_caller]
pub fn compiled_blocks(text: &str, sources: &[&str]) -> usize {
    let sources: Vec<_> = sources.iter().map(|source| lines(source)).collect();
    let mut blocks = 0;
    for block in text.split("```rust\n").skip(1) {
        let block = block.split("\n```").next().expect("split gives one part at least");
        let is_compiled = sources.iter().any(|source| source.contains(&lines(block)));
        assert!(is_compiled, "a block of code is not compiled:\n{block}");
        blocks += 1;
    }
    blocks
}

/// The lines without their indentation, and without those that are empty.
fn lines(code: &str) -> String {
    let lines = code.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.fold("\n".to_owned(), |all, line| all + line + "\n")
}
