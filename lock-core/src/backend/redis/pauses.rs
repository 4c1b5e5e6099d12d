//! Pauses between attempts to connect, and before a server is asked again.

use std::time::Duration;

use rand::{RngExt, rngs::StdRng};

/// Returns the longest pauses after so many failed attempts: while requests wait, and while none does.
pub(super) fn pauses(failures: u32) -> (Duration, Duration) {
    let pause = Duration::from_millis(10 << failures.min(7)).min(IDLE_PAUSE);
    (pause.min(HURRIED_PAUSE), pause)
}

/// From half of `longest` to all of it, as `chance` from 0 to 1 decides, so that a fleet does not come back in step.
pub(super) fn jittered(longest: Duration, chance: f64) -> Duration {
    longest.mul_f64(0.5 + chance / 2.0)
}

/// A pause from half of `longest` to all of it.
pub(super) fn drawn(longest: Duration) -> Duration {
    jittered(longest, rand::make_rng::<StdRng>().random())
}

/// The longest pause between attempts to connect while requests wait for the connection.
pub(super) const HURRIED_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause while none does: a fleet of idle processes must not wear a server out that comes up.
const IDLE_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after a refusal of the server: an operator has to act first.
pub(super) const REFUSED_PAUSE: Duration = Duration::from_millis(750);
/// How long slower nodes are waited for after the first answer.
pub(super) const PATIENCE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_attempts_grow_to_a_tenth_of_a_second_or_to_a_second_and_differ() {
        let (hurried, idle): (Vec<_>, Vec<_>) = (0..40).map(pauses).unzip();
        for (pauses, longest) in [(hurried, HURRIED_PAUSE), (idle, IDLE_PAUSE)] {
            assert!(pauses.is_sorted() && pauses[0] == Duration::from_millis(10), "{pauses:?}");
            assert!(pauses[3] >= HURRIED_PAUSE / 2 && pauses[39] == longest, "{pauses:?}");
        }
        let pauses = [0.0, 0.25, 0.5, 1.0].map(|chance| jittered(HURRIED_PAUSE, chance).as_millis());
        assert_eq!(pauses, [50, 62, 75, 100]);
    }
}
