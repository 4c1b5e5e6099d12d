use std::{
    any,
    borrow::Cow,
    fmt::{Display, Write as _},
    marker::PhantomData,
    str::FromStr,
};

use ::http::{HeaderName, Method, Request, Uri};
use lock_core::key::MAX_KEY_BYTES;

use super::{
    parts::{Parts, Writer, Written},
    ready::{Absent, Find, Optional, read, write},
    text::Mistake,
};

/// Takes the value of a header, as a part of a [`scoped`](super::scoped) key.
///
/// Name the type that the service reads, so that one value of the service is one key: with `u64`, `7` and `07` are one key.
/// A `String` is taken as it is.
///
/// A request is refused (400) if its header is missing, empty, repeated, not visible ASCII, not of the type, or longer than
/// a key may be. The value is never cut off. With [`optional`](Header::optional) a request whose header is missing or empty
/// passes without a lock.
///
/// With a `name` that cannot be the name of a header, [`LockLayer::check_for`](crate::LockLayer::check_for) fails, and every
/// request is refused.
///
/// # Examples
///
/// ```
/// use lock_core::LockManager;
/// use lock_tower::{LockLayer, key::{header, scoped}};
///
/// let per_account = LockLayer::http(LockManager::in_memory(), scoped("account", header::<u64>("x-account")));
/// # let _ = per_account;
/// ```
#[must_use]
pub fn header<T: FromStr + Display>(name: &'static str) -> Header<T> {
    Header { name: HeaderName::from_bytes(name.as_bytes()).map_err(|_| name), read: PhantomData }
}

/// The part of a key that [`header`] makes.
#[derive(Debug)]
pub struct Header<T = String> {
    /// Or the text that cannot be one.
    name: Result<HeaderName, &'static str>,
    read: PhantomData<fn() -> T>,
}

impl<T> Header<T> {
    /// Lets requests without the header through, **without a lock**. A header that is present must be usable.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::{LockLayer, key::{header, scoped}};
    ///
    /// let once = scoped("once", header::<String>("idempotency-key").optional());
    /// let layer = LockLayer::http(LockManager::in_memory(), once);
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn optional(self) -> Optional<Self> {
        Optional::new(self)
    }
}

impl<T> Clone for Header<T> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), read: PhantomData }
    }
}

impl<B, T: FromStr + Display> Find<Request<B>> for Header<T> {
    fn find<'a>(&self, request: &'a Request<B>) -> Result<Cow<'a, str>, Absent> {
        let Ok(name) = &self.name else {
            let problem = <Self as Parts<Request<B>>>::check(self).err().unwrap_or_default();
            return Err(Absent::Unusable(Mistake(problem).into()));
        };
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
        let value = value.to_str().map_err(|_| unusable("is not visible ASCII"))?;
        read::<T>(value, || format!("the header {name} is not valid"))
    }
}

impl<B, T: FromStr + Display> Parts<Request<B>> for Header<T> {
    fn write(&self, request: &Request<B>, key: &mut Writer) -> Written {
        write(self.find(request), key)
    }

    fn check(&self) -> Result<(), String> {
        let problem = |name| format!("{name:?} cannot be the name of a header; one is letters, digits and `-`");
        self.name.as_ref().map(|_| ()).map_err(problem)
    }
}

/// Takes the method and the path, as in `POST /goods/1`, without the query, as a part of a [`scoped`](super::scoped) key.
///
/// Two spellings of one path are one key: the path is decoded, as a handler reads it. An encoded `/` is `%2F`, since
/// it does not separate, and a `%` is `%25`, whether it was encoded or not. HEAD is GET, whose handler answers it. With the feature `axum` a
/// nested router sees the whole path. It does not go with [`shared_for`](crate::LockLayer::shared_for): the method is a part of the key,
/// so a GET and a POST of one path never exclude each other.
///
/// A wildcard such as `{*file}` reads `a%2Fb` as `a/b`, but here the two are two keys. Use `path_param` for such routes.
///
/// # Examples
///
/// ```
/// use lock_core::LockManager;
/// use lock_tower::{LockLayer, key::{method_and_path, scoped}};
///
/// let one_per_path = LockLayer::http(LockManager::in_memory(), scoped("shop", method_and_path()));
/// # let _ = one_per_path;
/// ```
#[must_use]
pub fn method_and_path() -> MethodAndPath {
    MethodAndPath(())
}

/// The part of a key that [`method_and_path`] makes.
#[derive(Clone, Copy, Debug)]
pub struct MethodAndPath(());

impl<B> Parts<Request<B>> for MethodAndPath {
    fn write(&self, request: &Request<B>, key: &mut Writer) -> Written {
        // Routers answer HEAD by the handler of GET.
        let method = request.method();
        key.part(&spelled(if method == Method::HEAD { &Method::GET } else { method }, request));
        Ok(())
    }
}

/// The method and the path, in one spelling.
pub(crate) fn spelled<B>(method: &Method, request: &Request<B>) -> String {
    let mut spelled = format!("{method} ");
    normalise(uri(request).path(), &mut spelled);
    spelled
}

fn uri<B>(request: &Request<B>) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::OriginalUri(uri)) = request.extensions().get() {
        return uri;
    }
    request.uri()
}

/// Decodes a path as handlers do, and writes each byte in one way.
///
/// RFC 3986 keeps `@` and `%40` apart, but a handler does not: it reads both as one id. Only what separates is kept: a `/`
/// that was encoded is `%2F`, and for its sake a `%` is `%25`. Bytes that are not UTF-8 are encoded.
fn normalise(path: &str, out: &mut String) {
    let mut rest = path.as_bytes();
    let mut bytes = Vec::with_capacity(rest.len());
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        let digits = after.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let (byte, is_encoded) = match digits.filter(|_| first == b'%') {
            Some(digits) => {
                rest = &after[2..];
                (16 * hex(digits[0]) + hex(digits[1]), true)
            }
            None => (first, false),
        };
        match byte {
            b'/' if is_encoded => bytes.extend(b"%2F"),
            b'%' => bytes.extend(b"%25"),
            _ => bytes.push(byte),
        }
    }
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        for byte in chunk.invalid() {
            write!(out, "%{byte:02X}").expect("a `String` takes everything");
        }
    }
}

/// Reads a hexadecimal digit.
fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

/// Takes a value from the request's extensions as a part of a [`scoped`](super::scoped) key: an authenticated account, for
/// example, which an outer layer has put there. A request without the extension is refused with 500 `lock_misconfigured`, as by the extractor
/// of axum: the layer that sets it is missing, or stands inside of this one.
///
/// # Examples
///
/// ```
/// use lock_core::LockManager;
/// use lock_tower::{LockLayer, key::{extension, scoped}};
///
/// #[derive(Clone)]
/// struct Account(u64);
///
/// impl std::fmt::Display for Account {
///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
///         write!(f, "{}", self.0)
///     }
/// }
///
/// let per_account = LockLayer::http(LockManager::in_memory(), scoped("account", extension::<Account>()));
/// # let _ = per_account;
/// ```
#[must_use]
pub fn extension<T: Display + Send + Sync + 'static>() -> Extension<T> {
    Extension { value: PhantomData }
}

/// The part of a key that [`extension`] makes.
#[derive(Debug)]
pub struct Extension<T> {
    value: PhantomData<fn() -> T>,
}

impl<T: Display + Send + Sync + 'static> Extension<T> {
    /// Lets requests without the extension through, **without a lock**.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::{LockLayer, key::{extension, scoped}};
    ///
    /// let per_account = scoped("account", extension::<u64>().optional());
    /// let layer = LockLayer::http(LockManager::in_memory(), per_account);
    /// # let _ = layer;
    /// ```
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
    fn find<'a>(&self, request: &'a Request<B>) -> Result<Cow<'a, str>, Absent> {
        let value = request.extensions().get::<T>().map(T::to_string);
        value.map(Cow::Owned).ok_or_else(|| {
            let name = any::type_name::<T>().rsplit("::").next().unwrap_or_default();
            let problem =
                format!("a request has no {name} in its extensions; put the layer that sets it outside of this one");
            Absent::Missing(Mistake(problem).into())
        })
    }
}

impl<B, T: Display + Send + Sync + 'static> Parts<Request<B>> for Extension<T> {
    fn write(&self, request: &Request<B>, key: &mut Writer) -> Written {
        write(self.find(request), key)
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
        for (plain, encoded) in
            [("a@b", "a%40b"), ("a:b", "a%3ab"), ("a+b", "a%2Bb"), ("a b", "a%20b"), ("é", "%c3%A9")]
        {
            assert_eq!(normal(plain), plain);
            assert_eq!(normal(encoded), plain, "{encoded} is {plain} to a handler");
        }
        assert_eq!(normal("/a%2fb"), "/a%2Fb", "an encoded slash is not a separator");
        assert_eq!(normal("/a%252Fb"), "/a%252Fb", "nor is it what was encoded twice");
        assert_eq!(normal("/100%/%4"), "/100%25/%254", "a handler reads `%` and `%25` alike");
        assert_eq!(normal("/100%25/%254"), "/100%25/%254");
        assert_eq!(normal("/%+1/%-1/% 1"), "/%25+1/%25-1/%25 1", "a sign is not a digit");
        assert_eq!(normal("/%ff%C3"), "/%FF%C3", "what is not UTF-8 stays encoded");
    }
}
