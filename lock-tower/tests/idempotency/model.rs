//! Every interleaving of two requests of one key at two instances: the steps of the store and of the handlers happen when the test
//! says so, and once in a schedule a lease is lost, a process dies, or an answer of the store is an error. (Attacks 1 to 3.)
//! `MODEL_FAULTS=2` plays those with two such faults, too.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use axum::{Router, routing::post};
use bytes::Bytes;
use lock_core::{LeaseOptions, LockManager};
use lock_tower::{
    BoxError,
    idempotency::{Answers, MemoryAnswers},
};
use tokio::{
    sync::{
        mpsc::{self, UnboundedSender},
        oneshot,
    },
    time::sleep,
};

use super::{Told, ask, layer, request};
use crate::support::limit;

const KEY: &str = "payments:a:1";

/// Something that an instance waits for.
enum Pending {
    /// A look into the store, and what it has seen.
    Get {
        seen: Option<Option<Bytes>>,
        reply: oneshot::Sender<Result<Option<Bytes>, BoxError>>,
    },
    /// An answer to be stored, and what the store says of it once it has done so.
    Put {
        mine: Bytes,
        held: Option<Bytes>,
        reply: oneshot::Sender<Result<Bytes, BoxError>>,
    },
    Handler(oneshot::Sender<()>),
}

type Events = UnboundedSender<(usize, Pending)>;

/// The store as one instance sees it.
#[derive(Clone, Debug)]
struct Gated(usize, Events);

impl Answers for Gated {
    async fn get(&self, _key: &str) -> Result<Option<Bytes>, BoxError> {
        let (reply, answer) = oneshot::channel();
        self.1.send((self.0, Pending::Get { seen: None, reply }))?;
        answer.await?
    }

    async fn put_if_absent(&self, _key: &str, mine: Bytes, _keep: Duration) -> Result<Bytes, BoxError> {
        let (reply, answer) = oneshot::channel();
        self.1.send((self.0, Pending::Put { mine, held: None, reply }))?;
        answer.await?
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// What an instance waits for happens. For the store to do something and to say so are two steps.
    Step(usize),
    /// The holder loses its lease.
    Lose(usize),
    /// The process of the instance dies. What it has sent to the store may be executed later.
    Die(usize),
    /// The store says that it failed, though it may have done what it was asked.
    Fail(usize),
}

/// What became of a schedule.
struct Outcome {
    taken: Vec<(usize, usize)>,
    steps: Vec<Action>,
    runs: usize,
    told: Vec<Told>,
    later: Told,
}

/// Plays a schedule: its choices as far as they go, then the first action each time.
async fn play(choices: &[usize], mut faults: usize) -> Outcome {
    static STORES: AtomicUsize = AtomicUsize::new(0);
    let url = format!("memory://model-{}", STORES.fetch_add(1, SeqCst));
    let connect = async || LockManager::connect(&url).await.unwrap();
    let (operator, store) = (connect().await, MemoryAnswers::new());
    let (events, mut arrivals) = mpsc::unbounded_channel::<(usize, Pending)>();
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let before = RUNS.load(SeqCst);
    let charge = move || format!("charge {}", RUNS.fetch_add(1, SeqCst) + 1 - before);
    let options = LeaseOptions::new().ttl(Duration::from_secs(3));
    let mut requests = Vec::new();
    for who in 0..2 {
        let handler = {
            let events = events.clone();
            move || async move {
                let answer = charge();
                let (done, ends) = oneshot::channel();
                events.send((who, Pending::Handler(done))).unwrap();
                ends.await.unwrap();
                (http::StatusCode::CREATED, answer)
            }
        };
        let layer = layer(&connect().await, &Gated(who, events.clone())).wait(Duration::from_secs(3600));
        let layer = layer.lock(|lock| lock.options(options.max_hold(Duration::from_secs(7200))));
        let service = Router::new().route("/pay", post(handler)).route_layer(layer);
        requests.push(tokio::spawn(async move { ask(&service, request("a", "1", "42")).await }));
    }
    let mut pending = [const { None }; 2];
    let mut dead = [false; 2];
    let (mut taken, mut steps) = (Vec::new(), Vec::new());
    loop {
        // In paused time a sleep ends when all else has come to a stop.
        sleep(Duration::from_millis(100)).await;
        while let Ok((who, event)) = arrivals.try_recv() {
            pending[who] = Some(event);
        }
        let mut actions = Vec::new();
        for who in 0..2 {
            let Some(event) = &pending[who] else { continue };
            let is_sent = matches!(event, Pending::Put { held: None, .. });
            if !dead[who] || is_sent {
                actions.push(Action::Step(who));
            }
            if faults > 0 && !dead[who] {
                actions.extend([Action::Lose(who), Action::Die(who)]);
                if !matches!(event, Pending::Handler(_)) {
                    actions.push(Action::Fail(who));
                }
            }
        }
        if actions.is_empty() {
            break;
        }
        if taken.is_empty() {
            // Which of the two is called the first makes no difference.
            actions.retain(|action| {
                matches!(action, Action::Step(0) | Action::Lose(0) | Action::Die(0) | Action::Fail(0))
            });
        }
        let choice = choices.get(taken.len()).copied().unwrap_or(0);
        let action = actions[choice];
        taken.push((choice, actions.len()));
        steps.push(action);
        match action {
            Action::Step(who) => match pending[who].take().unwrap() {
                Pending::Get { seen: None, reply } => {
                    let seen = Some(store.get(KEY).await.unwrap());
                    pending[who] = Some(Pending::Get { seen, reply });
                }
                Pending::Get { seen: Some(seen), reply } => drop(reply.send(Ok(seen))),
                Pending::Put { mine, held: None, reply } => {
                    let held = store.put_if_absent(KEY, mine.clone(), Duration::MAX).await.unwrap();
                    pending[who] = Some(Pending::Put { mine, held: Some(held), reply });
                }
                Pending::Put { held: Some(held), reply, .. } => drop(reply.send(Ok(held))),
                Pending::Handler(done) => drop(done.send(())),
            },
            Action::Fail(who) => {
                faults -= 1;
                match pending[who].take().unwrap() {
                    Pending::Get { reply, .. } => drop(reply.send(Err("the store failed".into()))),
                    Pending::Put { reply, .. } => drop(reply.send(Err("the store failed".into()))),
                    Pending::Handler(_) => unreachable!("it is not the store's"),
                }
            }
            Action::Lose(who) | Action::Die(who) => {
                faults -= 1;
                dead[who] = matches!(action, Action::Die(_));
                operator.force_release(KEY).await.unwrap();
                // A holder that lives learns of it by its next renewal; its work is dropped, and what it has sent is out.
                sleep(Duration::from_secs(3)).await;
                let is_sent = matches!(pending[who], Some(Pending::Put { held: None, .. }));
                let is_over = match &pending[who] {
                    Some(Pending::Get { reply, .. }) => reply.is_closed(),
                    Some(Pending::Put { reply, .. }) => reply.is_closed(),
                    Some(Pending::Handler(done)) => done.is_closed(),
                    None => true,
                };
                dead[who] |= is_over;
                if dead[who] && !is_sent {
                    std::mem::forget(pending[who].take());
                }
            }
        }
    }
    let mut told = Vec::new();
    for request in requests {
        // A dead process tells nobody anything.
        if request.is_finished() {
            told.push(request.await.unwrap());
        }
    }
    let later = Router::new().route("/pay", post(move || async move { (http::StatusCode::CREATED, charge()) }));
    let later = ask(&later.route_layer(layer(&operator, &store)), request("a", "1", "42")).await;
    Outcome { taken, steps, runs: RUNS.load(SeqCst) - before, told, later }
}

/// Says what a schedule has broken.
fn broken(outcome: &Outcome) -> Option<&'static str> {
    let answers: BTreeSet<_> =
        outcome.told.iter().chain([&outcome.later]).filter(|told| told.status < 400).map(|told| &told.body).collect();
    if answers.len() != 1 {
        return Some("two clients were told two answers, or nobody was told one");
    }
    let may_run_twice = |step: &Action| matches!(step, Action::Lose(_) | Action::Die(_));
    if outcome.runs != 1 && !outcome.steps.iter().any(may_run_twice) {
        return Some("it ran twice, and no lease was lost");
    }
    outcome.told.iter().any(|told| ![201, 500, 503].contains(&told.status)).then_some("another answer")
}

#[test]
fn attacks_1_to_3_in_every_interleaving_all_clients_are_told_one_answer() {
    let _limit = limit();
    let faults = std::env::var("MODEL_FAULTS").map_or(1, |faults| faults.parse().unwrap());
    let (mut choices, mut schedules, mut twice) = (Vec::new(), 0, 0);
    loop {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let outcome = runtime.block_on(play(&choices, faults));
        schedules += 1;
        twice += usize::from(outcome.runs > 1);
        if let Some(what) = broken(&outcome) {
            panic!("{what}: {:#?}\n{:#?}\n{:#?}", outcome.steps, outcome.told, outcome.later);
        }
        // The next schedule differs in the last choice that has another.
        let mut taken = outcome.taken;
        while taken.pop_if(|(choice, of)| *choice + 1 == *of).is_some() {}
        let Some((choice, _)) = taken.pop() else { break };
        choices = taken.into_iter().map(|(choice, _)| choice).chain([choice + 1]).collect();
    }
    println!("{schedules} schedules, {twice} of them ran twice");
    assert!(schedules > 1_000, "{schedules}");
    assert!(twice > 0, "a lost lease lets a duplicate run");
}
