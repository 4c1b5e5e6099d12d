//! A terminal: its width, its colours, and text that fits.

use std::{
    env,
    io::{self, IsTerminal},
};

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// The colours of the standard output, if it has any.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint(bool);

/// A colour, or another look of text.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Look {
    Bold,
    Red,
    Green,
    Amber,
}

impl Paint {
    /// Returns the colours of a terminal that has them, unless the user wants none (`NO_COLOR`).
    pub(crate) fn of_stdout() -> Self {
        let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = env::var_os("TERM").is_some_and(|value| value == "dumb");
        // A console of Windows may show the codes instead.
        Self(cfg!(unix) && io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb)
    }

    /// Paints a text.
    pub(crate) fn paint(self, look: Look, text: &str) -> String {
        let code = match look {
            Look::Bold => 1,
            Look::Red => 31,
            Look::Green => 32,
            Look::Amber => 33,
        };
        if self.0 && !text.is_empty() { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// Returns how many columns the standard output has if it is a terminal.
pub(crate) fn width() -> Option<usize> {
    if !io::stdout().is_terminal() {
        return None;
    }
    // A terminal of a program, as in a test, may not say.
    let columns = terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
    Some(columns.filter(|columns| *columns > 0).unwrap_or(80))
}

/// Clips a text in the middle, since keys differ at both ends.
pub(crate) fn clip(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(1);
    let tail = kept / 3;
    let (head, tail) = (fitting(text.chars(), kept - tail), fitting(text.chars().rev(), tail));
    head.into_iter().chain(['…']).chain(tail.into_iter().rev()).collect()
}

/// The first characters that fit into some columns: one of an East Asian script takes two.
fn fitting(characters: impl Iterator<Item = char>, mut columns: usize) -> Vec<char> {
    let fits = |character: &char| {
        let left = columns.checked_sub(character.width().unwrap_or(0));
        columns = left.unwrap_or(0);
        left.is_some()
    };
    characters.take_while(fits).collect()
}

/// Breaks a text into lines of at most `width` columns, between words.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
