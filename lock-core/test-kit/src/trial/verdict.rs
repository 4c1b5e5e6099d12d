use std::fmt;

/// What a test may return.
#[diagnostic::on_unimplemented(
    message = "a test returns `()` or a `Result` with an error that is `Debug`, not `{Self}`",
    label = "not what a test may return"
)]
pub trait Verdict {
    /// Turns the result of a test into a verdict.
    ///
    /// # Errors
    /// The sentence that says why the test failed.
    fn verdict(self) -> Result<(), String>;
}

impl Verdict for () {
    fn verdict(self) -> Result<(), String> {
        Ok(())
    }
}

impl<T: Verdict, E: fmt::Debug> Verdict for Result<T, E> {
    fn verdict(self) -> Result<(), String> {
        match self {
            Ok(value) => value.verdict(),
            Err(error) => Err(format!("the test returned the error {error:?}")),
        }
    }
}
