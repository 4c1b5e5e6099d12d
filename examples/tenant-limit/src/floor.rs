//! The requests of a tenant that are inside, at all instances together.

use tokio::sync::watch;

use crate::LIMIT;

/// Counts the requests of one tenant that are being served.
#[derive(Debug)]
pub(crate) struct Floor {
    pub(crate) tenant: &'static str,
    count: watch::Sender<Count>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// Requests that are being served.
    inside: u32,
    /// The most that were inside at the same time.
    most: u32,
    /// Whether requests may end.
    doors_open: bool,
}

impl Floor {
    pub(crate) fn new(tenant: &'static str) -> Self {
        Self { tenant, count: watch::Sender::default() }
    }

    /// Counts a request until the return value is dropped, even if its work is cancelled.
    pub(crate) fn enter(&self) -> Inside<'_> {
        self.count.send_modify(|count| {
            count.inside += 1;
            count.most = count.most.max(count.inside);
        });
        Inside(self)
    }

    /// Waits until as many are inside as may be.
    pub(crate) async fn until_full(&self) {
        self.until(|count| count.inside >= LIMIT).await;
    }

    /// Lets requests end, those that come later, too.
    pub(crate) fn open_doors(&self) {
        self.count.send_modify(|count| count.doors_open = true);
    }

    /// Returns the most that were inside at the same time.
    pub(crate) fn most(&self) -> u32 {
        self.count.borrow().most
    }

    async fn until(&self, condition: impl Fn(&Count) -> bool) {
        // An error would say that the sender is gone, and that is in `self`.
        let _ = self.count.subscribe().wait_for(|count| condition(count)).await;
    }
}

/// A request that is being served.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Floor);

impl Inside<'_> {
    /// Waits until requests may end: until the doors are open, or the limit was exceeded and nothing is left to show.
    pub(crate) async fn until_doors_open(&self) {
        self.0.until(|count| count.doors_open || count.most > LIMIT).await;
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.count.send_modify(|count| count.inside -= 1);
    }
}
