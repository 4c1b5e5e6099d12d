//! Clients that contend while something breaks.

use std::sync::Arc;

use lock_core::{Error, ErrorKind, LockManager, LossReason};
use lock_tests::{
    Dice,
    history::{Recorded, Recorder, Run, now},
};
use tokio::{sync::watch, task::JoinSet};

use crate::topologies::*;

/// Clients with a manager each, that take leases of the same keys until they are told to stop.
pub(crate) struct Load {
    stop: watch::Sender<bool>,
    clients: JoinSet<Done>,
}

/// What became of it.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// How many leases each client had.
    pub(crate) had: Vec<u64>,
    /// Acquires that failed.
    pub(crate) errors: Vec<Error>,
    /// Releases that failed, but those of leases that were lost before their first renewal may have been answered.
    pub(crate) unreleased: Vec<Error>,
}

impl Load {
    /// Starts so many clients.
    pub(crate) async fn start(run: &Run, url: &str, count: usize, keys: &[String], ttl: Duration) -> Self {
        let (stop, stopped) = watch::channel(false);
        let (mut clients, keys) = (JoinSet::new(), Arc::<[String]>::from(keys));
        for client in 0..count {
            let name = format!("load{client}");
            // What is done to the servers meanwhile takes a busy machine longer than a request may take as a rule.
            let builder = LockManager::builder().url(url).client_name(&name).command_timeout(LIMIT / 2);
            let manager = builder.connect_timeout(SOON).connect().await.expect("connects");
            let client = Candidate { manager, recorder: run.recorder(&name), ttl };
            clients.spawn(client.rounds(name, Arc::clone(&keys), stopped.clone()));
        }
        Self { stop, clients }
    }

    /// Lets them finish their rounds.
    pub(crate) async fn stop(self) -> Done {
        self.stop.send_replace(true);
        let mut all = Done::default();
        for done in within(3 * SOON, self.clients.join_all()).await {
            all.had.extend(done.had);
            all.errors.extend(done.errors);
            all.unreleased.extend(done.unreleased);
        }
        all
    }
}

impl Done {
    /// Judges that no acquire has failed, and no release but one whose answer was lost with its connection.
    #[track_caller]
    pub(crate) fn is_without_error(&self) {
        let told: Vec<_> = self.errors.iter().map(ToString::to_string).collect();
        assert!(told.is_empty(), "{} errors: {told:#?}", told.len());
        let told = self.unreleased.iter().map(ToString::to_string);
        let (lost, other): (Vec<_>, Vec<_>) = told.partition(|error| is_unanswered(error));
        assert!(other.is_empty(), "{} errors: {other:#?}", other.len());
        println!("{:?} leases, {} releases of which the answer was lost", self.had, lost.len());
    }

    /// The same, but leases may have been lost.
    #[track_caller]
    pub(crate) fn has_only_lost(&self) {
        assert!(self.errors.is_empty(), "{:#?}", self.errors);
        let is_other =
            |error: &&Error| !matches!(error.kind(), ErrorKind::Lost(_)) && !is_unanswered(&error.to_string());
        let other: Vec<_> = self.unreleased.iter().filter(is_other).map(ToString::to_string).collect();
        assert!(other.is_empty(), "{} errors: {other:#?}", other.len());
        println!("{:?} leases, {} lost, or released without an answer", self.had, self.unreleased.len());
    }

    /// Judges that every client had leases.
    #[track_caller]
    pub(crate) fn all_had(&self, least: u64) {
        assert!(self.had.iter().all(|had| *had >= least), "{:?}", self.had);
    }
}

/// Whether a release does not know what it has done, since its answer was lost with its connection.
fn is_unanswered(error: &str) -> bool {
    error.contains("the connection broke before")
}

struct Candidate {
    manager: LockManager,
    recorder: Arc<Recorder>,
    ttl: Duration,
}

impl Candidate {
    async fn rounds(self, name: String, keys: Arc<[String]>, stopped: watch::Receiver<bool>) -> Done {
        let client = Recorded::new(&self.manager, &self.recorder, "");
        let (mut dice, mut had, mut done) = (Dice::named(&name), 0, Done::default());
        while !*stopped.borrow() {
            let key = &keys[dice.below(keys.len() as u64) as usize];
            match client.acquire(key, self.ttl, |request| request.wait(LONG)).await {
                Ok(mut held) => {
                    had += 1;
                    // It has what its grant left, a second at most, and a busy machine may need that to renew it.
                    let is_brief = held.guard().remaining() < ms(2_000);
                    held.check();
                    sleep(dice.between(Duration::ZERO, ms(20))).await;
                    held.check();
                    let error = held.release().await.err();
                    let counts =
                        |error: &Error| !(is_brief && matches!(error.kind(), ErrorKind::Lost(LossReason::Expired)));
                    done.unreleased.extend(error.filter(counts));
                }
                Err(error) => {
                    println!("{name} at {}: {error}", now());
                    done.errors.push(error);
                    sleep(ms(20)).await; // no hot loop where it is refused at once
                }
            }
        }
        self.manager.shutdown(SOON).await;
        done.had.push(had);
        done
    }
}
