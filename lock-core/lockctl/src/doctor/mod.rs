//! `lockctl doctor`: checks whether servers are fit for locks.
//!
//! `place` reads what a URL names, `failover` finds the servers behind it, and `facts` asks each of them, over a `link` of its own. The
//! checks are pure: they judge facts. The first connection is made by the library, so that errors and remedies are those of services.

mod facts;
mod failover;
mod link;
mod memory;
mod persistence;
mod place;
mod replication;
mod report;
mod rights;
mod traffic;
mod verdict;

use std::{
    collections::HashSet,
    io::{self, BufWriter},
    time::Duration,
};

use self::{
    facts::Facts,
    failover::Server,
    place::Place,
    verdict::{Level, Row, Verdict},
};
use crate::{
    args::{self, Doctor},
    exit::{CONFIG, Failure, written},
    json,
    terminal::{self, Paint},
};

/// The form of a URL.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Form {
    Server,
    Sentinels,
    Cluster,
}

/// What checks are about, beside the facts of a server.
#[derive(Clone, Copy, Debug)]
struct Context {
    ttl: Duration,
    command_timeout: Duration,
    form: Form,
    /// Whether the servers are those of a quorum, which goes on without some.
    is_quorum: bool,
}

/// Checks servers, and writes what was found.
pub(crate) async fn doctor(server: &args::Server, args: Doctor) -> Result<i32, Failure> {
    let urls = if args.urls.is_empty() { vec![server.url.clone()] } else { args.urls };
    if urls.iter().any(|url| url.starts_with("memory:")) {
        return Err(Failure::new(CONFIG, "could not check memory://: it is a store in one process; name a server"));
    }
    let builder = if let [url] = &*urls { server.builder().url(url) } else { server.builder().quorum(&urls) };
    let refused = match builder.connect().await {
        // Nothing is kept of it: its heartbeats would come between the questions.
        Ok(_) => None,
        Err(error) if error.cause().is_none() => return Err(error.into()),
        Err(error) => Some(Failure::from(error)),
    };
    let (mut rows, mut reached) = (Vec::new(), Vec::new());
    for url in &urls {
        let context = Context {
            ttl: args.ttl,
            command_timeout: server.command_timeout,
            form: Form::Server,
            is_quorum: urls.len() > 1,
        };
        look(url, &server.prefix, context, &mut rows, &mut reached).await?;
    }
    if urls.len() > 1 {
        rows.push(Row::of_all("quorum", quorum(urls.len(), &reached)));
    }
    rows.push(Row::of_all("timeouts", traffic::timeouts(args.ttl, server.command_timeout)));
    if let Some(failure) = &refused {
        if let ([_], true) = (&*urls, reached.is_empty()) {
            // The library says it of the only server, and better.
            rows.retain(|row| row.check != "connection");
        }
        let message = failure.message();
        let verdict = match message.split_once("; ") {
            Some((found, remedy)) => Verdict::red(found, remedy),
            None => Verdict { level: Level::Red, found: message.to_owned(), remedy: None },
        };
        rows.insert(0, Row::of_all("connection", verdict));
    } else {
        let names: Vec<_> = reached.iter().map(|(address, _)| &**address).collect();
        let found = format!("the library connects to {}, and its script runs", names.join(", "));
        rows.insert(0, Row::of_all("connection", Verdict::green(found)));
    }
    let output = BufWriter::new(io::stdout().lock());
    written(if args.json {
        json::write(output, &report::json(&rows))
    } else {
        report::write(output, &rows, terminal::width(), Paint::of_stdout())
    })?;
    let code = if report::worst(&rows) == Level::Red { CONFIG } else { 0 };
    Ok(refused.map_or(code, |failure| failure.code()))
}

/// Checks the servers of a URL. Adds those that take locks to `reached`, with the number of their run if it is known.
async fn look(
    url: &str,
    prefix: &str,
    mut context: Context,
    rows: &mut Vec<Row>,
    reached: &mut Vec<(String, Option<String>)>,
) -> Result<(), Failure> {
    let place = Place::of(url, context.command_timeout)
        .map_err(|error| Failure::new(CONFIG, format!("could not read a URL: {}", error.category())))?;
    let (servers, more) = match place {
        Place::Server(access) => (vec![Server { access, is_replica: false }], Vec::new()),
        Place::Service { service, sentinels, servers } => {
            context.form = Form::Sentinels;
            failover::service(&service, &sentinels, &servers, context.ttl).await
        }
        Place::Cluster(seeds) => {
            context.form = Form::Cluster;
            failover::cluster(&seeds).await
        }
    };
    rows.extend(more);
    for Server { access, is_replica } in servers {
        let address = access.address();
        match Facts::gather(access, is_replica, context.form == Form::Cluster, prefix).await {
            Ok(facts) => {
                if !is_replica {
                    reached.push((address, facts.field("run_id").ok().flatten().map(str::to_owned)));
                }
                rows.extend(checks(&facts, context));
            }
            Err(refusal) => {
                let found = format!("does not answer this machine: {}", refusal.words);
                let remedy = "start it, or check that this machine can reach it";
                let verdict = if is_replica || context.is_quorum {
                    Verdict::amber(found, format!("{remedy}: it may have to take over"))
                } else {
                    Verdict::red(found, remedy)
                };
                rows.push(Row { check: "connection", server: Some(address), verdict });
            }
        }
    }
    Ok(())
}

/// Judges one server.
fn checks(facts: &Facts, context: Context) -> Vec<Row> {
    let server = Some(facts.access.address());
    let Context { ttl, command_timeout, form, .. } = context;
    let all = [
        ("version", Some(version(facts, form))),
        ("role", Some(replication::role(facts, form))),
        ("cluster", failover::state(facts)),
        ("eviction", Some(memory::eviction(facts))),
        ("memory", Some(memory::room(facts))),
        ("persistence", Some(persistence::persistence(facts))),
        ("replicas", (!facts.is_replica).then(|| replication::replicas(facts, form))),
        ("min-replicas", (!facts.is_replica).then(|| replication::required(facts))),
        ("failover", failover::of_node(facts, ttl)),
        ("clock", Some(traffic::clock(facts))),
        ("latency", Some(traffic::latency(facts, command_timeout))),
        ("clients", Some(traffic::clients(facts))),
        ("timeout", Some(traffic::idle(facts))),
        ("tcp-keepalive", Some(traffic::keepalive(facts))),
        ("pubsub-buffer", Some(traffic::buffer(facts))),
    ];
    let all = all.into_iter().filter_map(|(check, verdict)| Some((check, verdict?.unwrap_or_else(|unknown| unknown))));
    let rights = rights::verdicts(facts).into_iter().map(|verdict| ("rights", verdict));
    all.chain(rights).map(|(check, verdict)| Row { check, server: server.clone(), verdict }).collect()
}

/// The versions are those of docs/compatibility.md.
fn version(facts: &Facts, form: Form) -> Result<Verdict, Verdict> {
    if let Some(valkey) = facts.field("valkey_version")? {
        return Ok(Verdict::green(format!("Valkey {valkey}")));
    }
    let version = facts.told("redis_version")?;
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    let (found, newer) = (format!("Redis {version}"), "use Redis 7 or newer, or Valkey");
    Ok(match (numbers.next(), numbers.next()) {
        (Some(..6), _) => Verdict::red(format!("{found}: the library needs 6"), newer),
        (Some(6), _) if form == Form::Cluster => Verdict::amber(format!("{found}: waiters in a cluster poll"), newer),
        (Some(6), Some(..2)) => Verdict::amber(format!("{found}: was not tested"), newer),
        _ => Verdict::green(found),
    })
}

/// Judges the servers of a quorum together: how many there are, how many answer, and whether each of these is another one.
fn quorum(named: usize, reached: &[(String, Option<String>)]) -> Verdict {
    let runs: HashSet<_> = reached.iter().map(|(address, run)| run.as_ref().unwrap_or(address)).collect();
    let (reached, different) = (reached.len(), runs.len());
    let found = format!("{reached} of {named} servers answer");
    if reached * 2 <= named {
        Verdict::red(format!("{found}: no lock can be acquired"), "start the others")
    } else if different < reached {
        Verdict::red(format!("{found}, and only {different} are different ones"), "name independent servers")
    } else if reached < named {
        Verdict::amber(found, "start the others")
    } else if named.is_multiple_of(2) {
        Verdict::amber(
            format!("{found}: they survive no more failures than {} would", named - 1),
            "name an odd number of servers",
        )
    } else {
        Verdict::green(format!("{found}; locks go on while {} of them are down", named / 2))
    }
}
