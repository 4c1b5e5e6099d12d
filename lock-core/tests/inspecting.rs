//! Who holds a key and who waits, over a store in memory that two managers share.

use std::{
    future::Future,
    task::{Context, Waker},
    time::Duration,
};

use lock_core::{KeyInfo, LockManager, Mode, backend::MemoryBackend};
use tokio::time::sleep;

use crate::support::log::Log;

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn manager(store: &MemoryBackend, name: &str) -> Result<LockManager> {
    Ok(LockManager::builder().backend(store.clone()).client_name(name).build()?)
}

/// Two managers of a store, which both run.
async fn two() -> Result<[LockManager; 2]> {
    let store = MemoryBackend::new();
    let managers = [manager(&store, "one")?, manager(&store, "two")?];
    for manager in &managers {
        manager.is_locked("begin").await?;
        // The task has to be polled before it listens.
        tokio::task::yield_now().await;
    }
    Ok(managers)
}

fn labels(info: &KeyInfo) -> Vec<(&str, &str, u32)> {
    info.waiters().iter().map(|waiter| (waiter.party().service(), waiter.party().label(), waiter.place())).collect()
}

#[tokio::test(start_paused = true)]
async fn those_that_answered_are_named_whether_they_hold_anything_or_not() -> Result {
    let [one, two] = two().await?;
    let _guard = one.lock("k").label("import").await?;
    for info in [two.inspect("k").await?, two.list("").await?.remove(0)] {
        let mut names: Vec<_> = info.answered_by().iter().map(|party| (party.service(), party.label())).collect();
        names.sort_unstable();
        assert_eq!(names, [("one", ""), ("two", "")]);
    }
    assert!(two.inspect("free").await?.answered_by().is_empty(), "nobody was asked");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn holder_and_waiters_of_all_processes_are_described_in_the_order_of_their_places() -> Result {
    let [one, two] = two().await?;
    let guard = one.lock("k").label("import").ttl(ms(9_000)).await?;
    sleep(ms(1_000)).await;
    for (manager, label) in [(&two, "a"), (&one, "b"), (&two, "c")] {
        let waits = manager.lock("k").label(label).wait_forever();
        tokio::spawn(async move { waits.await.map(drop) });
        sleep(ms(600)).await;
    }
    let info = two.inspect("k").await?;
    assert!(info.is_locked() && !info.is_foreign() && info.key() == "k");
    let holder = info.holder().expect("it answers");
    assert_eq!((holder.party().service(), holder.party().label()), ("one", "import"));
    assert_eq!(holder.party().process(), std::process::id());
    assert!(!holder.party().host().is_empty());
    assert_eq!((holder.held(), holder.ttl(), holder.mode()), (ms(2_800), ms(9_000), Mode::Exclusive));
    assert_eq!(holder.fencing_token(), guard.fencing_token());
    assert!(holder.party().to_string().ends_with(", \"import\")"), "{}", holder.party());
    // Of two that are the first of their processes, the one that has waited for longer comes first.
    assert_eq!(labels(&info), [("two", "a", 1), ("one", "b", 1), ("two", "c", 2)]);
    assert_eq!(info.waiters()[0].waited(), ms(1_800));
    assert_eq!(one.inspect("k").await?, info, "whoever asks");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn what_is_over_is_not_described() -> Result {
    let [one, two] = two().await?;
    let guard = one.lock("k").await?;
    drop(tokio::spawn(two.lock("k").wait(ms(100)).acquire()).await?);
    assert_eq!(labels(&one.inspect("k").await?), []);
    guard.release().await?;
    let info = two.inspect("k").await?;
    assert!(!info.is_locked() && info.holder().is_none() && info.remaining().is_none());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn keys_are_listed_by_what_they_begin_with_and_without_the_managers_prefix() -> Result {
    let store = MemoryBackend::new();
    let shop = LockManager::builder().backend(store.clone()).prefix("shop:").client_name("shop").build()?;
    let other = manager(&store, "other")?;
    let _guards = shop.lock_all(["goods:1", "goods:2", "orders:1"]).await?;
    let _other = other.lock("goods:3").await?;
    let keys = async |manager: &LockManager, prefix: &str| -> Result<Vec<_>> {
        Ok(manager.list(prefix).await?.into_iter().map(|info| info.key().to_owned()).collect())
    };
    assert_eq!(keys(&shop, "goods:").await?, ["goods:1", "goods:2"]);
    assert_eq!(keys(&shop, "").await?, ["goods:1", "goods:2", "orders:1"]);
    assert_eq!(keys(&other, "").await?, ["goods:3", "shop:goods:1", "shop:goods:2", "shop:orders:1"]);
    let listed = other.list("shop:orders").await?;
    assert_eq!(listed[0].holder().expect("it answers").party().service(), "shop");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn five_hundred_keys_of_each_process_are_described() -> Result {
    let [one, two] = two().await?;
    let mut guards = Vec::new();
    for number in 0..1_000 {
        let manager = if number % 2 == 0 { &one } else { &two };
        guards.push(manager.lock(format!("k{number}")).label("many").await?);
    }
    let listed = two.list("k").await?;
    assert_eq!(listed.len(), 1_000);
    let undescribed: Vec<_> = listed.iter().filter(|info| info.holder().is_none()).map(KeyInfo::key).collect();
    assert!(undescribed.is_empty(), "{} such as {:?}", undescribed.len(), undescribed[0]);
    assert!(!listed.iter().any(KeyInfo::is_truncated));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_list_of_more_than_a_process_may_name_says_so_whoever_asks() -> Result {
    let [one, two] = two().await?;
    let mut guards = Vec::new();
    for number in 0..501 {
        guards.push(one.lock(format!("k{number}")).await?);
    }
    for manager in [&two, &one] {
        let listed = manager.list("k").await?;
        assert_eq!(listed.iter().filter(|info| info.holder().is_some()).count(), 500);
        assert!(listed.iter().all(KeyInfo::is_truncated));
    }
    let info = two.inspect("k0").await?;
    assert!(info.holder().is_some() && !info.is_truncated(), "a look at one key is whole");
    guards.pop().expect("it was pushed").release().await?;
    assert!(!two.list("k").await?.iter().any(KeyInfo::is_truncated));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn at_most_five_hundred_waiters_of_a_process_are_described_and_more_are_said_to_be_missing() -> Result {
    let [one, two] = two().await?;
    let _guards = one.lock_all(["k", "other"]).await?;
    for (more, is_truncated) in [(500, false), (1, true), (49, true)] {
        for _ in 0..more {
            tokio::spawn(two.lock("k").wait_forever().acquire());
        }
        sleep(ms(100)).await;
        let info = one.inspect("k").await?;
        assert_eq!((info.waiters().len(), info.is_truncated()), (500, is_truncated));
        assert!(info.holder().is_some() && info.processes().unanswered() == Some(0));
    }
    // What is missing may belong to any key.
    assert!(one.list("").await?.iter().all(|info| info.is_truncated() && info.holder().is_some()));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn holders_are_named_before_waiters() -> Result {
    let [one, two] = two().await?;
    let _guards = two.lock_all((0..100).map(|number| format!("k{number}"))).await?;
    for number in 0..1_000 {
        tokio::spawn(two.lock(format!("k{}", number % 100)).wait_forever().acquire());
    }
    sleep(ms(100)).await;
    let listed = one.list("").await?;
    assert!(listed.iter().all(|info| info.holder().is_some()), "{listed:?}");
    assert_eq!(listed.iter().map(|info| info.waiters().len()).sum::<usize>(), 400);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_held_and_for_which_nobody_answers_is_told_from_a_free_one() -> Result {
    let [one, two] = two().await?;
    assert!(!two.inspect("k").await?.nobody_answered(), "it is free");
    let guard = one.lock("k").await?;
    assert!(!two.inspect("k").await?.nobody_answered());
    let handover = guard.hand_over()?;
    let info = two.inspect("k").await?;
    assert!(info.is_locked() && info.holder().is_none() && info.nobody_answered(), "it is between two holders");
    let _guard = two.take_up(handover).await?;
    assert!(!one.inspect("k").await?.nobody_answered());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_look_is_answered_after_others_were_dropped() -> Result {
    let [one, two] = two().await?;
    let _guard = one.lock("k").await?;
    for polls in 0..6 {
        let mut look = Box::pin(two.inspect("k"));
        for _ in 0..polls {
            if look.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    assert!(two.inspect("k").await?.holder().is_some());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_taken_up_is_described() -> Result {
    let [one, two] = two().await?;
    let handover = one.lock("k").await?.hand_over()?;
    let guard = two.take_up(handover).label("worker").await?;
    let info = one.inspect("k").await?;
    let holder = info.holder().expect("it answers");
    assert_eq!((holder.party().label(), holder.fencing_token()), ("worker", guard.fencing_token()));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_guard_says_how_long_its_acquire_took() -> Result {
    let [one, two] = two().await?;
    let guard = one.lock("a").await?;
    assert_eq!(guard.waited(), Duration::ZERO);
    let waits = tokio::spawn(two.lock_all(["a", "b"]).wait_forever().acquire());
    sleep(ms(700)).await;
    guard.release().await?;
    let all = waits.await??;
    assert_eq!(all.waited(), ms(700));
    assert_eq!(all.into_guards()[1].waited(), Duration::ZERO);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_long_is_told_of_the_holder() -> Result {
    let store = MemoryBackend::new();
    let holds = manager(&store, "one")?;
    let waits = LockManager::builder().backend(store.clone()).explain_waits_after(ms(500)).build()?;
    let _guard = holds.lock("k").label("import").await?;
    let short = waits.lock("k").wait(ms(400)).await.expect_err("it is held");
    assert!(short.is_busy() && short.holder().is_none(), "{short}");
    let error = waits.lock("k").wait(ms(1_400)).await.expect_err("it is held");
    let holder = error.holder().expect("it answers");
    assert_eq!((holder.party().service(), holder.held()), ("one", ms(900)));
    let party = format!("one on {} (process {}, \"import\")", holder.party().host(), std::process::id());
    let expected = format!("; 900.0ms before, {party} had held it for 900.0ms");
    assert!(error.to_string().ends_with(&expected), "{error}");
    // The time of a request of several keys is its own, too.
    let all = waits.lock_all(["a", "k"]).wait(ms(600)).await.expect_err("it is held");
    assert!(all.holder().is_some() && all.to_string().contains("after 600ms"), "{all}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_log_names_the_holder_of_a_key_once_for_all_who_wait_and_again_for_those_who_come_later() -> Result {
    let (log, _guard) = Log::begin();
    let store = MemoryBackend::new();
    let holds = manager(&store, "one")?;
    let waits = LockManager::builder().backend(store.clone()).explain_waits_after(ms(500)).build()?;
    let guards = holds.lock_all(["k", "other"]).label("import").await?;
    let explained = || log.count("still waiting for the lock");
    for (number, lines) in [(0, 1), (1, 2)] {
        for _ in 0..100 {
            tokio::spawn(waits.lock("k").wait(ms(60_000)).acquire());
        }
        sleep(ms(2_000)).await;
        assert_eq!(explained(), lines, "{number}: {log:?}");
    }
    assert_eq!(log.count("\"import\""), 2, "{log:?}");
    assert!(!log.text().contains("other"));
    // Its process does not answer.
    let _handover = guards.into_guards().pop().expect("two").hand_over()?;
    waits.lock("other").wait(ms(1_000)).await.expect_err("it is held");
    assert_eq!(log.count("no process says that it holds the key"), 1, "{log:?}");
    // The waits are over.
    sleep(ms(60_000)).await;
    assert!(waits.__sizes().contains(&("explained", 0)), "{:?}", waits.__sizes());
    assert_eq!(explained(), 3);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_served_while_it_asks_is_served() -> Result {
    let store = MemoryBackend::new();
    let holds = manager(&store, "one")?;
    let waits = LockManager::builder().backend(store.clone()).explain_waits_after(ms(500)).build()?;
    let guard = holds.lock("k").await?;
    let waiter = tokio::spawn(waits.lock("k").wait_forever().acquire());
    sleep(ms(500)).await;
    guard.release().await?;
    waiter.await??.release().await?;
    Ok(())
}

#[test]
fn a_request_that_is_polled_without_a_runtime_waits_like_any_other() -> Result {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store = MemoryBackend::new();
    let waits =
        LockManager::builder().backend(store.clone()).explain_waits_after(ms(1)).runtime(runtime.handle().clone());
    let (holds, waits) = (manager(&store, "one")?, waits.build()?);
    let _guard = runtime.block_on(holds.lock("k").acquire())?;
    let plain = LockManager::builder().backend(store).explain_waits_after(ms(1)).build()?;
    runtime.block_on(plain.is_locked("k"))?;
    for manager in [&waits, &plain] {
        let mut acquire = Box::pin(manager.lock("k").wait_forever().acquire());
        assert!(acquire.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    Ok(())
}

#[test]
fn a_request_whose_wait_is_explained_is_served_though_its_first_runtime_has_ended() -> Result {
    let new = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (main, first) = (new()?, new()?);
    let manager = LockManager::builder().backend(MemoryBackend::new()).explain_waits_after(ms(20)).build()?;
    let guard = main.block_on(manager.lock("k").acquire())?;
    let mut acquire = Box::pin(manager.lock("k").wait_forever().acquire());
    first.block_on(async { assert!(futures_util::poll!(&mut acquire).is_pending()) });
    drop(first);
    main.block_on(async {
        sleep(ms(40)).await;
        assert!(futures_util::poll!(&mut acquire).is_pending(), "the time to ask has come");
        guard.release().await?;
        acquire.await?.release().await
    })?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_holders_of_many_keys_are_asked_for_one_after_the_other() -> Result {
    let store = MemoryBackend::new();
    let holds = manager(&store, "one")?;
    let waits = LockManager::builder().backend(store).explain_waits_after(ms(500)).build()?;
    let keys: Vec<_> = (0..100).map(|number| format!("k{number}")).collect();
    let _guards = holds.lock_all(&keys).await?;
    let requests = keys.iter().map(|key| waits.lock(key).wait(ms(30_000)).acquire());
    let errors = futures_util::future::join_all(requests.map(tokio::spawn)).await;
    let named = errors.into_iter().filter(|error| matches!(error, Ok(Err(error)) if error.holder().is_some()));
    assert_eq!(named.count(), 100, "at ten questions a second there is time for all");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn many_who_look_at_once_are_all_answered() -> Result {
    let [one, two] = two().await?;
    let _guard = one.lock("k").await?;
    let looks = futures_util::future::join_all((0..20).map(|_| two.inspect("k"))).await;
    for info in looks {
        assert!(info?.holder().is_some());
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn all_who_share_a_key_are_named_with_their_modes() -> Result<(), lock_core::Error> {
    let store = MemoryBackend::new();
    let [one, two] = ["one", "two"].map(|name| {
        LockManager::builder().backend(store.clone()).client_name(name).build().expect("a valid configuration")
    });
    let first = one.lock("k").shared().label("reads").await?;
    tokio::time::sleep(ms(10)).await;
    let _second = two.lock("k").shared().await?;
    let _third = two.lock("k").shared().await?;
    let writes = tokio::spawn(one.lock("k").wait_forever().acquire());
    tokio::time::sleep(ms(10)).await;
    let info = two.inspect("k").await?;
    assert_eq!(info.holders().len(), 3);
    assert!(info.holders().iter().all(|holder| holder.mode() == Mode::Shared));
    let longest = info.holder().expect("three hold it");
    assert_eq!((longest.party().service(), longest.party().label()), ("one", "reads"));
    assert_eq!(info.waiters().iter().map(|waiter| waiter.mode()).collect::<Vec<_>>(), [Mode::Exclusive]);
    assert!(!info.nobody_answered() && !info.is_truncated());
    writes.abort();
    drop(first);
    let permit = one.lock("tenant").permits(7).take(3).await?;
    let _other = two.lock("tenant").permits(7).await?;
    let info = one.inspect("tenant").await?;
    let modes: Vec<_> = info.holders().iter().map(|holder| holder.mode().to_string()).collect();
    assert!(modes.contains(&"3 of 7 permits".to_owned()) && modes.contains(&"1 of 7 permits".to_owned()), "{modes:?}");
    permit.release().await?;
    let _many: Vec<_> = {
        let mut guards = Vec::new();
        for _ in 0..501 {
            guards.push(one.lock("many").shared().await?);
        }
        guards
    };
    let info = two.inspect("many").await?;
    assert_eq!((info.holders().len(), info.is_truncated()), (500, true));
    assert_eq!((info.leases(), info.silent()), (501, None), "that one answered, too, is not known");
    Ok(())
}

/// How many leases hold a key, and of how many of them and of their permits nobody answered.
fn counted(info: &KeyInfo) -> (usize, usize, u32) {
    let silent = info.silent();
    (info.leases(), silent.map_or(0, |silent| silent.leases()), silent.map_or(0, |silent| silent.permits()))
}

#[tokio::test(start_paused = true)]
async fn leases_of_a_shared_key_for_which_nobody_answers_are_counted_beside_those_that_answer() -> Result {
    let [one, two] = two().await?;
    assert_eq!(counted(&two.inspect("k").await?), (0, 0, 0), "it is free");
    let _first = one.lock("k").shared().ttl(ms(60_000)).await?;
    let _second = two.lock("k").shared().ttl(ms(60_000)).await?;
    assert_eq!(counted(&two.inspect("k").await?), (2, 0, 0));
    // As if its process had died: no process has it until it is taken up.
    let handover = one.lock("k").shared().ttl(ms(9_000)).await?.hand_over()?;
    for info in [two.inspect("k").await?, two.list("").await?.remove(0)] {
        assert_eq!((info.holders().len(), counted(&info), info.nobody_answered()), (2, (3, 1, 0), false));
        let silent = info.silent().expect("it was counted");
        assert_eq!((silent.first_end(), silent.last_end()), (Some(ms(9_000)), Some(ms(60_000))));
        assert_eq!(info.remaining(), silent.last_end());
    }
    let _third = two.take_up(handover).await?;
    assert_eq!(counted(&one.inspect("k").await?), (3, 0, 0));
    // And without anybody who answers, all of them.
    let handovers = [one.lock("s").shared().await?.hand_over()?, two.lock("s").shared().await?.hand_over()?];
    let info = one.inspect("s").await?;
    assert_eq!((counted(&info), info.nobody_answered()), ((2, 2, 0), true));
    drop(handovers);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn permits_for_which_nobody_answers_are_counted() -> Result {
    let [one, two] = two().await?;
    let _first = one.lock("k").permits(9).take(3).await?;
    let handover = one.lock("k").permits(9).take(2).await?.hand_over()?;
    assert_eq!(counted(&two.inspect("k").await?), (2, 1, 2));
    drop(handover);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_lease_alone_for_which_nobody_answers_is_counted_like_the_others() -> Result {
    let [one, two] = two().await?;
    let guard = one.lock("k").ttl(ms(9_000)).await?;
    assert_eq!(counted(&two.inspect("k").await?), (1, 0, 0));
    let handover = guard.hand_over()?;
    let info = two.inspect("k").await?;
    assert_eq!(counted(&info), (1, 1, 0));
    assert_eq!(info.silent().and_then(|silent| silent.first_end()), Some(ms(9_000)));
    drop(handover);
    Ok(())
}
