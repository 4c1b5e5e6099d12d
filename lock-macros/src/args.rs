//! The arguments of the attribute.

use std::time::Duration;

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::{
    Error, Expr, ExprLit, Ident, Lit, LitBool, LitStr, Path, Result, Token,
    ext::IdentExt,
    parse::{ParseStream, Parser},
    parse_quote,
};

use crate::duration;

/// What was written between the brackets.
pub(crate) struct Args {
    pub(crate) key: Option<Key>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) wait: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) renew: bool,
    pub(crate) manager: Option<Expr>,
    pub(crate) lease: Option<Ident>,
    pub(crate) krate: Path,
}

/// What is locked.
pub(crate) enum Key {
    Template(LitStr),
    Expression(Expr),
}

/// Errors of one attribute, told all at once.
#[derive(Default)]
pub(crate) struct Errors(Option<Error>);

impl Args {
    /// Reads the arguments; what is wrong goes to `errors` and is left out.
    pub(crate) fn parse(tokens: TokenStream, errors: &mut Errors) -> Self {
        let mut args = Self {
            key: None,
            ttl: None,
            wait: None,
            max_hold: None,
            renew: true,
            manager: None,
            lease: None,
            krate: parse_quote!(::lock_core),
        };
        let parsed = (|input: ParseStream<'_>| args.parse_all(input)).parse2(tokens);
        match parsed {
            Ok(wrong) if wrong.is_empty() && args.key.is_none() => errors.push(Error::new(
                Span::call_site(),
                "missing `key`: what to lock, as in `#[distributed_lock(key = \"goods:<id>\")]`",
            )),
            Ok(wrong) => errors.extend(wrong),
            Err(error) => errors.push(error),
        }
        args
    }

    fn parse_all(&mut self, input: ParseStream<'_>) -> Result<Errors> {
        let mut errors = Errors::default();
        let mut seen = Vec::new();
        while !input.is_empty() {
            let argument = self.parse_one(input, &mut seen);
            let argument = argument.and_then(|()| if input.is_empty() { Ok(()) } else { comma(input) });
            if let Err(error) = argument {
                errors.push(error);
                while !input.is_empty() && input.parse::<Option<Token![,]>>()?.is_none() {
                    input.parse::<TokenTree>()?;
                }
            }
        }
        Ok(errors)
    }

    fn parse_one(&mut self, input: ParseStream<'_>, seen: &mut Vec<Ident>) -> Result<()> {
        if input.peek(Lit) {
            let literal: Lit = input.parse()?;
            return Err(Error::new(literal.span(), "a value without a name; for the key write `key = \"…\"`"));
        }
        let name = input.call(Ident::parse_any)?;
        let text = name.to_string();
        if !NAMES.contains(&text.as_str()) {
            return Err(unknown(&name));
        }
        if seen.contains(&name) {
            return Err(Error::new(name.span(), format!("`{name}` is given twice")));
        }
        seen.push(name.clone());
        if !input.peek(Token![=]) {
            return Err(Error::new(name.span(), format!("`{name}` needs a value: `{name} = {}`", example(&text))));
        }
        input.parse::<Token![=]>()?;
        match text.as_str() {
            "key" => self.key = Some(key(input)?),
            "ttl" => self.ttl = Some(duration(input, &name, MIN_TTL..=MAX_TTL)?),
            "wait" => self.wait = Some(duration(input, &name, Duration::ZERO..=Duration::MAX)?),
            "max_hold" => self.max_hold = Some(duration(input, &name, Duration::from_millis(1)..=Duration::MAX)?),
            "renew" => {
                let what = "`renew` is `true` or `false`; how often is for `LockRequest::renew_every`";
                self.renew = input.parse::<LitBool>().map_err(|error| Error::new(error.span(), what))?.value;
            }
            "manager" => self.manager = Some(input.parse()?),
            "lease" => {
                let what = "`lease` is the name that the lease gets in the body, as in `lease = lease`";
                self.lease = Some(input.parse().map_err(|error: Error| Error::new(error.span(), what))?);
            }
            _ => self.krate = input.call(Path::parse_mod_style)?,
        }
        Ok(())
    }
}

impl Errors {
    pub(crate) fn push(&mut self, error: Error) {
        match &mut self.0 {
            Some(first) => first.combine(error),
            None => self.0 = Some(error),
        }
    }

    /// Takes the value out of a result, or keeps its error.
    pub(crate) fn keep<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn into_compile_error(self) -> TokenStream {
        self.0.map(Error::into_compile_error).unwrap_or_default()
    }

    fn extend(&mut self, other: Self) {
        if let Some(error) = other.0 {
            self.push(error);
        }
    }
}

fn comma(input: ParseStream<'_>) -> Result<()> {
    input.parse::<Token![,]>().map(drop)
}

fn key(input: ParseStream<'_>) -> Result<Key> {
    let mut value: Expr = input.parse()?;
    while let Expr::Group(group) = value {
        value = *group.expr;
    }
    match value {
        Expr::Lit(ExprLit { lit: Lit::Str(template), .. }) => Ok(Key::Template(template)),
        Expr::Lit(other) => {
            Err(Error::new_spanned(other, "a key is a string such as \"goods:<id>\", or an expression that gives one"))
        }
        other => Ok(Key::Expression(other)),
    }
}

fn duration(input: ParseStream<'_>, name: &Ident, range: std::ops::RangeInclusive<Duration>) -> Result<Duration> {
    let mut value: Expr = input.parse()?;
    while let Expr::Group(group) = value {
        value = *group.expr;
    }
    let Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) = &value else {
        let what = format!("`{name}` is a duration in a string; {}", duration::UNITS);
        return Err(Error::new_spanned(&value, what));
    };
    let wrong = |what: String| Error::new(text.span(), what);
    let duration = duration::parse(&text.value()).map_err(wrong)?;
    let text = text.value();
    if range.contains(&duration) {
        Ok(duration)
    } else if name == "ttl" && duration < MIN_TTL {
        Err(wrong(format!("a ttl of {text} is too short, the least ttl is 10 ms; {}", duration::UNITS)))
    } else if name == "ttl" {
        Err(wrong(format!("a ttl of {text} is too long, the longest ttl is 100 years; {}", duration::UNITS)))
    } else {
        Err(wrong(format!("a {name} of {text} would end at once; {}", duration::UNITS)))
    }
}

fn unknown(name: &Ident) -> Error {
    let text = name.to_string();
    let nearest = NAMES.iter().map(|known| (distance(known, &text), known)).min();
    let nearest = nearest.filter(|&(distance, known)| distance <= 2 && distance < known.len());
    let hint = nearest.map(|(_, known)| format!(", did you mean `{known}`?")).unwrap_or_default();
    let known = NAMES.map(|known| format!("`{known}`")).join(", ");
    Error::new(name.span(), format!("there is no argument `{name}`{hint} (the arguments are {known})"))
}

/// Counts the letters to insert, drop, replace or swap with their neighbour to make `a` of `b`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

fn example(name: &str) -> &'static str {
    match name {
        "key" => "\"goods:<id>\"",
        "renew" => "false",
        "manager" => "self.locks",
        "lease" => "lease",
        "crate" => "::lock_core",
        _ => "\"3s\"",
    }
}

const NAMES: [&str; 8] = ["key", "ttl", "wait", "renew", "max_hold", "manager", "lease", "crate"];

// The range that lock-core accepts; here it is an error when compiling, there when running.
const MIN_TTL: Duration = Duration::from_millis(10);
const MAX_TTL: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_pen_is_near_and_another_word_is_not() {
        assert_eq!(distance("ttl", "ttl"), 0);
        assert_eq!(distance("ttl", "tll"), 1);
        assert_eq!(distance("wait", "wiat"), 1);
        assert_eq!(distance("max_hold", "maxhold"), 1);
        assert_eq!(distance("key", ""), 3);
        assert_eq!(distance("lease", "release"), 2);
        assert!(distance("renew", "timeout") > 2);
    }
}
