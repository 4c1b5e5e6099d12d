//! Leases that a server knew, and has forgotten; keys that came back to a lease which had lost them, and whose holder cannot know.

/// A lease whose grant or renewal was undone: the server failed over to a copy that had not seen it.
///
/// Another may hold the key beside it, until the server has heard of the lease again. A former server that goes on
/// answering for a while renews and releases it with success until then. Fencing tokens are the clock's in both, so those of
/// one millisecond may be the same.
#[derive(Clone, Debug)]
pub struct Undone {
    /// The token of the lease.
    pub token: String,
    /// When the first of it was done that was undone.
    pub from: f64,
    /// When the server heard of it again; for ever if it did not.
    pub to: f64,
    /// When the last answer can have come from before, or from the former server.
    pub last: f64,
}

impl Undone {
    /// Whether the server knew nothing of the lease at some moment between `from` and `to`.
    pub(super) fn meets(&self, from: f64, to: f64) -> bool {
        from <= self.to && self.from <= to
    }
}

/// The key of a lease was taken once more with its token, by a request whose answer was lost.
///
/// The request is an acquire of the lease that was sent before it began, and executed late. If the key had vanished meanwhile
/// and another lease of it had come and gone, it was free: the acquire took it, and nothing at the key shows that. What the
/// holder extends from then on is its own again. The rule excuses this and nothing before it, and nothing that another lease
/// which came later has.
#[derive(Clone, Debug)]
pub struct TakenAgain {
    /// The token of the lease.
    pub token: String,
    /// When the key was taken.
    pub at: f64,
}
