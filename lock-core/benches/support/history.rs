//! What several processes did with one key, and what follows from it. Pure.

/// One process's possession of the key; times in ns of the clock that all share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hold {
    pub(crate) player: usize,
    /// Just before the key was asked for.
    pub(crate) asked: u64,
    /// When it was there.
    pub(crate) held: u64,
    /// Just before it was released.
    pub(crate) released: u64,
}

/// Holds in the order in which they began.
#[derive(Debug)]
pub(crate) struct History {
    holds: Vec<Hold>,
    players: usize,
}

impl History {
    pub(crate) fn new(mut holds: Vec<Hold>, players: usize) -> Self {
        holds.sort_by_key(|hold| hold.held);
        Self { holds, players }
    }

    /// Pairs of holds, one after the other, that were not in the same process.
    fn changes(&self) -> impl Iterator<Item = (&Hold, &Hold)> {
        let pairs = self.holds.iter().zip(self.holds.iter().skip(1));
        pairs.filter(|(before, after)| before.player != after.player)
    }

    pub(crate) fn owner_changes(&self, from: u64, to: u64) -> usize {
        self.changes().filter(|(_, after)| (from..to).contains(&after.held)).count()
    }

    /// From just before the release in one process until another has the key, if that was in line by then.
    pub(crate) fn handoffs(&self) -> Vec<u64> {
        let waited = self.changes().filter(|(before, after)| after.asked + IN_LINE < before.released);
        waited.map(|(before, after)| after.held - before.released).collect()
    }

    /// From asking to having, of those who asked in this time.
    pub(crate) fn waits(&self, from: u64, to: u64) -> Vec<u64> {
        let asked = self.holds.iter().filter(|hold| (from..to).contains(&hold.asked));
        asked.map(|hold| hold.held - hold.asked).collect()
    }

    /// The smallest share of a process in the holds that began in this time, as a part of the largest.
    pub(crate) fn fairness(&self, from: u64, to: u64) -> f64 {
        let mut shares = vec![0u32; self.players];
        for hold in self.holds.iter().filter(|hold| (from..to).contains(&hold.held)) {
            shares[hold.player] += 1;
        }
        let (least, most) = (shares.iter().min().copied(), shares.iter().max().copied());
        f64::from(least.unwrap_or(0)) / f64::from(most.unwrap_or(0))
    }

    /// How many holds began before the one before them had begun to end: two holders at a time.
    pub(crate) fn overlaps(&self) -> usize {
        self.holds.iter().zip(self.holds.iter().skip(1)).filter(|(before, after)| after.held < before.released).count()
    }
}

/// What a request takes to reach the queue, generously.
const IN_LINE: u64 = 200_000;
