//! The checks of a function before it is locked.

use syn::{Error, Result, Type};

use crate::{
    args::Args,
    boxed::{self, Boxed},
    function::Function,
    policy::OnBusy,
};

impl Function {
    /// Checks everything except types, which the compiler checks.
    pub(crate) fn check(&self, args: &Args, boxed: Option<&Boxed>) -> Result<()> {
        let signature = &self.signature;
        if let Some(constness) = &signature.constness {
            return Err(Error::new(constness.span, "a locked function cannot be `const`: it has to wait for its turn"));
        }
        if let Some(abi) = &signature.abi {
            let message = "a locked function cannot be `extern`: it is an `async fn`, which only Rust can call";
            return Err(Error::new_spanned(abi, message));
        }
        if self.body.is_none() {
            let message = "this method has no body to lock; put the attribute on the methods that implement it";
            return Err(Error::new(signature.ident.span(), message));
        }
        if signature.asyncness.is_none() && boxed.is_none() {
            let message = if boxed::is_boxed_future(&signature.output) {
                "`#[distributed_lock]` needs an `async fn`, or a function that is nothing but `Box::pin(async move { … })`; \
                 move what comes before into the block"
            } else if boxed::is_opaque_future(&signature.output) {
                "`#[distributed_lock]` needs an `async fn`: write `async` before `fn`, and in place of \
                 `impl Future<Output = T>` the `T`"
            } else {
                "`#[distributed_lock]` needs an `async fn`; if an attribute above it took the `async` away, as \
                 `#[tokio::test]` does, put `#[distributed_lock]` above that attribute"
            };
            return Err(Error::new(signature.fn_token.span, message));
        }
        self.check_return_type(args, self.output(boxed))
    }

    /// Rejects a return type that cannot be a `Result`, unless errors have another way out. A path may be an alias.
    fn check_return_type(&self, args: &Args, output: Option<&Type>) -> Result<()> {
        let on_lost = match (&args.on_error, args.on_busy, args.on_lost) {
            (Some(_), ..) | (None, Some(OnBusy::Skip), Some(_)) => return Ok(()),
            (None, Some(OnBusy::Skip), None) => "name `on_lost`",
            (None, ..) => "write `on_busy = skip` and name `on_lost`",
        };
        let message = format!(
            "a locked function returns a `Result` whose error is `From<lock_core::Error>`: that is how it says that the \
             lock could not be acquired, or was lost; to return anything else write `on_error = path`, a function that \
             makes it of a `lock_core::Error`, or for `()` and `Option` {on_lost}"
        );
        match output {
            None => Err(Error::new(self.signature.ident.span(), message)),
            // `#[async_trait]` writes the type that the user left out.
            Some(Type::Tuple(unit)) if unit.elems.is_empty() && self.signature.asyncness.is_none() => {
                Err(Error::new(self.signature.ident.span(), message))
            }
            Some(Type::Path(_) | Type::Group(_) | Type::Paren(_) | Type::Macro(_) | Type::Verbatim(_)) => Ok(()),
            Some(other) => Err(Error::new_spanned(other, message)),
        }
    }
}
