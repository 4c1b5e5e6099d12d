//! Sentinels, which know which server is the primary.
//!
//! Each of them is asked over a connection of its own, once a second, when it says that something has changed, and when
//! the primary is to be connected to. What the one with the newest configuration says counts: its number rises with
//! each switchover that a majority of them has agreed to. So one that was cut off, and still names the former primary, is
//! overruled as soon as another is reached, and stays so when that one is gone again.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::{join, join_all};
use redis::{Cmd, Value, from_redis_value};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    connector::{Connector, Role},
    failure,
    pauses::PATIENCE,
    settings::Settings,
    stream::Address,
    upkeep,
};
use crate::{
    backend::{BackendError, Calls},
    error::ErrorKind,
};

/// The sentinels that watch a service.
pub(super) struct Sentinels {
    /// The name under which they know the primary.
    service: String,
    sentinels: Vec<Arc<Connector>>,
    /// The latest answer of each sentinel.
    words: watch::Sender<Vec<Option<Word>>>,
    /// The number of the newest configuration that any of them has named.
    known: AtomicU64,
    /// Told when they are to be asked now.
    wanted: Notify,
}

/// The answer of a sentinel.
#[derive(Clone, Debug)]
enum Word {
    /// The primary, and the number of the configuration that has made it the primary.
    Primary {
        address: Address,
        configuration: u64,
    },
    /// It knows no service of that name, but these.
    Unknown(Vec<String>),
    Failed(BackendError),
}

impl Sentinels {
    /// Makes sentinels that were not asked yet.
    pub(super) fn new(service: String, sentinels: Vec<Settings>) -> Self {
        let sentinels: Vec<_> =
            sentinels.into_iter().map(|settings| Arc::new(Connector::new(settings, Role::Sentinel))).collect();
        let words = watch::Sender::new(vec![None; sentinels.len()]);
        Self { service, sentinels, words, known: AtomicU64::new(0), wanted: Notify::new() }
    }

    pub(super) fn service(&self) -> &str {
        &self.service
    }

    /// Asks all of them for as long as it is polled.
    pub(super) async fn keep(&self) {
        let keep = self.sentinels.iter().enumerate().map(|(index, sentinel)| async move {
            // Messages of the sentinel go to the connector itself, not to an engine.
            let (nobody, _) = Calls::new("".into());
            join(upkeep::keep_link(Arc::clone(sentinel), nobody), self.ask(index, sentinel)).await;
        });
        join_all(keep).await;
    }

    /// Returns where the primary is: as the newest configuration says, after a moment for those that are slow to answer.
    pub(super) async fn primary(&self, within: Duration) -> Result<Address, BackendError> {
        let limit = Instant::now() + within;
        let mut words = self.words.subscribe();
        self.wanted.notify_waiters();
        let is_known = |words: &Vec<Option<Word>>| words.iter().flatten().any(Word::is_primary);
        let all_heard = |words: &Vec<Option<Word>>| words.iter().all(Option::is_some);
        let _ = timeout_at(limit, words.wait_for(|words| is_known(words) || all_heard(words))).await.map(drop);
        let majority = self.sentinels.len() / 2 + 1;
        let is_enough = |words: &Vec<Option<Word>>| {
            all_heard(words) || words.iter().flatten().filter(|word| word.is_primary()).count() >= majority
        };
        let _ = timeout(PATIENCE, words.wait_for(is_enough)).await.map(drop);
        let words = words.borrow().clone();
        self.newest(&words).cloned().ok_or_else(|| self.no_primary(&words))
    }

    /// Returns when the primary is at an address for which `is_known` is false.
    pub(super) async fn until_not(&self, is_known: impl Fn(&Address) -> bool) {
        let elsewhere = |words: &Vec<Option<Word>>| self.newest(words).is_some_and(|address| !is_known(address));
        let _ = self.words.subscribe().wait_for(elsewhere).await.map(drop);
    }

    /// Returns whether the primary is known to be elsewhere than at an address.
    pub(super) fn are_sure_of_another(&self, address: &Address) -> bool {
        self.newest(&self.words.borrow()).is_some_and(|primary| primary != address)
    }

    fn newest<'a>(&self, words: &'a [Option<Word>]) -> Option<&'a Address> {
        newest(words, self.known.load(Ordering::Relaxed))
    }

    /// Asks one of them now and then.
    async fn ask(&self, index: usize, sentinel: &Connector) {
        loop {
            let word = self.word_of(sentinel).await;
            if let Word::Primary { configuration, .. } = word {
                self.known.fetch_max(configuration, Ordering::Relaxed);
            }
            self.words.send_modify(|words| words[index] = Some(word));
            let said = sentinel.told.notified();
            tokio::select! {
                () = sleep(ASK_EVERY) => {}
                () = self.wanted.notified() => {}
                () = said => {}
            }
        }
    }

    async fn word_of(&self, sentinel: &Connector) -> Word {
        let address = sentinel.address();
        let found = match sentinel.query(&self.question("GET-MASTER-ADDR-BY-NAME")).await {
            Ok(Value::Nil) => return self.services_of(sentinel).await,
            Ok(reply) => from_redis_value::<(String, u16)>(reply).ok(),
            Err(error) => return Word::Failed(error),
        };
        let Some((host, port)) = found else { return Word::Failed(misread(&address)) };
        // A user who may not ask gets along without: then what most of them say counts.
        let about = sentinel.query::<HashMap<String, String>>(&self.question("MASTER")).await.ok();
        let configuration = about.and_then(|about| about.get("config-epoch")?.parse().ok()).unwrap_or(0);
        Word::Primary { address: Address::Tcp { host, port }, configuration }
    }

    /// The names that a sentinel knows.
    async fn services_of(&self, sentinel: &Connector) -> Word {
        let mut command = redis::cmd("SENTINEL");
        command.arg("MASTERS");
        let services = sentinel.query::<Vec<HashMap<String, String>>>(&command).await;
        Word::Unknown(
            services.unwrap_or_default().into_iter().filter_map(|mut service| service.remove("name")).collect(),
        )
    }

    /// Asks for something about the service.
    fn question(&self, name: &str) -> Cmd {
        let mut command = redis::cmd("SENTINEL");
        command.arg(name).arg(&self.service);
        command
    }

    /// The error if the primary is not known.
    fn no_primary(&self, words: &[Option<Word>]) -> BackendError {
        let service = &self.service;
        let named = words.iter().zip(&self.sentinels).filter_map(|(word, sentinel)| match word {
            Some(Word::Primary { address, .. }) => Some(format!("{} names {address}", sentinel.address())),
            _ => None,
        });
        let named: Vec<_> = named.collect();
        if !named.is_empty() {
            let message = format!(
                "the sentinels do not agree on the primary of {service:?}: {}; check that they watch the same servers, and \
                 that most of them run",
                named.join(", ")
            );
            return BackendError::new(ErrorKind::Backend, message).did_not_happen();
        }
        let known = words.iter().flatten().find_map(|word| match word {
            Word::Unknown(services) => Some(services),
            _ => None,
        });
        if let Some(services) = known {
            let known = if services.is_empty() { "none".to_owned() } else { services.join(", ") };
            let message = format!(
                "the sentinels at {} know no service {service:?}; they know {known}; check the name after the last / of \
                 the URL",
                self.addresses()
            );
            // Others may know it that were not reached.
            let all_know = words.iter().all(|word| matches!(word, Some(Word::Unknown(_))));
            let kind = if all_know { ErrorKind::Unsupported } else { ErrorKind::Backend };
            return BackendError::new(kind, message).did_not_happen();
        }
        let errors = words.iter().flatten().filter_map(|word| match word {
            Word::Failed(error) => Some(error.clone()),
            _ => None,
        });
        let what = format!("no sentinel at {} could be asked for the primary of {service:?}", self.addresses());
        let error = failure::of_several(&errors.collect::<Vec<_>>(), &what).unwrap_or_else(|| {
            let message =
                format!("no sentinel at {} has answered; check that they run and can be reached", self.addresses());
            BackendError::new(ErrorKind::Backend, message)
        });
        error.did_not_happen()
    }

    fn addresses(&self) -> String {
        let addresses: Vec<_> = self.sentinels.iter().map(|sentinel| sentinel.address()).collect();
        addresses.join(", ")
    }
}

impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the primary of {:?} at the sentinels {}", self.service, self.addresses())
    }
}

impl Word {
    fn is_primary(&self) -> bool {
        matches!(self, Self::Primary { .. })
    }
}

/// The primary of the newest configuration. If sentinels name different ones, the one that most name; `None` if there are
/// two of these.
///
/// A configuration older than the `known` one counts only if a majority of all sentinels name it, as when they were reset.
fn newest(words: &[Option<Word>], known: u64) -> Option<&Address> {
    let named = words.iter().flatten().filter_map(|word| match word {
        Word::Primary { address, configuration } => Some((address, *configuration)),
        _ => None,
    });
    let votes = |of: &Address| named.clone().filter(|(address, _)| *address == of).count();
    let ranked = named.clone().filter_map(|(address, configuration)| {
        let votes = votes(address);
        (configuration >= known || votes > words.len() / 2).then_some((configuration, votes, address))
    });
    let (configuration, votes, address) =
        ranked.clone().max_by_key(|(configuration, votes, _)| (*configuration, *votes))?;
    let is_split = ranked.clone().any(|other| (other.0, other.1) == (configuration, votes) && other.2 != address);
    (!is_split).then_some(address)
}

fn misread(address: &str) -> BackendError {
    BackendError::new(ErrorKind::Backend, format!("{address} does not answer as a sentinel does; check that it is one"))
}

/// How often a sentinel is asked that says nothing by itself.
const ASK_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn word(host: &str, configuration: u64) -> Option<Word> {
        Some(Word::Primary { address: Address::Tcp { host: host.to_owned(), port: 6379 }, configuration })
    }

    #[test]
    fn the_newest_configuration_counts_and_then_the_most_votes() {
        let host = |words: &[Option<Word>]| newest(words, 0).map(ToString::to_string);
        assert_eq!(host(&[None, Some(Word::Unknown(Vec::new()))]), None);
        assert_eq!(host(&[word("old", 3), word("old", 3), word("new", 4)]).as_deref(), Some("new:6379"));
        assert_eq!(host(&[word("a", 0), word("b", 0), word("b", 0)]).as_deref(), Some("b:6379"));
    }

    #[test]
    fn sentinels_that_disagree_name_nobody() {
        assert_eq!(newest(&[word("a", 2), word("b", 2)], 0), None);
        assert_eq!(newest(&[word("a", 2), None, word("b", 2), word("old", 1)], 2), None);
    }

    #[test]
    fn a_former_configuration_does_not_come_back_unless_most_name_it() {
        let host = |words: &[Option<Word>]| newest(words, 4).map(ToString::to_string);
        assert_eq!(host(&[word("old", 3), None, None]), None);
        assert_eq!(host(&[word("old", 3), word("new", 4), None]).as_deref(), Some("new:6379"));
        assert_eq!(host(&[word("fresh", 0), word("fresh", 0), None]).as_deref(), Some("fresh:6379"));
    }
}
