//! The expansion of an attribute with errors: the errors, and the item nearly as it was written.
//!
//! With the item in place its callers and its body are still checked, and an editor still completes in it; so the user
//! sees the mistake and not what follows from it.

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote;
use syn::Token;

use crate::{
    args::Args,
    body::mentions,
    errors::Errors,
    expand,
    function::{Function, is_closure},
    names::Names,
};

/// Emits an item that is not a function which the attribute can read.
pub(crate) fn item(item: TokenStream, errors: Errors) -> TokenStream {
    // Of two expressions the compiler would look at the first alone, and complain about the other.
    let item = if is_closure(&item) { TokenStream::new() } else { item };
    let errors = errors.into_compile_error();
    quote!(#errors #item)
}

/// Emits a function that is not locked.
pub(crate) fn function(mut function: Function, args: &Args, names: &Names, errors: Errors) -> TokenStream {
    let signature = &mut function.signature;
    if let Some(body) = &mut function.body {
        if mentions(&body.statements, &Ident::new("await", Span::call_site())) {
            signature.asyncness.get_or_insert_with(|| Token![async](signature.fn_token.span));
        }
        if let Some(lease) = args.lease.as_ref().filter(|lease| !names.has(lease)) {
            let (statements, krate) = (&body.statements, &args.krate);
            let lease_type = expand::lease_type(args);
            body.statements = quote! {
                #[allow(unused_variables)]
                let #lease = ::core::option::Option::<#krate::#lease_type>::unwrap(::core::option::Option::None);
                #statements
            };
        }
    }
    if signature.asyncness.is_some() {
        signature.constness = None;
    }
    let errors = errors.into_compile_error();
    quote!(#errors #function)
}
