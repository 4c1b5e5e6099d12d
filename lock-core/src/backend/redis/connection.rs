//! One connection to the node, and what is known about it.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{
    commands::Commands,
    handshake::Connected,
    wire::{Replies, Wire},
};

/// A connection that is ready for use. Clones share it.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) wire: Wire,
    pub(super) epoch: u64,
    pub(super) about: Arc<About>,
}

/// The state of a connection.
pub(super) struct About {
    /// When the handshake was over.
    pub(super) since: Instant,
    /// The shortest time in which it has answered, in µs: how far away the server is.
    round_trip: AtomicU64,
    /// Whether the server refused to write when the connection was too young to be replaced.
    demoted: AtomicBool,
    /// Whether the server has run the script.
    scripts: AtomicBool,
    /// Whether the server is not known to refuse transactions.
    transactions: AtomicBool,
    /// The run of the server, if it is known.
    pub(super) run: Option<Arc<String>>,
    /// The channels of slots that it listens to, if it is to a node of a cluster that can notify waiters.
    listens: Option<Mutex<HashSet<Arc<str>>>>,
    /// Whether it may not listen to some of them.
    deaf: AtomicBool,
    /// Whether the server says when a key changes that was read in order to watch it.
    pub(super) tracks: bool,
    /// When the trial of scripts was sent with the handshake, and its replies, until they are waited for.
    trial: Mutex<Option<(Instant, Replies)>>,
}

/// Commands that were put on the wire of a connection.
pub(super) struct Sent {
    pub(super) connection: Connection,
    /// `None` if their time was over before.
    pub(super) replies: Option<Replies>,
    /// How many replies there will be, unless the connection ends.
    pub(super) count: usize,
    pub(super) begun: Instant,
    pub(super) limit: Instant,
}

impl Connection {
    pub(super) fn new(wire: Wire, epoch: u64, about: Arc<About>) -> Self {
        Self { wire, epoch, about }
    }

    /// Puts commands on the wire, unless their time is over.
    pub(super) fn send(self, commands: &Commands, limit: Instant) -> Sent {
        let begun = Instant::now();
        let replies = (begun < limit).then(|| self.wire.put(commands));
        Sent { connection: self, replies, count: commands.count(), begun, limit }
    }

    /// Returns the trial of scripts, if it was sent with the handshake and is not waited for yet.
    pub(super) fn take_trial(&self, limit: Instant) -> Option<Sent> {
        let trial = self.about.trial.lock().unwrap_or_else(PoisonError::into_inner).take();
        let connection = self.clone();
        trial.map(|(begun, replies)| Sent { connection, replies: Some(replies), count: 2, begun, limit })
    }

    /// Records that the server has run the script.
    pub(super) fn note_script_run(&self) {
        if !self.about.scripts.load(Ordering::Relaxed) {
            self.about.scripts.store(true, Ordering::Relaxed);
        }
    }

    /// Records that acquires have to go by the script: transactions are refused, or the script is, now or for some keys.
    pub(super) fn note_no_transactions(&self) {
        self.about.transactions.store(false, Ordering::Relaxed);
    }

    /// Returns whether an acquire may go without the script. Not the first one: a server that refuses the script would give
    /// keys away, and could not release them.
    pub(super) fn takes_transactions(&self) -> bool {
        self.about.scripts.load(Ordering::Relaxed) && self.about.transactions.load(Ordering::Relaxed)
    }

    /// Returns whether this connection can receive messages on the channels of a node's slots.
    pub(super) fn can_listen(&self) -> bool {
        self.about.listens.is_some() && !self.about.deaf.load(Ordering::Relaxed)
    }

    /// Records that the connection listens to the channel of a slot, and returns whether it did not yet.
    pub(super) fn note_listening(&self, channel: &Arc<str>) -> bool {
        self.listens().is_some_and(|mut channels| !channels.contains(channel) && channels.insert(Arc::clone(channel)))
    }

    /// Records that it may not listen to the channel of a slot.
    pub(super) fn forget_channel(&self, channel: &str) {
        if let Some(mut channels) = self.listens() {
            channels.remove(channel);
        }
    }

    /// Records that the server has refused a subscription: permanently, if it is forbidden.
    pub(super) fn note_refused_channels(&self, is_forbidden: bool) {
        if let Some(mut channels) = self.listens() {
            channels.clear();
        }
        if is_forbidden {
            self.about.deaf.store(true, Ordering::Relaxed);
        }
    }

    fn listens(&self) -> Option<MutexGuard<'_, HashSet<Arc<str>>>> {
        self.about.listens.as_ref().map(|channels| channels.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the shortest time in which it has answered.
    pub(super) fn round_trip(&self) -> Duration {
        Duration::from_micros(self.about.round_trip.load(Ordering::Relaxed))
    }

    /// Returns the least time without an answer that counts as silence.
    pub(super) fn least_silence(&self) -> Duration {
        LEAST_SILENCE.max(self.round_trip().saturating_mul(2))
    }

    /// Records that the server has refused to write.
    pub(super) fn mark_demoted(&self) {
        self.about.demoted.store(true, Ordering::Relaxed);
    }

    /// Returns whether the server has refused to write over this connection.
    pub(super) fn is_demoted(&self) -> bool {
        self.about.demoted.load(Ordering::Relaxed)
    }
}

impl About {
    /// Describes a connection that was made just now. `shards` says whether it can listen to the channels of slots.
    pub(super) fn new(connected: &mut Connected, shards: bool) -> Self {
        let Connected { run, round_trip, tracks, trial, .. } = connected;
        let about = Self {
            since: Instant::now(),
            round_trip: AtomicU64::new(u64::MAX),
            demoted: AtomicBool::new(false),
            scripts: AtomicBool::new(false),
            transactions: AtomicBool::new(true),
            run: run.clone(),
            listens: shards.then(Mutex::default),
            deaf: AtomicBool::new(false),
            tracks: *tracks,
            trial: Mutex::new(trial.take()),
        };
        about.answered_within(*round_trip);
        about
    }

    pub(super) fn answered_within(&self, round_trip: Duration) {
        let micros = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX);
        // Most answers are no faster than an earlier one, and a write would slow down the other readers.
        if micros < self.round_trip.load(Ordering::Relaxed) {
            self.round_trip.fetch_min(micros, Ordering::Relaxed);
        }
    }
}

/// The least time without an answer that counts as silence, however soon a renewal has to be tried again.
pub(super) const LEAST_SILENCE: Duration = Duration::from_millis(100);
