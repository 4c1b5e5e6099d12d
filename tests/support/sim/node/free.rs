//! Acquires of keys that are thought to be free: what `MULTI`, `SET NX`, `XADD` and `EXEC` do.

use lock_core::backend::{Acquire, Operation, Outcome};

use super::{Node, Note, Refuses, Reply, Run, ms, setter};

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
    pub(super) fn acquire_free(&mut self, batch: &[Operation], run: &mut Run<'_>) -> Vec<Reply> {
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
        let taken = self.refuses.more();
        let expired: Vec<_> = acquires.iter().filter(|acquire| self.has_expired(&acquire.key, run.now)).collect();
        let set: Vec<_> = acquires.iter().map(|acquire| taken && self.set_free(acquire, run)).collect();
        if self.refuses != Refuses::Nothing {
            self.store.begin(batch, run.now * 1_000);
            return batch.iter().map(|operation| self.one(operation, run)).collect();
        }
        let next = run.call.clock.max(self.store.last_fence + 1);
        // The counter begins no millisecond by itself that the clock has not begun.
        let has_number = next == run.call.clock || !next.is_multiple_of(1_000);
        if has_number {
            self.store.last_fence = next;
            for (acquire, _) in acquires.iter().zip(&set).filter(|(_, set)| **set) {
                self.audit.drew(&acquire.key, acquire.token, (next, 1));
            }
            self.audit.in_gaps.extend(expired.into_iter().map(|acquire| (acquire.key.clone(), next)));
        }
        let outcome = |set| match set {
            true if has_number => Ok(Outcome::Held { fence: next, block: 1, was_free: true }),
            _ => Ok(Outcome::NotFree),
        };
        set.into_iter().map(outcome).collect()
    }

    /// `SET NX PX`, which looks at no queue; whether it was set.
    fn set_free(&mut self, acquire: &Acquire, run: &Run<'_>) -> bool {
        let free = !self.is_there(&acquire.key, run.now);
        if free {
            let note = Note { setter: setter(run.sender, acquire.ttl), ..Note::default() };
            self.put(&acquire.key, acquire.token, run.now + ms(acquire.ttl), note);
            self.audit.takes_free(acquire, run.now);
        }
        free
    }
}
