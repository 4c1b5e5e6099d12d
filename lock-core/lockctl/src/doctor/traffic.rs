//! Checks of what lies between the server and its clients: time, clocks, and settings of connections.

use std::time::Duration;

use humantime::format_duration;

use super::{
    facts::{Facts, Times},
    memory::bytes,
    verdict::Verdict,
};

/// Expiry and fencing tokens follow the server's clock.
pub(super) fn clock(facts: &Facts) -> Result<Verdict, Verdict> {
    let Times { ahead, round_trips } = times(facts)?;
    let direction = if *ahead < 0 { "behind" } else { "ahead of" };
    let (difference, error) = (Duration::from_micros(ahead.unsigned_abs()), round_trips[0] / 2);
    let found = format!("{difference:.1?} {direction} this machine's (± {error:.1?})");
    Ok(if difference.saturating_sub(error) < WRONG_CLOCK {
        Verdict::green(found)
    } else {
        Verdict::amber(
            found,
            "correct the one that is wrong, and let NTP slew the server's clock: a step forward ends leases early, a step \
             back makes fencing tokens fall after a failover",
        )
    })
}

/// A request that takes longer than `command_timeout` fails.
pub(super) fn latency(facts: &Facts, command_timeout: Duration) -> Result<Verdict, Verdict> {
    Ok(slow(&times(facts)?.round_trips, command_timeout))
}

fn times(facts: &Facts) -> Result<&Times, Verdict> {
    facts.times.as_ref().map_err(|refusal| facts.unknown(refusal, "TIME", "+time"))
}

/// Judges round trips, the shortest of which comes first.
fn slow(round_trips: &[Duration], command_timeout: Duration) -> Verdict {
    let (count, limit) = (round_trips.len(), format_duration(command_timeout));
    let (median, worst) = (round_trips[count / 2], round_trips[count - 1]);
    let found = format!("median {median:.1?}, worst {worst:.1?} of {count} round trips");
    let remedy = "raise command_timeout to several times the worst, and the ttl to three times that; or find the cause: \
                  the network, a slow command (SLOWLOG GET), a fork, a busy machine";
    if median.saturating_mul(4) > command_timeout {
        Verdict::red(format!("{found}: too long for a command timeout of {limit}"), remedy)
    } else if worst.saturating_mul(4) > command_timeout {
        Verdict::amber(format!("{found}: long for a command timeout of {limit}"), remedy)
    } else {
        Verdict::green(found)
    }
}

/// A renewal is sent after a third of the ttl; the rest is for retries.
pub(super) fn timeouts(ttl: Duration, command_timeout: Duration) -> Verdict {
    let found = format!("ttl {}, command timeout {}", format_duration(ttl), format_duration(command_timeout));
    if ttl < command_timeout {
        Verdict::red(
            format!("{found}: a lease may be over before its request is answered"),
            "raise the ttl to three times command_timeout",
        )
    } else if ttl < command_timeout * 3 {
        Verdict::amber(
            format!("{found}: one renewal without an answer leaves no time for another"),
            "raise the ttl to three times command_timeout",
        )
    } else {
        Verdict::green(found)
    }
}

/// Each manager has a connection.
pub(super) fn clients(facts: &Facts) -> Result<Verdict, Verdict> {
    let (count, limit) = (facts.number("connected_clients")?, facts.number("maxclients")?);
    if limit == 0 {
        return Ok(Verdict::green(format!("{count} connected")));
    }
    let found = format!("{count} of {limit} connected");
    Ok(if count.saturating_mul(5) >= limit.saturating_mul(4) {
        Verdict::amber(found, "raise maxclients, and look at CLIENT LIST for connections that nobody uses")
    } else {
        Verdict::green(found)
    })
}

/// A connection that waits for replicas may be idle for ten seconds, and a heartbeat comes each second.
pub(super) fn idle(facts: &Facts) -> Result<Verdict, Verdict> {
    let seconds = facts.setting("timeout")?;
    Ok(match seconds.parse() {
        Ok(1..=10) => Verdict::amber(
            format!("timeout is {seconds}: the server may close connections that the library still needs"),
            "CONFIG SET timeout 0, or a minute and more",
        ),
        Ok(0) => Verdict::green("timeout is 0: no connection is closed for being idle"),
        _ => Verdict::green(format!("timeout is {seconds}: a heartbeat each second keeps connections open")),
    })
}

/// Without it the connections of dead machines stay.
pub(super) fn keepalive(facts: &Facts) -> Result<Verdict, Verdict> {
    Ok(match facts.setting("tcp-keepalive")? {
        "0" => Verdict::amber(
            "tcp-keepalive is 0: connections of machines that died count for maxclients for ever",
            "CONFIG SET tcp-keepalive 300",
        ),
        seconds => Verdict::green(format!("tcp-keepalive is {seconds}")),
    })
}

/// The connection of a manager receives messages. If more wait for it than the limit, the server closes it.
pub(super) fn buffer(facts: &Facts) -> Result<Verdict, Verdict> {
    let limits = facts.setting("client-output-buffer-limit")?;
    // Such as `normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60`.
    let mut words = limits.split(' ').skip_while(|word| *word != "pubsub").skip(1);
    let mut limit = || words.next().and_then(|word| word.parse::<u64>().ok()).filter(|limit| *limit > 0);
    let (hard, soft) = (limit(), limit());
    let least = hard.into_iter().chain(soft).min();
    Ok(match least {
        Some(least) if least < A_LOOK => Verdict::amber(
            format!("the pubsub limit is {}: a look at many keys closes connections", bytes(least)),
            "CONFIG SET client-output-buffer-limit \"pubsub 33554432 8388608 60\"",
        ),
        Some(least) => Verdict::green(format!("the pubsub limit is {}", bytes(least))),
        None => Verdict::green("there is no pubsub limit"),
    })
}

/// Clocks with NTP agree to milliseconds.
const WRONG_CLOCK: Duration = Duration::from_secs(1);

/// An answer to a look has up to 1 MiB, and several processes answer.
const A_LOOK: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::verdict::Level, slow};

    #[test]
    fn round_trips_are_slow_from_a_quarter_of_the_command_timeout_on() {
        let judge = |ms: [u64; 4]| {
            let verdict = slow(&ms.map(Duration::from_millis), Duration::from_secs(10));
            (verdict.level, verdict.found)
        };
        let found = |text: &str| format!("median {text} of 4 round trips");
        assert_eq!(judge([1, 1, 2_500, 2_500]), (Level::Green, found("2.5s, worst 2.5s")));
        let long = found("2.5s, worst 2.6s") + ": long for a command timeout of 10s";
        assert_eq!(judge([1, 1, 2_500, 2_600]), (Level::Amber, long));
        let too_long = found("2.6s, worst 2.6s") + ": too long for a command timeout of 10s";
        assert_eq!(judge([1, 1, 2_600, 2_600]), (Level::Red, too_long));
    }
}
