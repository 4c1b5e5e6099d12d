use std::time::Duration;

use crate::clock::Moment;

/// The least time that a deadline had left when its renewal was answered, over the last half to whole minute; pure.
#[derive(Debug)]
pub(crate) struct Slack {
    /// When the present span began.
    since: Moment,
    present: Option<Duration>,
    before: Option<Duration>,
}

impl Slack {
    pub(crate) const fn new() -> Self {
        Self { since: Moment::from_origin(Duration::ZERO), present: None, before: None }
    }

    pub(crate) fn note(&mut self, slack: Duration, now: Moment) {
        self.turn(now);
        self.present = Some(self.present.map_or(slack, |least| least.min(slack)));
    }

    pub(crate) fn least(&mut self, now: Moment) -> Option<Duration> {
        self.turn(now);
        self.present.into_iter().chain(self.before).min()
    }

    fn turn(&mut self, now: Moment) {
        if now < self.since + SPAN {
            return;
        }
        self.before = self.present.take().filter(|_| now < self.since + SPAN * 2);
        self.since = now;
    }
}

/// A value is remembered for the rest of its span and one more.
const SPAN: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::fixture::at;

    #[test]
    fn the_least_of_the_last_half_minute_to_minute_counts() {
        let ms = Duration::from_millis;
        let mut slack = Slack::new();
        assert_eq!(slack.least(at(0)), None);
        slack.note(ms(9), at(1_000));
        slack.note(ms(7), at(2_000));
        slack.note(ms(8), at(29_999));
        assert_eq!(slack.least(at(30_000)), Some(ms(7)), "of the span before");
        slack.note(ms(8), at(31_000));
        assert_eq!(slack.least(at(59_999)), Some(ms(7)));
        assert_eq!(slack.least(at(60_000)), Some(ms(8)));
        assert_eq!(slack.least(at(130_000)), None, "too long ago");
    }
}
