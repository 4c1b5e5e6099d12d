//! Where a lock can fail in a test, and what happens there.

use std::{fmt, panic::Location, str::FromStr};

/// How a lock fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The lease is lost while the work is suspended.
    Await,
    /// The store grants the lease, and its answer is lost.
    Acquire,
    /// The store takes the lease back, and its answer is lost.
    Release,
    /// The process stands still for longer than the ttl, just as the work goes on.
    Pause,
}

/// A place at which a lock fails: the first of its kind has the number 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) kind: Kind,
    pub(super) number: usize,
}

/// A place at which a lock could fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Point {
    /// The keys, as an error names them.
    pub(super) keys: String,
    /// Where the lock was asked for, if that is known.
    pub(super) since: Option<&'static Location<'static>>,
    /// The number of the await at which the work was suspended before; `None` if this is its beginning.
    pub(super) after: Option<usize>,
}

/// All places at which a lock could have failed in one run, in their order.
#[derive(Debug, Default)]
pub(super) struct Seen([Vec<Point>; 4]);

impl Seen {
    /// Adds a place, and returns what it is called.
    pub(super) fn add(&mut self, kind: Kind, point: Point) -> Target {
        let points = &mut self.0[kind as usize];
        points.push(point);
        Target { kind, number: points.len() }
    }

    pub(super) fn count(&self, kind: Kind) -> usize {
        self.0[kind as usize].len()
    }

    pub(super) fn point(&self, target: Target) -> Option<&Point> {
        self.0[target.kind as usize].get(target.number.checked_sub(1)?)
    }

    /// Returns the places in the order in which they are tried: by kind, and then by number.
    pub(super) fn targets(&self) -> impl Iterator<Item = Target> {
        KINDS.into_iter().flat_map(|kind| (1..=self.count(kind)).map(move |number| Target { kind, number }))
    }

    /// Returns the suspension point whose line tells where a place is.
    pub(super) fn located_by(&self, target: Target) -> Option<Target> {
        match target.kind {
            Kind::Await => Some(target),
            Kind::Acquire | Kind::Release => None,
            Kind::Pause => self.point(target)?.after.map(|number| Target { kind: Kind::Await, number }),
        }
    }

    /// Says in a sentence what fails.
    pub(super) fn describe(&self, target: Target) -> String {
        let Target { kind, number } = target;
        let Some(Point { keys, after, .. }) = self.point(target) else { return target.to_string() };
        let of = format!("{number} of {}", self.count(kind));
        match (kind, after) {
            (Kind::Await, _) => format!("lease lost at await {of} of the work that holds {keys}"),
            (Kind::Acquire, _) => format!("answer lost of acquire {of}, for {keys}"),
            (Kind::Release, _) => format!("answer lost of release {of}, for {keys}"),
            (Kind::Pause, None) => {
                format!("holder paused past its ttl (pause {of}) at the beginning of the work that holds {keys}")
            }
            (Kind::Pause, Some(after)) => {
                format!("holder paused past its ttl (pause {of}) at await {after} of the work that holds {keys}")
            }
        }
    }

    /// Says how many places there are of each kind.
    pub(super) fn counts(&self) -> String {
        let counts = KINDS.map(|kind| format!("{} to {}", Target { kind, number: 1 }, self.count(kind)));
        counts.join(", ")
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", prefix(self.kind), self.number)
    }
}

impl FromStr for Target {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers = KINDS.into_iter().filter_map(|kind| Some((kind, text.strip_prefix(prefix(kind))?.parse().ok()?)));
        let mut targets = numbers.map(|(kind, number)| Self { kind, number });
        targets.next().ok_or("a point is a number as in `3`, `acquire:1`, `release:1` or `pause:2`")
    }
}

/// What stands before the number of a place.
fn prefix(kind: Kind) -> &'static str {
    match kind {
        Kind::Await => "",
        Kind::Acquire => "acquire:",
        Kind::Release => "release:",
        Kind::Pause => "pause:",
    }
}

const KINDS: [Kind; 4] = [Kind::Await, Kind::Acquire, Kind::Release, Kind::Pause];

#[cfg(test)]
mod tests {
    use super::*;

    fn point(keys: &str) -> Point {
        Point { keys: keys.to_owned(), since: None, after: None }
    }

    #[test]
    fn a_target_survives_its_text() {
        let mut seen = Seen::default();
        for kind in KINDS {
            seen.add(kind, point("a"));
            let target = seen.add(kind, point("b"));
            assert_eq!(target.to_string().parse(), Ok(target));
            assert_eq!(seen.point(target), Some(&point("b")));
        }
        assert_eq!(seen.targets().count(), 8);
        assert_eq!(seen.counts(), "1 to 2, acquire:1 to 2, release:1 to 2, pause:1 to 2");
    }

    #[test]
    fn other_texts_name_no_target() {
        let seen = Seen::default();
        for text in ["", "three", "-1", "acquire", "acquire:", "acquire:x", "renew:1", "1 "] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
        assert_eq!(seen.point("0".parse().unwrap()), None);
    }
}
