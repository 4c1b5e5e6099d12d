//! What the environment says of the schedules to try.

/// The number that a variable says, if it is set.
pub(crate) fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// How many events of a schedule to show at most.
pub(crate) fn lines() -> usize {
    usize::try_from(number("SIM_LINES").unwrap_or(60)).unwrap_or(usize::MAX)
}
