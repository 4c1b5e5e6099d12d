//! Looks at holders and waiters over a network that loses or delays the messages, or counts them.

mod quorum;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use lock_core::{
    KeyInfo, LockGuard, LockManager,
    backend::{Answer, Backend, BackendError, Batch, Calls, EVERYONE, MemoryBackend, Reply},
    clock::Clock,
    key::LockKey,
};
use tokio::time::{Instant, sleep};

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;
type Carry = dyn Fn(MemoryBackend, Arc<str>, String) -> Reply<Option<usize>> + Send + Sync;

/// A store whose messages go through a function.
#[derive(Clone)]
struct Network {
    store: MemoryBackend,
    carry: Arc<Carry>,
    /// How long a list of keys takes.
    scan: Duration,
}

impl Network {
    fn new(carry: impl Fn(MemoryBackend, Arc<str>, String) -> Reply<Option<usize>> + Send + Sync + 'static) -> Self {
        Self { store: MemoryBackend::new(), carry: Arc::new(carry), scan: Duration::ZERO }
    }

    /// Two managers that both run, of which the first has some keys.
    async fn two(&self, keys: usize) -> Result<([LockManager; 2], Vec<LockGuard>)> {
        let managers = [self.manager("one").build()?, self.manager("two").build()?];
        for manager in &managers {
            begin(manager).await?;
        }
        let mut guards = Vec::new();
        for number in 0..keys {
            guards.push(managers[0].lock(format!("k{number}")).ttl(ms(60_000)).await?);
        }
        Ok((managers, guards))
    }

    fn manager(&self, name: &str) -> lock_core::LockManagerBuilder {
        LockManager::builder().backend(self.clone()).client_name(name)
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

impl Backend for Network {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        self.store.call(batch)
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        let (store, scan) = (self.store.clone(), self.scan);
        Reply::new(async move {
            sleep(scan).await;
            store.list(prefix).await
        })
    }

    fn time_limit(&self) -> Duration {
        ms(1_000)
    }

    fn publish(&self, channel: Arc<str>, message: String) -> Reply<Option<usize>> {
        (self.carry)(self.store.clone(), channel, message)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.store.clock()
    }

    fn driver(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.store.driver(calls)
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Has a manager listen.
async fn begin(manager: &LockManager) -> Result {
    manager.is_locked("begin").await?;
    // The task has to be polled before it listens.
    tokio::task::yield_now().await;
    Ok(())
}

fn lost() -> Reply<Option<usize>> {
    Reply::ready(Err(BackendError::unavailable("no answer within the limit of commands")))
}

fn undescribed(listed: &[KeyInfo]) -> usize {
    listed.iter().filter(|info| info.nobody_answered()).count()
}

#[tokio::test(start_paused = true)]
async fn a_question_is_answered_though_the_store_does_not_confirm_it_in_time() -> Result {
    let network = Network::new(|store, channel, message| {
        let is_question = *channel == *EVERYONE;
        let carried = store.publish(channel, message);
        if is_question { lost() } else { carried }
    });
    let ([_, two], _guards) = network.two(1).await?;
    assert!(two.inspect("k0").await?.holder().is_some());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn messages_that_come_twice_count_once() -> Result {
    let network = Network::new(move |store, channel, message| {
        drop(store.publish(Arc::clone(&channel), message.clone()));
        store.publish(channel, message)
    });
    let ([_, two], _guards) = network.two(1).await?;
    let info = two.inspect("k0").await?;
    assert_eq!((info.holders().len(), info.processes().asked(), info.processes().answered()), (1, Some(2), 2));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn messages_of_strangers_do_not_count_and_do_no_harm() -> Result {
    let network = Network::new(move |store, channel, message| {
        // Answers of an older version, to another question and to none, and messages of no form and of great length.
        for forged in [
            "lock-core:told:1 1:7,".to_owned(),
            "lock-core:told:2 1:7,1:x,".to_owned(),
            message.replacen("told:2 ", "told:2 0:,", 1),
            message.replacen("who:1 ", "who:9 ", 1),
            "x".repeat(2 << 20),
        ] {
            drop(store.publish(Arc::clone(&channel), forged));
        }
        store.publish(channel, message)
    });
    let ([_, two], guards) = network.two(1).await?;
    for info in [two.inspect("k0").await?, two.list("").await?.remove(0)] {
        assert_eq!((info.holders().len(), info.processes().answered()), (1, 2), "{info:?}");
    }
    assert!(guards[0].is_held());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_question_that_is_refused_ends_at_once_with_what_the_process_knows() -> Result {
    for error in [BackendError::denied("no rights"), BackendError::unavailable("not connected").did_not_happen()] {
        let network = Network::new(move |_, _, _| Reply::ready(Err(error.clone())));
        let ([one, two], _guards) = network.two(1).await?;
        let begun = Instant::now();
        assert!(one.inspect("k0").await?.holder().is_some());
        assert!(two.inspect("k0").await?.nobody_answered());
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn how_many_processes_should_have_answered_and_how_many_did_is_told() -> Result {
    let is_question = |channel: &str| channel == EVERYONE;
    let whole = Network::new(|store, channel, message| store.publish(channel, message));
    let answers_lost = Network::new(move |store, channel, message| match is_question(&channel) {
        true => store.publish(channel, message),
        false => Reply::ready(Ok(Some(0))),
    });
    let uncounted = Network::new(move |store, channel, message| {
        let carried = store.publish(channel, message);
        Reply::new(async move { carried.await.map(|_| None) })
    });
    let refused = Network::new(|_, _, _| Reply::ready(Err(BackendError::denied("no rights"))));
    for (network, asked, answered) in
        [(whole, Some(2), 2), (answers_lost, Some(2), 1), (uncounted, None, 2), (refused, None, 1)]
    {
        let ([_, two], _guards) = network.two(1).await?;
        for info in [two.inspect("k0").await?, two.list("k").await?.remove(0)] {
            let processes = info.processes();
            assert_eq!((processes.asked(), processes.answered()), (asked, answered));
            assert_eq!(processes.unanswered(), asked.map(|asked| asked - answered));
            assert_eq!(info.nobody_answered(), answered == 1);
        }
        assert_eq!(two.inspect("free").await?.processes().unanswered(), Some(0));
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_too_late_is_said_to_be_missing() -> Result {
    let answers = AtomicUsize::new(0);
    let network = Network::new(move |store, channel, message| {
        let is_late = *channel != *EVERYONE && answers.fetch_add(1, Ordering::Relaxed) == 0;
        Reply::new(async move {
            sleep(if is_late { ms(400) } else { Duration::ZERO }).await;
            store.publish(channel, message).await
        })
    });
    let ([_, two], _guards) = network.two(1).await?;
    let begun = Instant::now();
    let info = two.inspect("k0").await?;
    assert_eq!((info.nobody_answered(), info.processes().unanswered()), (true, Some(1)));
    assert!(begun.elapsed() < ms(400), "it came in {:?}", begun.elapsed());
    sleep(ms(500)).await;
    assert!(two.inspect("k0").await?.holder().is_some(), "the next question is answered");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn own_holders_are_described_though_a_message_takes_long() -> Result {
    let network = Network::new(|store, channel, message| {
        Reply::new(async move {
            sleep(ms(400)).await;
            store.publish(channel, message).await
        })
    });
    let ([one, _], _guards) = network.two(1).await?;
    assert!(one.inspect("k0").await?.holder().is_some());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_panics_at_a_message_ends_no_lease() -> Result {
    let network = Network::new(|_, _, _| Reply::new(async { panic!("as the test says") }));
    let ([one, two], guards) = network.two(1).await?;
    let guard = two.lock("other").ttl(ms(1_000)).await?;
    assert!(two.inspect("k0").await?.nobody_answered());
    assert!(one.inspect("k0").await?.holder().is_some());
    sleep(ms(5_000)).await;
    assert!(guards[0].is_held() && guard.is_held(), "they are still renewed");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_manager_asks_once_for_all_its_waiters_of_a_key() -> Result {
    let messages = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&messages);
    let network = Network::new(move |store, channel, message| {
        counted.fetch_add(1, Ordering::Relaxed);
        store.publish(channel, message)
    });
    let mut managers = Vec::new();
    for _ in 0..10 {
        let manager = network.manager("waits").explain_waits_after(ms(500)).build()?;
        begin(&manager).await?;
        managers.push(manager);
    }
    let _guard = managers[0].lock("k").await?;
    let mut waits = Vec::new();
    for number in 0..1_000 {
        waits.push(tokio::spawn(managers[number % 10].lock("k").wait(ms(10_000)).acquire()));
        if number % 50 == 0 {
            sleep(ms(20)).await;
        }
    }
    let errors = join_all(waits).await;
    let named = errors.into_iter().filter(|error| matches!(error, Ok(Err(error)) if error.holder().is_some()));
    assert_eq!(named.count(), 1_000);
    // Each manager asks once, and is answered once. The first one has the key, and needs not ask.
    assert_eq!(messages.load(Ordering::Relaxed), 9 + 9);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_list_may_take_longer_than_a_call() -> Result {
    let network =
        Network { scan: ms(10_000), ..Network::new(|store, channel, message| store.publish(channel, message)) };
    let ([_, two], _guards) = network.two(10).await?;
    let listed = two.list("k").await?;
    assert_eq!((listed.len(), undescribed(&listed)), (10, 0));
    Ok(())
}
