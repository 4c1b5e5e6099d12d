//! The simulated node against the script in a real Redis: the same batches, the same answers, the same messages.
//!
//! Ttls, places and grants outlast the test here; what ends in time is for `held.rs`. (Shares that are over are made so at the
//! server, beside the script.) With a counter that is far ahead of every clock, fencing tokens are the same, too.

use std::{collections::HashSet, sync::Arc, time::Duration};

use lock_core::{
    backend::{
        Acquire, Backend, Batch, BusyReason, Calls, Grant, Operation, Outcome, Place, RedisBackend, Release, Renew,
        TOKEN_MARK, Token,
    },
    clock::Moment,
    key::LockKey,
};
use lock_tests::{Dice, RawClient, RedisServer, Reply, SOON, sim::Node};

use crate::seeds;

const SECOND: Duration = Duration::from_secs(1);
/// The times of operations that outlast the test.
const LONG: Times = Times {
    ttls: &[Duration::from_secs(600), Duration::from_secs(900), Duration::from_secs(1_200)],
    life: Duration::from_secs(600),
};
pub(super) const KEYS: u64 = 3;
/// A fencing token of the year 2223, at the end of its millisecond.
const FAR: u64 = 8_000_000_000_000_980;

/// How long what the operations of a test make lasts.
pub(super) struct Times {
    /// One of them is drawn for each lease, so that shares end at times of their own.
    pub(super) ttls: &'static [Duration],
    /// Of a place.
    pub(super) life: Duration,
}

impl Times {
    fn ttl(&self, dice: &mut Dice) -> Duration {
        self.ttls[usize::try_from(dice.below(self.ttls.len() as u64)).expect("a small number")]
    }
}

/// An answer without times, and without numbers if only one of the two can know them.
fn plain(outcome: Outcome, numbers: bool) -> String {
    match outcome {
        Outcome::Held { fence, block, was_free } if numbers => format!("held {fence} x{block} {was_free}"),
        Outcome::Held { block, was_free, .. } => format!("held x{block} {was_free}"),
        Outcome::Busy { by, position, remaining } => {
            // Whether a lease lasts longer than its grant is a matter of milliseconds; `held.rs` has both at one time.
            let by = if by == BusyReason::Waiters { BusyReason::Holder } else { by };
            format!("busy {by:?} {position:?} {:?}", remaining.map(rounded))
        }
        Outcome::Shared { leases, permits, first, last } => {
            format!("shared by {leases}, {permits} permits, {} to {}", rounded(first), rounded(last))
        }
        Outcome::Renewed { remaining, fence, block } => {
            let fence = fence.map(|fence| if numbers { fence } else { 0 });
            format!("renewed {fence:?} x{block} {}", rounded(remaining))
        }
        other => format!("{other:?}"),
    }
}

/// A time that is the same for both, as no seed takes as long: in hundreds of seconds.
fn rounded(time: Duration) -> u64 {
    (time.as_secs() + 50) / 100
}

/// One of a few tokens, exclusive or of some share.
fn token(dice: &mut Dice, modes: &[&str]) -> Token {
    let mode = modes[usize::try_from(dice.below(modes.len() as u64)).expect("a small number")];
    format!("{TOKEN_MARK}{:032x}{mode}", dice.below(5)).parse().expect("a sound token")
}

/// A message as the script has sent it.
fn message(text: &str) -> Grant {
    let parts: Vec<_> = text.split(' ').collect();
    let [token, key, sent, lasts, first, size] = parts[..] else { panic!("no message of a grant: {text}") };
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let sent = Moment::from_origin(Duration::from_micros(number(sent)));
    let block = u32::try_from(number(size)).expect("a small number");
    let key = LockKey::new(key).expect("a sound key");
    let token = token.parse().expect("a token");
    Grant::new(key, token, sent, Duration::from_millis(number(lasts)), (number(first), block))
}

/// Everything that was published since the last time, up to a message of its own.
pub(super) async fn heard_by(listener: &mut RawClient, server: &RedisServer, channel: &str) -> Vec<Grant> {
    server.call(&["PUBLISH", channel, "end"]).await;
    let mut heard = Vec::new();
    loop {
        let said = listener.read().await.expect("a message comes");
        match said.items().last().and_then(Reply::text).expect("a text") {
            end if end == "end" => return heard,
            text => heard.push(message(&text)),
        }
    }
}

/// Which tokens a seed is about, by what follows their digits.
pub(super) fn modes(seed: u64) -> &'static [&'static str] {
    const ALL: [&[&str]; 4] = [
        &[""],
        &["", ":shared", ":shared"],
        &["", ":1/3", ":2/3", ":3/3", ":1/2"],
        &["", ":shared", ":1/1", ":1/2", ":2/2", ":1/3"],
    ];
    ALL[usize::try_from(seed / 2 % 4).expect("a small number")]
}

pub(super) fn key(number: u64) -> LockKey {
    LockKey::new(format!("k{number}")).expect("a sound key")
}

pub(super) fn batch(dice: &mut Dice, channel: &Arc<str>, modes: &[&str], times: &Times) -> Vec<Operation> {
    if dice.below(6) == 0 {
        return of_one_kind(dice, modes, times);
    }
    if dice.below(6) > 0 {
        return (0..1 + dice.below(4)).map(|_| operation(dice, channel, modes, times)).collect();
    }
    // All or none.
    let first = dice.below(KEYS);
    let acquire = |number| {
        let key = key((first + number) % KEYS);
        Operation::Acquire(Acquire::new(key, token(dice, modes), times.ttl(dice)).with_all())
    };
    (0..KEYS).map(acquire).collect()
}

/// Nothing but renewals, or nothing but releases, which have forms of their own: mostly of one key. (A renewal may come twice.)
fn of_one_kind(dice: &mut Dice, modes: &[&str], times: &Times) -> Vec<Operation> {
    let (renews, usual) = (dice.below(2) == 0, dice.below(KEYS));
    let items = 2 + dice.below(5);
    let mut operation = || {
        let key = key(if dice.below(4) == 0 { dice.below(KEYS) } else { usual });
        let (token, ttl) = (token(dice, modes), times.ttl(dice));
        if renews {
            Operation::Renew(Renew::new(key, token, ttl))
        } else {
            Operation::Release(Release::new(key, token))
        }
    };
    let mut batch: Vec<_> = (0..items).map(|_| operation()).collect();
    let mut released = HashSet::new();
    batch.retain(|operation| match operation {
        Operation::Release(Release { key, token, .. }) => released.insert((key.clone(), *token)),
        _ => true,
    });
    batch
}

fn operation(dice: &mut Dice, channel: &Arc<str>, modes: &[&str], times: &Times) -> Operation {
    let key = key(dice.below(KEYS));
    let (mine, other) = (token(dice, modes), token(dice, modes));
    let lasts = times.ttl(dice);
    let place = Place::new(Arc::clone(channel), times.life, lasts, Moment::from_origin(SECOND));
    match dice.below(10) {
        0 => Operation::Acquire(Acquire::new(key, mine, lasts).from(other)),
        1 if dice.below(2) == 0 => {
            // Of a tenure that has no place.
            let mine = Token::from_random(u128::from(5 + dice.below(3)));
            Operation::Acquire(Acquire::new(key, mine, times.ttls[0]).expecting_free())
        }
        1 => Operation::Acquire(Acquire::new(key, mine, lasts)),
        2..5 => {
            let mut acquire = Acquire::new(key, mine, lasts).or_wait(place);
            acquire.block = 1 + u32::try_from(dice.below(3)).expect("a small number");
            acquire.aim = dice.below(2);
            if dice.below(8) == 0 {
                // Some are behind the counter, and some near or far ahead.
                (acquire.floor, acquire.aim) = (FAR + dice.below(3_000), FAR + dice.below(30_000));
            }
            Operation::Acquire(acquire)
        }
        5 => Operation::Renew(Renew::new(key, mine, lasts).with_block(u32::from(dice.below(2) == 0))),
        6 => {
            let release = Release::new(key, mine);
            Operation::Release(if dice.below(4) == 0 { release.after(lasts) } else { release })
        }
        7 => {
            let mut release = Release::new(key, mine).with_place();
            release.quiet = dice.below(2) == 0;
            Operation::Release(release)
        }
        8 => Operation::Inspect { key },
        _ => Operation::Force { key, foreign: dice.below(2) == 0 },
    }
}

/// Has the share of a token end, as if its time were over, if it has one.
async fn lapse(server: &RedisServer, node: &mut Node, (key, token): (&LockKey, Token), micros: u64) {
    if !node.lapse(key, token, micros) {
        return;
    }
    let key = key.as_str();
    server.call(&["ZADD", key, "XX", "1", &token.reveal()]).await;
    let last = server.call(&["ZREVRANGEBYSCORE", key, "(+inf", "2", "WITHSCORES", "LIMIT", "0", "1"]).await;
    match last.items().last().and_then(Reply::text) {
        Some(ends) => server.call(&["PEXPIREAT", key, &ends]).await,
        None => server.call(&["DEL", key]).await,
    };
}

#[tokio::test]
async fn the_simulated_node_answers_as_the_script_does() {
    let server = RedisServer::start().await;
    let backend = RedisBackend::from_url(&server.url(), "differential", SOON).expect("a sound URL");
    let calls = Calls::to_nobody();
    let heard = Arc::clone(calls.channel());
    let work = async {
        backend.call(Batch::new()).await.expect("the server answers");
        let mut listener = server.connect().await.expect("the server is up");
        listener.call(&["SUBSCRIBE", &heard]).await.expect("the server answers");
        let mut messages = 0;
        let seeds = seeds(0, 40);
        // The fixed seeds have some three each. Others may have fewer, and a single one none.
        let least = (seeds.end - seeds.start) / 10 * if seeds.start == 0 { 25 } else { 10 };
        for seed in seeds {
            server.call(&["FLUSHALL"]).await;
            messages += compare(seed, &backend, &server, &heard, &mut listener).await;
        }
        assert!(messages as u64 >= least, "only {messages} grants were told");
    };
    tokio::select! {
        () = backend.driver(calls) => unreachable!("the driver goes on for as long as it is polled"),
        () = work => {}
    }
}

/// Tries batches of a seed on both. Returns how many grants were told.
async fn compare(
    seed: u64,
    backend: &RedisBackend,
    server: &RedisServer,
    heard: &Arc<str>,
    listener: &mut RawClient,
) -> usize {
    let mut dice = Dice::seeded(seed);
    let modes = modes(seed);
    let mut node = Node::new();
    node.listen(heard);
    let channels: [Arc<str>; 3] = [Arc::clone(heard), "lock-core:calls:gone".into(), "".into()];
    let mut micros = 1_750_000_000_000_000;
    let numbers = seed.is_multiple_of(2);
    if numbers {
        node.count_from(FAR);
        let id = format!("{}-{}", FAR / 1_000, FAR % 1_000);
        server.call(&["XADD", RedisServer::COUNTER, "MAXLEN", "0", &id, "", ""]).await;
    }
    let (mut story, mut messages) = (Vec::new(), 0);
    for _ in 0..60 {
        micros += 1_000 + dice.below(3_000);
        if dice.below(12) == 0 {
            let name = format!("k{}", dice.below(KEYS));
            server.call(&["SET", &name, "foreign", "PX", "600000", "NX"]).await;
            node.set_foreign(&LockKey::new(&name).expect("a sound key"), 1, 600_000, micros);
        }
        if dice.below(16) == 0 {
            server.call(&["DEL", RedisServer::WAITING]).await;
            node.forget_waiting();
            story.push("it is forgotten that somebody waits".to_owned());
        }
        if dice.below(6) == 0 {
            let (key, token) = (key(dice.below(KEYS)), token(&mut dice, modes));
            lapse(server, &mut node, (&key, token), micros).await;
            story.push(format!("{key}: the share of {} is over", token.reveal()));
        }
        let channel = &channels[usize::try_from(dice.below(3)).expect("a small number")];
        let batch = batch(&mut dice, channel, modes, &LONG);
        let real = backend.call(Batch::from(batch.clone())).await.expect("the server answers");
        let real: Vec<_> =
            real.outcomes.into_iter().map(|outcome| plain(outcome.expect("no item fails"), numbers)).collect();
        let (simulated, pushes) = node.call(&batch, micros);
        let simulated: Vec<_> =
            simulated.into_iter().map(|outcome| plain(outcome.expect("no item fails"), numbers)).collect();
        let told = plain_grants(heard_by(listener, server, heard).await, numbers);
        messages += told.len();
        story.push(format!("{batch:?}\n  -> {real:?}\n  -> {told:?}"));
        assert_eq!(simulated, real, "seed {seed}, after:\n{}", story.join("\n"));
        let pushes = pushes.into_iter().filter(|(channel, _)| channel == heard).map(|(_, grant)| grant).collect();
        assert_eq!(plain_grants(pushes, numbers), told, "seed {seed}, after:\n{}", story.join("\n"));
    }
    messages
}

/// Grants without numbers if only one of the two can know them.
fn plain_grants(mut grants: Vec<Grant>, numbers: bool) -> Vec<Grant> {
    grants.iter_mut().filter(|_| !numbers).for_each(|grant| grant.fence = 0);
    grants
}
