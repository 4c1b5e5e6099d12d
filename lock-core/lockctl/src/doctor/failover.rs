//! Sentinels and nodes of a cluster: which servers they name, and whether they can replace one that dies.

use std::{collections::HashMap, time::Duration};

use humantime::format_duration;
use redis::{Value, from_redis_value};

use super::{
    facts::{self, Facts},
    link::{Link, Refusal},
    place::Access,
    verdict::{Row, Verdict},
};

/// A server that a URL leads to.
pub(super) struct Server {
    pub(super) access: Access,
    pub(super) is_replica: bool,
}

/// What one sentinel says of a service.
struct Said {
    primary: (String, u16),
    replicas: Vec<(String, u16)>,
    down_after: Duration,
    /// The sentinels that it knows, itself included.
    sentinels: usize,
    /// Why no failover is possible at present.
    no_quorum: Option<String>,
}

/// Asks sentinels for the servers of a service.
pub(super) async fn service(
    service: &str,
    sentinels: &[Access],
    servers: &Access,
    ttl: Duration,
) -> (Vec<Server>, Vec<Row>) {
    let (mut said, mut silent) = (Vec::new(), Vec::new());
    for sentinel in sentinels {
        match ask(sentinel, service).await {
            Ok(answer) => said.push((sentinel.address(), answer)),
            Err(refusal) => silent.push(format!("{}: {}", sentinel.address(), refusal.words)),
        }
    }
    let mut votes: HashMap<&(String, u16), usize> = HashMap::new();
    for (_, answer) in &said {
        *votes.entry(&answer.primary).or_default() += 1;
    }
    let primary = votes.into_iter().max_by_key(|(_, votes)| *votes).map(|(primary, _)| primary.clone());
    let mut rows = vec![Row::of_all("sentinels", judge(&said, &silent, sentinels.len(), primary.as_ref()))];
    let Some(primary) = primary else { return (Vec::new(), rows) };
    let agreed = said.iter().map(|(_, answer)| answer).find(|answer| answer.primary == primary);
    let mut found = vec![Server { access: servers.at(&primary.0, primary.1), is_replica: false }];
    if let Some(answer) = agreed {
        rows.push(Row::of_all("failover", survives(ttl, answer.down_after, "down-after-milliseconds")));
        let replicas = answer.replicas.iter().filter(|replica| **replica != primary);
        found.extend(replicas.map(|(host, port)| Server { access: servers.at(host, *port), is_replica: true }));
    }
    (found, rows)
}

async fn ask(sentinel: &Access, service: &str) -> Result<Said, Refusal> {
    let mut link = Link::open(sentinel).await?;
    let fields = map(link.ask(&["SENTINEL", "MASTER", service]).await?);
    let replicas = link.ask(&["SENTINEL", "REPLICAS", service]).await?.into_sequence().unwrap_or_default();
    let no_quorum = link.text(&["SENTINEL", "CKQUORUM", service]).await.err().map(|refusal| refusal.words);
    let number = |name: &str| fields.get(name).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
    Ok(Said {
        primary: address(&fields)
            .ok_or_else(|| Refusal { code: String::new(), words: "names no primary".to_owned() })?,
        replicas: replicas.into_iter().map(map).filter_map(|fields| address(&fields)).collect(),
        down_after: Duration::from_millis(number("down-after-milliseconds")),
        sentinels: usize::try_from(number("num-other-sentinels")).unwrap_or(0).saturating_add(1),
        no_quorum,
    })
}

/// Judges what sentinels say.
fn judge(said: &[(String, Said)], silent: &[String], named: usize, primary: Option<&(String, u16)>) -> Verdict {
    let others: Vec<_> = said
        .iter()
        .filter(|(_, answer)| Some(&answer.primary) != primary)
        .map(|(address, answer)| format!("{address} ({}:{})", answer.primary.0, answer.primary.1))
        .collect();
    let known = said.iter().map(|(_, answer)| answer.sentinels).max().unwrap_or(0).max(named);
    if said.is_empty() || said.len() * 2 <= named {
        return Verdict::red(
            format!("{} of {named} answer; {}", said.len(), silent.join("; ")),
            "start the others: without a majority of the sentinels there is no failover",
        );
    }
    if let Some((address, words)) =
        said.iter().find_map(|(address, answer)| answer.no_quorum.as_ref().map(|words| (address, words)))
    {
        return Verdict::red(
            format!("{address} says that no failover is possible: {words}"),
            "start the missing sentinels, or lower the quorum",
        );
    }
    if !others.is_empty() {
        return Verdict::amber(
            format!("not all name the same primary: {} differ", others.join(", ")),
            "check what they watch, or take them out of the URL",
        );
    }
    if !silent.is_empty() {
        return Verdict::amber(
            format!("{} of {named} answer; {}", said.len(), silent.join("; ")),
            "start the others, or take them out of the URL",
        );
    }
    if known < 3 {
        return Verdict::amber(
            format!("only {known}: when the machine of one is lost, there is no failover"),
            "use three sentinels on three machines",
        );
    }
    Verdict::green(format!("{named} of {known} asked, all name the same primary, and a failover is possible"))
}

/// A lease survives a failover if it has more left when the failover begins.
fn survives(ttl: Duration, down_after: Duration, setting: &str) -> Verdict {
    let failover = down_after + ELECTION;
    // docs/operations.md: two thirds of the ttl are left, and clients need up to a second.
    let needed = (failover + Duration::from_secs(1)) * 3 / 2;
    let found = format!("takes up to {}, as {setting} says", format_duration(failover));
    if ttl >= needed {
        Verdict::green(format!("{found}; leases of {} survive it", format_duration(ttl)))
    } else {
        Verdict::amber(
            format!("{found}; leases of {} do not survive it", format_duration(ttl)),
            format!("lower {setting}, or raise the ttl to {}", format_duration(needed)),
        )
    }
}

/// Asks the nodes of a URL for all nodes of the cluster.
pub(super) async fn cluster(seeds: &[Access]) -> (Vec<Server>, Vec<Row>) {
    let mut silent = Vec::new();
    for seed in seeds {
        let mut link = match Link::open(seed).await {
            Ok(link) => link,
            Err(refusal) => {
                silent.push(format!("{}: {}", seed.address(), refusal.words));
                continue;
            }
        };
        match link.ask(&["CLUSTER", "SLOTS"]).await {
            Ok(slots) => return (nodes(seed, slots), Vec::new()),
            Err(refusal) => {
                let unknown = facts::unknown(seed, &refusal, "CLUSTER SLOTS", "+cluster|slots");
                return (seeds.iter().cloned().map(primary).collect(), vec![Row::of_all("cluster", unknown)]);
            }
        }
    }
    let verdict =
        Verdict::red(format!("no node answers; {}", silent.join("; ")), "check the hosts and ports of the URL");
    (Vec::new(), vec![Row::of_all("cluster", verdict)])
}

fn primary(access: Access) -> Server {
    Server { access, is_replica: false }
}

/// Reads the reply to `CLUSTER SLOTS`: ranges, each with its primary and then its replicas.
fn nodes(seed: &Access, slots: Value) -> Vec<Server> {
    let mut all: Vec<Server> = Vec::new();
    for range in slots.into_sequence().unwrap_or_default() {
        let nodes = range.into_sequence().unwrap_or_default().into_iter().skip(2);
        for (number, node) in nodes.enumerate() {
            let mut parts = node.into_sequence().unwrap_or_default().into_iter();
            let host = parts.next().and_then(|host| from_redis_value::<Option<String>>(host).ok()).flatten();
            let Some(port) = parts.next().and_then(|port| from_redis_value::<u16>(port).ok()) else { continue };
            // A node that does not know its own name leaves it out.
            let host = host.filter(|host| !host.is_empty() && host != "?");
            let Some(host) = host.as_deref().or_else(|| seed.host()) else { continue };
            let access = seed.at(host, port);
            if all.iter().all(|known| known.access.address() != access.address()) {
                all.push(Server { access, is_replica: number > 0 });
            }
        }
    }
    all
}

/// Judges what a node says of its cluster.
pub(super) fn state(facts: &Facts) -> Option<Result<Verdict, Verdict>> {
    let info = match facts.cluster.as_ref()? {
        Ok(info) => info,
        Err(refusal) => return Some(Err(facts.unknown(refusal, "CLUSTER INFO", "+cluster|info"))),
    };
    let number = |name| facts::field(info, name).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
    let (state, assigned) =
        (facts::field(info, "cluster_state").unwrap_or("unknown"), number("cluster_slots_assigned"));
    let (failing, size) =
        (number("cluster_slots_fail").saturating_add(number("cluster_slots_pfail")), number("cluster_size"));
    Some(Ok(if state != "ok" || assigned < SLOTS {
        Verdict::red(
            format!("cluster_state is {state}, and {assigned} of {SLOTS} slots have a node"),
            "redis-cli --cluster check, and fix",
        )
    } else if failing > 0 {
        Verdict::amber(
            format!("the nodes of {failing} slots do not answer"),
            "start them, or wait for the failover; CLUSTER NODES names them",
        )
    } else {
        Verdict::green(format!("cluster_state is ok, and all slots have a node; {size} primaries"))
    }))
}

/// Judges how long a failover of a cluster takes.
pub(super) fn of_node(facts: &Facts, ttl: Duration) -> Option<Result<Verdict, Verdict>> {
    facts.cluster.as_ref()?;
    Some(facts.setting("cluster-node-timeout").map(|ms| {
        let timeout = Duration::from_millis(ms.parse().unwrap_or(0));
        survives(ttl, timeout, "cluster-node-timeout")
    }))
}

/// Reads pairs of names and values.
fn map(reply: Value) -> HashMap<String, String> {
    from_redis_value(reply).unwrap_or_default()
}

/// Reads the address of a server, as a sentinel describes it.
fn address(fields: &HashMap<String, String>) -> Option<(String, u16)> {
    Some((fields.get("ip")?.clone(), fields.get("port")?.parse().ok()?))
}

/// What an election takes beyond the time in which a server is found to be down; docs/topologies.md has what was measured.
const ELECTION: Duration = Duration::from_secs(3);

const SLOTS: u64 = 16_384;
