//! Any text is a duration or an error that says what to write; `PROPTEST_CASES` tries more.

use std::time::Duration;

use proptest::prelude::*;

use super::{UNITS, parse};

proptest! {
    #[test]
    fn any_text_is_a_duration_or_an_error_with_the_units(text in "[-+ 0-9.msh_µ٣]{0,24}|\\PC{0,24}") {
        match parse(&text) {
            Ok(duration) => {
                prop_assert!(text.starts_with(|c: char| c.is_ascii_digit()));
                let ms = u64::try_from(duration.as_millis()).expect("durations are at most that long");
                prop_assert_eq!(parse(&format!("{ms}ms")), Ok(duration));
            }
            Err(error) => prop_assert!(error.ends_with(UNITS), "{}", error),
        }
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
