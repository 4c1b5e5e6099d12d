//! The database of the shop. It is in memory here; instances of a real service would share a real one.

use std::collections::BTreeMap;

use futures_util::stream::{self, Stream};
use lock_core::FencingToken;
use tokio::sync::watch;
use tonic::Status;

/// The units that are left of each kind of goods. A writer reads first and thinks in between: two that do so at once
/// promise the same unit twice.
///
/// A writer claims a row as it reads it, and writes it only if no other claim has come since. The lock alone cannot promise that: a writer
/// that falls asleep loses its lease, and wakes up between the read and the write of the next holder.
#[derive(Debug)]
pub(crate) struct Stock {
    rows: watch::Sender<BTreeMap<u64, Row>>,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    left: u32,
    /// The largest number under which the row was claimed.
    fence: Option<FencingToken>,
    /// How often the row was claimed or written.
    claims: u64,
}

/// What a writer has read of a row that it has claimed. It is good for one write.
#[derive(Debug)]
pub(crate) struct Claim {
    goods: u64,
    /// The units that are left.
    pub(crate) left: u32,
    /// The number of the claim. It tells two claims under one fencing token apart.
    number: u64,
}

impl Stock {
    pub(crate) fn new(left: impl IntoIterator<Item = (u64, u32)>) -> Self {
        let rows = left.into_iter().map(|(goods, left)| (goods, Row { left, fence: None, claims: 0 }));
        Self { rows: watch::Sender::new(rows.collect()) }
    }

    /// Claims and reads a row, unless a later holder of the lock has claimed it: then this one fell asleep, and its lease was over
    /// when it woke up. From now on earlier holders cannot write.
    pub(crate) fn claim_and_read(&self, goods: u64, fence: FencingToken) -> Result<Claim, Status> {
        self.change(goods, |row| {
            if row.fence > Some(fence) {
                return Err(too_late());
            }
            row.fence = Some(fence);
            row.claims += 1;
            Ok(Claim { goods, left: row.left, number: row.claims })
        })
    }

    /// Writes what is left, if the claim still stands.
    pub(crate) fn write(&self, claim: Claim, left: u32) -> Result<(), Status> {
        self.change(claim.goods, |row| {
            if row.claims != claim.number {
                return Err(too_late());
            }
            row.left = left;
            row.claims += 1;
            Ok(())
        })
    }

    /// Changes a row in one step, as a database does.
    fn change<T>(&self, goods: u64, change: impl FnOnce(&mut Row) -> Result<T, Status>) -> Result<T, Status> {
        let mut outcome = Err(no_such_goods());
        self.rows.send_if_modified(|rows| {
            let Some(row) = rows.get_mut(&goods) else { return false };
            let before = row.left;
            outcome = change(row);
            row.left != before
        });
        outcome
    }

    /// Says what is left, now and whenever it has changed; a reader that is slow misses some.
    pub(crate) fn watch(&self, goods: u64) -> impl Stream<Item = u32> + use<> {
        stream::unfold((self.rows.subscribe(), None), move |(mut rows, last)| async move {
            let left_of = |rows: &BTreeMap<u64, Row>| rows.get(&goods).map(|row| row.left);
            let left = left_of(&*rows.wait_for(|rows| left_of(rows) != last).await.ok()?)?;
            Some((left, (rows, Some(left))))
        })
    }
}

fn no_such_goods() -> Status {
    Status::not_found("no such goods")
}

fn too_late() -> Status {
    Status::aborted("the lock of these goods has gone to somebody else")
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    const PENS: u64 = 1;
    const FIRST: FencingToken = FencingToken::new(33);
    const SECOND: FencingToken = FencingToken::new(34);

    fn left(stock: &Stock) -> u32 {
        stock.rows.borrow()[&PENS].left
    }

    #[test]
    fn a_late_write_between_the_read_and_the_write_of_the_next_holder_is_refused() -> Result<(), Status> {
        let stock = Stock::new([(PENS, 2)]);
        let first = stock.claim_and_read(PENS, FIRST)?;
        let second = stock.claim_and_read(PENS, SECOND)?;
        let sold = first.left - 1;
        assert_eq!(stock.write(first, sold).map_err(|status| status.code()), Err(Code::Aborted));
        let sold = second.left - 1;
        stock.write(second, sold)?;
        assert_eq!(left(&stock), 1, "one was sold");
        // It wakes up afterwards, and begins again.
        assert_eq!(stock.claim_and_read(PENS, FIRST).map_err(|status| status.code()).err(), Some(Code::Aborted));
        Ok(())
    }

    #[test]
    fn of_two_claims_under_one_token_the_later_one_stands() -> Result<(), Status> {
        let stock = Stock::new([(PENS, 2)]);
        let (one, other) = (stock.claim_and_read(PENS, FIRST)?, stock.claim_and_read(PENS, FIRST)?);
        assert!(stock.write(one, 1).is_err());
        stock.write(other, 1)?;
        assert_eq!(left(&stock), 1);
        Ok(())
    }

    #[test]
    fn a_lease_may_write_again_after_it_has_claimed_again() -> Result<(), Status> {
        let stock = Stock::new([(PENS, 2)]);
        for expected in [2, 1] {
            let claim = stock.claim_and_read(PENS, FIRST)?;
            assert_eq!(claim.left, expected);
            stock.write(claim, expected - 1)?;
        }
        Ok(())
    }
}
