use std::fmt::Write as _;

use lock_core::key::part;

use super::{
    choice::{Choice, IntoChoice},
    text::Mistake,
};

/// A part of a [`scoped`](super::scoped) key, behind the scope: text, a closure that takes `&Req` and returns what
/// [`IntoChoice`] is made for, a ready-made part, or a tuple of two to eight parts.
///
/// This trait is sealed. A closure is the way to a part of your own.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a part of the key of a `{Req}`",
    label = "not a part of a key",
    note = "a part is text, a ready-made one such as `path_param::<u64>(\"id\")` or `header::<String>(\"x-shop\")`, or a closure such as \
            `|request: &http::Request<_>| …` that returns text, or an `Option` or a `Result` of text",
    note = "several parts are a tuple of two to eight: `scoped(\"goods\", (header::<String>(\"x-shop\"), path_param::<u64>(\"id\")))`"
)]
pub trait Parts<Req> {
    #[doc(hidden)]
    fn write(&self, request: &Req, key: &mut Writer) -> Written;

    #[doc(hidden)]
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Whether a part was written, or the choice that was made instead.
pub(super) type Written = Result<(), Choice>;

/// A key that is being written.
#[derive(Debug)]
#[expect(unnameable_types, reason = "it seals the trait")]
pub struct Writer(String);

impl Writer {
    pub(super) fn new(scope: &str) -> Self {
        Self(scope.to_owned())
    }

    pub(super) fn into_key(self) -> String {
        self.0
    }

    pub(super) fn text(&mut self, text: &str) {
        self.0.push(':');
        self.0.push_str(text);
    }

    pub(super) fn part(&mut self, value: &str) {
        write!(self.0, ":{}", part(value)).expect("a `String` takes everything");
    }
}

#[diagnostic::do_not_recommend]
impl<F, Req, T> Parts<Req> for F
where
    F: Fn(&Req) -> T,
    T: IntoChoice,
{
    fn write(&self, request: &Req, key: &mut Writer) -> Written {
        match self(request).into_choice() {
            Choice::Lock(value) => {
                key.part(&value);
                Ok(())
            }
            // Its keys would stand without the scope: as if a client had named any key.
            Choice::LockAll(_) => Err(Choice::Refuse(Mistake(LIST.to_owned()).into())),
            other => Err(other),
        }
    }
}

macro_rules! several {
    ($($part:ident $index:tt),+) => {
        impl<Req, $($part: Parts<Req>),+> Parts<Req> for ($($part,)+) {
            fn write(&self, request: &Req, key: &mut Writer) -> Written {
                $(self.$index.write(request, key)?;)+
                Ok(())
            }

            fn check(&self) -> Result<(), String> {
                $(self.$index.check()?;)+
                Ok(())
            }
        }
    };
}

several!(A 0, B 1);
several!(A 0, B 1, C 2);
several!(A 0, B 1, C 2, D 3);
several!(A 0, B 1, C 2, D 3, E 4);
several!(A 0, B 1, C 2, D 3, E 4, F 5);
several!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
several!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);

const LIST: &str = "a part of a key is one text, and a closure gave a list; several keys are an array of `scoped`";
