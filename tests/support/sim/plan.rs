//! What a seed decides before anything happens: how many of whom, how good the network is, and what breaks.

use std::time::Duration;

use super::mix::Mix;
use crate::Dice;

/// Where leases are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Store {
    /// On one node, of which everything may break.
    #[default]
    Single,
    /// On one node that fails over again and again.
    Replicated,
    /// On a quorum of three.
    Quorum,
    /// On three nodes, each of which has some of the keys: slots, which move.
    Slots,
    /// On one node, by leases of all modes.
    Modes,
    /// On a quorum of three, by exclusive and shared leases.
    ModesOfQuorum,
}

impl Store {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Single, Self::Replicated, Self::Quorum, Self::Slots, Self::Modes, Self::ModesOfQuorum];

    pub(super) fn nodes(self) -> usize {
        if matches!(self, Self::Single | Self::Replicated | Self::Modes) { 1 } else { 3 }
    }

    pub(super) fn is_quorum(self) -> bool {
        matches!(self, Self::Quorum | Self::ModesOfQuorum)
    }
}

/// The conditions of one schedule. Each kind of fault is on in some schedules only, so that what one hides another
/// shows.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) store: Store,
    /// Managers, each a process with a clock and a connection of its own.
    pub(super) clients: usize,
    /// Tasks of each.
    pub(super) tasks: usize,
    pub(super) keys: usize,
    /// How often each task asks for a lease.
    pub(super) rounds: u64,
    /// Whether the tasks hold a key for a short time, and ask for it at once again.
    pub(super) hot: bool,
    pub(super) ttls: [Duration; 2],
    /// One way over the network, in µs.
    pub(super) latency: (u64, u64),
    /// The backend's limit of one request.
    pub(super) limit: Duration,
    /// Chances in a thousand of a message that …
    pub(super) late: u64,
    /// … how late at most, in µs.
    pub(super) lateness: u64,
    /// … is lost with all that follow it on its connection.
    pub(super) hole: u64,
    /// … breaks its connection on the way there.
    pub(super) reset: u64,
    /// … is executed, and its answer cut off.
    pub(super) cut: u64,
    /// … is a call that is lost.
    pub(super) deaf: u64,
    /// … is a call that comes twice.
    pub(super) doubled: u64,
    /// … is a call that comes once more when it is long over.
    pub(super) belated: u64,
    /// How long a connection takes to be made at most, beside the way, in ms.
    pub(super) greeting: u64,
    /// Whether a client may have its former connection killed.
    pub(super) kills: bool,
    /// How long the node keeps a connection at most that its client gave up, in µs.
    pub(super) half_open: u64,
    /// Whether clients' clocks run at different rates.
    pub(super) drift: bool,
    /// How far the nodes' clocks are apart at first at most, in µs.
    pub(super) apart: u64,
    /// What breaks from time to time.
    pub(super) troubles: Vec<Trouble>,
    /// On average, the time between two of those.
    pub(super) pace: Duration,
    /// In how many of a hundred requests a future or guard is dropped early.
    pub(super) drops: u64,
    /// Whether futures are kept aside, unpolled.
    pub(super) asides: bool,
    /// In how many of a hundred requests several keys are asked for at once, where there are several.
    pub(super) several: u64,
    /// How often a manager is shut down at most.
    pub(super) shutdowns: u64,
    /// In how many of a hundred holds something unusual is done: extended, handed over, forced.
    pub(super) odd: u64,
    pub(super) foreign: bool,
    /// In which modes leases are asked for.
    pub(super) mix: Mix,
}

/// What breaks, and comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The node is killed and comes back with its data.
    NodeCrash,
    /// The node is killed and comes back empty.
    NodeLoss,
    /// Somebody empties the node.
    Flush,
    /// Somebody deletes a key.
    Delete,
    /// The node is stopped for a while.
    NodePause,
    /// The node's clock is set forward.
    ClockForward,
    /// The node's clock is set back.
    ClockBack,
    /// A client is killed; another one comes.
    Crash,
    /// A client is stopped for a while.
    Pause,
    /// A client's engine does not run for a while.
    StarveEngine,
    /// A client's tasks do not run for a while.
    StarveTasks,
    /// A client is suspended: its clock goes on, its timers do not.
    Suspend,
    /// The connection of a client is closed by the node.
    Kill,
    /// The node fails over to a copy that lags behind.
    Failover,
    /// The node is made a replica for a while, and perhaps emptied.
    Replica,
    /// The node is out of memory for a while.
    OutOfMemory,
    /// The counter of the node cannot be written for a while.
    NoNumbers,
    /// The node lets nobody publish for a while.
    Mute,
    /// The node loses that somebody waits, or who.
    Evict,
    /// For a while, keys are deleted or released by force as soon as they are taken.
    Snipe,
}

impl Plan {
    pub(super) fn draw(dice: &mut Dice, store: Store) -> Self {
        let calm = dice.below(4) == 0;
        // One thing breaks, in a sound network: what then goes wrong otherwise has no excuse either.
        let lonely = !calm && dice.below(6) == 0;
        let calm_network = calm || lonely;
        // A vote waits for a slow node for four times as long as that usually takes: in a sound network none takes longer.
        let quickest = if calm_network && store.is_quorum() { [100, 750, 4_000] } else { [100, 300, 2_000] };
        let speed = dice.below(3) as usize;
        let latency = (quickest[speed], [400, 3_000, 15_000][speed]);
        let some = |dice: &mut Dice, most: u64| match dice.below(5) {
            0 | 1 if !calm_network => 1 + dice.below(most),
            _ => 0,
        };
        let ms = Duration::from_millis;
        let ttls = match dice.below(5) {
            0 => [ms(15_000), ms(15_000)],
            // What is passed on inside a process can have half of that left.
            3 => [ms(200), ms(200)],
            // Not much more than a key is kept for a waiter that trusts its grant.
            1 => [ms(1_200), ms(200)],
            2 => [ms(300 + dice.below(700)), ms(200)],
            _ => [ms(600), ms(600)],
        };
        // Connections that take long at the beginning, and callers who do not stay.
        let slow = !calm_network && dice.below(5) == 0;
        let mut troubles = Vec::new();
        if !calm {
            for trouble in Trouble::ALL {
                if dice.below(7) == 0 {
                    troubles.push(trouble);
                }
            }
        }
        if lonely {
            troubles = vec![Trouble::ALL[dice.below(Trouble::ALL.len() as u64) as usize]];
        }
        if store == Store::Replicated {
            // As often as all else together.
            troubles.extend(vec![Trouble::Failover; troubles.len().max(1)]);
        }
        let mut apart = [0, 4_000, 16_000][dice.below(3) as usize];
        // Data lost and a clock set back together can repeat fencing tokens; the documentation says so.
        if troubles.iter().any(|trouble| trouble.loses_data()) {
            troubles.retain(|trouble| *trouble != Trouble::ClockBack);
            if store.nodes() > 1 {
                // So can clocks that differ by more than a node takes to come back.
                troubles.retain(|trouble| *trouble != Trouble::ClockForward);
                apart = 0;
            }
        }
        // What is dropped while its slot moves may be executed after its release.
        let drops = if store == Store::Slots { [0, 30, 60, 60] } else { [0, 10, 30, 60] };
        // A key that one process after the other uses up blocks of fencing tokens for.
        let hot = store.nodes() == 1 && dice.below(25) == 0;
        Self {
            store,
            clients: 2 + dice.below(3) as usize,
            tasks: if hot { 6 } else { 1 + dice.below(4) as usize },
            keys: if hot { 1 } else { [1, 1, 2, 3][dice.below(4) as usize] },
            rounds: if hot { 12 } else { 2 + dice.below(4) },
            hot,
            ttls,
            latency: if hot { (100, 400) } else { latency },
            limit: ms(200 + dice.below(800)),
            late: some(dice, 150),
            lateness: [20_000, 300_000, 2_000_000][dice.below(3) as usize],
            hole: some(dice, 30),
            reset: some(dice, 60),
            cut: some(dice, 80),
            deaf: some(dice, 300),
            doubled: some(dice, 300),
            belated: some(dice, 100),
            greeting: if slow { 500 + dice.below(1_000) } else { some(dice, 1_500) },
            kills: dice.below(3) > 0,
            half_open: [0, 200_000, 3_000_000][dice.below(3) as usize],
            drift: dice.below(2) == 0,
            apart: if store.nodes() > 1 { apart } else { 0 },
            troubles,
            pace: ms(100 + dice.below(900)),
            drops: if slow { 60 } else { drops[dice.below(4) as usize] },
            asides: slow || dice.below(3) == 0,
            several: [0, 20, 60][dice.below(3) as usize],
            shutdowns: [0, 0, 1, 2][dice.below(4) as usize],
            odd: [0, 20, 50][dice.below(3) as usize],
            // Other libraries' quorums poll too, and know no better than ours.
            foreign: dice.below(4) == 0 && store.nodes() == 1,
            mix: Mix::draw(dice, store),
        }
    }

    /// How far the clock of a node is from the true time at first, in µs.
    pub(super) fn apart(&self, dice: &mut Dice) -> i64 {
        let half = i64::try_from(self.apart / 2).unwrap_or(0);
        i64::try_from(dice.below(self.apart)).unwrap_or(0) - half
    }

    /// Whether nothing breaks: what then goes wrong has no excuse.
    pub(super) fn is_calm(&self) -> bool {
        self.is_sound() && !self.has_slots()
    }

    /// Whether nothing breaks, though slots may move: no lease is lost, and no request fails.
    pub(super) fn is_sound(&self) -> bool {
        self.troubles.is_empty() && self.has_sound_network()
    }

    pub(super) fn has_slots(&self) -> bool {
        self.store == Store::Slots
    }

    /// For how long a slot moves at most: so briefly that a renewal comes in time, if nothing else breaks.
    pub(super) fn longest_move(&self) -> Duration {
        if self.is_sound() { self.ttls[0].min(self.ttls[1]).min(self.limit) / 5 } else { Duration::from_millis(500) }
    }

    /// Whether every message arrives in time.
    pub(super) fn has_sound_network(&self) -> bool {
        self.late + self.hole + self.reset + self.cut + self.deaf + self.doubled + self.belated + self.greeting == 0
    }

    /// How long it takes at most until what is over is cleaned up.
    pub(super) fn soon(&self) -> Duration {
        match self.is_calm() {
            true => Duration::from_micros(20 * self.latency.1) + Duration::from_millis(50),
            false => Duration::from_secs(6),
        }
    }

    /// For how long a key may be kept for a waiter at most, in ms: one that can be told, and one that cannot.
    pub(super) fn longest_reserved(&self) -> [u64; 2] {
        // The least time; or four round trips, of which the first may have been that of the connection, too. A quorum
        // has more of them, and anything may be late: then what a second allows.
        let calm = self.is_calm() && !self.store.is_quorum();
        let round_trips = self.latency.1 * 17 / 1_000 + 5;
        let most = if calm { round_trips } else { 1_000 };
        // Who trusts its grant has the longest time between two checks, and twice as many round trips or 400 ms.
        let trusting = if calm { 625 + (2 * round_trips).max(400) } else { 2_000 };
        [if self.store.is_quorum() { most.max(100) } else { trusting.min(2_000) }, most.max(250)]
    }

    pub(super) fn longest_ttl(&self) -> Duration {
        self.ttls[0].max(self.ttls[1])
    }
}

impl Trouble {
    /// Whether the node may forget what it has counted.
    fn loses_data(self) -> bool {
        matches!(self, Self::NodeLoss | Self::Flush | Self::Failover | Self::Replica)
    }

    const ALL: [Self; 20] = [
        Self::NodeCrash,
        Self::NodeLoss,
        Self::Flush,
        Self::Delete,
        Self::NodePause,
        Self::ClockForward,
        Self::ClockBack,
        Self::Crash,
        Self::Pause,
        Self::StarveEngine,
        Self::StarveTasks,
        Self::Suspend,
        Self::Kill,
        Self::Failover,
        Self::Replica,
        Self::OutOfMemory,
        Self::NoNumbers,
        Self::Mute,
        Self::Evict,
        Self::Snipe,
    ];
}
