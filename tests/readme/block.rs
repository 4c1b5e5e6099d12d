//! The blocks of a page that a reader types or pastes.

/// A fenced block.
pub(crate) enum Block<'a> {
    /// A whole program in Rust.
    Program(&'a str),
    /// Lines in Rust that are a part of the next program.
    Part(&'a str),
    /// Commands, each with the lines that it prints.
    Commands(Vec<(&'a str, Vec<&'a str>)>),
}

/// Returns the blocks of Rust and of commands, in the order of the page.
///
/// # Panics
/// If there is a block of another language, which nobody would try.
pub(crate) fn blocks(page: &str) -> impl Iterator<Item = Block<'_>> {
    page.split("\n```").skip(1).step_by(2).map(|block| match block.split_once('\n').expect("a block has lines") {
        ("rust", code) if code.contains("fn main(") => Block::Program(code),
        ("rust", code) => Block::Part(code),
        ("console", lines) => Block::Commands(commands(lines)),
        (language, _) => panic!("no test tries blocks of {language:?}"),
    })
}

fn commands(lines: &str) -> Vec<(&str, Vec<&str>)> {
    let mut commands = Vec::new();
    for line in lines.lines() {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(command), _) => commands.push((command, Vec::new())),
            (None, Some((_, shown))) => shown.push(line),
            (None, None) => panic!("a block of commands begins with {line:?}"),
        }
    }
    commands
}
