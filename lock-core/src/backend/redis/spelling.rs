//! Common mistakes in a URL, and their corrections. Nothing that may be a part of a password is shown.

/// Returns what is wrong with the fragment of a URL; `None` if it has no fragment.
pub(super) fn fragment(url: &str) -> Option<&'static str> {
    let (before, fragment) = url.split_once('#')?;
    let is_encrypted = ["rediss", "valkeys"].iter().any(|scheme| before.starts_with(scheme));
    Some(if is_encrypted && fragment == "insecure" {
        "`#insecure` is not supported; use `.tls(..)` with a configuration of your own"
    } else {
        "it ends with a fragment; a # in a password is written %23"
    })
}

/// Returns what is wrong with a host that is several. `rest` is the URL without its scheme.
pub(super) fn hosts_of_one(rest: &str) -> Option<&'static str> {
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    authority.rsplit('@').next().is_some_and(|host| host.contains(',')).then_some(
        "several hosts are written redis+cluster://HOST,HOST or redis+sentinel://HOST,HOST/SERVICE, or given to \
         `builder().quorum(..)`",
    )
}

/// Returns what is wrong with the hosts of a URL of several. `rest` is the URL without its scheme.
pub(super) fn hosts_of_several(rest: &str) -> Option<&'static str> {
    let is_scheme = |name: &str| matches!(name.split('+').next(), Some("redis" | "rediss" | "valkey" | "valkeys"));
    let mut schemes = rest.match_indices("://");
    if schemes.any(|(at, _)| rest[..at].rsplit_once(',').is_some_and(|(_, name)| is_scheme(name))) {
        return Some("the scheme is written once, before the first host");
    }
    password(rest)
}

/// Returns what is wrong if the path, which begins where a `/` may stand in a password, holds the `@` before the host.
pub(super) fn password(rest: &str) -> Option<&'static str> {
    let path = rest.split('?').next().and_then(|rest| rest.split_once('/'));
    path.is_some_and(|(_, path)| path.contains('@'))
        .then_some("there is an @ after the host; in a password, @ : / % # are written %40 %3A %2F %25 %23")
}

/// Returns what to say of the first option of a URL that is not among the known ones; `None` if all are known.
pub(super) fn option(options: &str, known: &[&str]) -> Option<String> {
    let options = || options.split('&').filter(|option| !option.is_empty());
    let names = || options().map(|option| option.split('=').next().unwrap_or_default());
    let at = names().position(|name| !known.contains(&name))?;
    let name = names().nth(at)?;
    // The part before a value is not a secret, unless a password with a `?` or an `&` was not encoded.
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let has_value = options().nth(at)?.contains('=');
    let is_after_secret = names().take(at).any(|name| name.ends_with("pass"));
    let shown = is_name && has_value && !is_after_secret && !options().any(|option| option.contains('@'));
    let name = if shown { format!("`{name}`, ") } else { String::new() };
    Some(format!("after the ? it has {name}an option other than `{}`", known.join("`, `")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_unknown_option_is_shown_unless_it_may_be_part_of_a_password() {
        let shown = |options: &str| option(options, &["db", "pass"]).expect("an unknown option");
        assert_eq!(
            shown("db=1&sentinel_password=x"),
            "after the ? it has `sentinel_password`, an option other than `db`, `pass`"
        );
        for hidden in ["secret", "pass=x&secret=y", "secret=y@host", "se%63ret=x", "SECRET=x", "=@host", "&=secret"] {
            assert_eq!(shown(hidden), "after the ? it has an option other than `db`, `pass`", "{hidden}");
        }
        assert_eq!(option("db=1&&pass=x", &["db", "pass"]), None);
    }
}
