//! The arguments of the attribute.

use std::{ops::RangeInclusive, time::Duration};

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::{
    Error, Expr, ExprLit, ExprUnary, Ident, Lit, LitBool, LitStr, Path, Result, Token, UnOp,
    ext::IdentExt,
    parse::{ParseStream, Parser},
    parse_quote,
};

use crate::{
    duration,
    errors::Errors,
    keys::{Keys, ungrouped},
    mode::{self, Mode},
    number,
    policy::{OnBusy, OnLost},
    suggest,
};

/// The arguments between the brackets.
pub(crate) struct Args {
    pub(crate) keys: Option<Keys>,
    pub(crate) mode: Option<Mode>,
    pub(crate) permits: Option<Expr>,
    pub(crate) take: Option<Expr>,
    pub(crate) ttl: Option<Length>,
    pub(crate) wait: Option<Length>,
    pub(crate) renew: Option<bool>,
    pub(crate) max_hold: Option<Length>,
    pub(crate) at_least: Option<Length>,
    pub(crate) replicas: Option<Expr>,
    pub(crate) replicas_timeout: Option<Length>,
    pub(crate) on_busy: Option<OnBusy>,
    pub(crate) on_lost: Option<OnLost>,
    pub(crate) on_error: Option<Expr>,
    pub(crate) manager: Option<Expr>,
    pub(crate) lease: Option<Ident>,
    pub(crate) krate: Path,
}

/// How long something lasts.
pub(crate) enum Length {
    /// Written as a string, and checked.
    Known(Duration),
    /// An expression, which is checked when it is evaluated.
    Given(Expr),
    /// Without end.
    Forever,
}

impl Args {
    /// Reads the arguments; what is wrong goes to `errors` and is left out.
    pub(crate) fn parse(tokens: TokenStream, errors: &mut Errors) -> Self {
        let mut args = Self {
            keys: None,
            mode: None,
            permits: None,
            take: None,
            ttl: None,
            wait: None,
            renew: None,
            max_hold: None,
            at_least: None,
            replicas: None,
            replicas_timeout: None,
            on_busy: None,
            on_lost: None,
            on_error: None,
            manager: None,
            lease: None,
            krate: parse_quote!(::lock_core),
        };
        let parsed = (|input: ParseStream<'_>| args.parse_all(input)).parse2(tokens);
        match parsed {
            Ok(wrong) if wrong.is_empty() && args.keys.is_none() => errors.push(Error::new(
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
        let timeout = seen.iter().find(|name| *name == "replicas_timeout");
        if let Some(timeout) = timeout.filter(|_| !seen.iter().any(|name| name == "replicas")) {
            errors
                .push(Error::new(timeout.span(), "`replicas_timeout` says how long to wait for `replicas`; name both"));
        }
        errors.keep(mode::check(&seen, self.permits.as_ref(), self.take.as_ref()));
        Ok(errors)
    }

    fn parse_one(&mut self, input: ParseStream<'_>, seen: &mut Vec<Ident>) -> Result<()> {
        let name = argument(input, seen)?;
        match name.to_string().as_str() {
            "key" => self.keys = Some(Keys::parse_one(input)?),
            "keys" => self.keys = Some(Keys::parse_several(input)?),
            "mode" => self.mode = Some(Mode::parse(input)?),
            "permits" => self.permits = Some(mode::count(input, &name)?),
            "take" => self.take = Some(mode::count(input, &name)?),
            "ttl" => self.ttl = Some(length(input, &name, MIN_TTL..=MAX_TTL)?),
            "wait" => self.wait = Some(length(input, &name, Duration::ZERO..=Duration::MAX)?),
            "max_hold" => self.max_hold = Some(length(input, &name, Duration::from_millis(1)..=Duration::MAX)?),
            "at_least" => self.at_least = Some(length(input, &name, Duration::from_millis(1)..=MAX_TTL)?),
            "replicas" => {
                let what = "`replicas` is how many replicas must have the lease, a whole number above zero, as in `replicas = 1`";
                self.replicas = Some(number::parse(input, u32::MAX.into(), what)?);
            }
            "replicas_timeout" => {
                self.replicas_timeout = Some(length(input, &name, Duration::from_millis(1)..=MAX_REPLICAS_TIMEOUT)?);
            }
            "on_busy" => self.on_busy = Some(OnBusy::parse(input)?),
            "on_lost" => self.on_lost = Some(OnLost::parse(input)?),
            "on_error" => {
                refuse_quotes(input, "`on_error` is a function or closure without quotes, as in `on_error = refused`")?;
                self.on_error = Some(input.parse()?);
            }
            "renew" => {
                let what =
                    "`renew` is `true` or `false`; how often is a matter of the ttl, or of `LockRequest::renew_every`";
                self.renew = Some(input.parse::<LitBool>().map_err(|error| Error::new(error.span(), what))?.value);
            }
            "manager" => {
                refuse_quotes(input, "`manager` is an expression without quotes, as in `manager = self.locks`")?;
                self.manager = Some(input.parse()?);
            }
            "lease" => {
                let what = "`lease` is the name that the lease gets in the body, as in `lease = lease`";
                self.lease = Some(input.parse().map_err(|error: Error| Error::new(error.span(), what))?);
            }
            _ => {
                refuse_quotes(input, "`crate` is a path without quotes, as in `crate = ::lock_core`")?;
                self.krate = input.call(Path::parse_mod_style)?;
            }
        }
        Ok(())
    }
}

/// Reads the name of an argument and the `=` behind it. The name is a known one that was not seen before.
fn argument(input: ParseStream<'_>, seen: &mut Vec<Ident>) -> Result<Ident> {
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
        return Err(Error::new(name.span(), format!("`{name}` is given twice; take one of the two out")));
    }
    let is_key = |name: &Ident| name == "key" || name == "keys";
    if is_key(&name) && seen.iter().any(is_key) {
        return Err(Error::new(name.span(), "`key` is for one key and `keys` for several: give one of the two"));
    }
    seen.push(name.clone());
    if !input.peek(Token![=]) {
        return Err(Error::new(name.span(), format!("`{name}` needs a value: `{name} = {}`", example(&text))));
    }
    input.parse::<Token![=]>()?;
    Ok(name)
}

fn comma(input: ParseStream<'_>) -> Result<()> {
    let here = input.span();
    input.parse::<Token![,]>().map(drop).map_err(|_| Error::new(here, "expected a `,` between two arguments"))
}

/// Refuses a string where another macro might take one.
fn refuse_quotes(input: ParseStream<'_>, what: &str) -> Result<()> {
    match input.fork().parse::<LitStr>() {
        Ok(text) => {
            input.parse::<LitStr>()?;
            Err(Error::new(text.span(), what))
        }
        Err(_) => Ok(()),
    }
}

fn length(input: ParseStream<'_>, name: &Ident, range: RangeInclusive<Duration>) -> Result<Length> {
    let value = ungrouped(input.parse()?);
    match &value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) if text.value() == "forever" && name == "wait" => {
            Err(Error::new_spanned(text, "`forever` is a word without quotes: `wait = forever`"))
        }
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => duration(text, name, range).map(Length::Known),
        Expr::Path(path) if path.path.is_ident("forever") && name == "wait" => Ok(Length::Forever),
        Expr::Path(path) if path.path.is_ident("forever") => {
            Err(Error::new_spanned(path, format!("`forever` is for `wait`; `{name}` has an end, as in \"30s\"")))
        }
        Expr::Lit(_) | Expr::Unary(ExprUnary { op: UnOp::Neg(_), .. }) => {
            let what =
                format!("`{name}` is a duration in a string, or an expression of type `Duration`; {}", duration::UNITS);
            Err(Error::new_spanned(&value, what))
        }
        _ => Ok(Length::Given(value)),
    }
}

fn duration(text: &LitStr, name: &Ident, range: RangeInclusive<Duration>) -> Result<Duration> {
    let wrong = |what: String| Error::new(text.span(), what);
    let duration = duration::parse(&text.value()).map_err(wrong)?;
    let text = text.value();
    if range.contains(&duration) {
        return Ok(duration);
    }
    let fault = match name.to_string().as_str() {
        "ttl" if duration < MIN_TTL => format!("a ttl of {text} is too short, the least ttl is 10 ms"),
        "ttl" => format!("a ttl of {text} is too long, the longest ttl is 100 years"),
        "at_least" if duration.is_zero() => format!("an `at_least` of {text} keeps no key busy"),
        "at_least" => format!("an `at_least` of {text} is too long, the most is 100 years"),
        "replicas_timeout" if !duration.is_zero() => format!("a {name} of {text} is too long, the most is an hour"),
        _ => format!("a {name} of {text} would end at once"),
    };
    Err(wrong(format!("{fault}; {}", duration::UNITS)))
}

fn unknown(name: &Ident) -> Error {
    let text = name.to_string();
    let hint = suggest::synonym(&text).unwrap_or_else(|| suggest::nearest(&text, &NAMES));
    let known = NAMES.map(|known| format!("`{known}`")).join(", ");
    Error::new(name.span(), format!("there is no argument `{name}`{hint} (the arguments are {known})"))
}

fn example(name: &str) -> &'static str {
    match name {
        "key" => "\"goods:<id>\"",
        "keys" => "[\"goods:<from>\", \"goods:<to>\"]",
        "mode" => "shared",
        "permits" => "3",
        "take" => "2",
        "renew" => "false",
        "replicas" => "1",
        "on_busy" => "skip",
        "on_lost" => "finish",
        "on_error" => "refused",
        "manager" => "self.locks",
        "lease" => "lease",
        "crate" => "::lock_core",
        _ => "\"3s\"",
    }
}

const NAMES: [&str; 18] = [
    "key",
    "keys",
    "mode",
    "permits",
    "take",
    "ttl",
    "wait",
    "renew",
    "max_hold",
    "at_least",
    "replicas",
    "replicas_timeout",
    "on_busy",
    "on_lost",
    "on_error",
    "manager",
    "lease",
    "crate",
];

// The range that lock-core accepts; here it is an error when compiling, there when running.
const MIN_TTL: Duration = Duration::from_millis(10);
const MAX_TTL: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
const MAX_REPLICAS_TIMEOUT: Duration = Duration::from_secs(60 * 60);
