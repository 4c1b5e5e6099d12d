//! What becomes of the failures: `on_busy` and `on_lost`.

use proc_macro2::{Span, TokenStream};
use syn::{
    Error, ExprPath, Ident, Lit, Result, Token, ext::IdentExt, parenthesized, parse::ParseStream, spanned::Spanned,
    token::Paren,
};

use crate::suggest;

/// What a function returns when the lease could not be acquired.
pub(crate) enum OnBusy {
    /// The error.
    Error,
    /// Nothing when the key is busy, the error when anything else went wrong.
    Skip,
    /// What this function makes of the error.
    Call(ExprPath),
}

/// What becomes of the body when its lease is lost.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum OnLost {
    Cancel,
    Finish,
    Ignore,
}

impl OnBusy {
    pub(crate) fn parse(input: ParseStream<'_>) -> Result<Self> {
        let name = policy(input, "on_busy", &["error", "skip", "call"])?;
        if name != "call" {
            return Ok(if name == "skip" { Self::Skip } else { Self::Error });
        }
        let wrong = |span: Span| {
            let what = "`call` takes the path of a function that makes the result out of the error, as in \
                        `on_busy = call(refused)` with `fn refused(error: lock_core::Error) -> …`";
            Error::new(span, what)
        };
        if !input.peek(Paren) {
            return Err(wrong(name.span()));
        }
        let content;
        let parens = parenthesized!(content in input);
        let inside: TokenStream = content.parse()?;
        let span = if inside.is_empty() { parens.span.join() } else { inside.span() };
        syn::parse2(inside).map(Self::Call).map_err(|_| wrong(span))
    }
}

impl OnLost {
    pub(crate) fn parse(input: ParseStream<'_>) -> Result<Self> {
        let name = policy(input, "on_lost", &["cancel", "finish", "ignore"])?;
        Ok(match name.to_string().as_str() {
            "cancel" => Self::Cancel,
            "finish" => Self::Finish,
            _ => Self::Ignore,
        })
    }
}

/// Reads the name of a policy, which is one of `known`.
fn policy(input: ParseStream<'_>, argument: &str, known: &[&str]) -> Result<Ident> {
    let spelt = |name: &&str| if *name == "call" { "`call(path)`".to_owned() } else { format!("`{name}`") };
    let list = known.iter().map(spelt).collect::<Vec<_>>().join(", ");
    if input.peek(Lit) {
        let literal: Lit = input.parse()?;
        return Err(Error::new(literal.span(), format!("`{argument}` is a word without quotes: one of {list}")));
    }
    let name = input
        .call(Ident::parse_any)
        .map_err(|error| Error::new(error.span(), format!("`{argument}` is one of {list}")))?;
    let text = name.to_string();
    if input.peek(Token![::]) {
        let call = if known.contains(&"call") { "; for a function write `call(path)`" } else { "" };
        return Err(Error::new(name.span(), format!("`{argument}` is a word, not a path: one of {list}{call}")));
    }
    if known.contains(&text.as_str()) {
        return Ok(name);
    }
    let mut hint = suggest::nearest(&text, known);
    if hint.is_empty() && known.contains(&"call") {
        hint = format!("; for a function write `call({name})`");
    }
    Err(Error::new(name.span(), format!("`{argument}` knows no `{name}`{hint} (it is one of {list})")))
}
