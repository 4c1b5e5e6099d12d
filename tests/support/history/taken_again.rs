//! Keys that came back to a lease which had lost them, and whose holder cannot know.

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
