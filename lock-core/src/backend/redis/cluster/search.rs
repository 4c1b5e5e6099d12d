//! The state of a cluster until its map was learned for the first time: whether it counts as down, and why.

use std::{error::Error as _, future::pending};

use tokio::time::{Instant, sleep_until};

use super::{
    super::link::{Attempt, Down},
    Cluster,
};
use crate::backend::Replied;

/// The attempts to learn the map that are made until one works.
///
/// As one server is, the cluster is known to be down when there has been no sign of any of its nodes for the limit of a
/// command. Requests see that in the link of the search, which is never up.
pub(super) struct Search<'a> {
    cluster: &'a Cluster,
    begun: Instant,
    /// When the cluster counts as down.
    known_at: Instant,
    known: bool,
    failures: u32,
    /// Whether the map is known.
    is_over: bool,
}

impl<'a> Search<'a> {
    pub(super) fn new(cluster: &'a Cluster) -> Self {
        let begun = Instant::now();
        let known_at = begun + cluster.limit();
        Self { cluster, begun, known_at, known: false, failures: 0, is_over: cluster.map().is_known() }
    }

    /// Returns when to look whether the cluster is down, if that is not known.
    pub(super) fn until_known(&self) -> impl Future<Output = ()> + use<> {
        let known_at = (!self.known && !self.is_over).then_some(self.known_at);
        async move {
            match known_at {
                Some(known_at) => sleep_until(known_at).await,
                None => pending().await,
            }
        }
    }

    /// Records that an attempt has begun.
    pub(super) fn note_attempt(&self) {
        self.cluster.search.note_attempt(Instant::now());
    }

    /// Records that the cluster is down, unless one of its nodes is slow but has answered an attempt.
    pub(super) fn note_silence(&mut self) {
        let limit = self.cluster.limit();
        let heard = self.cluster.seeds.iter().filter_map(|seed| seed.last_heard()).max();
        match heard.map(|heard| heard + limit).filter(|until| *until > self.known_at) {
            Some(until) => self.known_at = until,
            None => {
                self.known = true;
                self.cluster.search.note_known_down();
            }
        }
    }

    /// Records what came of an attempt. The next one may begin at `soonest`.
    pub(super) fn note(&mut self, learned: Replied<()>, soonest: Instant) {
        if self.is_over {
            return;
        }
        let Err(error) = learned else {
            self.is_over = true;
            if self.failures > 0 {
                let (address, after) = (self.cluster.addresses(), self.begun.elapsed());
                log!(info, address, ?after, "found the cluster again");
            }
            return;
        };
        if self.failures == 0 {
            let address = self.cluster.addresses();
            log!(warn, address, %error, cause = error.source(), "could not connect; retrying for as long as the manager lives");
        }
        self.failures += 1;
        // A cluster that gave a sign of life had more time until now.
        self.known |= self.begun.elapsed() >= self.cluster.limit();
        self.cluster.search.note_failure(Down {
            since: self.begun,
            error: Some(error.did_not_happen()),
            known: self.known,
            failures: self.failures,
            attempt: Attempt::Due(soonest),
        });
    }
}

impl Drop for Search<'_> {
    /// When the runtime has ended, what was found on it says nothing to the next one.
    fn drop(&mut self) {
        self.cluster.search.take_down(0);
    }
}
