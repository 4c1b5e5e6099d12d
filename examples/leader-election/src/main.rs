//! One of three processes leads; when it dies another follows, when it resigns another follows at once.
//!
//! ```text
//! cargo run -p example-leader-election
//! cargo run -p example-leader-election -- redis://127.0.0.1:6379
//! ```
//!
//! To lead is to hold a key. Every candidate stands in line for it with `wait_forever`, and leads for as long as it
//! holds the lease, in the work of [`run`](lock_core::LockRequest::run): if the lease is lost, because Redis
//! cannot be reached for a ttl, the work is dropped before anybody else can lead, and the candidate stands in line
//! again. No candidate has a timer, a heartbeat or a list of the others.
//!
//! The example kills the leader (SIGKILL: it cannot say goodbye) and stops the clock when the next one leads. A dead
//! leader blocks the key for what is left of its ttl, so that is at most a ttl, and a second for everything else: the
//! notice, a busy machine. Then the second leader resigns: it gives the key back, and the hand-over takes milliseconds.
//!
//! The fencing token says in whose term something was done. It grows with every leader; what the leader writes should
//! carry it, as in `example-fencing`.
//!
//! Exits with 1 when a hand-over took longer.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use example_processes::{Child, redis_url};
use lock_core::{Lease, LockManager};
use tokio::task::JoinSet;
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, url] = &arguments[..]
        && flag == "--candidate"
    {
        candidate(url).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let in_time = election(&redis_url().await?).await?;
    Ok(if in_time { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Stands in line until it leads, and leads until it is told to resign.
async fn candidate(url: &str) -> Result<()> {
    let manager = LockManager::connect(url).await?;
    Child::tell_parent("stands")?;
    loop {
        match manager.lock("leader").ttl(TTL).wait_forever().run(lead).await {
            Ok(resigned) => return resigned,
            // Nobody leads now, or somebody else: this one certainly does not.
            Err(error) if error.is_lost() => eprintln!("deposed: {error}"),
            Err(error) => match error.retry_after() {
                // Redis is down, for all candidates.
                Some(pause) => {
                    eprintln!("no election: {error}");
                    sleep(pause).await;
                }
                None => return Err(error.into()),
            },
        }
    }
}

/// Does the leader's work: here it waits for a word from the parent, or until the parent is gone.
async fn lead(lease: Lease) -> Result<()> {
    Child::tell_parent(&format!("leads {}", lease.fencing_token()))?;
    Child::hear_parent().await?;
    Ok(())
}

/// Holds an election, kills the leader, and lets the next one resign; answers whether all that was quick enough.
async fn election(url: &str) -> Result<bool> {
    let mut standing = Vec::new();
    for number in 1..=3 {
        let mut child = Child::start(["--candidate", url])?;
        child.expect("stands").await?;
        standing.push(Candidate { number, child });
    }
    let mut first = next_leader(&mut standing).await?;
    println!("candidate {} leads, term {}", first.number, first.term);

    let dying = Instant::now();
    first.child.kill().await?;
    let mut second = next_leader(&mut standing).await?;
    let after_death = dying.elapsed();
    println!(
        "killed; candidate {} leads after {:.2} s, term {}",
        second.number,
        after_death.as_secs_f64(),
        second.term
    );

    let resigning = Instant::now();
    second.child.say("resign").await?;
    let third = next_leader(&mut standing).await?;
    let after_resignation = resigning.elapsed();
    println!("resigned; candidate {} leads after {after_resignation:.1?}, term {}", third.number, third.term);

    ensure!(first.term < second.term && second.term < third.term, "the terms do not grow");
    let dead_in_time = report(after_death, TTL + Duration::from_secs(1));
    let resigned_in_time = report(after_resignation, Duration::from_secs(1));
    Ok(dead_in_time && resigned_in_time)
}

/// One that may come to lead.
#[derive(Debug)]
struct Candidate {
    number: u32,
    child: Child,
}

/// One that leads.
#[derive(Debug)]
struct Leader {
    number: u32,
    /// The fencing token of its lease.
    term: u64,
    child: Child,
}

/// Waits until one of the candidates leads, and takes it from among them.
async fn next_leader(standing: &mut Vec<Candidate>) -> Result<Leader> {
    let mut listening = JoinSet::new();
    let (won, mut winner) = tokio::sync::watch::channel(false);
    for mut candidate in standing.drain(..) {
        let mut winner = winner.clone();
        let won = won.clone();
        listening.spawn(async move {
            tokio::select! {
                biased;
                term = candidate.child.expect("leads") => {
                    won.send_replace(true);
                    (candidate, Some(term))
                }
                _ = winner.wait_for(|won| *won) => (candidate, None),
            }
        });
    }
    winner.wait_for(|won| *won).await?;
    let mut leader = None;
    while let Some(heard) = listening.join_next().await {
        match heard? {
            (candidate, None) => standing.push(candidate),
            (Candidate { number, child }, Some(term)) => {
                ensure!(leader.is_none(), "two candidates lead");
                leader = Some(Leader { number, term: term?.parse()?, child });
            }
        }
    }
    leader.context("nobody leads")
}

/// Says when a hand-over took too long.
fn report(took: Duration, at_most: Duration) -> bool {
    if took > at_most {
        eprintln!("the hand-over took {took:.2?}, which is more than {at_most:?}");
    }
    took <= at_most
}
