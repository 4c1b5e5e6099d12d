//! What one server says of itself.

use std::{
    process,
    time::{Duration, Instant, SystemTime},
};

use redis::from_redis_value;

use super::{
    link::{Link, Refusal},
    place::Access,
    rights::{self, Missing},
    verdict::Verdict,
};

/// The answers of one server.
pub(super) struct Facts {
    pub(super) access: Access,
    /// Whether the server is to be a replica.
    pub(super) is_replica: bool,
    /// The reply to `INFO`.
    info: Result<String, Refusal>,
    /// What `CONFIG GET` says of each of [`SETTINGS`].
    settings: Vec<(&'static str, Result<String, Refusal>)>,
    /// The reply to `CLUSTER INFO`, if the server is a node of a cluster.
    pub(super) cluster: Option<Result<String, Refusal>>,
    pub(super) times: Result<Times, Refusal>,
    pub(super) missing: Result<Vec<Missing>, Refusal>,
}

/// What some replies to `TIME` tell.
#[derive(Debug)]
pub(super) struct Times {
    /// How far the server's clock is ahead of this machine's, in µs, as the shortest round trip has it.
    pub(super) ahead: i64,
    /// How long each round trip took, the shortest first.
    pub(super) round_trips: Vec<Duration>,
}

impl Facts {
    /// Asks a server. Nothing is written but a probe below the prefix, which is deleted.
    pub(super) async fn gather(access: Access, is_replica: bool, is_node: bool, prefix: &str) -> Result<Self, Refusal> {
        let mut link = Link::open(&access).await?;
        let info = link.text(&["INFO"]).await;
        let mut settings = Vec::with_capacity(SETTINGS.len());
        for name in SETTINGS {
            settings.push((name, setting(&mut link, name).await));
        }
        let cluster = if is_node { Some(link.text(&["CLUSTER", "INFO"]).await) } else { None };
        let times = times(&mut link).await;
        let missing = rights::missing(&access, link, &probe(prefix), is_node).await;
        Ok(Self { access, is_replica, info, settings, cluster, times, missing })
    }

    /// Returns a field of `INFO`; `None` if this server has no such field.
    pub(super) fn field(&self, name: &str) -> Result<Option<&str>, Verdict> {
        match &self.info {
            Ok(info) => Ok(field(info, name)),
            Err(refusal) => Err(self.unknown(refusal, "INFO", "+info")),
        }
    }

    /// Returns a field of `INFO` that each server should have: without it, what it says is not known.
    pub(super) fn told(&self, name: &str) -> Result<&str, Verdict> {
        let missing = || Verdict::amber(format!("could not be checked: INFO has no {name}"), MANAGED);
        self.field(name)?.ok_or_else(missing)
    }

    /// Returns a number in `INFO`.
    pub(super) fn number(&self, name: &str) -> Result<u64, Verdict> {
        let is_no_number = |_| Verdict::amber(format!("could not be checked: {name} in INFO is not a number"), MANAGED);
        self.told(name)?.parse().map_err(is_no_number)
    }

    /// Returns a setting of the server.
    pub(super) fn setting(&self, name: &str) -> Result<&str, Verdict> {
        match self.settings.iter().find(|(known, _)| *known == name) {
            Some((_, Ok(value))) => Ok(value),
            Some((_, Err(refusal))) => Err(self.unknown(refusal, &format!("CONFIG GET {name}"), CONFIG)),
            None => Err(Verdict::amber(format!("{name} is not asked for"), "")),
        }
    }

    /// Says why something is not known, and how to allow it.
    pub(super) fn unknown(&self, refusal: &Refusal, command: &str, right: &str) -> Verdict {
        unknown(&self.access, refusal, command, right)
    }
}

/// Says why a command has no answer, and how to allow it. A missing answer is never red: it says nothing about the server.
pub(super) fn unknown(access: &Access, refusal: &Refusal, command: &str, right: &str) -> Verdict {
    let user = access.user();
    let (reason, remedy) = if refusal.is_denied() {
        let remedy = match right {
            // It shows passwords, too.
            CONFIG => format!("to allow it: run lockctl doctor as an administrator, with {CONFIG}"),
            _ => format!("to allow it: ACL SETUSER {user} {right}"),
        };
        (format!("the user {user} may not run {command}"), remedy)
    } else if refusal.is_unknown() {
        (format!("the server does not have {command}"), MANAGED.to_owned())
    } else {
        (format!("{command} failed: {}", refusal.words), "to check it: run lockctl doctor again".to_owned())
    };
    Verdict::amber(format!("could not be checked: {reason}"), remedy)
}

/// Returns the value of a field of `INFO`, `CLUSTER INFO` and their like.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

async fn setting(link: &mut Link, name: &str) -> Result<String, Refusal> {
    let reply = link.ask(&["CONFIG", "GET", name]).await?;
    let pairs: Vec<String> = from_redis_value(reply).map_err(redis::RedisError::from)?;
    let missing = || Refusal { code: String::new(), words: format!("the server has no setting {name}") };
    pairs.into_iter().nth(1).ok_or_else(missing)
}

/// Compares the clocks, and measures round trips.
async fn times(link: &mut Link) -> Result<Times, Refusal> {
    let mut all = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let (sent, begun) = (SystemTime::now(), Instant::now());
        let reply = link.ask(&["TIME"]).await?;
        let round_trip = begun.elapsed();
        let (seconds, rest): (i64, i64) = from_redis_value(reply).map_err(redis::RedisError::from)?;
        let here = micros(sent.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + round_trip / 2);
        all.push((round_trip, seconds.saturating_mul(1_000_000).saturating_add(rest).saturating_sub(here)));
    }
    all.sort_unstable();
    Ok(Times { ahead: all[0].1, round_trips: all.into_iter().map(|(round_trip, _)| round_trip).collect() })
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// Names a key that no service uses.
fn probe(prefix: &str) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{prefix}lock-core:doctor:{}-{}", process::id(), now.as_nanos())
}

/// What to do if the server does not tell.
const MANAGED: &str = "to check it: look where the server is managed";

/// The right to read settings.
const CONFIG: &str = "+config|get";

/// The settings that checks look at.
const SETTINGS: [&str; 9] = [
    "appendfsync",
    "save",
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "client-output-buffer-limit",
    "timeout",
    "tcp-keepalive",
    "cluster-node-timeout",
    "stop-writes-on-bgsave-error",
];

/// How many round trips are measured.
const ROUND_TRIPS: usize = 20;
