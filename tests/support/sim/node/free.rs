//! Acquires of keys that are thought to be free: what `MULTI`, `SET NX`, `XADD` and `EXEC` do.

use lock_core::backend::{Acquire, Operation, Outcome};

use super::{Call, Entry, Node, Reply, ms, setter};

/// Where in a batch the acquires begin that go without the script.
pub(in crate::sim) fn begin(batch: &[Operation]) -> usize {
    let others = batch.iter().rposition(|operation| !matches!(operation, Operation::Acquire(acquire) if fits(acquire)));
    others.map_or(0, |last| last + 1)
}

fn fits(acquire: &Acquire) -> bool {
    let is_plain = acquire.token.mode().is_exclusive() && !acquire.all_or_none;
    is_plain
        && acquire.expects_free
        && acquire.block == 1
        && acquire.from.is_none()
        && acquire.floor == 0
        && acquire.aim == 0
}

impl Node {
    /// Executes them, with one number for all. What the transaction is refused is asked for by the script.
    pub(super) fn acquire_free(
        &mut self,
        batch: &[Operation],
        call: &mut Call,
        sender: Option<(usize, u64)>,
    ) -> Vec<Reply> {
        let acquires = batch.iter().filter_map(|operation| match operation {
            Operation::Acquire(acquire) => Some(acquire),
            _ => None,
        });
        let acquires: Vec<_> = acquires.collect();
        if acquires.is_empty() {
            return Vec::new();
        }
        // Its sender does not know that it has made no place if the answer is lost.
        acquires.iter().filter_map(|acquire| acquire.place.as_ref()).for_each(|place| self.audit.may_last(place));
        let taken = self.refuses.more().is_ok();
        let expired: Vec<_> = acquires.iter().filter(|acquire| self.has_expired(&acquire.key, call.now)).collect();
        let set: Vec<_> = acquires.iter().map(|acquire| taken && self.set_free(acquire, call, sender)).collect();
        if !taken || self.refuses.number().is_err() {
            return batch.iter().map(|operation| self.one(operation, call, sender)).collect();
        }
        let clock = self.count_from_clock(call.now);
        let next = clock.max(self.last_fence + 1);
        // The counter begins no millisecond by itself that the clock has not begun.
        let has_number = next == clock || !next.is_multiple_of(1_000);
        if has_number {
            self.last_fence = next;
        }
        let outcome = |set| match set {
            true if has_number => Ok(Outcome::Held { fence: next, block: 1, was_free: true }),
            _ => Ok(Outcome::NotFree),
        };
        if has_number {
            for (acquire, _) in acquires.iter().zip(&set).filter(|(_, set)| **set) {
                self.audit.drew(&acquire.key, acquire.token, (next, 1));
            }
            self.audit.in_gaps.extend(expired.into_iter().map(|acquire| (acquire.key.clone(), next)));
        }
        set.into_iter().map(outcome).collect()
    }

    /// `SET NX PX`, which looks at no queue; whether it was set.
    fn set_free(&mut self, acquire: &Acquire, call: &Call, sender: Option<(usize, u64)>) -> bool {
        let free = !self.is_there(&acquire.key, call.now);
        if free {
            let setter = setter(sender, acquire.ttl);
            let entry = Entry::new(acquire.token, call.now + ms(acquire.ttl), setter);
            self.put(&acquire.key, entry);
            self.audit.takes_free(acquire, call.now);
        }
        free
    }
}
