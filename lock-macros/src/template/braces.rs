//! Braces in the text of a template: hash tags of Redis, unless they look like a value of `format!`.

use syn::{Expr, ext::IdentExt};

use super::value::{formatted, is_closed, word};
use crate::names::Names;

/// Returns `text` with `{{` and `}}` as the characters `{` and `}`.
///
/// A value of `format!` is refused: as text it would be one key for all calls, and only the waiting would show it. A
/// template without values `is_fixed`. There a word in braces is refused as well, since it may be a misspelt argument.
pub(super) fn plain(text: &str, names: &Names, is_fixed: bool) -> Result<String, String> {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, sign) = rest.split_at(at);
        let (sign, after) = sign.split_at(1);
        plain.push_str(before);
        plain.push_str(sign);
        rest = if let Some(after) = after.strip_prefix(sign) {
            after
        } else {
            if sign == "{"
                && let Some(inside) = tag(after)
            {
                if let Some(remedy) = remedy(inside.trim(), names) {
                    return Err(format!(
                        "`{{{inside}}}` is text here, for braces are hash tags in Redis; \
                         write {remedy}, or `{{{{{inside}}}}}` for the characters"
                    ));
                }
                if is_fixed && inside.split('.').all(|part| word(part.trim()).is_some()) {
                    return Err(format!(
                        "`{{{inside}}}` would be one key for every call, for braces are hash tags in Redis, and the function \
                         has {}; write {}, or `{{{{{inside}}}}}` for the characters",
                        names.listed(),
                        example(names)
                    ));
                }
            }
            after
        };
    }
    plain.push_str(rest);
    Ok(plain)
}

/// Returns what stands up to the closing brace; nothing if there is a value of the template, or no such brace.
fn tag(after: &str) -> Option<&str> {
    let (inside, sign) = after.split_at(after.find(['{', '}'])?);
    sign.starts_with('}').then_some(inside)
}

/// Returns what to write in place of `inside` if it is a value of `format!` and not a hash tag.
fn remedy(inside: &str, names: &Names) -> Option<String> {
    let (value, spec) = match formatted(inside) {
        Some(value) => (value, inside.strip_prefix(value).and_then(|spec| spec.strip_prefix(':'))),
        None => (inside, None),
    };
    let is_formatted = inside.starts_with(':') || spec.is_some_and(is_spec);
    if inside.is_empty() || is_formatted && inside.starts_with(|c: char| c == ':' || c.is_ascii_digit()) {
        return Some(example(names));
    }
    let first = first_word(value);
    let argument = first.as_ref().and_then(|first| names.find(first));
    if argument.is_none() && first.is_none_or(|first| first != "self") && !is_formatted && !is_call(value) {
        return None;
    }
    // It may be written `r#type`.
    let value =
        argument.filter(|argument| argument.unraw() == value).map_or_else(|| value.to_owned(), ToString::to_string);
    Some(match spec {
        Some(_) => format!("`<{value}>` for the value, `format!(..)` in place of the string to format it"),
        None => format!("`<{value}>` for the value"),
    })
}

/// Returns how a value is written, by one that the function has.
fn example(names: &Names) -> String {
    let example = names.example().map_or_else(|| "id".to_owned(), ToString::to_string);
    format!("a value as in `<{example}>`")
}

/// Reads the word that `value` begins with, as `order` in `order.id()`.
fn first_word(value: &str) -> Option<syn::Ident> {
    let start = usize::from(value.starts_with("r#")) * 2;
    let end = value[start..].find(|c: char| c != '_' && !c.is_alphanumeric()).map_or(value.len(), |end| start + end);
    word(&value[..end]).map(|word| word.unraw())
}

/// Returns whether `spec` can only be meant for `format!`, as `?` or `04` can, and not be part of a name, as `7` can.
fn is_spec(spec: &str) -> bool {
    let digits = spec.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let is_padded = digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|digit| digit.is_ascii_digit());
    spec.ends_with('?') || spec.starts_with(['#', '+', '^', '.']) || is_padded
}

/// Returns whether `value` is an expression that computes something.
fn is_call(value: &str) -> bool {
    let computes = |value| matches!(value, Expr::Call(_) | Expr::MethodCall(_) | Expr::Index(_) | Expr::Macro(_));
    value.contains(['(', '[']) && is_closed(value) && syn::parse_str(value).is_ok_and(computes)
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    fn read(text: &str) -> Result<String, String> {
        plain(text, &Names::of(&parse_quote!(async fn sell(&self, id: u64, (order, r#type): (Order, Type)))), false)
    }

    #[test]
    fn hash_tags_are_text() {
        for tag in ["{goods}", "{goods:1}", "{eu.north}", "{7}", "{shop 1}", "{order", "id}", "{user:", "}", "{ids}"] {
            assert_eq!(read(tag), Ok(tag.into()), "{tag}");
        }
    }

    #[test]
    fn doubled_braces_are_the_characters() {
        assert_eq!(read("{{id}}"), Ok("{id}".into()));
        assert_eq!(read("a{{}}b"), Ok("a{}b".into()));
        assert_eq!(read("{{id:04}}:{shop}"), Ok("{id:04}:{shop}".into()));
        assert!(read("{{{id}}}").is_err());
    }

    #[test]
    fn a_value_of_format_is_refused_with_what_to_write() {
        for (text, remedy) in [
            ("goods:{}", "write a value as in `<id>`"),
            ("goods:{ }", "write a value as in `<id>`"),
            ("goods:{:?}", "write a value as in `<id>`"),
            ("goods:{id}", "write `<id>` for the value, or `{{id}}` for the characters"),
            ("goods:{ id }", "write `<id>` for the value"),
            ("{type}", "write `<r#type>` for the value"),
            ("{r#type}", "write `<r#type>` for the value"),
            ("{self.id}", "write `<self.id>` for the value"),
            ("{order.0.id}", "write `<order.0.id>` for the value"),
            ("{order.id()}", "write `<order.id()>` for the value"),
            ("{order.lines[0]}", "write `<order.lines[0]>` for the value"),
            ("{id:04}", "write `<id>` for the value, `format!(..)` in place"),
            ("{id:7}", "write `<id>` for the value, `format!(..)` in place"),
            ("{odrer.id()}", "write `<odrer.id()>` for the value"),
            ("{idd:04}", "write `<idd>` for the value, `format!(..)` in place"),
            ("{idd:?}", "write `<idd>` for the value, `format!(..)` in place"),
            ("{idd:#x}", "write `<idd>` for the value, `format!(..)` in place"),
            ("{0:.2}", "write a value as in `<id>`"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(remedy), "{text}: {error}");
        }
    }
}
