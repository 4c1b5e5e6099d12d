//! An argument whose value is one of a few words.

use proc_macro2::{TokenStream, TokenTree};
use syn::{Error, Ident, Lit, Result, Token, ext::IdentExt, parse::ParseStream, token::Paren};

/// Reads the word that is the value of `argument`, one of `known`.
///
/// `hint` says what to write instead of another word, with the tokens that follow it; `other` says what to write instead of
/// anything else.
pub(crate) fn word(
    input: ParseStream<'_>,
    argument: &str,
    known: &[&str],
    hint: impl FnOnce(&str, &TokenStream) -> String,
    other: &str,
) -> Result<Ident> {
    let list = known.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if input.peek(Lit) {
        let literal: Lit = input.parse()?;
        return Err(Error::new(literal.span(), format!("`{argument}` is a word without quotes: one of {list}")));
    }
    let name = input
        .call(Ident::parse_any)
        .map_err(|error| Error::new(error.span(), format!("`{argument}` is one of {list}{other}")))?;
    let text = name.to_string();
    let is_called = input.peek(Paren);
    if known.contains(&text.as_str()) && !input.peek(Token![::]) && !is_called {
        return Ok(name);
    }
    let mut rest = TokenStream::new();
    while !input.is_empty() && !input.peek(Token![,]) {
        rest.extend([input.parse::<TokenTree>()?]);
    }
    let hint = hint(&text, &rest);
    let given: String = rest.into_iter().map(|tree| tree.to_string()).collect();
    Err(Error::new(name.span(), format!("`{argument}` knows no `{name}{given}`{hint} (it is one of {list})")))
}
