//! Checks of the server's place among others: its role, its replicas, and how many it requires.

use super::{Form, facts::Facts, verdict::Verdict};

/// Locks need the primary.
pub(super) fn role(facts: &Facts, form: Form) -> Result<Verdict, Verdict> {
    let mode = facts.field("redis_mode")?.or(facts.field("server_mode")?).unwrap_or("standalone");
    match (mode, form) {
        ("sentinel", _) => {
            return Ok(Verdict::red("the server is a sentinel", "write redis+sentinel://HOST,HOST,HOST/SERVICE"));
        }
        ("cluster", Form::Server | Form::Sentinels) => {
            return Ok(Verdict::red("the server is a node of a cluster", "write redis+cluster://HOST,HOST,HOST"));
        }
        _ => {}
    }
    let is_primary = facts.field("role")? == Some("master");
    let link = facts.field("master_link_status")?.unwrap_or("unknown");
    Ok(match (is_primary, facts.is_replica) {
        (true, false) => Verdict::green("a primary"),
        (false, false) => Verdict::red(
            "the server is a replica: it takes no locks",
            "name the primary in the URL, or use redis+sentinel:// or redis+cluster://, which follow it",
        ),
        (true, true) => Verdict::amber(
            "named as a replica, and says that it is a primary: there may have been a failover just now",
            "run lockctl doctor again",
        ),
        (false, true) if link == "up" => Verdict::green("a replica, whose link to the primary is up"),
        (false, true) => Verdict::amber(
            format!("a replica, whose link to the primary is {link}: it cannot take over with the present leases"),
            "look at the log of the replica, and at masterauth",
        ),
    })
}

/// A replica that lags behind, or is missing, loses leases in a failover, or prevents it.
pub(super) fn replicas(facts: &Facts, form: Form) -> Result<Verdict, Verdict> {
    let count = facts.number("connected_slaves")?;
    let end = facts.number("master_repl_offset")?;
    if count == 0 {
        return Ok(match form {
            Form::Server => Verdict::green("none: when the server is down, there are no locks until it is back"),
            Form::Sentinels | Form::Cluster => {
                Verdict::amber("none: no server can take over", "add a replica, better two")
            }
        });
    }
    let mut late = Vec::new();
    for number in 0..count {
        // Such as `ip=10.0.0.2,port=6379,state=online,offset=1234,lag=0`.
        let Some(line) = facts.field(&format!("slave{number}"))? else { break };
        let part = |name: &str| line.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        let address = format!("{}:{}", part("ip").unwrap_or("?"), part("port").unwrap_or("?"));
        let lag: u64 = part("lag").and_then(|lag| lag.parse().ok()).unwrap_or(0);
        let offset = part("offset").and_then(|offset| offset.parse().ok()).unwrap_or(end);
        match part("state").unwrap_or("online") {
            "online" if lag > LATE => {
                let behind = super::memory::bytes(end.saturating_sub(offset));
                late.push(format!("{address} has not answered for {lag} s, and is {behind} behind"));
            }
            "online" => {}
            state => late.push(format!("{address} is not in sync yet ({state})")),
        }
    }
    Ok(if late.is_empty() {
        Verdict::green(format!("{count} in sync"))
    } else {
        Verdict::amber(
            format!("{count} connected; {}", late.join("; ")),
            "a failover to it forgets leases: look at its log, its load and the network",
        )
    })
}

/// A primary that is cut off goes on to grant leases, unless it requires replicas.
pub(super) fn required(facts: &Facts) -> Result<Verdict, Verdict> {
    let count = facts.number("connected_slaves")?;
    let wanted: u64 = facts.setting("min-replicas-to-write")?.parse().unwrap_or(0);
    let lag = facts.setting("min-replicas-max-lag")?;
    if wanted == 0 {
        return Ok(match count {
            0 => Verdict::green("min-replicas-to-write is 0, and there are no replicas"),
            _ => Verdict::amber(
                "min-replicas-to-write is 0: a primary that is cut off grants leases that a failover forgets",
                match count {
                    1 => "add a second replica, then CONFIG SET min-replicas-to-write 1 and min-replicas-max-lag 2",
                    _ => "CONFIG SET min-replicas-to-write 1 and min-replicas-max-lag 2",
                },
            ),
        });
    }
    let good = facts.field("min_slaves_good_slaves")?.and_then(|good| good.parse().ok()).unwrap_or(count);
    let found = format!("min-replicas-to-write is {wanted}, with {good} replicas that answered within {lag} s");
    Ok(if good < wanted {
        Verdict::red(
            format!("{found}: the server refuses locks"),
            "repair the replicas, or lower min-replicas-to-write",
        )
    } else if good == wanted {
        Verdict::amber(format!("{found}: the loss of one stops all locks"), "add a replica")
    } else {
        Verdict::green(found)
    })
}

/// After so many seconds a replica is late: it answers once a second.
const LATE: u64 = 3;
