//! The body of a function, which stays tokens.

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::{
    Attribute, Result, braced,
    parse::{Parse, ParseStream},
    token::Brace,
};

/// A body, with its braces.
pub(crate) struct Body {
    pub(crate) brace: Brace,
    /// `#![allow(…)]` and the like, which must stay first.
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) statements: TokenStream,
}

impl Parse for Body {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let content;
        let brace = braced!(content in input);
        Ok(Self { brace, ..content.call(Self::parse_inside)? })
    }
}

impl Body {
    /// Reads the contents of the braces.
    pub(crate) fn parse_inside(input: ParseStream<'_>) -> Result<Self> {
        let attributes = input.call(Attribute::parse_inner)?;
        Ok(Self { brace: Brace::default(), attributes, statements: input.parse()? })
    }
}

/// Returns whether `word` occurs anywhere in `tokens`.
pub(crate) fn mentions(tokens: &TokenStream, word: &Ident) -> bool {
    tokens.clone().into_iter().any(|tree| match tree {
        TokenTree::Group(group) => mentions(&group.stream(), word),
        TokenTree::Ident(found) => found == *word,
        _ => false,
    })
}
