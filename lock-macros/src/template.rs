//! Key templates: `"goods:<id>"`.
//!
//! At `<`, the shortest text up to a `>` that parses as one expression is a value; everything else is text, with `<<`
//! and `>>` for the characters. Braces are text, for in Redis they are hash tags; see [`braces`].
//!
//! A value goes in as a part of the key, with its `:` and `%` escaped. Different values make different keys only if the
//! text holds no `%` of its own and a `:` stands between two values: [`check_text`] and [`check_apart`].

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote_spanned};
use syn::{Error, Expr, LitStr, Path, Result, ext::IdentExt};

use self::value::{shortest_value, word};
use crate::names::Names;

mod braces;
#[cfg(test)]
mod fuzz;
mod value;

/// A template whose values are ready to be put into the code.
#[derive(Debug)]
pub(crate) struct Template {
    /// Where the template stands; the place of every error about it.
    span: Span,
    parts: Vec<Part<TokenStream>>,
}

#[derive(Debug, PartialEq)]
enum Part<V> {
    Text(String),
    Value(V),
}

impl Template {
    /// Reads `literal` as the key of a function with these `names`.
    pub(crate) fn parse(literal: &LitStr, names: &Names) -> Result<Self> {
        let span = literal.span();
        let wrong = |message: String| Error::new(span, message);
        if literal.value().is_empty() {
            return Err(wrong("an empty key; name what is locked, as in `key = \"goods:<id>\"`".to_owned()));
        }
        let written = split(&literal.value()).map_err(wrong)?;
        check_apart(&written).map_err(wrong)?;
        let is_fixed = !written.iter().any(|part| matches!(part, Part::Value(_)));
        let mut parts = Vec::new();
        for part in written {
            parts.push(match part {
                Part::Text(text) => {
                    check_text(&text).map_err(wrong)?;
                    Part::Text(braces::plain(&text, names, is_fixed).map_err(wrong)?)
                }
                Part::Value(text) => {
                    if let Some(word) = word(&text) {
                        names.check(&word).map_err(wrong)?;
                    }
                    let value: Expr = syn::parse_str(&text).map_err(|error| wrong(error.to_string()))?;
                    Part::Value(place(value.into_token_stream(), span, names))
                }
            });
        }
        Ok(Self { span, parts })
    }

    /// Writes an expression for the key: a string literal, or a call that puts in the values as they are now.
    pub(crate) fn expand(&self, krate: &Path) -> TokenStream {
        let text = |text: &str| LitStr::new(text, self.span);
        let (first, rest) = match self.parts.split_first() {
            Some((Part::Text(first), rest)) => (text(first), rest),
            _ => (text(""), self.parts.as_slice()),
        };
        if rest.is_empty() {
            return first.into_token_stream();
        }
        let mut key = quote_spanned!(self.span=> #krate::__private::Key::of(#first));
        for part in rest {
            key.extend(match part {
                Part::Text(part) => {
                    let part = text(part);
                    quote_spanned!(self.span=> .text(#part))
                }
                Part::Value(value) if is_one_token(value) => quote_spanned!(self.span=> .value(&#value)),
                Part::Value(value) => quote_spanned!(self.span=> .value(&(#value))),
            });
        }
        key
    }
}

fn is_one_token(tokens: &TokenStream) -> bool {
    tokens.clone().into_iter().nth(1).is_none()
}

/// Takes a template apart; neighbouring characters make one text.
fn split(template: &str) -> std::result::Result<Vec<Part<String>>, String> {
    let mut parts = Vec::new();
    let mut text = String::new();
    let mut rest = template;
    while let Some(at) = rest.find(['<', '>']) {
        let (before, sign) = rest.split_at(at);
        let (sign, after) = sign.split_at(1);
        text.push_str(before);
        if let Some(after) = after.strip_prefix(sign) {
            text.push_str(sign);
            rest = after;
        } else if sign == ">" {
            return Err("a `>` that ends no value; for the character write `>>`, \
                        and put an expression with a `>` in brackets, as in `<(a > b)>`"
                .to_owned());
        } else {
            let (value, after) = shortest_value(after)?;
            if !text.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut text)));
            }
            parts.push(Part::Value(value.to_owned()));
            rest = after;
        }
    }
    text.push_str(rest);
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
    Ok(parts)
}

/// Refuses two values that run into each other.
///
/// No value holds a `:`, so one in the text between two values shows where the first ends.
fn check_apart(parts: &[Part<String>]) -> std::result::Result<(), String> {
    let mut before: Option<&str> = None;
    let mut between = "";
    for part in parts {
        match part {
            Part::Text(text) => between = text,
            Part::Value(value) => {
                if let Some(before) = before.filter(|_| !between.contains(':')) {
                    let between = between.replace('<', "<<").replace('>', ">>");
                    return Err(format!(
                        "`<{before}>{between}<{value}>` would be one key for different values, for there is no `:` between the \
                         two; write `<{before}>:<{value}>`"
                    ));
                }
                before = Some(value);
                between = "";
            }
        }
    }
    Ok(())
}

/// Refuses a `%` that does not stand for a `:` or `%`, as it does in a value.
fn check_text(text: &str) -> std::result::Result<(), String> {
    let mut after = text.split('%').skip(1);
    match after.find(|after| !after.starts_with("25") && !after.starts_with("3A")) {
        None => Ok(()),
        Some(after) if after.starts_with("3a") => Err("a `:` inside a part of a key is `%3A`, not `%3a`".to_owned()),
        Some(_) => {
            Err("in a template `%` begins an escape: write `%25` for the character, or `%3A` for a `:` inside a \
                        part; a key without escapes is an expression, as in `key = format!(..)`"
                .to_owned())
        }
    }
}

/// Lets every token point at the literal, and the names of arguments mean the arguments.
///
/// The two differ only where a `macro_rules!` wrote one of them: a literal from one macro then names the arguments of a
/// function from another. All other tokens count as written by the attribute: else the compiler would propose to replace
/// the whole literal by what it takes for a misspelt word.
fn place(tokens: TokenStream, span: Span, names: &Names) -> TokenStream {
    let written = Span::call_site().located_at(span);
    let each = |tree| match tree {
        TokenTree::Group(group) => {
            let mut placed = Group::new(group.delimiter(), place(group.stream(), span, names));
            placed.set_span(written);
            TokenTree::Group(placed)
        }
        TokenTree::Ident(mut word) => {
            word.set_span(names.span(&word.unraw()).map_or(written, |argument| span.resolved_at(argument)));
            TokenTree::Ident(word)
        }
        mut other => {
            other.set_span(written);
            other
        }
    };
    tokens.into_iter().map(each).collect()
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    /// The parts of a template on one line, values in brackets.
    fn parts(template: &str) -> std::result::Result<String, String> {
        let show = |part| match part {
            Part::Text(text) => text,
            Part::Value(value) => format!("[{value}]"),
        };
        Ok(split(template)?.into_iter().map(show).collect::<Vec<_>>().join("|"))
    }

    fn names() -> Names {
        Names::of(&parse_quote!(async fn sell<const SHARD: usize>(&self, id: u64, (order, r#type): (Order, Type))))
    }

    fn expand(template: &str) -> String {
        let template = Template::parse(&LitStr::new(template, Span::call_site()), &names()).expect(template);
        let code: String = template.expand(&parse_quote!(lock_core)).to_string().split_whitespace().collect();
        code.replace("lock_core::__private::", "")
    }

    fn refusal(template: &str) -> String {
        Template::parse(&LitStr::new(template, Span::call_site()), &names()).expect_err(template).to_string()
    }

    #[test]
    fn values_stand_between_angle_brackets() {
        assert_eq!(parts("goods:<id>"), Ok("goods:|[id]".into()));
        assert_eq!(parts("<a><b>"), Ok("[a]|[b]".into()));
        assert_eq!(parts("< order.id >:x"), Ok("[order.id]|:x".into()));
        assert_eq!(parts("<self.tenant>/<pair.0>"), Ok("[self.tenant]|/|[pair.0]".into()));
    }

    #[test]
    fn a_value_is_the_shortest_text_that_parses() {
        assert_eq!(parts("<self.map.get::<u8>(&1)>:x"), Ok("[self.map.get::<u8>(&1)]|:x".into()));
        assert_eq!(parts("<(a > b)>"), Ok("[(a > b)]".into()));
        assert_eq!(parts("<list.iter().map(|x| -> u8 { x.0 }).sum::<u8>()>"), {
            Ok("[list.iter().map(|x| -> u8 { x.0 }).sum::<u8>()]".into())
        });
        assert_eq!(parts("<find(\">\")>"), Ok("[find(\">\")]".into()));
        assert_eq!(parts("<s.trim_end_matches('>')>"), Ok("[s.trim_end_matches('>')]".into()));
    }

    #[test]
    fn doubled_signs_are_the_characters() {
        assert_eq!(parts("a<<b>>c"), Ok("a<b>c".into()));
        assert_eq!(parts("<<<id>>>"), Ok("<|[id]|>".into()));
        assert_eq!(parts("<<id>>"), Ok("<id>".into()));
    }

    #[test]
    fn other_signs_are_text() {
        assert_eq!(parts("ключ {tag} \\ \" % é"), Ok("ключ {tag} \\ \" % é".into()));
    }

    #[test]
    fn signs_that_belong_to_no_value_are_refused() {
        assert!(parts("goods:<id").unwrap_err().contains("without its `>`"));
        assert!(parts("goods:id>").unwrap_err().contains("ends no value"));
        assert!(parts("<a > b>").unwrap_err().contains("ends no value"));
        assert!(parts("goods:<>").unwrap_err().contains("names no value"));
        assert!(parts("goods:< >").unwrap_err().contains("names no value"));
        assert!(parts("<a b>").unwrap_err().contains("`<a b>` holds no Rust expression"));
        assert!(parts("<f(>").unwrap_err().contains("`<f(>` holds no Rust expression"));
        assert!(parts("<id:?>").unwrap_err().contains("without `:?`; write `<id>`"));
        assert!(parts("<order.id:04>").unwrap_err().contains("without `:04`; write `<order.id>`"));
        assert!(parts("<f(:?>").unwrap_err().contains("`<f(:?>` holds no Rust expression"));
        assert!(parts("<a::>").unwrap_err().contains("`<a::>` holds no Rust expression"));
    }

    #[test]
    fn a_template_becomes_a_call_that_puts_the_values_in() {
        assert_eq!(expand("{goods}:<id>"), "Key::of(\"{goods}:\").value(&id)");
        assert_eq!(expand("<self.a>:{<id>}:<SHARD>"), {
            "Key::of(\"\").value(&(self.a)).text(\":{\").value(&id).text(\"}:\").value(&SHARD)"
        });
    }

    #[test]
    fn a_template_without_values_is_a_plain_string() {
        assert_eq!(expand("{{all}} <<goods>>"), "\"{all}<goods>\"");
    }

    #[test]
    fn two_values_have_a_colon_between_them() {
        for (template, remedy) in [
            ("<id><order>", "`<id>:<order>`"),
            ("<id>-<order>", "`<id>:<order>`"),
            ("<id>%3A<order>", "`<id>:<order>`"),
            ("{<id>}<<<order>", "`<id>}<<<order>` would be one key"),
            ("a:<id>:<order>/<self>", "`<order>:<self>`"),
        ] {
            assert!(refusal(template).contains(remedy), "{template}: {}", refusal(template));
        }
        for template in ["<id>:<order>", "<id>-:<order>", ":<id>::<order>", "{<id>:<order>}"] {
            expand(template);
        }
    }

    #[test]
    fn percent_in_the_text_is_an_escape() {
        for template in ["%", "50%", "50%<id>", "%2", "%2F", "%%25", "%25%", "<id>:%%"] {
            assert!(refusal(template).contains("write `%25` for the character"), "{template}: {}", refusal(template));
        }
        assert!(refusal("a%3ab").contains("is `%3A`, not `%3a`"));
        assert_eq!(expand("50%25:<id>"), "Key::of(\"50%25:\").value(&id)");
        assert_eq!(expand("a%3Ab"), "\"a%3Ab\"");
    }

    #[test]
    fn an_empty_key_is_refused() {
        assert!(refusal("").contains("an empty key"));
    }

    #[test]
    fn a_word_that_is_no_argument_is_refused_and_the_arguments_are_named() {
        let error = refusal("goods:<idd>");
        assert!(error.contains("`<idd>`") && error.contains("`self`, `id`, `order`, `r#type`, `SHARD`"), "{error}");
        assert!(refusal("<id>:<nope>").contains("`<nope>`"));
        assert_eq!(expand("<self>"), "Key::of(\"\").value(&self)");
        assert_eq!(expand("<r#type>"), "Key::of(\"\").value(&r#type)");
    }

    #[test]
    fn other_text_in_braces_is_a_hash_tag() {
        assert_eq!(expand("{<id>}:cart"), "Key::of(\"{\").value(&id).text(\"}:cart\")");
        assert_eq!(expand("{id:<id>}"), "Key::of(\"{id:\").value(&id).text(\"}\")");
        assert_eq!(expand("{{id}}:<id>"), "Key::of(\"{id}:\").value(&id)");
        assert_eq!(expand("{goods}:<id>"), "Key::of(\"{goods}:\").value(&id)");
        assert_eq!(expand("{{goods}}"), "\"{goods}\"");
        assert_eq!(expand("{goods:1}"), "\"{goods:1}\"");
    }

    #[test]
    fn a_word_in_braces_of_a_template_without_values_is_refused() {
        for template in ["goods:{goods_id}", "{odrer.id}", "{ goods_id }:{{id}}", "{goods}"] {
            let error = refusal(template);
            assert!(error.contains("would be one key for every call"), "{template}: {error}");
            assert!(error.contains("the function has `self`, `id`, `order`, `r#type`, `SHARD`"), "{template}: {error}");
        }
        let error = refusal("goods:{goods_id}");
        assert!(error.ends_with("write a value as in `<id>`, or `{{goods_id}}` for the characters"), "{error}");
    }

    #[test]
    fn a_word_that_is_no_argument_by_its_case_is_a_constant() {
        assert_eq!(expand("row:<W>"), "Key::of(\"row:\").value(&W)");
        assert_eq!(expand("<REGION>:<id>"), "Key::of(\"\").value(&REGION).text(\":\").value(&id)");
    }
}
