//! The policies for failures: `on_busy` and `on_lost`.

use proc_macro2::{TokenStream, TokenTree};
use syn::{Ident, Result, parse::ParseStream};

use crate::{suggest, word::word};

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
    let function = "; a function goes to `on_error`";
    let hint = |text: &str, rest: &TokenStream| match rest.clone().into_iter().next() {
        Some(TokenTree::Group(group)) if text == "call" => {
            format!("; for a function write `on_error = {}`", group.stream())
        }
        None => match suggest::nearest(text, known) {
            nearest if nearest.is_empty() => function.to_owned(),
            nearest => nearest,
        },
        _ => function.to_owned(),
    };
    word(input, argument, known, hint, function)
}
