//! The policies for failures: `on_busy` and `on_lost`.

use proc_macro2::{TokenStream, TokenTree};
use syn::{Error, Ident, Lit, Result, Token, ext::IdentExt, parse::ParseStream, token::Paren};

use crate::suggest;

/// The policy of a function when the key is busy.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum OnBusy {
    /// The error.
    Error,
    /// Nothing.
    Skip,
}

/// The policy for the body when its lease is lost.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum OnLost {
    Cancel,
    Finish,
    Ignore,
}

impl OnBusy {
    pub(crate) fn parse(input: ParseStream<'_>) -> Result<Self> {
        let name = policy(input, "on_busy", &["error", "skip"])?;
        Ok(if name == "skip" { Self::Skip } else { Self::Error })
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
    let list = known.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if input.peek(Lit) {
        let literal: Lit = input.parse()?;
        return Err(Error::new(literal.span(), format!("`{argument}` is a word without quotes: one of {list}")));
    }
    let name = input.call(Ident::parse_any).map_err(|error| {
        Error::new(error.span(), format!("`{argument}` is one of {list}; a function goes to `on_error`"))
    })?;
    let text = name.to_string();
    let is_called = input.peek(Paren);
    if known.contains(&text.as_str()) && !input.peek(Token![::]) && !is_called {
        return Ok(name);
    }
    let mut rest = TokenStream::new();
    while !input.is_empty() && !input.peek(Token![,]) {
        rest.extend([input.parse::<TokenTree>()?]);
    }
    let hint = match rest.clone().into_iter().next() {
        Some(TokenTree::Group(function)) if text == "call" => {
            format!("; for a function write `on_error = {}`", function.stream())
        }
        None => match suggest::nearest(&text, known) {
            nearest if nearest.is_empty() => "; a function goes to `on_error`".to_owned(),
            nearest => nearest,
        },
        _ => "; a function goes to `on_error`".to_owned(),
    };
    let given: String = rest.into_iter().map(|tree| tree.to_string()).collect();
    Err(Error::new(name.span(), format!("`{argument}` knows no `{name}{given}`{hint} (it is one of {list})")))
}
