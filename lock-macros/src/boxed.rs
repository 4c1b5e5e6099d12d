//! The `fn` that `#[async_trait]` makes of an `async fn`: `Box::pin(async move { … })` as its only statement.
//!
//! `#[async_trait]` moves the arguments into the block by `let` statements before the body, and calls `self` there
//! `__self`. The lock goes between the two, so that patterns are taken apart when the key is made.

use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::{
    Attribute, Expr, ExprIf, GenericArgument, Pat, Path, PathArguments, Result, ReturnType, Token, Type,
    TypeParamBound,
    parse::{ParseStream, Parser},
    punctuated::Punctuated,
    token::Brace,
};

use crate::body::Body;

/// A body that is a boxed `async` block.
pub(crate) struct Boxed {
    /// The output of the block.
    pub(crate) output: Type,
    /// `Box::pin`.
    pub(crate) pin: TokenStream,
    /// The statements before the body.
    pub(crate) prologue: Prologue,
    /// The body as it was written.
    pub(crate) body: Body,
}

/// The statements that `#[async_trait]` puts before the body.
#[derive(Default)]
pub(crate) struct Prologue {
    pub(crate) statements: TokenStream,
    /// The patterns that take the arguments over, with their attributes.
    pub(crate) patterns: Vec<(Vec<Attribute>, Pat)>,
    /// The name of `self` from here on.
    pub(crate) this: Option<Ident>,
}

impl Boxed {
    /// Recognises a function by what it returns and what it consists of.
    pub(crate) fn of(output: &ReturnType, body: &Body) -> Option<Self> {
        let ReturnType::Type(_, output) = output else { return None };
        let output = future_output(output)?;
        let mut pin: Vec<_> = body.statements.clone().into_iter().collect();
        let TokenTree::Group(argument) = pin.pop()? else { return None };
        if argument.delimiter() != Delimiter::Parenthesis {
            return None;
        }
        let pin: TokenStream = pin.into_iter().collect();
        let path: Path = syn::parse2(pin.clone()).ok()?;
        let mut names = path.segments.iter().rev().map(|segment| segment.ident.to_string());
        if names.next()? != "pin" || names.next()? != "Box" {
            return None;
        }
        let block = async_block.parse2(argument.stream()).ok()?;
        let (prologue, block) = prologue.parse2(block.stream()).unwrap_or_else(|_| (Prologue::default(), block));
        let body = Body::parse_inside.parse2(block.stream()).ok()?;
        let brace = Brace { span: block.delim_span() };
        Some(Self { output, pin, prologue, body: Body { brace, ..body } })
    }
}

impl Prologue {
    /// Puts the new name of `self` in the place of the old one.
    pub(crate) fn rename_self(&self, tokens: TokenStream) -> TokenStream {
        let Some(this) = &self.this else { return tokens };
        let mut tokens = tokens.into_iter().peekable();
        let mut all = TokenStream::new();
        while let Some(tree) = tokens.next() {
            // `self::` begins a path.
            let begins_path = matches!(tokens.peek(), Some(TokenTree::Punct(next)) if next.as_char() == ':');
            all.extend([match tree {
                TokenTree::Group(group) => {
                    let mut renamed = Group::new(group.delimiter(), self.rename_self(group.stream()));
                    renamed.set_span(group.span());
                    TokenTree::Group(renamed)
                }
                TokenTree::Ident(word) if word == "self" && !begins_path => {
                    TokenTree::Ident(Ident::new(&this.to_string(), this.span().located_at(word.span())))
                }
                other => other,
            }]);
        }
        all
    }
}

/// Returns whether a function returns `Pin<Box<dyn Future<Output = T>>>`.
pub(crate) fn is_boxed_future(output: &ReturnType) -> bool {
    matches!(output, ReturnType::Type(_, output) if future_output(output).is_some())
}

/// Returns whether a function returns `impl Future<Output = T>`.
pub(crate) fn is_opaque_future(output: &ReturnType) -> bool {
    let ReturnType::Type(_, output) = output else { return false };
    matches!(&**output, Type::ImplTrait(opaque) if output_among(&opaque.bounds).is_some())
}

/// Reads `async move { … }` and gives the block.
fn async_block(input: ParseStream<'_>) -> Result<Group> {
    input.parse::<Token![async]>()?;
    input.parse::<Option<Token![move]>>()?;
    let TokenTree::Group(block) = input.parse()? else { return Err(input.error("a block")) };
    input.parse::<Option<Token![,]>>()?;
    if input.is_empty() { Ok(block) } else { Err(input.error("the end")) }
}

/// Takes what `#[async_trait]` writes apart: the `let` statements, then `let __ret: T = { … };` with the body, and `__ret`. Without an
/// output it is `let _: () = { … };`.
///
/// An error when it is not just that: then the whole block is the body, since what somebody has written must neither run before the lock
/// is taken nor be left out.
fn prologue(input: ParseStream<'_>) -> Result<(Prologue, Group)> {
    let mut prologue = Prologue::default();
    if input.peek(Token![if]) {
        // Tells the type of the block; it is never run.
        let hint: ExprIf = input.parse()?;
        let Expr::Let(condition) = &*hint.cond else { return Err(input.error("a hint")) };
        let Pat::TupleStruct(some) = &*condition.pat else { return Err(input.error("a hint")) };
        let is_none = matches!(&*condition.expr, Expr::Path(none)
            if none.path.segments.last().is_some_and(|last| last.ident == "None"));
        if !is_none || some.elems.len() != 1 || !some.elems.iter().all(is_ret) {
            return Err(input.error("a hint"));
        }
        hint.to_tokens(&mut prologue.statements);
    }
    loop {
        let attributes = input.call(Attribute::parse_outer)?;
        input.parse::<Token![let]>()?;
        let pattern = input.call(Pat::parse_single)?;
        if input.parse::<Option<Token![:]>>()?.is_some() {
            let output: Type = input.parse()?;
            input.parse::<Token![=]>()?;
            let block: Group = input.parse()?;
            input.parse::<Token![;]>()?;
            let is_whole = match pattern {
                Pat::Wild(_) => {
                    attributes.is_empty() && matches!(output, Type::Tuple(output) if output.elems.is_empty())
                }
                _ => {
                    input.call(Attribute::parse_outer)?;
                    is_ret(&pattern) && is_ret(&input.call(Pat::parse_single)?)
                }
            };
            let is_body = is_whole && block.delimiter() == Delimiter::Brace && input.is_empty();
            return if is_body { Ok((prologue, block)) } else { Err(input.error("the body")) };
        }
        input.parse::<Token![=]>()?;
        let argument: TokenTree = input.parse()?;
        input.parse::<Token![;]>()?;
        if !is_argument(&argument) {
            return Err(input.error("an argument"));
        }
        prologue.statements.extend(quote!(#(#attributes)* let #pattern = #argument;));
        if let (Pat::Ident(this), TokenTree::Ident(word)) = (&pattern, &argument)
            && word == "self"
        {
            prologue.this = Some(this.ident.clone());
        }
        prologue.patterns.push((attributes, pattern));
    }
}

/// Whether this is an argument, or `{ let argument = argument; argument }`.
fn is_argument(tree: &TokenTree) -> bool {
    use TokenTree::{Ident, Punct};
    let TokenTree::Group(group) = tree else { return matches!(tree, Ident(_)) };
    let trees: Vec<_> = group.stream().into_iter().collect();
    matches!(&trees[..], [Ident(word), Ident(one), Punct(_), Ident(two), Punct(_), Ident(three)]
        if word == "let" && one == two && two == three)
}

/// Whether a pattern is the name that `#[async_trait]` gives to the output.
fn is_ret(pattern: &Pat) -> bool {
    matches!(pattern, Pat::Ident(name) if name.ident == "__ret" && name.by_ref.is_none() && name.subpat.is_none())
}

/// Returns `T` of `Pin<Box<dyn Future<Output = T>>>`.
fn future_output(output: &Type) -> Option<Type> {
    let Type::TraitObject(object) = argument(argument(output, "Pin")?, "Box")? else { return None };
    output_among(&object.bounds)
}

/// Returns `T` if one of the bounds is `Future<Output = T>`.
fn output_among(bounds: &Punctuated<TypeParamBound, Token![+]>) -> Option<Type> {
    bounds.iter().find_map(|bound| {
        let TypeParamBound::Trait(bound) = bound else { return None };
        let future = bound.path.segments.last().filter(|segment| segment.ident == "Future")?;
        let PathArguments::AngleBracketed(arguments) = &future.arguments else { return None };
        arguments.args.iter().find_map(|argument| match argument {
            GenericArgument::AssocType(output) if output.ident == "Output" => Some(output.ty.clone()),
            _ => None,
        })
    })
}

/// Returns `T` of `Name<T>`.
fn argument<'t>(ty: &'t Type, name: &str) -> Option<&'t Type> {
    let Type::Path(path) = ty else { return None };
    let segment = path.path.segments.last().filter(|segment| segment.ident == name)?;
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else { return None };
    match arguments.args.first() {
        Some(GenericArgument::Type(ty)) => Some(ty),
        _ => None,
    }
}
