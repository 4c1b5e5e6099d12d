//! The code that a locked function becomes.

use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::{
    Expr, Path, Type,
    ext::IdentExt,
    parse_quote, parse_quote_spanned,
    spanned::Spanned,
    visit_mut::{self, VisitMut},
};

use crate::{
    args::{Args, Length},
    body::{Body, mentions},
    boxed::Boxed,
    function::Function,
    keys::Keys,
    mode::Mode,
    names::{Names, Owned},
    policy::{OnBusy, OnLost},
};

mod keys;

/// Writes the function with its body under the lock.
///
/// `keys` is an expression. It and the manager are evaluated before the body exists, which takes the arguments over.
pub(crate) fn expand(
    args: &Args,
    keys: &TokenStream,
    names: &Names,
    function: &Function,
    boxed: Option<&Boxed>,
) -> TokenStream {
    let Function { attributes, visibility, signature, body } = function;
    let Some(body) = body else { return function.to_token_stream() };
    let output = match function.output(boxed) {
        Some(output) => erase_impl_trait(output),
        None => parse_quote_spanned!(signature.ident.span()=> ()),
    };
    let inner_attributes = &body.attributes;
    let on_error = args.on_error.as_ref().map(ToTokens::to_token_stream);
    let content = match boxed {
        None => locked(args, acquire(args, keys, &signature.ident), on_error, names, &output, body),
        Some(Boxed { pin, prologue, body, .. }) => {
            let acquire = prologue.rename_self(acquire(args, keys, &signature.ident));
            let on_error = on_error.map(|on_error| prologue.rename_self(on_error));
            let (statements, inner_attributes) = (&prologue.statements, &body.attributes);
            let locked = locked(args, acquire, on_error, names, &output, body);
            quote!(#pin(async move { #(#inner_attributes)* #statements #locked }))
        }
    };
    quote! {
        #(#attributes)*
        #visibility #signature {
            #(#inner_attributes)*
            #content
        }
    }
}

/// Returns the type of what `lease = name` binds.
pub(crate) fn lease_type(args: &Args) -> Ident {
    let several = args.keys.as_ref().is_some_and(Keys::are_several);
    Ident::new(if several { "Leases" } else { "Lease" }, Span::call_site())
}

/// Writes the statements that acquire the lease, run the body and give its value.
fn locked(
    args: &Args,
    acquire: TokenStream,
    on_error: Option<TokenStream>,
    names: &Names,
    output: &Type,
    body: &Body,
) -> TokenStream {
    let krate = &args.krate;
    let [acquired, guard, value, error] = ["acquired", "guard", "value", "error"].map(hidden);
    let several = args.keys.as_ref().is_some_and(Keys::are_several);
    let (guard_type, borrow) = if several { ("LockAllGuard", "leases") } else { ("LockGuard", "lease") };
    let [guard_type, borrow] = [guard_type, borrow].map(|name| Ident::new(name, Span::call_site()));
    let lease = args.lease.iter();

    let (ways_out, refused, lost) = ways_out(args, on_error, output, &error);
    let on_lost = match args.on_lost {
        None => TokenStream::new(),
        Some(OnLost::Cancel) => quote!(.on_lost(#krate::OnLost::Cancel)),
        Some(OnLost::Finish) => quote!(.on_lost(#krate::OnLost::Finish)),
        Some(OnLost::Ignore) => quote!(.on_lost(#krate::OnLost::Ignore)),
    };
    let body = locked_body(args, names, output, body);
    quote! {
        #ways_out
        let #acquired = #acquire.await;
        match #acquired {
            ::core::result::Result::Ok(#guard) => {
                #(let #lease = ::core::clone::Clone::clone(#krate::#guard_type::#borrow(&#guard));)*
                match #krate::#guard_type::protect(#guard, async move #body)#on_lost.await {
                    ::core::result::Result::Ok(#value) => #value,
                    ::core::result::Result::Err(#error) => #lost,
                }
            }
            ::core::result::Result::Err(#error) => #refused,
        }
    }
}

/// Writes the statements that name what turns an `error` into a result, and the results of a refusal and of a loss.
fn ways_out(
    args: &Args,
    on_error: Option<TokenStream>,
    output: &Type,
    error: &Ident,
) -> (TokenStream, TokenStream, TokenStream) {
    let krate = &args.krate;
    let [refuse, lose] = ["refuse", "lose"].map(hidden);
    let skips = args.on_busy == Some(OnBusy::Skip);
    match on_error {
        Some(on_error) => {
            let ways_out = by(krate, &refuse, if skips { "by_or_skip" } else { "by" }, &on_error, output);
            let answer = quote!(#krate::__private::By::answer(#refuse, #error));
            (ways_out, answer.clone(), answer)
        }
        None => {
            let mut ways_out = way_out(krate, &refuse, if skips { "skipped" } else { "refused" }, output);
            let form = match args.on_lost {
                None => "refused",
                Some(OnLost::Cancel | OnLost::Finish) => "lost",
                Some(OnLost::Ignore) => "not_lost",
            };
            // Both errors are returned in the same way if they can.
            let lose = if form == "refused" && !skips {
                &refuse
            } else {
                ways_out.extend(way_out(krate, &lose, form, output));
                &lose
            };
            (ways_out, quote!(#refuse(#error)), quote!(#lose(#error)))
        }
    }
}

/// Writes a name for the function that makes a result out of an error.
///
/// These are the places that ask for a type which can carry a lock's error, so every token points at the type.
fn way_out(krate: &Path, name: &Ident, form: &str, output: &Type) -> TokenStream {
    let span = output.span();
    let (here, form) = (located_at(krate, span), Ident::new(form, span));
    let way_out = quote_spanned!(span=> #here::__private::#form::<#output>);
    quote!(let #name = #way_out;)
}

/// Writes a name for what `on_error` makes a result with; every token points at its value.
fn by(krate: &Path, name: &Ident, form: &str, on_error: &TokenStream, output: &Type) -> TokenStream {
    let span = on_error.span();
    let (here, form) = (located_at(krate, span), Ident::new(form, Span::call_site().located_at(span)));
    let by = quote_spanned!(Span::call_site().located_at(span)=> #here::__private::#form::<#output, _, _>(#on_error));
    quote!(let #name = #by;)
}

/// Writes a block that gives the future of the guard, with all options.
///
/// Nothing that the key and the manager borrow lives on after it, while the future waits.
fn acquire(args: &Args, keys: &TokenStream, function: &Ident) -> TokenStream {
    let krate = &args.krate;
    let manager = match &args.manager {
        Some(manager) => {
            quote_spanned!(manager.span()=> ::core::result::Result::Ok(#krate::__private::manager(&(#manager))))
        }
        None => quote!(#krate::LockManager::current()),
    };
    let mut given = TokenStream::new();
    let mut option = |name: &str, length: &Option<Length>| {
        let call = Ident::new(name, Span::call_site());
        Some(match length.as_ref()? {
            Length::Forever => quote!(.wait_forever()),
            length => {
                let value = duration(krate, name, length, &mut given)?;
                quote!(.#call(#value))
            }
        })
    };
    // A function that skips does not wait, unless `wait` is given.
    let at_once = (args.wait.is_none() && args.on_busy == Some(OnBusy::Skip)).then_some(Length::Known(Duration::ZERO));
    let ttl = option("ttl", &args.ttl);
    let wait = option("wait", if at_once.is_some() { &at_once } else { &args.wait });
    let fixed = (args.renew == Some(false)).then(|| quote!(.fixed()));
    let max_hold = option("max_hold", &args.max_hold);
    let at_least = option("at_least", &args.at_least);
    let several = args.keys.as_ref().is_some_and(Keys::are_several);
    let acquire = Ident::new(if several { "acquire_all" } else { "acquire" }, Span::call_site());
    let label = args.keys.as_ref().map(|keys| keys.label(function));
    // A plain name would be a pattern to match where the user has a constant or a static of that name.
    let [request, future] = ["request", "acquire"].map(hidden);
    let options = quote!(#krate::LeaseOptions::new() #ttl #wait #fixed #max_hold #at_least);
    let mut options = quote!(#request.label(#label).options(#options));
    if args.renew == Some(true) {
        options = quote!(#krate::__private::renewed(#options));
    }
    options = in_mode(args, options, &mut given);
    options = replicated(args, options, &mut given);
    quote!({
        #given
        let #future = #krate::__private::#acquire(#manager, #keys, |#request| #options);
        #future
    })
}

/// Writes a duration; what it is an expression of goes to the statements that are `given`. `None` for one without end.
fn duration(krate: &Path, name: &str, length: &Length, given: &mut TokenStream) -> Option<TokenStream> {
    match length {
        Length::Known(duration) => {
            let ms = u64::try_from(duration.as_millis()).ok()?;
            Some(quote!(::core::time::Duration::from_millis(#ms)))
        }
        Length::Given(value) => {
            let variable = hidden(name);
            let value = quote_spanned!(value.span()=> #krate::__private::duration(#value));
            given.extend(quote!(let #variable = #value;));
            Some(variable.to_token_stream())
        }
        Length::Forever => None,
    }
}

/// Adds the mode to the options; of several keys each gets it.
fn in_mode(args: &Args, options: TokenStream, given: &mut TokenStream) -> TokenStream {
    let krate = &args.krate;
    if args.mode == Some(Mode::Shared) {
        return quote!(#krate::__private::shared(#options));
    }
    let Some(permits) = &args.permits else { return options };
    let mut count = |name: &str, value: &Expr| {
        let variable = hidden(name);
        given.extend(quote!(let #variable: ::core::primitive::u32 = #value;));
        variable
    };
    let total = count("permits", permits);
    let take = match args.take.as_ref().map(|take| count("take", take)) {
        Some(take) => take.to_token_stream(),
        None => quote!(1),
    };
    quote!(#krate::__private::permits(#options, #total, #take))
}

/// Adds the replicas to the options, behind the ttl, which bounds how long they are waited for.
fn replicated(args: &Args, options: TokenStream, given: &mut TokenStream) -> TokenStream {
    let (krate, Some(replicas)) = (&args.krate, &args.replicas) else { return options };
    let variable = hidden("replicas");
    given.extend(quote!(let #variable: ::core::primitive::u32 = #replicas;));
    let timeout = args.replicas_timeout.as_ref();
    let timeout = match timeout.and_then(|timeout| duration(krate, "replicas_timeout", timeout, given)) {
        Some(timeout) => quote!(::core::option::Option::Some(#timeout)),
        None => quote!(::core::option::Option::None),
    };
    quote!(#krate::__private::replicated(#options, #variable, #timeout))
}

/// Writes the body as a block that runs under the lock.
///
/// It begins with a `return` of the declared type that is never reached. So the compiler knows the type before the
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
        .owned()
        .iter()
        .filter(|owned| owned.name.unraw().to_string().starts_with('_') || mentions(&body.statements, &owned.name));
    kept.map(|Owned { name, cfgs }| {
        // The user did not use it.
        let lint = name.to_string().starts_with('_').then(|| quote!(#[allow(clippy::used_underscore_binding)]));
        quote!(#(#cfgs)* #lint let _ = &#name;)
    })
    .collect()
}

/// Makes a name that, by mixed hygiene, is never the same as a name in the user's code.
fn hidden(name: &str) -> Ident {
    format_ident!("__lock_{name}", span = Span::mixed_site())
}

/// Lets a path point at another place, and mean what it meant.
pub(crate) fn located_at(path: &Path, span: Span) -> TokenStream {
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
