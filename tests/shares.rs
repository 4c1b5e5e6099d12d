//! Shared leases and permits on a real Redis: what only a server shows.

use std::{
    future::{Future, poll_fn},
    task::Poll,
};

use futures_util::future::select_all;
use lock_core::{
    LockManager, Mode,
    backend::{Acquire, Backend, Batch, Calls, Operation, Outcome, Place, RedisBackend, Release, Renew, Token},
    clock::Moment,
    key::LockKey,
};
use lock_tests::{LONG, RedisServer, Reply, SOON, eventually, eventually_some, has_places, ms};
use tokio::{task::JoinHandle, time::sleep};

use crate::patient;

async fn manager(server: &RedisServer) -> LockManager {
    patient::connect(&server.url()).await.expect("the server answers")
}

#[tokio::test]
async fn a_shared_lease_is_kept_beside_an_exclusive_one_that_is_watched() {
    let server = RedisServer::start().await;
    let manager = manager(&server).await;
    let ttl = ms(8_000);
    let shared = manager.lock("shared").shared().ttl(ttl).await.unwrap();
    let permit = manager.lock("permit").permits(3).ttl(ttl).await.unwrap();
    let exclusive = manager.lock("exclusive").ttl(ttl).await.unwrap();
    sleep(ttl + ttl / 2).await;
    assert!(exclusive.is_held());
    assert!(shared.is_held(), "{:?}", shared.release().await);
    assert!(permit.is_held(), "{:?}", permit.release().await);
}

#[tokio::test]
async fn an_error_says_what_is_in_the_way_of_a_permit() {
    let server = RedisServer::start().await;
    let builder = patient::builder().url(server.url()).explain_waits_after(ms(100));
    let (manager, other) = (builder.connect().await.expect("the server answers"), manager(&server).await);
    assert_eq!(server.call(&["SET", "foreign", "2f1b", "NX"]).await, Reply::Status("OK".to_owned()));
    let _held = [
        other.lock("alone").await.unwrap(),
        other.lock("read").shared().await.unwrap(),
        other.lock("full").permits(2).take(2).await.unwrap(),
    ];
    for (key, said, code) in [
        ("foreign", "held by another library", "lock_busy"),
        ("alone", "held by someone else", "lock_busy"),
        ("read", "held by someone else", "lock_busy"),
        ("full", "out of permits (it has 2)", "lock_full"),
    ] {
        for wait in [ms(100), ms(0)] {
            let error = manager.lock(key).permits(2).wait(wait).await.expect_err("the key is held");
            assert!(error.to_string().contains(said), "{error}");
            assert_eq!(error.code(), code, "{error}");
        }
    }
    // A reader behind a writer is told so, and not sent after a reader with which it could share the key.
    let waits = tokio::spawn(other.lock("read").wait(LONG).acquire());
    eventually(SOON, "it has its place", async || {
        server.call(&["EXISTS", "{0}lock-core:queue:read"]).await.integer() == Some(1)
    })
    .await;
    // While the machine stands still its place may end: then the reader comes in, and asks again.
    let error =
        eventually_some(SOON, "it is behind it", async || match manager.lock("read").shared().wait(ms(1_500)).await {
            Ok(reader) => {
                reader.release().await.expect("held");
                None
            }
            Err(error) => Some(error),
        })
        .await;
    assert!(error.to_string().contains("still kept for others that came first"), "{error}");
    assert!(error.holder().is_none(), "{error}");
    waits.abort();
}

#[tokio::test]
async fn who_was_granted_a_key_is_its_holder_while_others_wait() {
    let server = RedisServer::start().await;
    let (first, next, last) = (manager(&server).await, manager(&server).await, manager(&server).await);
    let held = first.lock("k").await.expect("the key is free");
    let next = tokio::spawn(next.lock("k").ttl(LONG).wait(LONG).acquire());
    has_places(&server, 1).await;
    let last = tokio::spawn(last.lock("k").ttl(LONG).wait(LONG).acquire());
    has_places(&server, 2).await;
    held.release().await.expect("the server answers");
    // The next one, unless the machine has let it miss its turn.
    let (next, _, waits) = select_all([next, last]).await;
    let _held = next.unwrap().expect("it was next");
    // It holds by the message of its grant, and has taken the ttl that it wants: nothing is kept for anybody who has to come.
    eventually(SOON, "it is renewed", async || server.call(&["PTTL", "k"]).await.integer() > Some(2_000)).await;
    let error = first.lock("k").wait(ms(0)).await.expect_err("it is held");
    assert!(error.to_string().contains("held by someone else"), "{error}");
    let error = first.lock("k").wait(ms(300)).await.expect_err("it is held");
    assert!(error.to_string().contains("held by someone else"), "{error}");
    waits[0].abort();
}

#[tokio::test]
async fn shares_are_renewed_extended_and_released_when_the_server_is_out_of_memory() {
    let server = RedisServer::start().await;
    let manager = manager(&server).await;
    let lock = |key: &str| manager.lock(key).ttl(ms(8_000));
    let leases = [lock("shared").shared().await.unwrap(), lock("permit").permits(2).await.unwrap()];
    let mut fixed = lock("fixed").shared().fixed().await.unwrap();
    server.call(&["CONFIG", "SET", "maxmemory", "1"]).await;
    fixed.extend(LONG).await.unwrap();
    sleep(ms(11_000)).await; // longer than the ttl, so that they are renewed
    for lease in leases {
        assert!(lease.is_held(), "{}", lease.key());
        lease.release().await.unwrap();
    }
    fixed.release().await.unwrap();
    server.call(&["CONFIG", "SET", "maxmemory", "0"]).await;
    eventually(SOON, "nothing is left", async || server.left().await.is_empty()).await;
}

/// Waits until so many waiters have a place in the queue of `k`.
async fn places(server: &RedisServer, count: usize) {
    eventually(SOON, format!("{count} places"), async || {
        let fields = server.call(&["HKEYS", "{0}lock-core:queue:k"]).await;
        fields.items().iter().filter_map(Reply::text).filter(|field| field.starts_with('#')).count() == count
    })
    .await;
}

#[tokio::test]
async fn a_waiter_that_the_key_is_passed_on_to_leaves_no_place_of_its_own() {
    for _ in 0..20 {
        if is_passed_on().await {
            return;
        }
    }
    panic!("the first waiter has missed its turn each time");
}

/// Returns false if the machine has let the first waiter miss its turn, so that another one has come before it.
async fn is_passed_on() -> bool {
    let server = RedisServer::start().await;
    let manager = manager(&server).await;
    let lock = || manager.lock("k").ttl(LONG).wait(LONG);
    let reader = lock().shared().await.expect("free");
    let first = tokio::spawn(lock().acquire());
    places(&server, 1).await;
    let between = tokio::spawn(lock().shared().acquire());
    places(&server, 2).await;
    let last = tokio::spawn(lock().acquire());
    places(&server, 3).await;
    reader.release().await.expect("held");
    eventually(SOON, "somebody has come", async || first.is_finished() || between.is_finished()).await;
    if !first.is_finished() {
        [first, last].iter().for_each(JoinHandle::abort);
        return false;
    }
    let first = first.await.expect("no panic").expect("its turn comes");
    between.abort();
    places(&server, 1).await;
    first.release().await.expect("held");
    let last = last.await.expect("no panic").expect("its turn comes");
    eventually(SOON, "only the lease is left", async || server.left().await == ["k"]).await;
    last.release().await.expect("held");
    true
}

#[tokio::test]
async fn a_member_that_another_program_has_added_counts_as_one_permit() {
    let server = RedisServer::start().await;
    let manager = manager(&server).await;
    let permits = |take| manager.lock("k").permits(4).take(take).ttl(LONG);
    let held = permits(2).await.unwrap();
    server.call(&["ZADD", "k", "9999999999999", "theirs"]).await;
    assert!(permits(2).try_acquire().await.unwrap().is_none());
    let other = permits(1).try_acquire().await.unwrap().expect("a permit is left");
    other.release().await.unwrap();
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_downgrade_that_is_dropped_leaves_the_key_busy_for_at_least_so_long() {
    let server = RedisServer::start().await;
    let manager = manager(&server).await;
    let guard = manager.lock("k").ttl(ms(20_000)).at_least(LONG).await.unwrap();
    let mut downgrade = Box::pin(guard.downgrade());
    assert!(poll_fn(|cx| Poll::Ready(downgrade.as_mut().poll(cx))).await.is_pending());
    let is_group = async || server.call(&["TYPE", "k"]).await.text().as_deref() == Some("zset");
    eventually(SOON, "the key is shared", is_group).await;
    drop(downgrade);
    let is_kept = async || server.call(&["PTTL", "k"]).await.integer().is_some_and(|left| left > 30_000);
    eventually(SOON, "the key is kept", is_kept).await;
}

/// What a backend of the server says, over one connection, to each batch in turn.
async fn says(server: &RedisServer, batches: &[Batch], between: impl AsyncFn(usize)) -> Vec<Vec<Option<Outcome>>> {
    let backend = RedisBackend::from_url(&server.url(), "raw", SOON).expect("a sound URL");
    let work = async {
        let mut said = Vec::new();
        for (number, batch) in batches.iter().enumerate() {
            between(number).await;
            let items = batch.len();
            let answer = backend.call(batch.clone()).await;
            let none = || vec![None; items];
            said.push(answer.map_or_else(|_| none(), |answer| answer.outcomes.into_iter().map(Result::ok).collect()));
        }
        said
    };
    tokio::select! {
        () = backend.driver(Calls::to_nobody()) => unreachable!("the driver goes on for as long as it is polled"),
        said = work => said,
    }
}

fn key(name: &str) -> LockKey {
    LockKey::new(name).expect("a sound key")
}

#[tokio::test]
async fn a_server_that_takes_no_writes_says_of_no_share_that_it_is_gone() {
    let server = RedisServer::start().await;
    let [held, lacking] = [1, 2].map(|number| Token::from_random(number).in_mode(Mode::Shared));
    let acquire = Acquire::new(key("held"), held, LONG);
    let release = |key: &LockKey, token| Operation::Release(Release::new(key.clone(), token));
    let renew = |key: &LockKey, token| Operation::Renew(Renew::new(key.clone(), token, LONG * 2));
    let one_of_each = |operation: &dyn Fn(&LockKey, Token) -> Operation| {
        let one = || operation(&key("held"), held);
        let other = || operation(&key("other"), lacking);
        [Batch::from_vec(vec![one(), other()]), Batch::from_vec(vec![other(), one()])]
    };
    let mut batches = vec![Batch::from([Operation::Acquire(acquire)])];
    batches.extend(one_of_each(&release));
    batches.extend(one_of_each(&renew));
    let said = says(&server, &batches, async |number| {
        if number == 1 {
            // It waits for a primary that does not answer.
            server.call(&["REPLICAOF", "127.0.0.1", "1"]).await;
        }
    })
    .await;
    assert!(matches!(said[0][..], [Some(Outcome::Held { .. })]), "{said:?}");
    assert!(said[1..].iter().flatten().all(Option::is_none), "its primary may have what it lacks: {said:?}");
}

#[tokio::test]
async fn a_renewal_that_comes_twice_in_a_call_shortens_no_share() {
    let server = RedisServer::start().await;
    let [twice, once] = [1, 2].map(|number| Token::from_random(number).in_mode(Mode::Shared));
    let acquire = |token| Operation::Acquire(Acquire::new(key("k"), token, ms(60_000)));
    let renew = |token, ttl| Operation::Renew(Renew::new(key("k"), token, ttl));
    let batches = [
        Batch::from_vec(vec![acquire(twice), acquire(once)]),
        Batch::from_vec(vec![renew(twice, LONG * 2), renew(once, LONG), renew(twice, LONG)]),
        Batch::from_vec(vec![Operation::Release(Release::new(key("k"), once)), Operation::Inspect { key: key("k") }]),
    ];
    let said = says(&server, &batches, async |_| {}).await;
    let Some(Outcome::Shared { first, last, .. }) = said[2][1] else { panic!("one is left: {said:?}") };
    assert!(first == last && last > LONG, "{last:?}");
}

/// As after a hand-over whose answer was lost, beside a late copy of the former holder's request.
#[tokio::test]
async fn a_share_that_is_taken_over_twice_is_taken_from_a_late_copy_too() {
    let server = RedisServer::start().await;
    let [former, next] = [1, 2].map(|number| Token::from_random(number).in_mode(Mode::Shared));
    let acquire = |token| Acquire::new(key("k"), token, LONG);
    let batches = [
        Batch::from([Operation::Acquire(acquire(former))]),
        Batch::from([Operation::Acquire(acquire(next).from(former))]),
        Batch::from([Operation::Acquire(acquire(former))]),
        Batch::from_vec(vec![Operation::Acquire(acquire(next).from(former)), Operation::Inspect { key: key("k") }]),
    ];
    let said = says(&server, &batches, async |_| {}).await;
    assert!(said.iter().all(|of_call| matches!(of_call[0], Some(Outcome::Held { .. }))), "{said:?}");
    assert!(matches!(said[3][1], Some(Outcome::Shared { leases: 1, .. })), "{said:?}");
}

#[tokio::test]
async fn a_grant_gives_way_to_a_lease_that_is_put_back_until_it_is_confirmed() {
    let server = RedisServer::start().await;
    let [holder, waits, lost] = [1, 2, 3].map(Token::from_random);
    let place = Place::new("".into(), LONG, ms(1_000), Moment::from_origin(SOON));
    let both = |make: &dyn Fn(LockKey) -> Operation| Batch::from_vec(vec![make(key("new")), make(key("kept"))]);
    let batches = [
        both(&|key| Operation::Acquire(Acquire::new(key, holder, LONG))),
        both(&|key| Operation::Acquire(Acquire::new(key, waits, LONG).or_wait(place.clone()))),
        // In one call, so that no time passes in between.
        Batch::from_vec(vec![
            Operation::Release(Release::new(key("new"), holder).with_place()),
            Operation::Release(Release::new(key("kept"), holder).with_place()),
            Operation::Renew(Renew::new(key("kept"), waits, LONG)),
            Operation::Acquire(Acquire::new(key("new"), lost, LONG).from(lost)),
            Operation::Acquire(Acquire::new(key("kept"), lost, LONG).from(lost)),
        ]),
    ];
    let said = says(&server, &batches, async |_| {}).await;
    assert!(matches!(said[2][2], Some(Outcome::Renewed { .. })), "{said:?}");
    assert!(matches!(said[2][3], Some(Outcome::Held { .. })), "nobody has heard of it: {said:?}");
    assert!(matches!(said[2][4], Some(Outcome::Gone)), "it is confirmed: {said:?}");
}

#[tokio::test]
async fn a_mark_of_another_program_at_a_key_is_an_error_of_that_key_only() {
    let server = RedisServer::start().await;
    let token = Token::from_random(1).in_mode(Mode::Shared);
    server.call(&["ZADD", "k", "+inf", "lock-core:1:shared:7", "+inf", "another"]).await;
    let acquire = |name| Operation::Acquire(Acquire::new(key(name), token, LONG));
    let batch =
        Batch::from_vec(vec![acquire("one"), Operation::Inspect { key: key("k") }, acquire("k"), acquire("two")]);
    let said = says(&server, &[batch], async |_| {}).await;
    assert!(
        matches!(said[0][..], [Some(Outcome::Held { .. }), None, None, Some(Outcome::Held { .. })]),
        "the others go on: {said:?}"
    );
}

#[tokio::test]
async fn shares_of_a_call_are_renewed_each_by_its_own_ttl_with_and_without_a_command_for_all() {
    for refused in ["", "-zmscore"] {
        let server = RedisServer::start().await;
        if !refused.is_empty() {
            server.call(&["ACL", "SETUSER", "default", refused]).await;
        }
        let [long, short, gone, over] = [1, 2, 3, 5].map(|number| Token::from_random(number).in_mode(Mode::Shared));
        let acquire = |token| Operation::Acquire(Acquire::new(key("k"), token, ms(60_000)));
        let renew = |token, ttl| Operation::Renew(Renew::new(key("k"), token, ttl));
        let writer = Acquire::new(key("k"), Token::from_random(4), LONG);
        let batches = [
            Batch::from_vec(vec![acquire(long), acquire(short), acquire(over)]),
            Batch::from_vec(vec![
                renew(long, LONG * 2),
                renew(gone, LONG * 4),
                renew(over, LONG * 4),
                renew(short, LONG),
            ]),
            Batch::from_vec(vec![Operation::Acquire(writer), Operation::Inspect { key: key("k") }]),
        ];
        let said = says(&server, &batches, async |number| match number {
            // As if its time had passed: the share is there until another is renewed.
            1 => drop(server.call(&["ZADD", "k", "XX", "1", &over.reveal()]).await),
            2 => assert!(server.call(&["ZSCORE", "k", &over.reveal()]).await.is_nil(), "what is over is gone"),
            _ => {}
        })
        .await;
        let renewed = |said: &Option<Outcome>| matches!(said, Some(Outcome::Renewed { .. }));
        assert!(renewed(&said[1][0]) && renewed(&said[1][3]), "{said:?}");
        assert_eq!(said[1][1..3], [Some(Outcome::Gone), Some(Outcome::Gone)]);
        let Some(Outcome::Busy { remaining: Some(remaining), .. }) = said[2][0] else { panic!("{said:?}") };
        assert!(remaining > LONG, "the key is there until the longer one ends: {remaining:?}");
        let Some(Outcome::Shared { leases: 2, first, last, .. }) = said[2][1] else { panic!("{said:?}") };
        assert!(first <= LONG && first > LONG / 2 && last > LONG, "{first:?}, {last:?}");
    }
}

#[tokio::test]
async fn a_key_whose_shares_are_all_over_is_free_though_it_is_still_there() {
    let server = RedisServer::start().await;
    let over = Token::from_random(1).in_mode(Mode::Shared);
    let permit: Token = format!("lock-core:1:{:032x}:1/2", 1).parse().expect("a sound token");
    let writer = Token::from_random(2);
    let acquire = |token| Operation::Acquire(Acquire::new(key("k"), token, LONG));
    let batches = [
        Batch::from([acquire(over)]),
        Batch::from([acquire(permit)]),
        Batch::from([acquire(writer)]),
        Batch::from_vec(vec![Operation::Release(Release::new(key("k"), writer)), acquire(over)]),
        Batch::from([Operation::Inspect { key: key("k") }]),
    ];
    let said = says(&server, &batches, async |number| {
        if let Some(token) = [None, Some(over), Some(permit), None, Some(over)][number] {
            // As if the clock had been ahead when the key was told to expire.
            server.call(&["ZADD", "k", "XX", "1", &token.reveal()]).await;
        }
    })
    .await;
    let held = |said: &Option<Outcome>| matches!(said, Some(Outcome::Held { .. }));
    assert!(held(&said[0][0]) && held(&said[1][0]) && held(&said[2][0]) && held(&said[3][1]), "{said:?}");
    assert_eq!(said[4], [Some(Outcome::Gone)]);
}
