//! The driver of a cluster: a connection to each node that has slots, and the map that says which they are.

use std::{
    collections::HashSet,
    mem,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use futures_util::{
    future::{AbortHandle, Abortable, Fuse, FusedFuture, FutureExt},
    stream::{BoxStream, FuturesUnordered, SelectAll, StreamExt, unfold},
};
use tokio::time::{Instant, sleep_until};

use super::{
    super::{
        connector::Connector,
        driver::keep_server,
        pauses::{REFUSED_PAUSE, drawn, pauses},
    },
    Cluster,
    learn::learn,
    map::Map,
    search::Search,
};
use crate::{
    backend::{Calls, Notice, Replied},
    caught::OnDrop,
    error::ErrorKind,
};

type Driver = Abortable<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// The keeper of the connections to the nodes.
struct Keeper<'a> {
    cluster: &'a Cluster,
    calls: &'a Calls,
    drivers: FuturesUnordered<Driver>,
    kept: Vec<(Arc<Connector>, AbortHandle)>,
    notices: SelectAll<BoxStream<'static, (Arc<str>, Notice)>>,
    /// The nodes that can tell us of grants.
    listening: HashSet<Arc<str>>,
}

/// Keeps the connections and the map for as long as it is polled.
pub(in super::super) async fn keep(cluster: Arc<Cluster>, calls: Calls) {
    let listeners = &cluster.nodes.shared.listeners;
    listeners.add(calls.clone());
    let _listener = OnDrop(|| listeners.remove(calls.channel()));
    let mut keeper = Keeper::new(&cluster, &calls);
    let mut map = cluster.map.subscribe();
    let mut learns = pin!(Fuse::terminated());
    let mut search = Search::new(&cluster);
    let mut pace = Pace::new();
    let mut nodes = Arc::clone(&map.borrow());
    loop {
        let before = mem::replace(&mut nodes, Arc::clone(&map.borrow_and_update()));
        keeper.keep(&nodes);
        // No new connection has the leases of these slots looked at.
        if !Arc::ptr_eq(&before, &nodes) && nodes.has_given(&before) {
            calls.connected();
        }
        tokio::select! {
            biased;
            Some(_) = keeper.drivers.next() => {}
            Some((node, notice)) = keeper.notices.next() => {
                if keeper.heard(node, notice) {
                    // A node that is lost may have been replaced.
                    pace.hurry();
                }
            }
            _ = map.changed() => {}
            learned = &mut learns, if !learns.is_terminated() => {
                pace.note(&learned, &cluster);
                search.note(learned, pace.soonest);
            }
            () = cluster.doubted.notified() => {
                pace.doubted = !learns.is_terminated();
                pace.hurry();
            }
            () = sleep_until(pace.next), if learns.is_terminated() => {
                learns.set(learn(&cluster).fuse());
                search.note_attempt();
            }
            () = search.until_known() => search.note_silence(),
        }
    }
}

/// When the map is learned.
struct Pace {
    /// When at the soonest, if something says that it is wrong.
    soonest: Instant,
    next: Instant,
    /// How many attempts in a row have failed.
    failures: u32,
    /// Since when a node is lost.
    lost: Option<Instant>,
    /// Whether the map was doubted while it was learned.
    doubted: bool,
}

impl Pace {
    fn new() -> Self {
        let now = Instant::now();
        Self { soonest: now, next: now, failures: 0, lost: None, doubted: false }
    }

    /// Has the map learned as soon as that may be.
    fn hurry(&mut self) {
        self.next = self.next.min(self.soonest);
    }

    /// Records what came of an attempt, and plans the next.
    fn note(&mut self, learned: &Replied<()>, cluster: &Cluster) {
        self.failures = if learned.is_ok() { 0 } else { self.failures + 1 };
        let now = Instant::now();
        // The least pause, and the pause while no request waits for the map.
        let (hurried, idle) = match learned {
            Ok(()) => (DOUBTED_PAUSE, DOUBTED_PAUSE),
            Err(error) if error.kind() != ErrorKind::Backend => (REFUSED_PAUSE, REFUSED_PAUSE),
            Err(_) => pauses(self.failures),
        };
        self.soonest = now + drawn(hurried);
        let is_whole = cluster.is_reachable() && !cluster.says_fail();
        self.next = match (learned, is_whole) {
            (Ok(()), true) => now + drawn(LEARN_EVERY),
            (Ok(()), false) => now + lost_pause(self.lost.unwrap_or(now).elapsed()),
            (Err(_), _) if cluster.is_awaited() => self.soonest,
            (Err(_), _) => now + drawn(idle),
        };
        if mem::take(&mut self.doubted) {
            self.hurry();
        }
        self.lost = if is_whole { None } else { self.lost.or(Some(now)) };
    }
}

impl Cluster {
    /// Whether a request waits for the map. Each driver looks at it, too.
    fn is_awaited(&self) -> bool {
        self.map.receiver_count() > self.nodes.shared.listeners.count()
    }
}

impl<'a> Keeper<'a> {
    fn new(cluster: &'a Cluster, calls: &'a Calls) -> Self {
        Self {
            cluster,
            calls,
            drivers: FuturesUnordered::new(),
            kept: Vec::new(),
            notices: SelectAll::new(),
            listening: HashSet::new(),
        }
    }

    /// Begins with the nodes that are new, and ends with those that are gone.
    fn keep(&mut self, map: &Map) {
        let is_kept = |node: &Arc<Connector>| map.kept().any(|other| Arc::ptr_eq(other, node));
        let gone: Vec<_> = self.kept.extract_if(.., |(node, _)| !is_kept(node)).collect();
        for (node, driver) in gone {
            driver.abort();
            self.note_deaf(&node.name);
        }
        for node in map.kept() {
            if !self.kept.iter().any(|(kept, _)| Arc::ptr_eq(kept, node)) {
                let (told, notice) = Calls::new(Arc::clone(self.calls.channel()));
                let (abort, registration) = AbortHandle::new_pair();
                self.drivers.push(Abortable::new(Box::pin(keep_server(Arc::clone(node), told)), registration));
                self.kept.push((Arc::clone(node), abort));
                let name = Arc::clone(&node.name);
                let told = unfold(notice, |mut notice| async move { Some((notice.recv().await?, notice)) });
                self.notices.push(told.map(move |notice| (Arc::clone(&name), notice)).boxed());
            }
        }
    }

    /// Records that a node can no longer notify us of grants.
    fn note_deaf(&mut self, node: &str) {
        if self.listening.remove(node) && self.listening.is_empty() {
            self.calls.listening(false);
        }
    }

    /// Passes on a message of a node's driver. Returns whether a node may have been lost.
    fn heard(&mut self, node: Arc<str>, notice: Notice) -> bool {
        match notice {
            // The listener on the channel receives grants, and requests go over the connections to other nodes, too.
            Notice::Granted(_) | Notice::Settled(_) => {}
            Notice::Listening(true) => {
                self.listening.insert(node);
                self.calls.listening(true);
            }
            Notice::Listening(false) => {
                self.note_deaf(&node);
                return !self.cluster.is_reachable();
            }
            notice => self.calls.pass_on(notice),
        }
        false
    }
}

/// How long to wait before the map is learned again, when a node has been lost for `so_long`: a hundredth of that time, within
/// bounds.
fn lost_pause(so_long: Duration) -> Duration {
    (so_long / 100).clamp(LOST_PAUSE, LONG_LOST_PAUSE)
}

/// How often the map is learned though nothing says that it is wrong.
const LEARN_EVERY: Duration = Duration::from_secs(10);
/// How often at most while a node is lost, which another one may replace.
const LOST_PAUSE: Duration = Duration::from_millis(100);
/// How often at least while a node is lost, perhaps forever.
const LONG_LOST_PAUSE: Duration = Duration::from_secs(2);
/// How long after it was learned it may be doubted again.
const DOUBTED_PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{options::ConnectOptions, redis::settings::Settings, timeouts::Timeouts};

    #[test]
    fn a_node_that_is_lost_for_long_is_looked_for_less_often() {
        let seconds = Duration::from_secs;
        assert_eq!(lost_pause(seconds(3)), LOST_PAUSE);
        assert_eq!(lost_pause(seconds(30)), Duration::from_millis(300));
        assert_eq!(lost_pause(seconds(3_600)), LONG_LOST_PAUSE);
    }

    fn cluster() -> Cluster {
        let second = Duration::from_secs(1);
        let options = ConnectOptions::new("test", Timeouts { command: second, connect: second });
        let settings = Settings::from_url("redis://127.0.0.1:1", &options).expect("a valid URL");
        Cluster::new(vec![settings.address.clone()], settings)
    }

    #[test]
    fn waiters_poll_when_the_last_node_that_listens_leaves_the_map() {
        let cluster = cluster();
        let address = cluster.nodes.settings.address.clone();
        let (calls, mut notices) = Calls::new("channel".into());
        let mut keeper = Keeper::new(&cluster, &calls);
        let map = Map::of(&[(address, 0, 16_383)], &Map::unknown(), &cluster.nodes);
        keeper.keep(&map);
        keeper.heard(Arc::clone(&map.nodes()[0].name), Notice::Listening(true));
        keeper.keep(&Map::unknown());
        let mut told = || match notices.try_recv() {
            Ok(Notice::Listening(listening)) => Some(listening),
            _ => None,
        };
        assert_eq!([told(), told(), told()], [Some(true), Some(false), None]);
    }

    #[tokio::test]
    async fn a_manager_that_ends_is_a_listener_no_longer_and_others_of_the_backend_stay() {
        let cluster = Arc::new(cluster());
        let listeners = &cluster.nodes.shared.listeners;
        let kept = |channel: &str| {
            let mut driver = Box::pin(keep(Arc::clone(&cluster), Calls::new(channel.into()).0));
            assert!((&mut driver).now_or_never().is_none(), "it goes on for as long as it is polled");
            driver
        };
        let (one, two) = (kept("one"), kept("two"));
        assert_eq!(listeners.count(), 2);
        drop(one);
        assert!(listeners.count() == 1 && listeners.has("two"));
        drop(two);
        assert_eq!(listeners.count(), 0);
    }
}
