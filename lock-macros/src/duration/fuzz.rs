//! Any text is a duration or an error that says what to write; `PROPTEST_CASES` tries more.

use std::time::Duration;

use proptest::prelude::*;

use super::{UNITS, parse};

fn is_read_or_refused(text: &str) -> Result<(), TestCaseError> {
    match parse(text) {
        Ok(duration) => {
            prop_assert!(text.starts_with(|c: char| c.is_ascii_digit()));
            let ms = u64::try_from(duration.as_millis()).expect("durations are at most that long");
            prop_assert_eq!(parse(&format!("{ms}ms")), Ok(duration));
        }
        Err(error) => prop_assert!(error.ends_with(UNITS), "{}", error),
    }
    Ok(())
}

/// Cases that mattered once, tried each time.
const CORPUS: &[&str] = &[
    "",
    " ",
    "\0",
    "-",
    "+",
    "0",
    "0ms",
    "00000000000000000000000000001ms",
    "18446744073709551615ms",
    "18446744073709551616ms",
    "18446744073709551s",
    "18446744073709552s",
    "307445734561825m",
    "307445734561826m",
    "5124095576030h",
    "5124095576031h",
    "3 s",
    "3s ",
    "3s\n",
    "3s\0",
    "3ms3ms",
    "3sm",
    "3µs",
    "3ſ",
    "3m\u{301}",
    "٣s",
    "3٣s",
    "３s",
    "²s",
    "-0s",
    "0x3s",
    "3e3s",
    "3_000ms",
    "3.s",
    ".3s",
    "\u{feff}3s",
    "\u{a0}",
];

#[test]
fn durations_of_the_corpus_are_read_or_refused() {
    for text in CORPUS {
        is_read_or_refused(text).unwrap_or_else(|failure| panic!("{text:?}: {failure}"));
    }
}

proptest! {
    #[test]
    fn any_text_is_a_duration_or_an_error_with_the_units(text in "[-+ 0-9.msh_µ٣]{0,24}|\\PC{0,24}") {
        is_read_or_refused(&text)?;
    }

    #[test]
    fn a_number_and_a_unit_are_that_long_or_too_long(
        number in any::<u64>(),
        (unit, ms) in prop::sample::select(vec![("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)]),
    ) {
        let parsed = parse(&format!("{number}{unit}"));
        match number.checked_mul(ms) {
            Some(ms) => prop_assert_eq!(parsed, Ok(Duration::from_millis(ms))),
            None => prop_assert!(parsed.is_err_and(|error| error.contains("too long"))),
        }
    }
}
