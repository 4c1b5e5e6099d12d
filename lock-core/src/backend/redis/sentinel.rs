//! Sentinels, which know which server is the primary.
//!
//! Each of them is asked over a connection of its own, once a second, when it says that something has changed, and when
//! the primary is to be connected to. What the one with the newest configuration says counts: its number rises with
//! each switchover that a majority of them has agreed to. So one that was cut off, and still names the former primary, is
//! overruled as soon as another is reached, and stays so when that one is gone again.
//!
//! All learn of a switchover within seconds. So one that names a primary alone, while a majority goes on to name another,
//! belongs to another deployment, whatever its number. It is outvoted, and logged by its address.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::{join, join_all};
use redis::{Value, from_redis_value};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    commands::Commands,
    connector::{Connector, Role},
    driver, failure,
    pauses::PATIENCE,
    settings::Settings,
    stream::Address,
};
use crate::{
    backend::{BackendError, Calls, Replied},
    caught::OnDrop,
    error::ErrorKind,
};

/// The sentinels that watch a service.
pub(super) struct Sentinels {
    /// The name under which they know the primary.
    pub(super) service: String,
    sentinels: Vec<Arc<Connector>>,
    heard: watch::Sender<Heard>,
    /// Told when they are to be asked now.
    wanted: Notify,
    /// How many drivers ask them.
    keepers: AtomicUsize,
}

/// What the sentinels have said; pure.
#[derive(Clone, Debug, Default)]
struct Heard {
    /// The latest answer of each sentinel.
    words: Vec<Option<Word>>,
    /// The number of the newest configuration that any of them has named, but the one that is outvoted.
    known: u64,
    /// The sentinel that names a primary alone, and since when a majority has named another.
    alone: Option<(usize, Instant)>,
    /// The sentinel that has done so for too long. It stays outvoted until another one names its primary, too.
    outvoted: Option<usize>,
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
        let heard = watch::Sender::new(Heard::of_none(sentinels.len()));
        Self { service, sentinels, heard, wanted: Notify::new(), keepers: AtomicUsize::new(0) }
    }

    /// Asks all of them for as long as it is polled.
    pub(super) async fn keep(&self) {
        self.keepers.fetch_add(1, Ordering::SeqCst);
        // The primary may be another by the time that somebody asks again, as after the end of a runtime.
        let _forgets = OnDrop(|| {
            if self.keepers.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.heard.send_modify(|heard| heard.words.fill(None));
            }
        });
        let keep = self.sentinels.iter().enumerate().map(|(index, sentinel)| async move {
            // Messages of the sentinel go to the connector itself, not to an engine.
            let (nobody, _) = Calls::new("".into());
            join(driver::keep_link(Arc::clone(sentinel), nobody), self.ask(index, sentinel)).await;
        });
        join_all(keep).await;
    }

    /// Returns where the primary is: as the newest configuration says, after a moment for those that are slow to answer. `was_found` says
    /// that there was a connection to it before.
    pub(super) async fn primary(&self, within: Duration, was_found: bool) -> Replied<Address> {
        let limit = Instant::now() + within;
        let mut heard = self.heard.subscribe();
        self.wanted.notify_waiters();
        let is_known = |heard: &Heard| heard.words.iter().flatten().any(Word::is_primary);
        let all_heard = |heard: &Heard| heard.words.iter().all(Option::is_some);
        let _ = timeout_at(limit, heard.wait_for(|heard| is_known(heard) || all_heard(heard))).await.map(drop);
        let majority = self.sentinels.len() / 2 + 1;
        let is_enough = |heard: &Heard| {
            all_heard(heard) || heard.words.iter().flatten().filter(|word| word.is_primary()).count() >= majority
        };
        let _ = timeout(PATIENCE, heard.wait_for(is_enough)).await.map(drop);
        let heard = heard.borrow().clone();
        heard.primary().cloned().ok_or_else(|| self.no_primary(&heard.words, was_found))
    }

    /// Returns when the primary is at an address for which `is_known` is false.
    pub(super) async fn until_not(&self, is_known: impl Fn(&Address) -> bool) {
        let elsewhere = |heard: &Heard| heard.primary().is_some_and(|address| !is_known(address));
        let _ = self.heard.subscribe().wait_for(elsewhere).await.map(drop);
    }

    /// Returns whether the primary is known to be elsewhere than at an address.
    pub(super) fn are_sure_of_another(&self, address: &Address) -> bool {
        self.heard.borrow().primary().is_some_and(|primary| primary != address)
    }

    /// Asks one of them now and then.
    async fn ask(&self, index: usize, sentinel: &Connector) {
        loop {
            let word = self.word_of(sentinel).await;
            let mut outvoted = None;
            self.heard.send_modify(|heard| outvoted = heard.hear(index, word, Instant::now()));
            if let Some(outvoted) = outvoted {
                log!(
                    warn,
                    sentinel = &*self.sentinels[outvoted].address(),
                    service = self.service,
                    "this sentinel alone names another primary than most others do, so it is ignored; check that it watches the \
                     same servers, and take it out of the URL if it belongs to another deployment"
                );
            }
            let said = sentinel.told.notified();
            tokio::select! {
                () = sleep(ASK_EVERY) => {}
                () = self.wanted.notified() => {}
                () = said => {}
            }
        }
    }

    async fn word_of(&self, sentinel: &Connector) -> Word {
        // The number before the address: if they change between the two, the new address counts as older than it is, and not the old one
        // as newer.
        let mut questions = self.question("MASTER");
        questions.add(["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &self.service]);
        let replies = match sentinel.query::<[Value; 2]>(&questions).await {
            Ok(replies) => replies,
            Err(error) => return Word::Failed(error),
        };
        let [about, found] = replies;
        let found = match found.extract_error() {
            Ok(Value::Nil) => return self.services_of(sentinel).await,
            Ok(reply) => from_redis_value::<(String, u16)>(reply).ok(),
            Err(error) => return Word::Failed(sentinel.refusal(error)),
        };
        let Some((host, port)) = found else { return Word::Failed(misread(&sentinel.address())) };
        // A user who may not ask gets along without: then what most of them say counts.
        let about = from_redis_value::<HashMap<String, String>>(about).ok();
        let configuration = about.and_then(|about| about.get("config-epoch")?.parse().ok()).unwrap_or(0);
        Word::Primary { address: Address::Tcp { host, port }, configuration }
    }

    /// The names that a sentinel knows.
    async fn services_of(&self, sentinel: &Connector) -> Word {
        let masters = Commands::one(["SENTINEL", "MASTERS"]);
        let services = sentinel.query::<Vec<HashMap<String, String>>>(&masters).await;
        Word::Unknown(
            services.unwrap_or_default().into_iter().filter_map(|mut service| service.remove("name")).collect(),
        )
    }

    /// Asks for something about the service.
    fn question(&self, name: &str) -> Commands {
        Commands::one(["SENTINEL", name, &self.service])
    }

    /// The error if the primary is not known.
    fn no_primary(&self, words: &[Option<Word>], was_found: bool) -> BackendError {
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
            return BackendError::unavailable(message).did_not_happen();
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
            // Others may know it that were not reached. A name that was known is right: they were reset, or lost what they knew.
            let is_wrong = !was_found && words.iter().all(|word| matches!(word, Some(Word::Unknown(_))));
            let kind = if is_wrong { ErrorKind::Unsupported } else { ErrorKind::Backend };
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
            BackendError::unavailable(message)
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

impl Heard {
    fn of_none(sentinels: usize) -> Self {
        Self { words: vec![None; sentinels], ..Self::default() }
    }

    /// Takes an answer. Returns the sentinel that is outvoted from now on, if one is.
    fn hear(&mut self, index: usize, word: Word, now: Instant) -> Option<usize> {
        self.words[index] = Some(word);
        if let Some(outvoted) = self.outvoted
            && let Some((address, _)) = self.named(outvoted)
            && self.votes(address) > 1
        {
            self.outvoted = None;
        }
        self.alone = match (self.alone, self.lone()) {
            (Some((before, since)), Some(lone)) if before == lone => Some((lone, since)),
            (_, lone) => lone.map(|lone| (lone, now)),
        };
        let lasting = self.alone.filter(|(_, since)| now.duration_since(*since) >= LASTING).map(|(lone, _)| lone);
        let news = lasting.filter(|lone| self.outvoted != Some(*lone));
        if news.is_some() {
            self.outvoted = news;
            // Otherwise those that are left of the majority would count for less than its number.
            self.known = 0;
        }
        let counted = (0..self.words.len()).filter(|index| self.outvoted != Some(*index));
        let numbers = counted.filter_map(|index| self.named(index)).map(|(_, configuration)| configuration);
        self.known = numbers.max().unwrap_or(0).max(self.known);
        news
    }

    /// The one sentinel that names another primary than a majority does.
    fn lone(&self) -> Option<usize> {
        let of_majority = |(address, _): &(&Address, u64)| self.votes(address) > self.words.len() / 2;
        let majority = (0..self.words.len()).filter_map(|index| self.named(index)).find(of_majority)?.0;
        let mut others =
            (0..self.words.len()).filter(|index| self.named(*index).is_some_and(|(address, _)| address != majority));
        others.next().filter(|_| others.next().is_none())
    }

    /// The primary that a sentinel names, and the number of its configuration.
    fn named(&self, index: usize) -> Option<(&Address, u64)> {
        match &self.words[index] {
            Some(Word::Primary { address, configuration }) => Some((address, *configuration)),
            _ => None,
        }
    }

    /// How many name an address.
    fn votes(&self, of: &Address) -> usize {
        (0..self.words.len()).filter(|index| self.named(*index).is_some_and(|(address, _)| address == of)).count()
    }

    /// The primary of the newest configuration, without the sentinel that is outvoted. If sentinels name different ones, the one
    /// that most name; `None` if there are two of these.
    ///
    /// A configuration older than the newest known one counts only if a majority of all sentinels name it, as when they were reset.
    fn primary(&self) -> Option<&Address> {
        let counted = (0..self.words.len()).filter(|index| self.outvoted != Some(*index));
        let ranked = counted.filter_map(|index| {
            let (address, configuration) = self.named(index)?;
            let votes = self.votes(address);
            (configuration >= self.known || votes > self.words.len() / 2).then_some((configuration, votes, address))
        });
        let (configuration, votes, address) =
            ranked.clone().max_by_key(|(configuration, votes, _)| (*configuration, *votes))?;
        let is_split = ranked.clone().any(|other| (other.0, other.1) == (configuration, votes) && other.2 != address);
        (!is_split).then_some(address)
    }
}

fn misread(address: &str) -> BackendError {
    BackendError::unavailable(format!("{address} does not answer as a sentinel does; check that it is one"))
}

/// How often a sentinel is asked that says nothing by itself.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// For how long a sentinel may name a primary alone, while a majority names another: several times as long as they take to tell
/// one another of a switchover.
const LASTING: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::{super::target::Target, *};
    use crate::backend::{options::ConnectOptions, timeouts::Timeouts};

    const SECOND: Duration = Duration::from_secs(1);

    fn word(host: &str, configuration: u64) -> Option<Word> {
        Some(Word::Primary { address: Address::Tcp { host: host.to_owned(), port: 6379 }, configuration })
    }

    /// What sentinels have said at once, when a configuration was known.
    fn heard(words: &[Option<Word>], known: u64) -> Heard {
        let mut heard = Heard { known, ..Heard::of_none(words.len()) };
        let now = Instant::now();
        for (index, word) in words.iter().enumerate() {
            assert_eq!(word.clone().and_then(|word| heard.hear(index, word, now)), None);
        }
        heard
    }

    fn host(heard: &Heard) -> Option<String> {
        heard.primary().map(ToString::to_string)
    }

    fn two_sentinels() -> Sentinels {
        let options = ConnectOptions::new("test", Timeouts::new(SECOND, SECOND).expect("in range"));
        let target = Target::from_url("redis+sentinel://127.0.0.1:1,127.0.0.1:2/shop", &options).expect("a sound URL");
        let Target::Service { service, sentinels, .. } = target else { panic!("a service of sentinels") };
        Sentinels::new(service, sentinels)
    }

    #[test]
    fn a_service_that_no_sentinel_knows_any_longer_is_an_outage_and_no_wrong_name() {
        let sentinels = two_sentinels();
        let unknown = || Some(Word::Unknown(Vec::new()));
        let kind = |words: &[Option<Word>], was_found| sentinels.no_primary(words, was_found).kind();
        assert_eq!(kind(&[unknown(), unknown()], false), ErrorKind::Unsupported);
        assert_eq!(kind(&[unknown(), unknown()], true), ErrorKind::Backend);
        assert_eq!(kind(&[unknown(), None], false), ErrorKind::Backend, "the other one may know it");
    }

    #[tokio::test]
    async fn what_they_have_said_is_forgotten_when_the_last_driver_has_ended() {
        let sentinels = two_sentinels();
        let [mut first, mut second] = [Box::pin(sentinels.keep()), Box::pin(sentinels.keep())];
        assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
        sentinels
            .heard
            .send_modify(|heard| assert!(heard.hear(0, word("a", 3).expect("a word"), Instant::now()).is_none()));
        drop(first);
        assert_eq!(host(&sentinels.heard.borrow()).as_deref(), Some("a:6379"));
        drop(second);
        let heard = sentinels.heard.borrow();
        assert_eq!((host(&heard), heard.known), (None, 3));
    }

    #[test]
    fn the_newest_configuration_counts_and_then_the_most_votes() {
        let host = |words: &[Option<Word>]| host(&heard(words, 0));
        assert_eq!(host(&[None, Some(Word::Unknown(Vec::new()))]), None);
        assert_eq!(host(&[word("old", 3), word("old", 3), word("new", 4)]).as_deref(), Some("new:6379"));
        assert_eq!(host(&[word("a", 0), word("b", 0), word("b", 0)]).as_deref(), Some("b:6379"));
    }

    #[test]
    fn sentinels_that_disagree_name_nobody() {
        assert_eq!(host(&heard(&[word("a", 2), word("b", 2)], 0)), None);
        assert_eq!(host(&heard(&[word("a", 2), None, word("b", 2), word("old", 1)], 2)), None);
    }

    #[test]
    fn a_former_configuration_does_not_come_back_unless_most_name_it() {
        let host = |words: &[Option<Word>]| host(&heard(words, 4));
        assert_eq!(host(&[word("old", 3), None, None]), None);
        assert_eq!(host(&[word("old", 3), word("new", 4), None]).as_deref(), Some("new:6379"));
        assert_eq!(host(&[word("fresh", 0), word("fresh", 0), None]).as_deref(), Some("fresh:6379"));
    }

    /// Three sentinels of one deployment, and then one of another, which says the same again after a while.
    fn a_stranger_after(while_: Duration) -> (Heard, Option<usize>) {
        let begun = Instant::now();
        let mut heard = heard(&[word("ours", 0), word("ours", 0), word("ours", 0), word("theirs", 7)], 0);
        assert_eq!(host(&heard).as_deref(), Some("theirs:6379"), "it may have been the first to learn of a switchover");
        let news = heard.hear(3, word("theirs", 7).expect("a word"), begun + while_);
        (heard, news)
    }

    #[test]
    fn one_that_stands_alone_against_a_majority_for_longer_than_a_switchover_takes_is_outvoted() {
        let (heard, news) = a_stranger_after(LASTING - Duration::from_secs(1));
        assert_eq!((host(&heard).as_deref(), news), (Some("theirs:6379"), None));
        let (mut heard, news) = a_stranger_after(LASTING + Duration::from_secs(1));
        assert_eq!((host(&heard).as_deref(), news), (Some("ours:6379"), Some(3)));
        let later = Instant::now() + 2 * LASTING;
        assert_eq!(heard.hear(3, word("theirs", 8).expect("a word"), later), None, "it is logged once");
        assert_eq!(host(&heard).as_deref(), Some("ours:6379"));
        // It does not win either when too few of the others are left to be a majority.
        for index in 0..2 {
            let failed = Word::Failed(BackendError::unavailable("it is down"));
            assert_eq!(heard.hear(index, failed, later), None);
            assert_eq!(host(&heard).as_deref(), Some("ours:6379"));
        }
    }

    #[test]
    fn one_that_is_outvoted_counts_again_when_another_names_its_primary() {
        let (mut heard, _) = a_stranger_after(LASTING + Duration::from_secs(1));
        heard.hear(0, word("theirs", 7).expect("a word"), Instant::now() + 2 * LASTING);
        assert_eq!(host(&heard).as_deref(), Some("theirs:6379"));
    }

    #[test]
    fn one_that_is_joined_in_time_is_not_outvoted_later() {
        let begun = Instant::now();
        let mut heard = heard(&[word("old", 3), word("old", 3), word("new", 4)], 0);
        let mut hear = |index, host, configuration, after| {
            heard.hear(index, word(host, configuration).expect("a word"), begun + after)
        };
        assert_eq!(hear(0, "new", 4, LASTING / 2), None);
        // Now the other one is alone, with an older number.
        assert_eq!(hear(1, "old", 3, LASTING + LASTING / 4), None);
        assert_eq!(hear(2, "new", 4, LASTING + LASTING / 4), None);
        assert_eq!(host(&heard).as_deref(), Some("new:6379"));
    }
}
