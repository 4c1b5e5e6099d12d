//! What a server has of the key `k` at one moment, and what a release makes of it.
//!
//! A place in the queue lasts for a second and a half, and a grant for one. A process that stands still for longer loses its turn, and on a
//! busy machine that can happen at any moment. So the next holder is compared with the queue as the server had it at the release, by the
//! server's own clock.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures_util::future::select_all;
use lock_tests::{Actor, RedisServer, Reply, SOON, eventually, eventually_some};

/// Tokens that have the key, or a place in its queue.
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// The time, in ms.
    now: u64,
    /// When the lease or the grant of each token ends.
    holders: BTreeMap<String, u64>,
    /// In their order.
    places: Vec<Place>,
    /// The fencing token that was drawn last, if the waiter that was granted the key last has sent no acquire since.
    pub(crate) granted: Option<u64>,
}

#[derive(Clone, Debug)]
struct Place {
    token: String,
    ends: u64,
    /// For how many ms the key is kept from the grant on.
    kept: u64,
}

impl State {
    /// Looks at everything in one step of the server.
    pub(crate) async fn of(server: &RedisServer) -> Self {
        let reply = server.call(&["EVAL", LOOK, "0"]).await;
        let [now, holders, queue, drawn] = reply.items() else { panic!("{reply:?}") };
        let number = |text: &str| -> u64 { text.parse().expect("a number") };
        let pairs = |reply: &Reply| -> Vec<(String, String)> {
            let texts: Vec<_> = reply.items().iter().filter_map(Reply::text).collect();
            texts.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
        };
        let (mut places, mut is_granted) = (BTreeMap::new(), false);
        for (field, value) in pairs(queue) {
            is_granted |= field == "granted";
            if let Some(ticket) = field.strip_prefix('#') {
                // `token end life T sent block channel`
                let parts: Vec<_> = value.split(' ').collect();
                let place = Place { token: parts[0].to_owned(), ends: number(parts[1]), kept: number(parts[3]) };
                places.insert(number(ticket), place);
            }
        }
        let drawn = drawn.text().expect("a number was drawn");
        let (ms, seq) = drawn.split_once('-').expect("an id has two parts");
        Self {
            now: number(&now.text().expect("the time")),
            holders: pairs(holders).into_iter().map(|(token, ends)| (token, number(&ends))).collect(),
            places: places.into_values().collect(),
            granted: is_granted.then(|| number(ms) * 1_000 + number(seq)),
        }
    }

    /// Whether a token has the key.
    pub(crate) fn has(&self, token: &str) -> bool {
        self.holders.contains_key(token)
    }

    /// Whether a token has a place.
    pub(crate) fn has_place(&self, token: &str) -> bool {
        self.places.iter().any(|place| place.token == token)
    }

    /// For how many ms more a token has the key.
    pub(crate) fn left(&self, token: &str) -> Option<u64> {
        self.holders.get(token).map(|ends| ends.saturating_sub(self.now))
    }

    fn forget(&mut self, dead: &[String]) {
        self.places.retain(|place| !dead.contains(&place.token));
    }

    /// Fails if the key was granted to others than those who came first, if a live place was lost, or if a newcomer has a place before it.
    /// Returns whether the key was granted to anybody; false if the machine stood still for so long that nothing can be said.
    pub(crate) fn follows(&self, before: &Self) -> bool {
        let stayed: Vec<&str> = before.holders.keys().map(String::as_str).filter(|token| self.has(token)).collect();
        let mut group = stayed.clone();
        let come = before.places.iter().take_while(|place| {
            let fits = fits(&group, &place.token);
            group.push(&place.token);
            fits
        });
        let (come, wait) = before.places.split_at(come.count());
        let is_live = |place: &Place| place.ends > self.now;
        let is_sure = come.iter().chain(wait.first()).all(is_live)
            && come.iter().all(|place| before.now + place.kept > self.now)
            && stayed.iter().all(|token| before.holders[*token] > self.now);
        if !is_sure {
            return false;
        }
        for place in come {
            assert!(self.has(&place.token) && !self.has_place(&place.token), "{place:?}: {self:?} after {before:?}");
        }
        for place in wait {
            assert!(!self.has(&place.token), "{place:?}: {self:?} after {before:?}");
        }
        let wait: Vec<&str> = wait.iter().filter(|place| is_live(place)).map(|place| &*place.token).collect();
        let now: Vec<&str> = self.places.iter().map(|place| &*place.token).collect();
        let still: Vec<&str> = now.iter().copied().filter(|token| wait.contains(token)).collect();
        assert_eq!(still, wait, "{self:?} after {before:?}");
        let newcomer = now.iter().position(|token| !before.has_place(token)).unwrap_or(now.len());
        assert!(now[newcomer..].iter().all(|token| !wait.contains(token)), "{self:?} after {before:?}");
        !come.is_empty()
    }
}

/// Whether a token may have the key beside others. A token says its mode at its end.
fn fits(group: &[&str], token: &str) -> bool {
    let Some(mode) = mode_of(token) else { return group.is_empty() };
    let Some((take, total)) = permits_of(token) else { return group.iter().all(|other| mode_of(other) == Some(mode)) };
    let taken = group.iter().map(|other| match permits_of(other) {
        Some((taken, of)) if of == total => taken,
        _ => total,
    });
    taken.sum::<u32>() + take <= total
}

/// `shared` or `2/10`; nothing if it is exclusive.
fn mode_of(token: &str) -> Option<&str> {
    token.split(':').nth(3)
}

fn permits_of(token: &str) -> Option<(u32, u32)> {
    let (take, total) = mode_of(token)?.split_once('/')?;
    Some((take.parse().ok()?, total.parse().ok()?))
}

/// Waits until an actor that begins to wait has a place; its token joins those that are `known`. Returns what the server had before, and has
/// then.
pub(crate) async fn comes(
    server: &RedisServer,
    begins: impl Future<Output = ()>,
    known: &mut Vec<String>,
) -> (State, State) {
    let before = State::of(server).await;
    begins.await;
    let (after, token) = eventually_some(SOON, "a waiter has a place", async || {
        let state = State::of(server).await;
        let token = state.places.iter().map(|place| &place.token).find(|token| !known.contains(token)).cloned()?;
        Some((state, token))
    })
    .await;
    known.push(token);
    (before, after)
}

/// Waits until each waiter has looked after its place once more, and fails if one has lost it by that.
pub(crate) async fn all_look(server: &RedisServer) {
    let first = State::of(server).await;
    let mut last = first.clone();
    eventually(SOON, "each looks after its place", async || {
        let state = State::of(server).await;
        state.follows(&last);
        let is_old = |place: &Place| first.places.iter().any(|old| old.token == place.token && old.ends == place.ends);
        let is_done = !state.places.iter().any(is_old);
        last = state;
        is_done
    })
    .await;
}

/// Has an actor release its lease. Returns false if the lease was lost: it had been granted, and the process stood still before its renewal.
pub(crate) async fn give_back(holder: &mut Actor) -> bool {
    let said = holder.tell("release").await;
    assert!(said == "released" || said.starts_with("failed Lost("), "{}: {said}", holder.name);
    said == "released"
}

/// Has an actor release its lease, and fails if the key is granted to others than those who come next; `dead` are tokens of waiters that were
/// killed. Returns what the server has after it, and whether the grant was seen.
pub(crate) async fn release(holder: &mut Actor, server: &RedisServer, dead: &[String]) -> (State, bool) {
    let mut before = State::of(server).await;
    let is_released = give_back(holder).await;
    let mut after = State::of(server).await;
    for state in [&mut before, &mut after] {
        state.forget(dead);
    }
    let is_seen = is_released && after.follows(&before);
    (after, is_seen)
}

/// Waits until one of them holds; returns it, its fencing token, and how long that took.
pub(crate) async fn next_holder(waiters: &mut Vec<Actor>) -> (Actor, u64, Duration) {
    let start = Instant::now();
    let held = waiters.iter_mut().map(|waiter| Box::pin(waiter.held(SOON)));
    let (fence, index, others) = select_all(held).await;
    drop(others);
    (waiters.remove(index), fence, start.elapsed())
}

/// Serves all of them, one after the other.
pub(crate) async fn serve_all(waiters: &mut Vec<Actor>) {
    while !waiters.is_empty() {
        let (mut holder, ..) = next_holder(waiters).await;
        give_back(&mut holder).await;
    }
}

const LOOK: &str = "
local time, has, drawn = redis.call('TIME'), {}, false
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local token = redis.pcall('GET', 'k')
if type(token) == 'string' then
  has = { token, string.format('%.0f', now + redis.call('PTTL', 'k')) }
elseif token then
  has = redis.call('ZRANGEBYSCORE', 'k', now, '(+inf', 'WITHSCORES')
end
local counter = redis.call('XINFO', 'STREAM', '{0}lock-core:fence')
for i = 1, #counter, 2 do
  if counter[i] == 'last-generated-id' then drawn = counter[i + 1] end
end
return { string.format('%.0f', now), has, redis.call('HGETALL', '{0}lock-core:queue:k'), drawn }";
