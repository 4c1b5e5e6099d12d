//! What acquire futures leave behind that are dropped at random moments:
//! `cargo bench -p lock-benches --bench cancel -- --json`.

mod support;

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::{Duration, Instant},
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use redis::aio::MultiplexedConnection;
use support::{
    report::{Report, Target},
    server::Server,
    sides::{Locks, Ours, Raw},
    stats::Rounds,
};
use tokio::{sync::watch, task::JoinSet, time::sleep};

const ROUNDS: u64 = 5;
const FUTURES: usize = 1_000;
/// How many are dropped at about the same time.
const AT_ONCE: usize = 50;
/// Keys that other processes take and give back meanwhile, so that half of the futures wait for a busy key.
const BUSY_KEYS: usize = 10;

#[tokio::main]
async fn main() {
    let mut report = Report::from_arguments();
    let server = Server::start().await;
    let ours = Ours::connect(&server.url).await;
    let others = Ours::connect(&server.url).await;
    let raw = Raw::connect(&server.url).await;
    let mut connection = server.connect().await;

    let (mut left, mut left_raw, mut outcomes) = (Rounds::default(), Rounds::default(), Outcomes::default());
    for round in 0..ROUNDS {
        let mut random = StdRng::seed_from_u64(round);
        let busy = keep_busy(&others);
        drop_many(&ours, &mut random, &mut outcomes).await;
        busy.end().await;
        sleep(Duration::from_millis(100)).await;
        let ours_left = keys(&mut connection).await.len() as f64;

        for key in 0..BUSY_KEYS {
            // Held for the whole round: a raw key that a dropped future leaves would stop a busy holder for its ttl.
            raw.clone().try_acquire(&busy_key(key)).await;
        }
        drop_many(&raw, &mut random, &mut Outcomes::default()).await;
        sleep(Duration::from_millis(100)).await;
        let raw_left = keys(&mut connection).await.iter().filter(|key| key.starts_with(Raw::NAME)).count() as f64;
        left.add(ours_left, raw_left);
        left_raw.values.push(raw_left);
        let _: () = redis::cmd("FLUSHALL").query_async(&mut connection).await.expect("FLUSHALL");
    }
    report.figure("keys_left", "keys", &left, "raw", Target::ValueAtMost(0.0));
    report.figure("keys_left_raw", "keys", &left_raw, "", Target::None);
    let Outcomes { unpolled, waiting, held } = outcomes;
    report.remark(&format!("of {FUTURES} futures in a round, half of them on busy keys; raw is dropped alike"));
    report.remark(&format!(
        "dropped before the first poll {unpolled}, while asking or waiting {waiting}, as a guard {held}"
    ));
}

/// Where the futures were when they were dropped.
#[derive(Default)]
struct Outcomes {
    unpolled: usize,
    waiting: usize,
    held: usize,
}

/// Drops futures that acquire, half of them on keys of their own, half on busy ones.
async fn drop_many<L: Locks>(locks: &L, random: &mut StdRng, outcomes: &mut Outcomes) {
    for batch in 0..FUTURES / AT_ONCE {
        let mut set = JoinSet::new();
        for number in 0..AT_ONCE {
            let own = random.random();
            let key =
                if own { format!("{}:{batch}:{number}", L::NAME) } else { busy_key(random.random_range(0..BUSY_KEYS)) };
            // From far less than a round trip to far more, each order of magnitude alike.
            let after = Duration::from_secs_f64(1e-6 * 10f64.powf(random.random_range(0.0..4.0)));
            set.spawn(drop_one(locks.clone(), key, after));
        }
        for outcome in set.join_all().await {
            match outcome {
                Outcome::Unpolled => outcomes.unpolled += 1,
                Outcome::Waiting => outcomes.waiting += 1,
                Outcome::Held => outcomes.held += 1,
            }
        }
    }
}

enum Outcome {
    Unpolled,
    Waiting,
    Held,
}

/// Polls over and over, since timers are too coarse, and drops what there is when the time is over.
async fn drop_one<L: Locks>(locks: L, key: String, after: Duration) -> Outcome {
    let deadline = Instant::now() + after;
    let mut acquire = pin!(locks.acquire(&key));
    let mut polled = false;
    let held = poll_fn(|context| {
        if Instant::now() >= deadline {
            return Poll::Ready(None);
        }
        polled = true;
        if let Poll::Ready(held) = acquire.as_mut().poll(context) {
            return Poll::Ready(Some(held));
        }
        context.waker().wake_by_ref();
        Poll::Pending
    });
    match held.await {
        Some(held) => {
            tokio::time::sleep_until(deadline.into()).await;
            L::give_back(held).await;
            Outcome::Held
        }
        None if polled => Outcome::Waiting,
        None => Outcome::Unpolled,
    }
}

/// Somebody else's tasks that take and give back the busy keys.
struct Busy {
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

fn keep_busy(others: &Ours) -> Busy {
    let (stop, stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    for key in 0..BUSY_KEYS {
        let (others, stopped) = (others.clone(), stopped.clone());
        tasks.spawn(async move {
            while !*stopped.borrow() {
                let held = others.acquire(&busy_key(key)).await;
                sleep(Duration::from_millis(2)).await;
                Ours::release(held).await;
            }
        });
    }
    Busy { stop, tasks }
}

impl Busy {
    async fn end(self) {
        let _ = self.stop.send(true);
        self.tasks.join_all().await;
    }
}

fn busy_key(number: usize) -> String {
    format!("busy:{number}")
}

/// All keys of the server but those of the library that stay.
async fn keys(connection: &mut MultiplexedConnection) -> Vec<String> {
    let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(connection).await.expect("KEYS");
    keys.retain(|key| !key.ends_with("lock-core:fence") && !key.ends_with("lock-core:waiting"));
    keys
}
