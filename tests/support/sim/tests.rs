//! What schedules have shown, each built directly: a seed means another schedule as soon as the simulation changes.

use std::{
    future::{Future, poll_fn},
    sync::{Arc, Mutex, PoisonError},
    task::{Poll, Waker},
    time::Duration,
};

use lock_core::{
    ErrorKind,
    backend::{Acquire, Operation, Outcome, Place, Release, Renew, TOKEN_MARK, Token},
    clock::Moment,
    key::LockKey,
};

use super::{
    Plan, Stage, Store,
    client::{Client, Task, of_several},
    node::{Holder, Node, Refuses},
    perform,
    world::{Server, World},
};
use crate::{Dice, history};

const SECOND: Duration = Duration::from_secs(1);
/// When scenarios of one node begin, by its clock, in ms.
const BEGIN: u64 = 1_750_000_000_000;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl Plan {
    /// One client that does nothing by itself, and a node at which nothing breaks: for what a scenario does with them.
    fn empty(ttl: Duration) -> Self {
        let plan = Self::draw(&mut Dice::seeded(0), Store::Single);
        Self {
            clients: 1,
            tasks: 0,
            keys: 1,
            hot: false,
            ttls: [ttl; 2],
            latency: (1_000, 1_001),
            limit: ms(500),
            late: 0,
            hole: 0,
            reset: 0,
            cut: 0,
            deaf: 0,
            doubled: 0,
            belated: 0,
            greeting: 0,
            drift: false,
            troubles: Vec::new(),
            asides: false,
            shutdowns: 0,
            odd: 0,
            foreign: false,
            ..plan
        }
    }
}

/// A node, and a channel at which it is heard.
struct Alone {
    node: Node,
    channel: Arc<str>,
    key: LockKey,
}

impl Alone {
    fn new() -> Self {
        let (mut node, channel) = (Node::new(), Arc::from("heard"));
        node.listen(&channel);
        Self { node, channel, key: LockKey::new("k").expect("a sound key") }
    }

    fn token(number: u32, mode: &str) -> Token {
        format!("{TOKEN_MARK}{number:032x}{mode}").parse().expect("a sound token")
    }

    /// Has client 1 send one operation, which the node executes so many ms after the beginning.
    fn at(&mut self, at: u64, operation: Operation) -> Outcome {
        let micros = (BEGIN + at) * 1_000;
        let outcome = self.node.execute(&[operation], micros, Some((1, 0))).outcomes.remove(0);
        outcome.expect("the node refuses nothing")
    }

    fn acquire(&self, token: Token, ttl: Duration) -> Acquire {
        Acquire::new(self.key.clone(), token, ttl)
    }

    fn waits(&self, token: Token, ttl: Duration) -> Operation {
        let place = Place::new(Arc::clone(&self.channel), SECOND, ms(100), Moment::from_origin(SECOND));
        Operation::Acquire(self.acquire(token, ttl).or_wait(place))
    }

    fn release(&self, token: Token) -> Operation {
        Operation::Release(Release::new(self.key.clone(), token))
    }

    fn breaches(&self, rule: &str) -> usize {
        self.node.audit.breaches.iter().filter(|(broken, _)| *broken == rule).count()
    }

    /// What the holders of the key have of it, as the node remembers them.
    fn holds(&self, at: u64, token: Token) -> Option<(Option<usize>, bool)> {
        let mut entries = self.node.entries("k", (BEGIN + at) * 1_000);
        entries.find(|entry| entry.holder == Holder::Ours(token)).map(|entry| (entry.note.setter, entry.note.renewed))
    }
}

fn is_held(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Held { .. })
}

/// A token gets a place while its first request is late, and then the key by that request, which looks at no queue.
fn place_of_a_token_that_has_come() -> Alone {
    let mut alone = Alone::new();
    let [first, late, next] = [0, 1, 2].map(|number| Alone::token(number, ""));
    let held = alone.at(0, Operation::Acquire(alone.acquire(first, ms(100))));
    assert!(is_held(held));
    for token in [late, next] {
        let busy = alone.at(10, alone.waits(token, SECOND));
        assert!(matches!(busy, Outcome::Busy { position: Some(_), .. }), "{busy:?}");
    }
    // The lease of the first expires, of which nobody is told.
    assert!(is_held(alone.at(200, Operation::Acquire(alone.acquire(late, SECOND).expecting_free()))));
    let busy = alone.at(210, alone.waits(next, SECOND));
    assert!(matches!(busy, Outcome::Busy { position: Some(2), .. }), "the place of the other is there still: {busy:?}");
    alone
}

#[test]
fn a_place_whose_own_token_has_the_key_is_not_left_out() {
    let alone = place_of_a_token_that_has_come();
    assert_eq!(alone.breaches("left-out"), 0, "{:?}", alone.node.audit.breaches);
}

#[test]
fn a_place_that_a_release_leaves_is_left_out() {
    for (quiet, breaches) in [(false, 0), (true, 1)] {
        let mut alone = place_of_a_token_that_has_come();
        // A quiet release may leave it; here it is judged as if it were another.
        let mut release = Release::new(alone.key.clone(), Alone::token(1, ""));
        release.quiet = quiet;
        alone.at(220, Operation::Release(release));
        alone.node.judge_head(&alone.key, BEGIN + 220);
        assert_eq!(alone.breaches("left-out"), breaches, "{:?}", alone.node.audit.breaches);
    }
}

#[test]
fn a_share_that_was_granted_and_renewed_is_its_clients_beside_a_key_that_had_expired() {
    let mut alone = Alone::new();
    let [granted, taker] = [0, 1].map(|number| Alone::token(number, ":1/3"));
    let (key, micros) = (alone.key.clone(), |at| (BEGIN + at) * 1_000);
    assert!(alone.node.set_foreign(&key, 1, 15_000, micros(0)));
    alone.at(10, alone.waits(granted, SECOND));
    assert!(alone.node.delete_foreign(&key, 1, micros(20)));
    assert!(is_held(alone.at(30, alone.waits(taker, SECOND))));
    assert_eq!(alone.holds(30, granted), Some((None, false)), "it is granted to the one that came first");
    let renewed = alone.at(40, Operation::Renew(Renew::new(key, granted, SECOND)));
    assert!(matches!(renewed, Outcome::Renewed { .. }));
    assert_eq!(alone.holds(40, granted), Some((Some(1), true)));
}

/// A share is handed over, its former token takes one once more by a late copy of its request, and then the request that took it over
/// is repeated, since its answer was lost. A waiter that does not fit meanwhile has a place.
fn share_that_is_taken_over_twice(mode: &str, waits: &str) -> (Alone, Token, Token) {
    let mut alone = Alone::new();
    let [former, next, waiter] = [(0, mode), (1, mode), (2, waits)].map(|(number, mode)| Alone::token(number, mode));
    let takes_over = Operation::Acquire(alone.acquire(next, SECOND).from(former));
    assert!(is_held(alone.at(0, alone.waits(former, SECOND))));
    assert!(is_held(alone.at(10, takes_over.clone())));
    assert!(is_held(alone.at(20, alone.waits(former, SECOND))), "the late copy takes a share");
    assert!(matches!(alone.at(30, alone.waits(waiter, SECOND)), Outcome::Busy { .. }));
    assert!(is_held(alone.at(40, takes_over)));
    assert_eq!(alone.holds(40, former), None);
    assert_eq!(alone.node.audit.breaches.iter().filter(|(rule, _)| *rule != "kept-too-long").count(), 0);
    (alone, next, waiter)
}

#[test]
fn a_share_that_is_handed_over_ends_also_if_it_was_taken_again_before_the_repeat() {
    for mode in [":1/3", ":shared"] {
        let (mut alone, next, waiter) = share_that_is_taken_over_twice(mode, "");
        assert_eq!(alone.holds(40, waiter), None);
        alone.at(50, alone.release(next));
        assert!(alone.holds(50, waiter).is_some(), "nobody else has the key any more");
    }
    let (alone, _, waiter) = share_that_is_taken_over_twice(":2/4", ":1/4");
    assert!(alone.holds(40, waiter).is_some(), "two permits are free");
}

#[test]
fn a_share_that_is_handed_over_in_its_last_millisecond_keeps_the_number_of_the_group() {
    let mut alone = Alone::new();
    let [former, next] = [0, 1].map(|number| Alone::token(number, ":shared"));
    let Outcome::Held { fence, .. } = alone.at(0, Operation::Acquire(alone.acquire(former, ms(100)))) else {
        panic!("the key is free")
    };
    let took = alone.at(100, Operation::Acquire(alone.acquire(next, SECOND).from(former)));
    assert_eq!(took, Outcome::Held { fence, block: 1, was_free: false });
    for rule in ["number-falls", "shared-fence"] {
        assert_eq!(alone.breaches(rule), 0, "{:?}", alone.node.audit.breaches);
    }
}

#[test]
fn a_grant_in_a_call_of_a_larger_number_gives_it_to_those_who_share_the_key() {
    let mut alone = Alone::new();
    let [holder, waiter, later] = [0, 2, 3].map(|number| Alone::token(number, ":shared"));
    assert!(is_held(alone.at(0, alone.waits(holder, 5 * SECOND))));
    assert!(!is_held(alone.at(10, alone.waits(Alone::token(1, ""), SECOND))));
    assert!(!is_held(alone.at(20, alone.waits(waiter, SECOND))), "a writer waits before it");
    // The place of that one has ended.
    let floor = (BEGIN + 60_000) * 1_000;
    let mut acquire = alone.acquire(later, SECOND);
    acquire.floor = floor;
    let took = alone.at(1_015, Operation::Acquire(acquire.clone()));
    assert_eq!(took, Outcome::Held { fence: floor, block: 1, was_free: true });
    assert!(alone.holds(1_015, waiter).is_some());
    for rule in ["number-falls", "shared-fence", "below-floor"] {
        assert_eq!(alone.breaches(rule), 0, "{:?}", alone.node.audit.breaches);
    }
    // A store that forgot the number that was asked for is found.
    let forgot = Outcome::Held { fence: floor - 1, block: 1, was_free: true };
    let node = &mut alone.node;
    node.audit.acquired(&acquire, (true, true, false), forgot, (BEGIN + 1_015, floor), &node.channels);
    assert_eq!(alone.breaches("below-floor"), 1);
}

#[test]
fn a_share_that_was_over_at_a_renewal_or_a_delayed_release_does_not_come_back_with_the_clock() {
    for is_renewed in [true, false] {
        let mut alone = Alone::new();
        let [short, long] = [0, 1].map(|number| Alone::token(number, ":shared"));
        assert!(is_held(alone.at(100, Operation::Acquire(alone.acquire(short, ms(10))))));
        assert!(is_held(alone.at(100, Operation::Acquire(alone.acquire(long, ms(40))))));
        let key = alone.key.clone();
        alone.at(
            120,
            match is_renewed {
                true => Operation::Renew(Renew::new(key.clone(), long, ms(40))),
                false => Operation::Release(Release::new(key.clone(), long).after(ms(40))),
            },
        );
        let left = Outcome::Shared { leases: 1, permits: 0, first: ms(60), last: ms(60) };
        assert_eq!(alone.at(100, Operation::Inspect { key }), left);
    }
}

/// Has one client do something in a world in which nothing breaks by itself. Returns the rules that it breaks, and the world.
fn staged<F>(plan: Plan, script: impl FnOnce(Client) -> F) -> (Vec<&'static str>, Arc<World>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let server = Server { node: Node::new().judged_by(&plan), ..Server::default() };
    let world = World::new(plan, Dice::seeded(1), vec![server], false);
    perform(&world, |stage: Arc<Stage>| async move {
        stage.begin_client(&mut Dice::seeded(2));
        let client = stage.client(0).expect("it has just begun");
        client.spawn(script(client.clone())).await.expect("the script does not panic");
    });
    let rules = world.state().breaches.iter().map(|(rule, _)| *rule).collect();
    (rules, world)
}

/// A future that was kept aside gets a lease of 200 ms so long after its request was sent; then the engine runs, or stands still until
/// the lease is over.
fn lease_kept_aside(pause: Duration, engine_runs: bool) -> Vec<&'static str> {
    let ttl = ms(200);
    let ended: Arc<Mutex<Vec<bool>>> = Arc::default();
    let lost = Arc::clone(&ended);
    let (rules, world) = staged(Plan::empty(ttl), |client| async move {
        let world = Arc::clone(&client.world);
        let held = Task::new(&client, "t0", Dice::seeded(3)).downgrade_aside("k", ttl, pause).await;
        if !engine_runs {
            world.state().links[0].engine.close();
        }
        world.sleep(ms(250)).await;
        let wakers = if engine_runs { Vec::new() } else { world.state().links[0].engine.open() };
        wakers.into_iter().for_each(Waker::wake);
        world.sleep(ms(100)).await;
        lost.lock().unwrap_or_else(PoisonError::into_inner).push(held.is_held());
    });
    world.forget();
    assert_eq!(*ended.lock().unwrap_or_else(PoisonError::into_inner), [engine_runs && pause < ms(190)]);
    rules.into_iter().filter(|rule| *rule == "false-loss").collect()
}

#[test]
fn a_lease_that_was_got_too_late_for_any_renewal_is_no_false_loss() {
    // It is valid for 196 ms from the sending of its request, and a renewal takes two.
    assert_eq!(lease_kept_aside(ms(195), true), [""; 0]);
    assert_eq!(lease_kept_aside(ms(150), true), [""; 0], "it is renewed in time");
}

#[test]
fn a_lease_that_a_renewal_could_have_kept_is_a_false_loss_however_late_it_was_got() {
    assert_eq!(lease_kept_aside(ms(20), false), ["false-loss"]);
    assert_eq!(lease_kept_aside(ms(190), false), ["false-loss"]);
}

#[test]
fn a_key_that_was_asked_for_together_with_another_may_have_been_held_as_that_one() {
    let (_, world) = staged(Plan::empty(SECOND), |client| async move {
        let world = Arc::clone(&client.world);
        let mut aside = Box::pin(client.manager.lock_all(["a", "b"]).try_acquire());
        assert!(poll_fn(|cx| Poll::Ready(aside.as_mut().poll(cx).is_pending())).await);
        // Both are held at the node by now, of which nobody has heard.
        world.sleep(ms(10)).await;
        client.manager.shutdown(Duration::ZERO).await;
        let error = aside.await.expect_err("it is shut down");
        assert_eq!((error.kind(), error.key()), (ErrorKind::ShutDown, Some("a")));
        assert_eq!(["a", "b"].map(|key| of_several(&error, "a", key)), [history::Outcome::Info; 2]);
        // One that was not the first of its request was asked for alone, and those after it not at all.
        assert_eq!(of_several(&error, "0", "b"), history::Outcome::Fail);
    });
    world.forget();
}

#[test]
fn a_client_of_a_replica_reconnects_with_pauses() {
    let (rules, world) = staged(Plan::empty(SECOND), |client| async move {
        let world = Arc::clone(&client.world);
        {
            let mut state = world.state();
            let (key, wall) = (LockKey::new("k").expect("a sound key"), state.wall(0));
            assert!(state.servers[0].node.set_foreign(&key, 1, 150, wall));
        }
        let waits = client.manager.lock("k").ttl(SECOND).wait(ms(4_000)).acquire();
        let breaks = async {
            world.sleep(ms(100)).await;
            world.state().servers[0].node.refuses = Refuses::Writes;
        };
        let (refused, ()) = tokio::join!(waits, breaks);
        assert!(refused.is_err(), "it takes no writes");
    });
    world.forget();
    let made = world.state().conns.len();
    assert_eq!(rules, [""; 0]);
    // Four seconds with pauses of 50 ms at least, but for the first ones.
    assert!((4..100).contains(&made), "{made} connections");
}

/// Twenty processes take turns at a key, each of which reads what it is told once per `pause` only. Returns how long a turn took.
fn turn_of_slow_readers(pause: Duration) -> Duration {
    const PROCESSES: usize = 20;
    const TURNS: u32 = 40;
    let mut plan = Plan::empty(10 * SECOND);
    plan.limit = 10 * SECOND; // its limit is not the subject
    let server = Server { node: Node::new().judged_by(&plan), ..Server::default() };
    let world = World::new(plan, Dice::seeded(1), vec![server], false);
    let taken: Arc<Mutex<u32>> = Arc::default();
    let counted = Arc::clone(&taken);
    perform(&world, |stage: Arc<Stage>| async move {
        for number in 0..PROCESSES {
            stage.begin_client(&mut Dice::seeded(number as u64));
            let client = stage.client(number).expect("it has just begun");
            // It reads for a millisecond, at a moment of its own.
            let world = Arc::clone(&client.world);
            tokio::spawn(async move {
                world.sleep(pause * u32::try_from(number).expect("a small number") / PROCESSES as u32).await;
                loop {
                    world.state().links[number].engine.close();
                    world.sleep(pause).await;
                    let woken = world.state().links[number].engine.open();
                    woken.into_iter().for_each(Waker::wake);
                    world.sleep(ms(1)).await;
                }
            });
            let (world, counted) = (Arc::clone(&client.world), Arc::clone(&counted));
            let manager = client.manager.clone();
            client.spawn(async move {
                loop {
                    let Ok(guard) = manager.lock("k").ttl(10 * SECOND).wait_forever().await else { continue };
                    *counted.lock().unwrap_or_else(PoisonError::into_inner) += 1;
                    world.sleep(ms(1)).await;
                    drop(guard);
                }
            });
        }
        let world = &stage.world;
        while *counted.lock().unwrap_or_else(PoisonError::into_inner) < TURNS && world.now() < 3_600_000_000 {
            world.sleep(ms(1)).await;
        }
    });
    let took = Duration::from_micros(world.now());
    let doubles = world.state().breaches.iter().filter(|(rule, _)| *rule == "double").count();
    assert_eq!(doubles, 0, "the key is never held twice");
    world.forget();
    let taken = *taken.lock().unwrap_or_else(PoisonError::into_inner);
    took / taken.max(1)
}

/// The key goes from one to the next at the speed of the readers: it is not given to each in vain.
#[test]
fn a_key_goes_on_as_fast_as_its_waiters_read() {
    for pause in [10, 100, 400, 700, 1_000, 1_500, 3_000] {
        let turn = turn_of_slow_readers(ms(pause));
        assert!(turn < ms(pause + 5), "a turn takes {turn:?} if each reads once per {pause} ms");
    }
}
