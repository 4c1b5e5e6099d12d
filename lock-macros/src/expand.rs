//! The code that a locked function becomes.

use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::{
    Path, ReturnType, Type,
    ext::IdentExt,
    parse_quote,
    spanned::Spanned,
    visit_mut::{self, VisitMut},
};

use crate::{
    args::Args,
    function::{Body, Function, Names, mentions},
};

/// Writes the function with its body under the lock.
///
/// `key` is an expression. It and the manager are evaluated before the body exists, which takes the arguments over.
pub(crate) fn expand(args: &Args, key: &TokenStream, names: &Names, function: &Function) -> TokenStream {
    let Function { attributes, visibility, signature, body } = function;
    let (Some(body), ReturnType::Type(_, output)) = (body, &signature.output) else {
        return function.to_token_stream();
    };
    let krate = &args.krate;
    let output = erase_impl_trait(output);
    // Mixed hygiene: no name of the user's can meet these.
    let [refuse, acquire, acquired, guard, value, error] = ["refuse", "acquire", "acquired", "guard", "value", "error"]
        .map(|name| format_ident!("__lock_{name}", span = Span::mixed_site()));
    let acquire_call = acquire_call(args, key);
    // The one place that asks for a type which can carry a lock's error, so every token of it points at the type.
    let here = located_at(krate, output.span());
    let return_type = quote_spanned!(output.span()=> #here::__private::return_type::<#output>());
    let lease = args.lease.iter();
    let locked = locked_body(args, names, &output, body);
    let inner_attributes = &body.attributes;
    quote! {
        #(#attributes)*
        #visibility #signature {
            #(#inner_attributes)*
            let #refuse = #return_type;
            // A block of its own: nothing that the key and the manager borrowed lives on while the future waits.
            let #acquired = { let #acquire = #acquire_call; #acquire }.await;
            match #acquired {
                ::core::result::Result::Ok(#guard) => {
                    #(let #lease = #krate::Lease::clone(#krate::LockGuard::lease(&#guard));)*
                    match #krate::LockGuard::protect(#guard, async move #locked).await {
                        ::core::result::Result::Ok(#value) => #value,
                        ::core::result::Result::Err(#error) => #refuse(#error),
                    }
                }
                ::core::result::Result::Err(#error) => #refuse(#error),
            }
        }
    }
}

/// Writes the call that makes the future of the guard, with all options.
fn acquire_call(args: &Args, key: &TokenStream) -> TokenStream {
    let krate = &args.krate;
    let manager = match &args.manager {
        Some(manager) => {
            quote_spanned!(manager.span()=> ::core::result::Result::Ok(#krate::__private::manager(&(#manager))))
        }
        None => quote!(#krate::LockManager::current()),
    };
    let option = |name: &str, duration: Option<Duration>| {
        let (name, ms) = (Ident::new(name, Span::call_site()), u64::try_from(duration?.as_millis()).ok()?);
        Some(quote!(.#name(::core::time::Duration::from_millis(#ms))))
    };
    let ttl = option("ttl", args.ttl);
    let wait = option("wait", args.wait);
    let max_hold = option("max_hold", args.max_hold);
    let fixed = (!args.renew).then(|| quote!(.fixed()));
    quote!(#krate::__private::acquire(#manager, #key, |request| request #ttl #wait #max_hold #fixed))
}

/// Writes the body as a block that runs under the lock.
///
/// It begins with a `return` of the declared type that is never reached. That tells the compiler the type before the
/// body begins, as the signature of the function would, so that `?` and `Err(…)` infer as usual and a type error points
/// at the user's line.
fn locked_body(args: &Args, names: &Names, output: &Type, body: &Body) -> TokenStream {
    let krate = &args.krate;
    let keep = keep_arguments(names, body);
    let statements = &body.statements;
    let mut locked = TokenStream::new();
    body.brace.surround(&mut locked, |tokens| {
        tokens.extend(quote! {
            if false { return #krate::__private::never::<#output>(); }
            #keep
            #statements
        });
    });
    locked
}

/// Writes statements that make the body own whole arguments, as the body of a plain function does.
///
/// Otherwise an argument that the body does not use, or only a field of it, would be dropped after the lock was
/// released. An unused argument without an underscore is left alone, so that the compiler warns of it.
fn keep_arguments(names: &Names, body: &Body) -> TokenStream {
    let kept = names
        .arguments()
        .iter()
        .filter(|name| name.unraw().to_string().starts_with('_') || mentions(&body.statements, name));
    quote!(#(let _ = &#kept;)*)
}

/// Lets a path point at another place, and mean what it meant.
fn located_at(path: &Path, span: Span) -> TokenStream {
    let relocate = |mut tree: TokenTree| {
        tree.set_span(tree.span().located_at(span));
        tree
    };
    path.to_token_stream().into_iter().map(relocate).collect()
}

/// Replaces `impl Trait` by `_`, for it may not stand in a body.
fn erase_impl_trait(output: &Type) -> Type {
    struct Eraser;

    impl VisitMut for Eraser {
        fn visit_type_mut(&mut self, ty: &mut Type) {
            if let Type::ImplTrait(_) = ty {
                *ty = parse_quote!(_);
            } else {
                visit_mut::visit_type_mut(self, ty);
            }
        }
    }

    let mut output = output.clone();
    Eraser.visit_type_mut(&mut output);
    output
}
