//! The attribute `#[lock_test::test]`.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::{
    Attribute, Error, FnArg, Ident, Path, Result, ReturnType, Signature, Token, Visibility,
    parse::{ParseStream, Parser},
    parse_quote,
    spanned::Spanned,
};

use crate::{errors::Errors, expand::located_at, fallback, function::Function};

/// Writes the test that runs the function many times.
pub(crate) fn expand(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let krate = errors.keep(krate.parse2(arguments));
    let Some(mut function) = errors.keep(syn::parse2::<Function>(item.clone()).map_err(|_| not_a_function(&item)))
    else {
        return fallback::item(item, errors);
    };
    errors.keep(check(&function));
    match krate {
        Some(krate) if errors.is_empty() => test(&krate, function),
        _ => {
            // The function stays, so that what it alone uses is not unused; it is not called.
            function.attributes.retain(|attribute| !is_test(attribute));
            let errors = errors.into_compile_error();
            quote!(#errors #[allow(dead_code, unused_variables)] #function)
        }
    }
}

/// Reads `crate = path`.
fn krate(input: ParseStream<'_>) -> Result<Path> {
    if input.is_empty() {
        return Ok(parse_quote!(::lock_test));
    }
    if !input.peek(Token![crate]) {
        let message =
            "`#[lock_test::test]` takes no argument except `crate = path`; lock options stand at the locks of the test";
        return Err(input.error(message));
    }
    input.parse::<Token![crate]>()?;
    input.parse::<Token![=]>()?;
    let path = input.call(Path::parse_mod_style)?;
    input.parse::<Option<Token![,]>>()?;
    Ok(path)
}

fn not_a_function(item: &TokenStream) -> Error {
    let span = item.clone().into_iter().next().map_or_else(Span::call_site, |tree| tree.span());
    Error::new(span, "`#[lock_test::test]` goes on an `async fn`")
}

/// Checks everything except types, which the compiler checks.
fn check(function: &Function) -> Result<()> {
    let Function { attributes, signature, body, .. } = function;
    if let Some(other) = attributes.iter().find(|attribute| is_test(attribute)) {
        let message = "`#[lock_test::test]` makes the function a test and brings a runtime; remove this attribute";
        return Err(Error::new_spanned(other, message));
    }
    if signature.asyncness.is_none() {
        let message = "`#[lock_test::test]` needs an `async fn`; if an attribute above it took the `async` away, as \
             `#[tokio::test]` does, remove that attribute";
        return Err(Error::new(signature.fn_token.span, message));
    }
    if body.is_none() {
        return Err(Error::new(signature.ident.span(), "a test needs a body"));
    }
    if !signature.generics.params.is_empty() {
        return Err(Error::new_spanned(
            &signature.generics,
            "a test cannot be generic: nothing says for which types it runs",
        ));
    }
    check_arguments(signature)
}

fn check_arguments(signature: &Signature) -> Result<()> {
    match (signature.inputs.first(), signature.inputs.get(1)) {
        (Some(receiver @ FnArg::Receiver(_)), _) => Err(Error::new_spanned(
            receiver,
            "a test is not a method: move it out of the `impl`, and remove this argument",
        )),
        (_, Some(second)) => {
            let message = "a test takes one argument at most: the `lock_core::LockManager` whose leases are lost";
            Err(Error::new_spanned(second, message))
        }
        _ => Ok(()),
    }
}

/// Returns whether another attribute makes a test of the function.
fn is_test(attribute: &Attribute) -> bool {
    attribute.path().segments.last().is_some_and(|last| last.ident == "test")
}

/// Writes a test around the function, which stays as it was.
fn test(krate: &Path, mut function: Function) -> TokenStream {
    let attributes = std::mem::take(&mut function.attributes);
    let visibility = std::mem::replace(&mut function.visibility, Visibility::Inherited);
    let Signature { ident: name, inputs, output, .. } = &function.signature;
    let manager = |span| Ident::new("__lock_manager", Span::mixed_site().located_at(span));
    let call = match inputs.first() {
        Some(FnArg::Typed(argument)) => {
            let (parameter, given) = (manager(Span::call_site()), manager(argument.ty.span()));
            quote!(|#parameter| #name(#given))
        }
        _ => quote!(|_| #name()),
    };
    // An error about the returned type points at it.
    let span = if let ReturnType::Type(_, output) = output { output.span() } else { name.span() };
    let krate = located_at(krate, span);
    let call = quote_spanned! {Span::call_site().located_at(span)=>
        #krate::__private::test(::core::stringify!(#name), #call)
    };
    quote! {
        #(#attributes)*
        #[::core::prelude::v1::test]
        #visibility fn #name() {
            #function
            #call
        }
    }
}
