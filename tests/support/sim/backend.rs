//! What the engine stands on: a backend that speaks over the simulated network as `RedisBackend` does over a real one,
//! and a clock of the client's own.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Poll, Waker},
    time::Duration,
};

use lock_core::{
    backend::{Answer, Backend, BackendError, Batch, Calls, Operation, Reply},
    clock::Clock,
    key::LockKey,
};

use super::{
    clock::SimClock,
    network::name,
    node::{Redirect, Refuses, free},
    world::{World, micros},
};

/// One client's way to a node.
#[derive(Clone, Debug)]
pub(super) struct SimBackend {
    pub(super) world: Arc<World>,
    pub(super) client: usize,
    pub(super) server: usize,
}

/// Why a request has no answer.
enum Unanswered {
    Broken,
    Silent,
    Redirected(Redirect),
}

impl Backend for SimBackend {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        let this = self.clone();
        Reply::new(async move { this.repeat(batch, None).await })
    }

    fn list(&self, _: String) -> Reply<Vec<LockKey>> {
        Reply::ready(Err(BackendError::unsupported("the simulated node lists nothing")))
    }

    fn epoch(&self) -> u64 {
        self.world.state().links[self.client].ways[self.server].epoch
    }

    fn grants_leases(&self) -> bool {
        true
    }

    fn is_reachable(&self) -> bool {
        self.world.state().links[self.client].ways[self.server].up.is_some()
    }

    /// As `RedisBackend` with a connection. The request leaves when the task polls the reply, as behind a second manager of one backend.
    fn sends_at_once(&self) -> bool {
        self.is_reachable()
    }

    fn time_limit(&self) -> Duration {
        self.world.plan.limit
    }

    /// As `RedisBackend`: one for each 100 µs of the shortest round trip.
    fn calls_at_once(&self) -> usize {
        (2 * self.world.plan.latency.0 / 100).clamp(2, 64) as usize
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SimClock { world: Arc::clone(&self.world), client: self.client })
    }

    fn driver(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let this = self.clone();
        Box::pin(async move { this.keep(calls).await })
    }
}

impl SimBackend {
    /// Sends a batch, and again over the next connection if one breaks, until the limit. If it is of one `slot`, it goes
    /// to the node that has the slot.
    pub(super) async fn repeat(self, batch: Batch, slot: Option<usize>) -> Result<Answer, BackendError> {
        let (count, mut redirected) = (batch.len(), false);
        let result = self.attempts(batch, slot, &mut redirected).await;
        if !redirected {
            return result;
        }
        // An error of the whole request would say nothing of its order.
        let failed = |error: BackendError| Answer::new((0..count).map(|_| Err(error.clone())));
        let mut answer = result.unwrap_or_else(failed);
        answer.out_of_order = true;
        Ok(answer)
    }

    async fn attempts(
        mut self,
        batch: Batch,
        slot: Option<usize>,
        redirected: &mut bool,
    ) -> Result<Answer, BackendError> {
        let world = &Arc::clone(&self.world);
        let limit = world.now() + micros(world.plan.limit.min(of_use_within(&batch)));
        let begun = world.state().own_time(self.client);
        let mut after = 0;
        let mut unanswered = false;
        loop {
            let server = slot.map_or(self.server, |slot| world.state().links[self.client].map[slot]);
            if std::mem::replace(&mut self.server, server) != server {
                after = 0;
            }
            let Some((conn, epoch)) = self.connection(after, limit).await else {
                let error = BackendError::unavailable("no connection within the limit");
                return Err(if unanswered { error } else { error.did_not_happen() });
            };
            if world.now() >= limit && !unanswered {
                // It was not polled in time, and has not left.
                return Err(BackendError::unavailable("not sent within the limit").did_not_happen());
            }
            let from = world.now();
            match self.send(conn, batch.clone(), begun, limit).await {
                Ok(mut answer) => {
                    answer.repeated = unanswered;
                    if answer.outcomes.iter().any(Result::is_err) {
                        self.refused(conn, &batch, &mut answer);
                    }
                    return Ok(answer);
                }
                Err(Unanswered::Broken) => (unanswered, after) = (true, epoch),
                Err(Unanswered::Redirected(redirect)) => {
                    *redirected = true;
                    match (redirect, slot) {
                        (Redirect::Moved(to), Some(slot)) => world.state().learn(self.client, slot, to),
                        _ => self.pause(ASKED_AGAIN).await,
                    }
                }
                Err(Unanswered::Silent) => {
                    // As `connector.rs`: a request that had little time left says nothing about the connection.
                    let least = micros(LEAST_SILENCE).max(4 * world.plan.latency.0).min(micros(world.plan.limit));
                    if world.now() - from >= least {
                        world.replace(conn);
                    }
                    return Err(BackendError::unavailable("no answer within the limit"));
                }
            }
        }
    }

    /// What a node refuses has not happened, unless an earlier copy has; from one that is a replica now, another
    /// connection is made.
    fn refused(&self, conn: usize, batch: &[Operation], answer: &mut Answer) {
        let is_replica = self.world.state().node_of(conn).refuses == Refuses::Writes;
        if !answer.repeated {
            // A key may have been taken without its number.
            for outcome in &mut answer.outcomes[..free::begin(batch)] {
                *outcome = outcome.clone().map_err(BackendError::did_not_happen);
            }
        }
        if is_replica {
            self.world.replace(conn);
        }
    }

    /// A connection newer than `after`.
    async fn connection(&self, after: u64, limit: u64) -> Option<(usize, u64)> {
        let mut timer = self.world.at(limit);
        poll_fn(|cx| {
            let mut state = self.world.state();
            let link = &mut state.links[self.client];
            if link.dead {
                return Poll::Ready(None);
            }
            let way = &mut link.ways[self.server];
            if let Some(conn) = way.up
                && way.epoch > after
            {
                return Poll::Ready(Some((conn, way.epoch)));
            }
            if !link.engine.lets_pass(cx) {
                return Poll::Pending;
            }
            way.waiting.push(cx.waker().clone());
            drop(state);
            Pin::new(&mut timer).poll(cx).map(|()| None)
        })
        .await
    }

    async fn send(&self, conn: usize, batch: Batch, begun: u64, limit: u64) -> Result<Answer, Unanswered> {
        let id = self.world.state().request(&self.world.plan, conn, batch.into_iter().collect(), begun);
        let mut timer = self.world.at(limit);
        poll_fn(|cx| {
            let mut state = self.world.state();
            if state.links[self.client].dead {
                return Poll::Ready(Err(Unanswered::Silent));
            }
            if !state.links[self.client].engine.lets_pass(cx) {
                return Poll::Pending;
            }
            if let Some(done) = state.requests[id].done.take() {
                let answer = done.ok_or(Unanswered::Broken)?;
                state.journal.answered(id);
                return Poll::Ready(answer.map_err(Unanswered::Redirected));
            }
            state.requests[id].waker = Some(cx.waker().clone());
            drop(state);
            Pin::new(&mut timer).poll(cx).map(|()| Err(Unanswered::Silent))
        })
        .await
    }

    /// Connects, listens, watches, and connects anew.
    async fn keep(self, calls: Calls) {
        let world = &self.world;
        let _end = EndOfDriver(&self);
        let mut former = None;
        let mut failures = 0;
        let mut short_lived: u32 = 0;
        loop {
            if let Some(series) = short_lived.checked_sub(2) {
                // As `driver.rs`: a series of short connections is slowed down, by half of the pause to all of it.
                let longest = micros(pause_after(series));
                let pause = longest / 2 + world.state().dice.below(longest / 2 + 1);
                self.pause(Duration::from_micros(pause)).await;
            }
            let conn = {
                let mut state = world.state();
                if state.links[self.client].dead {
                    return;
                }
                state.open(&world.plan, (self.client, self.server), calls.channel(), former)
            };
            if !self.greeted(conn).await {
                world.replace(conn);
                self.pause(pause_after(failures)).await;
                failures += 1;
                continue;
            }
            failures = 0;
            former = Some(conn);
            let since = world.now();
            let waiting = {
                let now = world.now();
                let mut state = world.state();
                let way = &mut state.links[self.client].ways[self.server];
                way.first_up.get_or_insert(now);
                way.epoch += 1;
                way.up = Some(conn);
                let (epoch, mut waiting) = (way.epoch, std::mem::take(&mut way.waiting));
                // Nobody promises that those who waited go on in the order in which they came.
                for last in (1..waiting.len()).rev() {
                    let other = state.dice.below(last as u64 + 1) as usize;
                    waiting.swap(last, other);
                }
                state.log(|| format!("c{} uses connection {conn}, epoch {epoch}", self.client));
                waiting
            };
            waiting.into_iter().for_each(Waker::wake);
            calls.listening(self.hears_all());
            calls.connected();
            self.watch(conn, &calls).await;
            short_lived = if world.now() - since < micros(SHORT_LIVED) { short_lived + 1 } else { 0 };
            calls.listening(false);
        }
    }

    /// Whether it is connected to every node, so that all grants come.
    fn hears_all(&self) -> bool {
        let state = self.world.state();
        !self.world.plan.has_slots() || state.links[self.client].ways.iter().all(|way| way.up.is_some())
    }

    async fn greeted(&self, conn: usize) -> bool {
        let mut timer = self.world.sleep(self.world.plan.limit);
        poll_fn(|cx| {
            let mut state = self.world.state();
            let (open, greeted) = (state.conns[conn].here, state.conns[conn].greeted);
            let link = &mut state.links[self.client];
            if !link.engine.lets_pass(cx) {
                return Poll::Pending;
            }
            if greeted || !open {
                return Poll::Ready(greeted && open);
            }
            link.ways[self.server].driver = Some(cx.waker().clone());
            drop(state);
            Pin::new(&mut timer).poll(cx).map(|()| false)
        })
        .await
    }

    async fn pause(&self, duration: Duration) {
        let timer = self.world.sleep(duration);
        self.world.engine_runs(self.client).await;
        timer.await;
    }

    /// Passes calls on, and sees to it that the connection answers, for as long as it is in use.
    async fn watch(&self, conn: usize, calls: &Calls) {
        let mut heartbeat = self.world.sleep(HEARTBEAT);
        let mut beat: Option<Pin<Box<dyn Future<Output = bool> + Send>>> = None;
        poll_fn(|cx| {
            loop {
                let mut state = self.world.state();
                let link = &mut state.links[self.client];
                if !link.engine.lets_pass(cx) {
                    return Poll::Pending;
                }
                let way = &mut link.ways[self.server];
                way.driver = Some(cx.waker().clone());
                let (pushes, up) = (std::mem::take(&mut way.pushes), way.up == Some(conn));
                for grant in &pushes {
                    let token = name(grant.token);
                    state.log(|| format!("c{} is told of {token}", self.client));
                    let link = &mut state.links[self.client];
                    link.unanswered.push((grant.key.as_str().to_owned(), grant.token));
                }
                drop(state);
                for grant in pushes {
                    calls.granted(grant);
                }
                if !up {
                    return Poll::Ready(());
                }
                if let Some(sent) = &mut beat {
                    match sent.as_mut().poll(cx) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(false) => return Poll::Ready(()),
                        Poll::Ready(true) => {
                            beat = None;
                            heartbeat = self.world.sleep(HEARTBEAT);
                        }
                    }
                } else if Pin::new(&mut heartbeat).poll(cx).is_pending() {
                    return Poll::Pending;
                } else {
                    let this = self.clone();
                    beat = Some(Box::pin(async move {
                        let now = this.world.now();
                        let limit = now + micros(this.world.plan.limit);
                        let alive = this.send(conn, Batch::new(), 0, limit).await.is_ok();
                        if !alive {
                            this.world.replace(conn);
                        }
                        alive
                    }));
                }
            }
        })
        .await;
    }
}

/// For how long the answer to a batch is waited for because of its renewals, as in `backend/redis`.
fn of_use_within(batch: &[Operation]) -> Duration {
    let within = batch.iter().map(|operation| match operation {
        Operation::Renew(renew) => renew.within,
        _ => Duration::MAX,
    });
    within.min().unwrap_or(Duration::MAX).max(LEAST_WITHIN)
}

/// Says that the engine is done with the connection.
struct EndOfDriver<'a>(&'a SimBackend);

impl Drop for EndOfDriver<'_> {
    fn drop(&mut self) {
        let SimBackend { world, client, server } = self.0;
        world.state().close_down(&world.plan, *client, *server);
    }
}

/// As `pauses.rs`, while requests wait: 10 ms, growing to 100 ms.
fn pause_after(failures: u32) -> Duration {
    Duration::from_millis((10 << failures.min(4)).min(100))
}

/// The least time without an answer that counts as silence.
const LEAST_SILENCE: Duration = Duration::from_millis(100);
/// As in `driver.rs`: a connection that broke sooner may be the first of many.
const SHORT_LIVED: Duration = Duration::from_millis(100);
/// After what time a request is sent once more whose slot moves.
const ASKED_AGAIN: Duration = Duration::from_millis(10);
/// As in `backend/redis`.
const LEAST_WITHIN: Duration = Duration::from_millis(100);
/// As in `driver.rs`.
const HEARTBEAT: Duration = Duration::from_secs(1);
