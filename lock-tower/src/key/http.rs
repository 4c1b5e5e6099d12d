use std::{any, fmt::Display, marker::PhantomData};

use ::http::{HeaderName, Request, Uri};
use lock_core::key::MAX_KEY_BYTES;

use super::{
    Choice, KeyExtractor,
    ready::{Absent, Find, Optional, choice},
};

/// Takes the value of a header.
///
/// A request is refused (400) whose header is missing, empty, repeated, not visible ASCII, or longer than a key may be;
/// it is never cut off. With [`optional`](Header::optional) a missing or empty header passes without a lock.
///
/// **The client writes the value, so do not make it the whole key**: with `header("x-account")` alone a client can hold
/// any lock of the manager, `jobs:nightly` as well. Join it with a fixed part, as in the example.
///
/// # Panics
/// When `name` cannot be the name of a header.
///
/// # Examples
///
/// ```
/// use lock_core::LockManager;
/// use lock_tower::{LockLayer, key::{fixed, header, joined}};
///
/// let per_account = LockLayer::http(LockManager::in_memory(), joined((fixed("account"), header("x-account"))));
/// # let _ = per_account;
/// ```
#[must_use]
#[track_caller]
pub fn header(name: &str) -> Header {
    match HeaderName::from_bytes(name.as_bytes()) {
        Ok(name) => Header { name },
        Err(_) => panic!("{name:?} cannot be the name of a header"),
    }
}

/// The extractor of [`header`].
#[derive(Clone, Debug)]
pub struct Header {
    name: HeaderName,
}

impl Header {
    /// Lets requests without the header through, **without a lock**.
    #[must_use]
    pub fn optional(self) -> Optional<Self> {
        Optional::new(self)
    }
}

impl<B> Find<Request<B>> for Header {
    fn find(&self, request: &Request<B>) -> Result<String, Absent> {
        let name = &self.name;
        let unusable = |what: &str| Absent::Unusable(format!("the header {name} {what}").into());
        let mut values = request.headers().get_all(name).iter();
        let Some(value) = values.next() else {
            return Err(Absent::Missing(format!("the header {name} is missing").into()));
        };
        if values.next().is_some() {
            return Err(unusable("is there more than once"));
        }
        if value.is_empty() {
            return Err(Absent::Missing(format!("the header {name} is empty").into()));
        }
        if value.len() > MAX_KEY_BYTES {
            return Err(unusable("is too long"));
        }
        value.to_str().map(str::to_owned).map_err(|_| unusable("is not visible ASCII"))
    }
}

impl<B> KeyExtractor<Request<B>> for Header {
    fn extract(&self, request: &Request<B>) -> Choice {
        choice(self.find(request))
    }
}

/// Takes the method and the path, as in `POST /goods/1`, without the query.
///
/// What a client may write in two ways is one key: a letter, digit, `-`, `.`, `_` or `~` that is percent-encoded is
/// decoded, and other encoded bytes are in upper case. With the feature `axum` a nested router sees the whole path.
///
/// # Examples
///
/// ```
/// use lock_core::LockManager;
/// use lock_tower::{LockLayer, key::method_and_path};
///
/// let one_per_path = LockLayer::http(LockManager::in_memory(), method_and_path());
/// # let _ = one_per_path;
/// ```
#[must_use]
pub fn method_and_path() -> MethodAndPath {
    MethodAndPath(())
}

/// The extractor of [`method_and_path`].
#[derive(Clone, Copy, Debug)]
pub struct MethodAndPath(());

impl<B> KeyExtractor<Request<B>> for MethodAndPath {
    fn extract(&self, request: &Request<B>) -> Choice {
        let mut key = format!("{} ", request.method());
        normalise(uri(request).path(), &mut key);
        Choice::Lock(key)
    }
}

fn uri<B>(request: &Request<B>) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::OriginalUri(uri)) = request.extensions().get() {
        return uri;
    }
    request.uri()
}

/// Decodes what need not be encoded (RFC 3986, 6.2.2).
fn normalise(path: &str, out: &mut String) {
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        let byte = after.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte {
            Some(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => out.push(byte.into()),
            Some(byte) => {
                use std::fmt::Write as _;
                write!(out, "%{byte:02X}").expect("a `String` takes everything");
            }
            None => out.push('%'),
        }
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    out.push_str(rest);
}

/// Takes what a layer further out has put into the request's extensions: an account that was authenticated, say. A
/// request without it is refused (400).
///
/// # Examples
///
/// ```
/// use lock_core::LockManager;
/// use lock_tower::{LockLayer, key::extension};
///
/// #[derive(Clone)]
/// struct Account(u64);
///
/// impl std::fmt::Display for Account {
///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
///         write!(f, "account:{}", self.0)
///     }
/// }
///
/// let per_account = LockLayer::http(LockManager::in_memory(), extension::<Account>());
/// # let _ = per_account;
/// ```
#[must_use]
pub fn extension<T: Display + Send + Sync + 'static>() -> Extension<T> {
    Extension { value: PhantomData }
}

/// The extractor of [`extension`].
#[derive(Debug)]
pub struct Extension<T> {
    value: PhantomData<fn() -> T>,
}

impl<T: Display + Send + Sync + 'static> Extension<T> {
    /// Lets requests without the extension through, **without a lock**.
    #[must_use]
    pub fn optional(self) -> Optional<Self> {
        Optional::new(self)
    }
}

impl<T> Clone for Extension<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Extension<T> {}

impl<B, T: Display + Send + Sync + 'static> Find<Request<B>> for Extension<T> {
    fn find(&self, request: &Request<B>) -> Result<String, Absent> {
        let value = request.extensions().get::<T>().map(T::to_string);
        value.ok_or_else(|| {
            let name = any::type_name::<T>().rsplit("::").next().unwrap_or_default();
            Absent::Missing(format!("the request has no {name}").into())
        })
    }
}

impl<B, T: Display + Send + Sync + 'static> KeyExtractor<Request<B>> for Extension<T> {
    fn extract(&self, request: &Request<B>) -> Choice {
        choice(self.find(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_path_has_one_spelling() {
        let normal = |path| {
            let mut out = String::new();
            normalise(path, &mut out);
            out
        };
        assert_eq!(normal("/goods/%31/%7e"), "/goods/1/~");
        assert_eq!(normal("/a%2fb"), "/a%2Fb", "a slash that is encoded is no separator");
        assert_eq!(normal("/100%/%4"), "/100%/%4", "what is no encoding stays");
    }
}
