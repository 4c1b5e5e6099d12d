//! The mode of the lease: `mode`, or `permits` and `take`.

use proc_macro2::{TokenStream, TokenTree};
use syn::{Error, Expr, Ident, Result, parse::ParseStream};

use crate::{number, suggest, word::word};

/// The value of `mode`.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
}

impl Mode {
    pub(crate) fn parse(input: ParseStream<'_>) -> Result<Self> {
        let name = word(input, "mode", &MODES, hint, "; for a number of holders write `permits = 3`")?;
        Ok(if name == "shared" { Self::Shared } else { Self::Exclusive })
    }
}

/// Returns what to write in place of a mode that does not exist: a word, a path or a call.
fn hint(text: &str, rest: &TokenStream) -> String {
    let exact = |word: &str| MODES.iter().find(|mode| **mode == word).map(|mode| format!(", did you mean `{mode}`?"));
    let mut words = vec![text.to_lowercase()];
    words.extend(rest.clone().into_iter().filter_map(|tree| match tree {
        TokenTree::Ident(word) => Some(word.to_string().to_lowercase()),
        _ => None,
    }));
    let meant = words.iter().rev().find_map(|word| exact(word).or_else(|| suggest::mode(word)));
    meant.unwrap_or_else(|| suggest::nearest(text, &MODES))
}

/// Reads the value of `permits` or of `take`.
pub(crate) fn count(input: ParseStream<'_>, name: &Ident) -> Result<Expr> {
    let what = if name == "permits" {
        "`permits` is how many permits the key has, a whole number from 1 to 1,000,000, as in `permits = 3`"
    } else {
        "`take` is how many of the `permits` a call takes, a whole number from 1 to their number, as in \
         `permits = 3, take = 2`"
    };
    number::parse(input, MOST_PERMITS, what)
}

/// Rejects modes that do not go together. `seen` has the arguments in the order in which they are written.
pub(crate) fn check(seen: &[Ident], permits: Option<&Expr>, take: Option<&Expr>) -> Result<()> {
    let find = |name: &str| seen.iter().find(|seen| *seen == name);
    if find("mode").is_some()
        && find("permits").is_some()
        && let Some(second) = seen.iter().rfind(|name| *name == "mode" || *name == "permits")
    {
        let what =
            "`permits` is a mode by itself, neither `shared` nor `exclusive`: give `mode` or `permits`, not both";
        return Err(Error::new(second.span(), what));
    }
    if let (Some(take), None) = (find("take"), find("permits")) {
        let remedy = match find("mode") {
            Some(_) => "write `permits = 3` in place of `mode`",
            None => "name both, as in `permits = 3, take = 2`",
        };
        return Err(Error::new(take.span(), format!("`take` says how many of the `permits` a call takes; {remedy}")));
    }
    if let (Some(permits), Some(take)) = (permits, take)
        && let (Some(total), Some(wanted)) = (number::literal(permits), number::literal(take))
        && wanted > total
    {
        let what =
            format!("`take = {wanted}` is more than there are permits; take at most {total}, or write more `permits`");
        return Err(Error::new_spanned(take, what));
    }
    Ok(())
}

const MODES: [&str; 2] = ["exclusive", "shared"];

// The range that lock-core accepts; here it is an error when compiling, there when running.
const MOST_PERMITS: u64 = 1_000_000;
