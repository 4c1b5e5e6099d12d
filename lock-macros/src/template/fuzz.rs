//! Any text is a template or an error, and a template that was taken apart can be put together again; `PROPTEST_CASES`
//! tries more.

use proptest::{prelude::*, sample::select};
use syn::parse_quote;

use super::{
    value::{formatted, is_closed},
    *,
};

/// Anything, often with what matters in a template.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        8 => select(vec![
            "<", ">", "<<", ">>", "<id>", "<order.id>", "id", "self.", "goods:", ":", "-", "%", "%25", "%3A", "{", "}", "{id}", "(", ")", "[", "]",
            "\"", "'", "\\", "::", "::<u8>", ":?", "'a", " ", ">=", "->", "=>", "|x|", "#", "r#\"", "//", "/*", "b'",
            "\u{e9}", "\n", "\0", "0x", "1.", "..", "!", "?", "if", "{}", "{:?}",
        ])
        .prop_map(str::to_owned),
        1 => "\\PC{0,6}",
        1 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

/// The template of these parts.
fn joined(parts: &[Part<String>]) -> String {
    let write = |part: &Part<String>| match part {
        Part::Text(text) => text.replace('<', "<<").replace('>', ">>"),
        Part::Value(value) => format!("<{value}>"),
    };
    parts.iter().map(write).collect()
}

fn survives(template: &str) -> std::result::Result<(), TestCaseError> {
    if let Ok(parts) = split(template) {
        let joined = joined(&parts);
        prop_assert_eq!(split(&joined), Ok(parts), "{}", joined);
    }
    let names =
        Names::of(&parse_quote!(async fn sell<const SHARD: usize>(&self, id: u64, (order, r#type): (Order, Type))));
    match Template::parse(&LitStr::new(template, Span::call_site()), &names) {
        Ok(parsed) => {
            let code = parsed.expand(&parse_quote!(lock_core));
            prop_assert!(syn::parse2::<Expr>(code.clone()).is_ok(), "{}", code);
        }
        Err(error) => prop_assert!(!error.to_string().is_empty()),
    }
    Ok(())
}

/// The key that `template` makes of `values`, which are put in one after the other as `lock_core::key::part` writes them. (That crate
/// itself would be compiled once more for this test.)
fn key(template: &Template, values: &[String]) -> String {
    let mut values = values.iter().cycle();
    let write = |part: &Part<TokenStream>| match part {
        Part::Text(text) => text.clone(),
        Part::Value(_) => values.next().expect("a cycle").replace('%', "%25").replace(':', "%3A"),
    };
    template.parts.iter().map(write).collect()
}

fn values() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec("[ab:%}-]{0,2}", 3)
}

/// Cases that mattered once, tried each time.
const CORPUS: &[&str] = &[
    "",
    "<",
    ">",
    "<<",
    ">>",
    "<<>>",
    "<<<id>>>",
    "<id><id>",
    "<id>>>",
    "<<<<",
    "<\">\">",
    "<'>'>",
    "<(a > b)>",
    "<a<b>",
    "<a::<b>::c>",
    "<r#\">\"#>",
    "<id //>\n>",
    "<id /*>*/>",
    "<b'>'>",
    "<\u{e9}>",
    "<'a>",
    "<1.>",
    "<{id}>",
    "{<id>}",
    "<id:?>",
    "<()>",
    "<>>",
    "<id",
    "<\"\\\">",
    "<'\\''>",
    "<id>:<id>",
    "<id>-<id>",
    "%",
    "%3A",
    "%3a<id>",
];

#[test]
fn templates_of_the_corpus_are_read_or_refused() {
    for template in CORPUS {
        survives(template).unwrap_or_else(|failure| panic!("{template:?}: {failure}"));
    }
}

proptest! {
    #[test]
    fn any_template_is_read_or_refused_and_can_be_put_together_again(template in text()) {
        survives(&template)?;
    }

    #[test]
    fn different_values_make_different_keys(
        texts in prop::collection::vec(select(vec!["", "a", "b", "-", ":", "a:", ":b", "}", "%3A", "%25"]), 4),
        (one, other) in (values(), values()),
    ) {
        let template = format!("{}<id>{}<order>{}<self.a>{}", texts[0], texts[1], texts[2], texts[3]);
        let names = Names::of(&parse_quote!(async fn sell(&self, id: u64, order: u64)));
        if let Ok(template) = Template::parse(&LitStr::new(&template, Span::call_site()), &names) {
            prop_assert_eq!(key(&template, &one) == key(&template, &other), one == other);
        }
    }

    #[test]
    fn brackets_are_counted_in_any_text(text in text()) {
        is_closed(&text);
        formatted(&text);
    }
}
