//! The counter of fencing tokens.

use lock_core::{backend::BackendError, key::LockKey};

use super::{Call, Node, NodeMutant};

impl Node {
    /// Draws a block of fencing tokens from the counter: its first, and its size.
    pub(super) fn draw(&mut self, size: u64, clock: u64, call: &Call) -> Result<(u64, u64), BackendError> {
        self.refuses.number()?;
        let next = clock.max(self.last_fence + 1);
        let near = if call.aim <= next + 10_000 { call.aim } else { 0 };
        let first = next.max(near).max(call.floor);
        let size = size.min(1_000 - first % 1_000);
        self.last_fence = first + size - 1;
        Ok((first, size))
    }

    /// The fencing tokens of an item; keys that have had none in this call share what was drawn last.
    pub(super) fn take_fences(
        &mut self,
        key: &LockKey,
        size: u64,
        call: &mut Call,
    ) -> Result<(u64, u64), BackendError> {
        self.take_fences_from(self.count_from_clock(call.now), key, size, call)
    }

    /// The least number that the clock allows.
    pub(super) fn count_from_clock(&self, now: u64) -> u64 {
        let is_plain = self.has(NodeMutant::FenceByPlainIncr) || self.is_copy && self.has(NodeMutant::CopyCountsOn);
        if is_plain { 0 } else { now * 1_000 }
    }

    pub(super) fn take_fences_from(
        &mut self,
        clock: u64,
        key: &LockKey,
        size: u64,
        call: &mut Call,
    ) -> Result<(u64, u64), BackendError> {
        if let Some((first, drawn)) = call.drawn
            && size <= drawn
            && !call.have_drawn.contains(key)
        {
            call.have_drawn.insert(key.clone());
            return Ok((first, size));
        }
        let drawn = self.draw(size, clock, call)?;
        call.have_drawn.insert(key.clone());
        call.drawn = Some(drawn);
        Ok(drawn)
    }
}
