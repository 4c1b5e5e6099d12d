//! The database of the shop. It is in memory here; instances of a real service would share a real one.

use std::collections::BTreeMap;

use futures_util::stream::{self, Stream};
use lock_core::FencingToken;
use tokio::sync::watch;
use tonic::Status;

/// The units that are left of each kind of goods. A writer reads first and thinks in between: two that do so at once
/// promise the same unit twice.
#[derive(Debug)]
pub(crate) struct Stock {
    rows: watch::Sender<BTreeMap<u64, Row>>,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    left: u32,
    /// That of the lease under which it was written last.
    fence: Option<FencingToken>,
}

impl Stock {
    pub(crate) fn new(left: impl IntoIterator<Item = (u64, u32)>) -> Self {
        let rows = left.into_iter().map(|(goods, left)| (goods, Row { left, fence: None }));
        Self { rows: watch::Sender::new(rows.collect()) }
    }

    pub(crate) fn read(&self, goods: u64) -> Result<u32, Status> {
        let row = self.rows.borrow().get(&goods).copied();
        row.map(|row| row.left).ok_or_else(no_such_goods)
    }

    /// Writes what is left, unless a later holder of the lock has written before: then this one fell asleep, and its
    /// lease was over when it woke up.
    pub(crate) fn write(&self, goods: u64, left: u32, fence: FencingToken) -> Result<(), Status> {
        let mut outcome = Err(no_such_goods());
        self.rows.send_if_modified(|rows| {
            let Some(row) = rows.get_mut(&goods) else { return false };
            if row.fence > Some(fence) {
                outcome = Err(Status::aborted("the lock of these goods has gone to somebody else"));
                return false;
            }
            *row = Row { left, fence: Some(fence) };
            outcome = Ok(());
            true
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
