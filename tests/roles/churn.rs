//! Work that leaves something behind in the process or in the server, if anything does: keys that are used once, ends of leases that
//! are awaited and dropped, shares, leases that are handed over or kept busy, and managers that come and go.

use std::{
    error::Error as StdError,
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Wake, Waker},
    time::Duration,
};

use lock_core::{Error, ErrorKind, LeaseOptions, LockGuard, LockManager};
use tokio::{
    task::yield_now,
    time::{Instant, sleep, sleep_until},
};

/// How many wakers are alive that a future of this module has been polled with.
static WAKERS: AtomicUsize = AtomicUsize::new(0);

#[derive(Clone)]
pub(crate) struct Churn {
    manager: LockManager,
    name: String,
    ttl: Duration,
    /// How many rounds there were.
    rounds: Arc<AtomicU64>,
}

impl Churn {
    pub(crate) fn new(manager: &LockManager, name: &str, ttl: Duration) -> Self {
        Self { manager: manager.clone(), name: name.to_owned(), ttl, rounds: Arc::default() }
    }

    /// How many rounds there were.
    pub(crate) fn rounds(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.rounds)
    }

    /// Uses keys that nobody else uses. An error is none of its business: the servers fail, too.
    pub(crate) async fn round(&mut self) {
        let round = self.rounds.fetch_add(1, Ordering::Relaxed);
        let result = match round % 6 {
            0 => self.awaits_the_end(round).await,
            1 => self.shares(round).await,
            2 => self.comes_and_goes(round).await,
            3 => self.hands_over(round).await,
            4 => self.keeps_busy(round).await,
            _ => self.gives_up(round).await,
        };
        // No hot loop where requests are refused at once, and no more tokens to remember than a round of each kind takes.
        sleep(if result.is_ok() { PAUSE } else { 5 * PAUSE }).await;
    }

    fn key(&self, round: u64) -> String {
        format!("churn:{}:{round}", self.name)
    }

    async fn held(&self, round: u64) -> Result<LockGuard, Error> {
        self.manager.lock(self.key(round)).ttl(self.ttl).await
    }

    async fn awaits_the_end(&self, round: u64) -> Result<(), Error> {
        let guard = self.held(round).await?;
        drops_ends(&guard).await;
        guard.release().await
    }

    async fn shares(&self, round: u64) -> Result<(), Error> {
        let shared = || self.manager.lock(self.key(round)).shared().ttl(self.ttl);
        let (one, two) = (shared().await?, shared().await?);
        drop(two);
        one.release().await
    }

    async fn comes_and_goes(&self, round: u64) -> Result<(), Error> {
        let shared = self.manager.lock(self.key(round)).shared().ttl(self.ttl).await?;
        let url = self.manager.health().nodes()[0].address().to_owned();
        let visitor =
            LockManager::builder().url(format!("redis://{url}")).defaults(LeaseOptions::new().ttl(self.ttl)).build();
        let Ok(visitor) = visitor else { return shared.release().await };
        drop(visitor.lock(format!("{}:visitor", self.key(round))).await);
        drop(visitor.lock(self.key(round)).wait(PAUSE).await);
        shared.release().await
    }

    async fn hands_over(&self, round: u64) -> Result<(), Error> {
        // Nobody takes it up.
        self.held(round).await?.hand_over().map(drop)
    }

    async fn keeps_busy(&self, round: u64) -> Result<(), Error> {
        let request = self.manager.lock(self.key(round)).ttl(self.ttl).at_least(self.ttl / 2);
        request.await?.release().await
    }

    async fn gives_up(&self, round: u64) -> Result<(), Error> {
        let held = self.held(round).await?;
        // A task that holds a key may not wait for it.
        let request = self.manager.lock(self.key(round)).ttl(self.ttl).wait(PAUSE);
        let _ = tokio::spawn(request.acquire()).await;
        held.release().await
    }

    /// Goes on after all else has been released: counts the wakers of ends that were awaited and dropped, and finds out whether tokens
    /// whose time is over are still remembered.
    pub(crate) async fn sweep(&mut self) -> Result<String, Box<dyn StdError>> {
        let guard = self.manager.lock(format!("{}:swept", self.key(0))).ttl(LONG).await?;
        for _ in 0..SELECTS {
            drops_ends(&guard).await;
        }
        let wakers = WAKERS.load(Ordering::Relaxed);
        guard.release().await?;
        let kept = self.remembered("kept", 4).await?;
        // Last, since it goes without the script, which would empty a counter that has grown.
        let handed_over = self.remembered("handed_over", 3).await?;
        Ok(format!(" wakers={wakers} handed_over={handed_over} kept={kept}"))
    }

    /// How many tokens too many are remembered. Those whose time is over go when there is no room for another one. There is room for twice
    /// as many as were ever remembered at once, or less: so they have gone when twice as many were added as there were rounds of this kind.
    ///
    /// It is the size alone that counts: a request may fail after its token was remembered.
    async fn remembered(&mut self, what: &str, kind: u64) -> Result<usize, Box<dyn StdError>> {
        let size = || self.manager.__sizes().iter().find(|(name, _)| *name == what).map_or(0, |(_, size)| *size);
        let over = Instant::now() + 2 * self.ttl;
        sleep_until(over).await;
        let before = size();
        if before < FEW {
            return Ok(0);
        }
        // Those that are added last long enough to be remembered on a slow machine.
        let adds = Self { ttl: SWEPT, ..self.clone() };
        let mut round = self.rounds.load(Ordering::Relaxed);
        let most = 2 * usize::try_from(round / 6)? + ROOM;
        let (mut last, mut added, mut has_shrunk) = (before, 0, false);
        while added < most && !has_shrunk {
            round += 6;
            let number = round - round % 6 + kind;
            let _ = if kind == 3 { adds.hands_over(number).await } else { adds.keeps_busy(number).await };
            let now = size();
            (added, has_shrunk) = (added + usize::from(now > last), now < last);
            last = now;
        }
        self.rounds.store(round + 6, Ordering::Relaxed);
        Ok(if has_shrunk { 0 } else { before })
    }
}

/// Awaits the end of a lease several times, each time beside something that comes first.
async fn drops_ends(guard: &LockGuard) {
    drops(guard.lease().ended()).await;
    drops(guard.ended()).await;
}

/// Awaits something beside what comes first.
async fn drops(end: impl Future) {
    tokio::select! {
        biased;
        _ = counted(end) => {}
        () = yield_now() => {}
    }
}

/// Polls a future with a waker that counts as alive for as long as anybody has it.
async fn counted<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| future.as_mut().poll(&mut Context::from_waker(&Counted::waker(cx.waker())))).await
}

/// A waker that is counted.
struct Counted(Waker);

impl Counted {
    fn waker(waker: &Waker) -> Waker {
        WAKERS.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self(waker.clone())).into()
    }
}

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        self.0.wake_by_ref();
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        WAKERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Another manager, which ends while a request of it is in doubt.
pub(crate) struct Visit(LockManager);

impl Visit {
    pub(crate) async fn begin(url: &str) -> Result<Self, Box<dyn StdError>> {
        let manager = LockManager::builder().url(url).command_timeout(LIMIT).connect().await?;
        manager.lock("visited").await?.release().await?;
        Ok(Self(manager))
    }

    /// Ends at a server that does not answer any longer. Returns the error of its last request.
    pub(crate) async fn end(self) -> Option<ErrorKind> {
        self.0.lock("doubted").ttl(IN_DOUBT).await.err().map(|error| error.kind())
    }
}

const PAUSE: Duration = Duration::from_millis(5);
const LONG: Duration = Duration::from_secs(600);
/// For how long a key may be busy that a request has asked for which was not answered.
const IN_DOUBT: Duration = Duration::from_millis(500);
/// How long a request of a visitor may take: the last one takes as long.
const LIMIT: Duration = Duration::from_secs(10);
/// How often ends are awaited and dropped while a lease goes on.
const SELECTS: usize = 32;
/// So few tokens say nothing about whether others have gone.
const FEW: usize = 8;
/// The ttl of leases that are added to see whether others go.
const SWEPT: Duration = Duration::from_secs(4);
/// How many tokens there may be room for when none is remembered.
const ROOM: usize = 16;
