//! Checks of what lies between the server and its clients: time, clocks, and settings of connections.

use std::time::Duration;

use humantime::format_duration;

use super::{
    facts::{Facts, Offset},
    memory::bytes,
    verdict::{Unknown, Verdict},
};

/// Expiry and fencing tokens follow the server's clock.
pub(super) fn clock(facts: &Facts) -> Result<Verdict, Unknown> {
    let Offset { ahead, error } = *facts.clock.as_ref().map_err(|refusal| facts.unknown(refusal, "TIME", "+time"))?;
    let direction = if ahead < 0 { "behind" } else { "ahead of" };
    let found =
        format!("{} {direction} this machine's (± {})", short(ahead.unsigned_abs()), short(error.unsigned_abs()));
    Ok(if ahead.abs().saturating_sub(error) < WRONG_CLOCK {
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
pub(super) fn latency(facts: &Facts, command_timeout: Duration) -> Result<Verdict, Unknown> {
    let all = facts.round_trips.as_ref().map_err(|refusal| facts.unknown(refusal, "PING", "+ping"))?;
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let (median, worst) = (all[all.len() / 2], all.last().copied().unwrap_or_default());
    let found =
        format!("median {}, worst {} of {} round trips", short(micros(median)), short(micros(worst)), all.len());
    let limit = format_duration(command_timeout);
    let remedy = "raise command_timeout to several times the worst, and the ttl to three times that; or find the cause: \
                  the network, a slow command (SLOWLOG GET), a fork, a busy machine";
    Ok(if median.saturating_mul(4) > command_timeout {
        Verdict::red(format!("{found}: too long for a command timeout of {limit}"), remedy)
    } else if worst.saturating_mul(4) > command_timeout {
        Verdict::amber(format!("{found}: long for a command timeout of {limit}"), remedy)
    } else {
        Verdict::green(found)
    })
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
pub(super) fn clients(facts: &Facts) -> Result<Verdict, Unknown> {
    let (count, limit) = (facts.number("connected_clients")?, facts.number("maxclients")?);
    let rejected = facts.number("rejected_connections")?;
    if limit == 0 {
        return Ok(Verdict::green(format!("{count} connected")));
    }
    let found = format!("{count} of {limit} connected, {rejected} rejected since the server started");
    Ok(if count.saturating_mul(5) >= limit.saturating_mul(4) || rejected > 0 {
        Verdict::amber(found, "raise maxclients, and look at CLIENT LIST for connections that nobody uses")
    } else {
        Verdict::green(found)
    })
}

/// A connection that waits for replicas may be idle for ten seconds, and a heartbeat comes each second.
pub(super) fn idle(facts: &Facts) -> Result<Verdict, Unknown> {
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
pub(super) fn keepalive(facts: &Facts) -> Result<Verdict, Unknown> {
    Ok(match facts.setting("tcp-keepalive")? {
        "0" => Verdict::amber(
            "tcp-keepalive is 0: connections of machines that died count for maxclients for ever",
            "CONFIG SET tcp-keepalive 300",
        ),
        seconds => Verdict::green(format!("tcp-keepalive is {seconds}")),
    })
}

/// The connection of a manager receives messages. If more wait for it than the limit, the server closes it.
pub(super) fn buffer(facts: &Facts) -> Result<Verdict, Unknown> {
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

/// Writes µs as people read them.
pub(super) fn short(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..10_000 => format!("{:.1} ms", micros as f64 / 1e3),
        10_000..1_000_000 => format!("{} ms", micros / 1_000),
        _ => crate::describe::duration(Duration::from_micros(micros)),
    }
}

/// Clocks with NTP agree to milliseconds.
const WRONG_CLOCK: i64 = 1_000_000;

/// An answer to a look has up to 1 MiB, and several processes answer.
const A_LOOK: u64 = 4 << 20;
