//! Durations such as `"3s"`, checked when compiling.

use std::time::Duration;

/// Reads a whole number and its unit.
///
/// The error is a sentence that ends with the units, which are the remedy.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = |what: String| Err(format!("{what}; {UNITS}"));
    if text.trim().is_empty() {
        return wrong("an empty duration".to_owned());
    }
    if text.starts_with('-') {
        return wrong(format!("`{text}` is negative"));
    }
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return wrong(format!("`{text}` does not begin with a number"));
    }
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60 * 1_000,
        "h" => 60 * 60 * 1_000,
        "d" => 24 * 60 * 60 * 1_000,
        "" => return wrong(format!("`{text}` has no unit")),
        _ if unit.starts_with(|c: char| c.is_alphabetic()) => {
            return wrong(format!("`{text}` has an unknown unit, `{unit}`"));
        }
        _ => return wrong(format!("`{text}` is not a whole number and a unit")),
    };
    match number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ms)) {
        Some(ms) => Ok(Duration::from_millis(ms)),
        None => wrong(format!("`{text}` is too long for a duration")),
    }
}

/// How a duration is written; part of every error.
pub(crate) const UNITS: &str =
    "write a whole number and one of the units `ms`, `s`, `m`, `h`, `d`, as in \"500ms\" or \"3s\"";

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_read() {
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("3s"), Ok(Duration::from_secs(3)));
        assert_eq!(parse("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse("1h"), Ok(Duration::from_secs(3_600)));
        assert_eq!(parse("7d"), Ok(Duration::from_secs(604_800)));
        assert_eq!(parse("0s"), Ok(Duration::ZERO));
        assert_eq!(parse("007s"), Ok(Duration::from_secs(7)));
    }

    #[test]
    fn what_is_no_duration_names_its_fault_and_the_units() {
        for (text, fault) in [
            ("", "an empty duration"),
            ("  ", "an empty duration"),
            ("10", "has no unit"),
            ("10x", "an unknown unit, `x`"),
            ("10 s", "not a whole number and a unit"),
            ("10S", "an unknown unit, `S`"),
            ("1µs", "an unknown unit, `µs`"),
            ("1m30s", "an unknown unit, `m30s`"),
            ("1.5s", "not a whole number and a unit"),
            ("1_000ms", "not a whole number and a unit"),
            ("s", "does not begin with a number"),
            (" 3s", "does not begin with a number"),
            ("+3s", "does not begin with a number"),
            ("-1s", "is negative"),
            ("٣s", "does not begin with a number"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(fault), "{text:?}: {error}");
            assert!(error.ends_with(UNITS), "{text:?}: {error}");
        }
    }

    #[test]
    fn more_milliseconds_than_fit_are_refused_and_not_wrapped() {
        assert_eq!(parse("18446744073709551615ms"), Ok(Duration::from_millis(u64::MAX)));
        for text in ["18446744073709551616ms", "18446744073709552s", "5124095576030432h", "99999999999999999999999h"] {
            assert!(parse(text).expect_err(text).contains("too long"), "{text}");
        }
    }
}
