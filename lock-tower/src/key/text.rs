//! Text that the service itself wrote, as a key and as a part of one.

use std::{error::Error, fmt};

use lock_core::key::MAX_KEY_BYTES;

use super::{
    choice::Choice,
    extractor::KeyExtractor,
    parts::{Parts, Writer, Written},
};

// For every lifetime, though only `'static` is of use: inside a coroutine the compiler forgets which one it was, and would
// find a service with `&'static str` not to be `Send`.
impl<Req> KeyExtractor<Req> for &str {
    fn extract(&self, _request: &Req) -> Choice {
        Choice::Lock((*self).to_owned())
    }

    fn check(&self) -> Result<(), String> {
        check(self)
    }
}

impl<Req> Parts<Req> for &str {
    fn write(&self, _request: &Req, key: &mut Writer) -> Written {
        key.text(self);
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        check(self)
    }
}

/// Says why a text cannot be in a key. The rule for `%` is that of the attribute's templates: without it, text and an
/// escaped value could make one key.
pub(super) fn check(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("a text of its key is empty; name what is locked".to_owned());
    }
    if text.len() > MAX_KEY_BYTES {
        let length = text.len();
        return Err(format!("a text of its key has {length} bytes, the most is {MAX_KEY_BYTES}; use a shorter one"));
    }
    let ends_well = |after: &str| after.starts_with("25") || after.starts_with("3A");
    if !text.split('%').skip(1).all(ends_well) {
        return Err(format!("in the text {text:?} of its key a `%` is written `%25`, or is part of a `%3A`"));
    }
    let looks_like_a_template = |open, close| text.split_once(open).is_some_and(|(_, rest)| rest.contains(close));
    if looks_like_a_template("<", ">") || looks_like_a_template("/{", "}") {
        return Err(format!(
            "the text {text:?} of its key is not a template and would be one key for every request; write \
             `scoped(\"goods\", path_param::<u64>(\"id\"))`"
        ));
    }
    Ok(())
}

/// The key of the layer cannot work in its place: a mistake in the service, not in the request.
#[derive(Debug)]
pub(crate) struct Mistake(pub(crate) String);

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Mistake {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_checked_by_the_rule_of_templates() {
        for fine in ["nightly", "goods:north", "50%25", "a%3Ab", "{shop}:till", "a<b", &"k".repeat(1024)] {
            assert_eq!(check(fine), Ok(()), "{fine}");
        }
        for (wrong, remedy) in [
            ("", "name what is locked"),
            (&*"k".repeat(1025), "the most is 1024"),
            ("50%", "`%25`"),
            ("a%3ab", "`%3A`"),
            ("a%2", "`%25`"),
            ("goods:<id>", "path_param"),
            ("/goods/{id}", "path_param"),
        ] {
            assert!(check(wrong).unwrap_err().contains(remedy), "{wrong}");
        }
    }
}
