//! The rights of the user: each command that the library sends is tried in a form that changes nothing but the probe.
//!
//! A server looks at the rights before it looks at the arguments, the slot or the role. So a command that cannot succeed (a number that is
//! none, a key of another type) is enough: every answer but a refusal shows the right. The list is that of docs/protocol.md.

use super::{
    facts::Facts,
    link::{Link, Refusal},
    place::Access,
    verdict::{Level, Verdict},
};

/// Rights that the user lacks, with one effect. A right that several needs have counts for the first.
#[derive(Debug)]
pub(super) struct Missing {
    need: Need,
    /// As an ACL has them, such as `+set`.
    rights: Vec<String>,
    /// Whether the server itself lacks the command.
    is_unknown: bool,
}

/// What a right is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Need {
    /// Every lock, or every lock of some mode.
    Locks,
    /// Messages between processes.
    Messages,
    /// Noticing that a key was taken away.
    Notices,
    /// Acquiring free keys without the script.
    Transactions,
    /// What the library looks at for its warnings.
    Looks,
    /// The name of the connection.
    Names,
    /// Ending what a dead connection has left.
    Ends,
    /// What operators see.
    Lists,
    Durability,
    /// Finding the nodes of a cluster.
    Nodes,
    /// Telling a node that hears a grant from others of a cluster.
    Hearing,
}

impl Need {
    /// Says what a missing right costs.
    fn effect(self) -> (Level, &'static str) {
        match self {
            Self::Locks => (Level::Red, "all locks fail, or those of some modes"),
            Self::Nodes => (Level::Red, "the nodes of the cluster are not found, or keys that move fail"),
            Self::Hearing => {
                (Level::Amber, "after CLUSTER FAILOVER a waiter may hold beside the next, for up to two seconds")
            }
            Self::Messages => {
                (Level::Amber, "waiters poll, and list and who miss holders and waiters of other processes")
            }
            Self::Notices => (Level::Amber, "a key that is taken away is noticed only at the next renewal"),
            Self::Transactions => (Level::Amber, "free keys are acquired by the script, which costs the server more"),
            Self::Looks => (Level::Amber, "services log no warning about eviction"),
            Self::Names => (Level::Amber, "CLIENT LIST does not name the services"),
            Self::Ends => (Level::Amber, "releases after a lost connection take longer"),
            Self::Lists => (Level::Amber, "lockctl list, the status page and force_release_all fail"),
            Self::Durability => (Level::Amber, "requests with a durability fail"),
        }
    }
}

/// Tries every right, and returns those that are missing. Fails if the server does not answer.
pub(super) async fn missing(
    access: &Access,
    mut link: Link,
    probe: &str,
    is_node: bool,
) -> Result<Vec<Missing>, Refusal> {
    let (mut missing, id): (Vec<Missing>, _) = (Vec::new(), probe.rsplit(':').next().unwrap_or_default());
    let (own, channel, shard) = (
        format!("{{0}}lock-core:doctor:{id}"),
        format!("lock-core:calls:doctor-{id}"),
        format!("{{0}}lock-core:calls:doctor-{id}"),
    );
    for (need, right, command) in RIGHTS {
        let words: Vec<_> = command
            .split(' ')
            .map(|word| match word {
                "KEY" => probe,
                "OWN" => &own,
                "CHANNEL" => &channel,
                "SHARD" => &shard,
                other => other,
            })
            .collect();
        let only_nodes = need == Need::Nodes || words.contains(&&*shard) || right.starts_with("+pubsub|");
        if only_nodes && !is_node {
            continue;
        }
        // These change what the connection is for.
        if ["MULTI", "SUBSCRIBE", "SSUBSCRIBE"].contains(&words[0]) {
            link = Link::open(access).await?;
        }
        let Err(refusal) = link.ask(&words).await else { continue };
        if refusal.code.is_empty() {
            return Err(refusal);
        }
        if !refusal.is_denied() && !refusal.is_unknown() {
            continue;
        }
        // Such as `this user has no permissions to access one of the keys used as arguments`, or `No permissions to access a key`.
        let is_of_place = refusal.words.contains("ermissions to access");
        let right = if is_of_place && refusal.words.contains("channel") {
            if words.contains(&&*shard) { "&{*}lock-core:calls:*" } else { "&lock-core:calls:*" }.to_owned()
        } else if is_of_place {
            if words.contains(&&*own) { "~{*}lock-core:*".to_owned() } else { keys_of(probe) }
        } else {
            right.to_owned()
        };
        let is_unknown = refusal.is_unknown();
        if missing.iter().any(|missing| missing.rights.contains(&right)) {
            continue;
        }
        match missing.iter_mut().find(|missing| (missing.need, missing.is_unknown) == (need, is_unknown)) {
            Some(missing) => missing.rights.push(right),
            None => missing.push(Missing { need, rights: vec![right], is_unknown }),
        }
    }
    Ok(missing)
}

/// Judges what is missing: a verdict for each effect, or one that all is there.
pub(super) fn verdicts(facts: &Facts) -> Vec<Verdict> {
    let user = facts.access.user();
    let missing = match &facts.missing {
        Ok(missing) => missing,
        Err(refusal) => return vec![facts.unknown(refusal, "a trial of the rights", "")],
    };
    if missing.is_empty() {
        return vec![Verdict::green(format!("the user {user} has all that the library uses"))];
    }
    let verdict = |missing: &Missing| {
        let ((level, effect), rights) = (missing.need.effect(), missing.rights.join(" "));
        if missing.is_unknown {
            let found = format!("the server does not have {}: {effect}", rights.replace('+', "").replace('|', " "));
            let remedy = "use Redis 7 or newer, or a server that has them".to_owned();
            return Verdict { level, found, remedy: Some(remedy) };
        }
        if rights.split(' ').any(|right| right == ALL_KEYS) {
            return Verdict::amber(
                format!("could not be checked: the user {user} may only use keys that begin in some other way"),
                "to allow it: give --prefix what the keys of the services begin with",
            );
        }
        let remedy = format!("ACL SETUSER {user} {rights}");
        Verdict { level, found: format!("the user {user} lacks {rights}: {effect}"), remedy: Some(remedy) }
    };
    missing.iter().map(verdict).collect()
}

/// Returns the pattern of the keys of the services, as far as it is known.
fn keys_of(probe: &str) -> String {
    let prefix = probe.split("lock-core:doctor:").next().unwrap_or_default();
    format!("~{prefix}*")
}

/// What the rights to keys are if no prefix is given: nothing that anybody should be granted.
const ALL_KEYS: &str = "~*";

/// What is tried, in this order: the probe is there between SET and DEL. KEY is the probe, OWN a key of the library's own, CHANNEL and
/// SHARD are channels on which nobody listens.
const RIGHTS: [(Need, &str, &str); 47] = [
    // It does not compile, so it is not cached.
    (Need::Locks, "+eval", "EVAL ) 1 KEY"),
    (Need::Locks, "+evalsha", "EVALSHA ffffffffffffffffffffffffffffffffffffffff 1 KEY"),
    (Need::Locks, "+set", "SET KEY lockctl-doctor PX 5000 NX"),
    (Need::Locks, "+get", "GET KEY"),
    (Need::Locks, "+mget", "MGET KEY"),
    (Need::Locks, "+pttl", "PTTL KEY"),
    (Need::Locks, "+pexpire", "PEXPIRE KEY 5000"),
    (Need::Lists, "+getrange", "GETRANGE KEY 0 0"),
    (Need::Locks, "+pexpireat", "PEXPIREAT KEY 1"),
    (Need::Locks, "+del", "DEL KEY"),
    (Need::Locks, "+hget", "HGET OWN field"),
    (Need::Locks, "+hmget", "HMGET OWN field"),
    // An odd number of values.
    (Need::Locks, "+hset", "HSET OWN field value field"),
    (Need::Locks, "+hdel", "HDEL OWN field"),
    (Need::Locks, "+hlen", "HLEN OWN"),
    (Need::Locks, "+time", "TIME"),
    (Need::Locks, "+xadd", "XADD OWN not-an-id field value"),
    (Need::Locks, "+zadd", "ZADD KEY not-a-number member"),
    (Need::Locks, "+zrem", "ZREM KEY member"),
    (Need::Locks, "+zscore", "ZSCORE KEY member"),
    (Need::Locks, "+zmscore", "ZMSCORE KEY member"),
    (Need::Locks, "+zcount", "ZCOUNT KEY 0 1"),
    (Need::Locks, "+zrange", "ZRANGE KEY 0 0"),
    (Need::Locks, "+zrangebyscore", "ZRANGEBYSCORE KEY 0 1"),
    (Need::Locks, "+zrevrangebyscore", "ZREVRANGEBYSCORE KEY 1 0"),
    (Need::Locks, "+zremrangebyscore", "ZREMRANGEBYSCORE KEY 0 1"),
    (Need::Locks, "+ping", "PING"),
    // A server has it for all users, and a proxy may not have it.
    (Need::Messages, "+hello", "HELLO 2"),
    (Need::Looks, "+info", "INFO server"),
    (Need::Names, "+client|setname", "CLIENT SETNAME lockctl-doctor"),
    (Need::Ends, "+client|id", "CLIENT ID"),
    // No connection has this number.
    (Need::Ends, "+client|kill", "CLIENT KILL ID 0"),
    (Need::Notices, "+client|tracking", "CLIENT TRACKING ON OPTIN NOLOOP"),
    (Need::Notices, "+client|caching", "CLIENT CACHING YES"),
    (Need::Lists, "+scan", "SCAN 0 COUNT 1"),
    (Need::Durability, "+wait", "WAIT 0 1"),
    (Need::Messages, "+publish", "PUBLISH CHANNEL doctor"),
    (Need::Messages, "+spublish", "SPUBLISH SHARD doctor"),
    (Need::Messages, "+pubsub|numsub", "PUBSUB NUMSUB CHANNEL"),
    (Need::Hearing, "+pubsub|shardnumsub", "PUBSUB SHARDNUMSUB SHARD"),
    (Need::Nodes, "+cluster|slots", "CLUSTER SLOTS"),
    (Need::Nodes, "+cluster|info", "CLUSTER INFO"),
    (Need::Nodes, "+asking", "ASKING"),
    // None has begun.
    (Need::Transactions, "+exec", "EXEC"),
    (Need::Transactions, "+multi", "MULTI"),
    (Need::Messages, "+subscribe", "SUBSCRIBE CHANNEL"),
    (Need::Messages, "+ssubscribe", "SSUBSCRIBE SHARD"),
];
