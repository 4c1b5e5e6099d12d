//! Times in words, as an operator would say them.

use std::{
    fmt::{self, Display},
    time::{Duration, SystemTime},
};

/// Shows an age or another span of time in its two largest units, which stay beside their numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Age(pub(super) Duration);

impl Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ms, seconds) = (self.0.as_millis(), self.0.as_secs());
        let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
        match seconds {
            0 => write!(f, "{ms}\u{a0}ms"),
            1..10 => write!(f, "{seconds}.{}\u{a0}s", self.0.subsec_millis() / 100),
            10..60 => write!(f, "{seconds}\u{a0}s"),
            60..3_600 => write!(f, "{minutes}\u{a0}min {}\u{a0}s", seconds % 60),
            3_600..86_400 => write!(f, "{hours}\u{a0}h {}\u{a0}min", minutes % 60),
            86_400..172_800 => write!(f, "1\u{a0}day {}\u{a0}h", hours % 24),
            _ => write!(f, "{days}\u{a0}days {}\u{a0}h", hours % 24),
        }
    }
}

/// Shows the time of day.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeOfDay(pub(super) SystemTime);

impl Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        write!(f, "{:02}:{:02}:{:02} UTC", seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60)
    }
}

/// Shows a number with a comma after each thousand, and the noun in its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Count<'a>(pub(super) usize, pub(super) &'a str);

impl Display for Count<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number, noun) = self;
        let plural = if *number == 1 { "" } else { "s" };
        write!(f, "{} {noun}{plural}", Number(*number))
    }
}

/// Shows a number with a comma after each thousand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Number<N>(pub(super) N);

impl<N: Display> Display for Number<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (index, digit) in digits.chars().enumerate() {
            let comma = index > 0 && (digits.len() - index).is_multiple_of(3);
            write!(f, "{}{digit}", if comma { "," } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_their_two_largest_units() {
        let said = |ms| Age(Duration::from_millis(ms)).to_string().replace('\u{a0}', " ");
        let ages = [0, 320, 4_260, 42_900, 60_000, 724_000, 3_600_000, 86_399_000, 90_000_000, 356_400_000];
        let expected =
            "0 ms, 320 ms, 4.2 s, 42 s, 1 min 0 s, 12 min 4 s, 1 h 0 min, 23 h 59 min, 1 day 1 h, 4 days 3 h";
        assert_eq!(ages.map(said).join(", "), expected);
    }

    #[test]
    fn numbers_and_times_of_day_are_readable() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(86_400 * 9 + 3_600 * 3 + 61);
        assert_eq!(TimeOfDay(time).to_string(), "03:01:01 UTC");
        let said = [0, 1, 999, 1_000, 1_234_567].map(|number| Count(number, "key").to_string());
        assert_eq!(said, ["0 keys", "1 key", "999 keys", "1,000 keys", "1,234,567 keys"]);
    }
}
