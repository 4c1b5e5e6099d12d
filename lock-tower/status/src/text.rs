//! Text of others in a page: keys, labels and names hold any character.

use std::fmt::{self, Display, Write as _};

/// Shows a text between tags. Markup is escaped, and a character that would not be seen is shown as its escape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text<'a>(pub(super) &'a str);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match entity(c) {
                Some(entity) => f.write_str(entity)?,
                None if is_unseen(c) => write!(f, "<i>{}</i>", c.escape_default())?,
                None => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Shows a text between the quotes of an attribute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attribute<'a>(pub(super) &'a str);

impl Display for Attribute<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match entity(c) {
                Some(entity) => f.write_str(entity)?,
                // A parser would change them. (References to those from 128 to 159 it takes for characters of Windows-1252.)
                None if c.is_ascii_control() => write!(f, "&#{};", u32::from(c))?,
                None => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Shows the beginning and the end of a text that is too long for a page, and any other text whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clipped<'a>(pub(super) &'a str);

impl<'a> Clipped<'a> {
    /// Returns the two ends of a text that is too long.
    pub(super) fn ends(self) -> Option<(&'a str, &'a str)> {
        let text = self.0;
        text.char_indices().nth(LONGEST)?;
        let (head, _) = text.char_indices().nth(HEAD)?;
        let (tail, _) = text.char_indices().nth_back(TAIL - 1)?;
        Some((&text[..head], &text[tail..]))
    }
}

impl Display for Clipped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ends() {
            // In the style of an escape: it is not a part of the text.
            Some((head, tail)) => write!(f, "{}<i>…</i>{}", Text(head), Text(tail)),
            None => Text(self.0).fmt(f),
        }
    }
}

/// How many characters of a text are shown, and of a longer one at its beginning and at its end.
const LONGEST: usize = 96;
const HEAD: usize = 64;
const TAIL: usize = 24;

fn entity(c: char) -> Option<&'static str> {
    Some(match c {
        '&' => "&amp;",
        '<' => "&lt;",
        '>' => "&gt;",
        '"' => "&quot;",
        '\'' => "&#39;",
        _ => return None,
    })
}

/// Whether a character is invisible or changes the direction of others, so that two keys might look the same.
fn is_unseen(c: char) -> bool {
    let formats = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    c.is_control() || formats
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads the entities of HTML that are written here.
    fn decoded(html: &str) -> String {
        let mut parts = html.split('&');
        let mut text = parts.next().unwrap().to_owned();
        for part in parts {
            let (entity, rest) = part.split_once(';').unwrap();
            let c = match entity {
                "amp" => '&',
                "lt" => '<',
                "gt" => '>',
                "quot" => '"',
                number => char::from_u32(number.strip_prefix('#').unwrap().parse().unwrap()).unwrap(),
            };
            text.extend([c].into_iter().chain(rest.chars()));
        }
        text
    }

    #[test]
    fn markup_is_text_and_unseen_characters_are_seen() {
        assert_eq!(Text("<img src=x onerror='a'>").to_string(), "&lt;img src=x onerror=&#39;a&#39;&gt;");
        assert_eq!(Text("a\nb\0\u{202e}").to_string(), "a<i>\\n</i>b<i>\\u{0}</i><i>\\u{202e}</i>");
        assert_eq!(Text("größe 80% \\n 店").to_string(), "größe 80% \\n 店");
        assert_eq!(Attribute("\"a\"\n&").to_string(), "&quot;a&quot;&#10;&amp;");
    }

    #[test]
    fn a_long_text_is_clipped_between_characters() {
        for text in ["", "goods:7", &"ü".repeat(LONGEST)] {
            assert_eq!(Clipped(text).to_string(), Text(text).to_string());
        }
        let long = format!("<{}é{}>", "店".repeat(HEAD), "x".repeat(1_000));
        let clipped = format!("&lt;{}<i>…</i>{}&gt;", "店".repeat(HEAD - 1), "x".repeat(TAIL - 1));
        assert_eq!(Clipped(&long).to_string(), clipped);
        assert_eq!(
            Clipped(&"\n".repeat(LONGEST + 1)).ends().map(|(head, tail)| (head.len(), tail.len())),
            Some((HEAD, TAIL))
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_a_tag_or_ends_an_attribute(text in "\\PC*|[\\x00-\\x7f\u{2028}<>&\"']*") {
            let (shown, attribute) = (Text(&text).to_string(), Attribute(&text).to_string());
            let without_escapes = shown.replace("<i>", "").replace("</i>", "");
            prop_assert!(!without_escapes.contains(['<', '>', '"', '\'']), "{shown}");
            prop_assert!(!attribute.contains(['<', '>', '"', '\'']), "{attribute}");
            prop_assert!(!attribute.contains(char::is_control), "{attribute:?}");
            prop_assert_eq!(decoded(&attribute), text.clone());
            if !text.chars().any(is_unseen) {
                prop_assert_eq!(decoded(&shown), text);
            }
        }
    }
}
