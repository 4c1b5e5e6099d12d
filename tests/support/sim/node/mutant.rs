//! Deliberate bugs of the node.

/// A deliberate bug of the node, each one that a script could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeMutant {
    /// A release deletes the key whoever holds it.
    ReleaseWithoutTokenCheck,
    /// A renewal pushes out the expiry whoever holds the key.
    RenewWithoutTokenCheck,
    /// A release grants the key to nobody.
    NoGrantInRelease,
    /// An acquire that finds the key free, and others before it, grants the key to nobody.
    NoGrantInAcquire,
    /// A grant leaves the place where it is.
    PlaceKeptOnGrant,
    /// Who takes the key keeps the place.
    PlaceKeptOnTaking,
    /// The counter of fencing tokens counts from zero, whatever the clock says.
    FenceByPlainIncr,
    /// The number of a grant is the one after the last, whatever the clock says.
    GrantWithoutClock,
    /// An acquire looks at no queue.
    Barging,
    /// A grant keeps the key for as long as the place would have lasted a hundred times.
    GrantWithoutEnd,
    /// A renewal shortens what is left.
    RenewalShortens,
    /// An acquire of the token that has the key shortens what is left.
    OwnAcquireShortens,
    /// A place without a subscriber counts as live.
    DeadPlacesLive,
    /// A place that ends too far ahead counts as live.
    PlaceEndless,
    /// A place that ends later than any other is not announced, if somebody waits already.
    WNotRaised,
    /// A release looks for the next place before it removes its own.
    ReleaseGrantsToItself,
    /// Keys that are released in a call are deleted at its end, whoever has acquired them meanwhile.
    DeletedLast,
    /// A key is written before its number is drawn.
    DrawnLast,
    /// A grant is told before the key is written.
    ToldBeforeSet,
    /// A quiet release grants the key.
    QuietGrants,
}

impl NodeMutant {
    /// All that one node shows.
    pub const ALL: [Self; 19] = [
        Self::ReleaseWithoutTokenCheck,
        Self::RenewWithoutTokenCheck,
        Self::NoGrantInRelease,
        Self::NoGrantInAcquire,
        Self::PlaceKeptOnGrant,
        Self::PlaceKeptOnTaking,
        Self::FenceByPlainIncr,
        Self::GrantWithoutClock,
        Self::Barging,
        Self::GrantWithoutEnd,
        Self::RenewalShortens,
        Self::OwnAcquireShortens,
        Self::DeadPlacesLive,
        Self::PlaceEndless,
        Self::WNotRaised,
        Self::ReleaseGrantsToItself,
        Self::DeletedLast,
        Self::DrawnLast,
        Self::ToldBeforeSet,
    ];

    /// All that only a quorum shows.
    pub const OF_QUORUMS: [Self; 1] = [Self::QuietGrants];
}
