//! The values of a template, as they are written.

use syn::{Expr, Ident, ext::IdentExt, parse::Parser};

/// Splits `after` at the first `>` before which the text parses as one expression.
pub(super) fn shortest_value(after: &str) -> Result<(&str, &str), String> {
    let mut ends = after.match_indices('>').map(|(end, _)| end).peekable();
    let Some(&first) = ends.peek() else {
        return Err("a `<` without its `>`; for the character write `<<`".to_owned());
    };
    if after[..first].trim().is_empty() {
        return Err("`<>` names no value; write one, as in `<id>`, or `<<>>` for the characters".to_owned());
    }
    ends.find(|&end| is_closed(&after[..end]) && syn::parse_str::<Expr>(&after[..end]).is_ok())
        .map(|end| (after[..end].trim(), &after[end + 1..]))
        .ok_or_else(|| {
            let text = &after[..first];
            match formatted(text) {
                Some(value) => format!(
                    "a value goes in by its `Display`, without `{}`; write `<{value}>`, or format it in an expression",
                    &text[value.len()..]
                ),
                None => {
                    format!("`<{text}>` holds no Rust expression; for the characters `<` and `>` write `<<` and `>>`")
                }
            }
        })
}

/// Returns the value in `id:?` or `id:04`, as a format string has it.
pub(super) fn formatted(text: &str) -> Option<&str> {
    let (value, option) = text.split_once(':')?;
    let is_value = !option.starts_with(':') && is_closed(value) && syn::parse_str::<Expr>(value).is_ok();
    is_value.then_some(value)
}

/// Returns whether every bracket and string that `text` opens is closed in it.
///
/// Only such texts may go to the compiler's tokenizer. The tokenizer reports an open bracket by itself, even if a
/// longer text would close the bracket.
pub(super) fn is_closed(text: &str) -> bool {
    let mut open = Vec::new();
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match char {
            '(' => open.push(')'),
            '[' => open.push(']'),
            '{' => open.push('}'),
            ')' | ']' | '}' if open.pop() != Some(char) => return false,
            '"' => loop {
                match chars.next() {
                    Some('"') => break,
                    Some('\\') => drop(chars.next()),
                    Some(_) => {}
                    None => return false,
                }
            },
            // A character such as `'('` or `'\''`; a lifetime has no second quote.
            '\'' => {
                let inside = chars.as_str();
                let escaped = usize::from(inside.starts_with('\\'));
                if let Some((length, _)) = inside.char_indices().nth(escaped + 1).filter(|&(_, c)| c == '\'') {
                    chars = inside[length + 1..].chars();
                }
            }
            _ => {}
        }
    }
    open.is_empty()
}

/// Returns the word if `text` is one word, such as `id` or `self`.
pub(super) fn word(text: &str) -> Option<Ident> {
    Ident::parse_any.parse_str(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_in_strings_and_characters_are_not_counted() {
        for closed in ["f(a)[1]", "f(\"(\")", "f(\"\\\"(\")", "f('(')", "f('\\'', '[')", "f::<'a>('é')", "&'a str"] {
            assert!(is_closed(closed), "{closed}");
        }
        for open in ["f(", "f)", "(]", "f(\"", "f(\"\\\"", "f('a", "{[}]"] {
            assert!(!is_closed(open), "{open}");
        }
    }
}
