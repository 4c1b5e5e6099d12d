//! The function under the attribute. Its body stays tokens: it is put back as it was written.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::{
    Attribute, Error, Result, ReturnType, Signature, Token, Type, Visibility,
    ext::IdentExt,
    parse::{Parse, ParseStream},
};

use crate::{body::Body, boxed::Boxed};

/// A function or method, with or without a body.
pub(crate) struct Function {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) signature: Signature,
    pub(crate) body: Option<Body>,
}

impl Function {
    /// Returns the type of the value of the body, or `None` if the signature names no type.
    pub(crate) fn output<'f>(&'f self, boxed: Option<&'f Boxed>) -> Option<&'f Type> {
        match (boxed, &self.signature.output) {
            (Some(boxed), _) => Some(&boxed.output),
            (None, ReturnType::Type(_, output)) => Some(output),
            (None, ReturnType::Default) => None,
        }
    }
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        let start = input.fork();
        let signature = input.parse().map_err(|error| refuse_other_items(&start).err().unwrap_or(error))?;
        let body = if input.parse::<Option<Token![;]>>()?.is_some() { None } else { Some(input.parse()?) };
        Ok(Self { attributes, visibility, signature, body })
    }
}

/// The function as it was written.
impl ToTokens for Function {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        let Self { attributes, visibility, signature, body } = self;
        tokens.extend(quote!(#(#attributes)* #visibility #signature));
        match body {
            None => Token![;](Span::call_site()).to_tokens(tokens),
            Some(Body { brace, attributes, statements }) => brace.surround(tokens, |tokens| {
                tokens.extend(quote!(#(#attributes)* #statements));
            }),
        }
    }
}

/// Rejects an item that is known not to be a function, and names the item.
fn refuse_other_items(input: ParseStream<'_>) -> Result<()> {
    const QUALIFIERS: [&str; 4] = ["unsafe", "auto", "extern", "default"];
    if is_closure(&input.fork().parse()?) {
        let message = "`#[distributed_lock]` goes on an `async fn`, not on a closure; \
                       to run a closure under a lock give it to `LockRequest::run`";
        return Err(input.error(message));
    }
    let mut word = input.call(Ident::parse_any)?;
    while QUALIFIERS.iter().any(|qualifier| word == qualifier) && input.peek(Ident::peek_any) {
        word = input.call(Ident::parse_any)?;
    }
    let hint = match word.to_string().as_str() {
        "impl" => "put it on the methods",
        "trait" => "put it on the methods of the implementations",
        "mod" => "put it on the functions",
        "struct" | "enum" | "union" | "const" | "static" | "type" | "use" | "let" | "macro_rules" | "extern" => {
            "there is nothing to run under a lock"
        }
        _ => return Ok(()),
    };
    Err(Error::new(word.span(), format!("`#[distributed_lock]` goes on an `async fn`, not on this `{word}`; {hint}")))
}

/// Returns whether `item` is a closure, which is an expression and not an item.
pub(crate) fn is_closure(item: &TokenStream) -> bool {
    const QUALIFIERS: [&str; 4] = ["const", "static", "async", "move"];
    let qualifier = |tree: &TokenTree| matches!(tree, TokenTree::Ident(word) if QUALIFIERS.iter().any(|q| word == q));
    let first = item.clone().into_iter().find(|tree| !qualifier(tree));
    matches!(first, Some(TokenTree::Punct(sign)) if sign.as_char() == '|')
}
