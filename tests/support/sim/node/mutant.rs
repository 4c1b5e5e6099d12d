//! Deliberate bugs of the node, and of the way to it.

/// A deliberate bug of the node, each one that a script could have; or of what stands between it and the engine.
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
    /// The copy that a node fails over to lacks a key that was there for long.
    CopyLacksKeys,
    /// A node that takes over counts on from the last number of its copy, whatever the clock says.
    CopyCountsOn,
    /// What the former node has counts when it is over.
    FormerWins,
    /// The epoch stays when a connection is replaced.
    EpochKept,
    /// A node goes on executing requests for a slot that has moved away.
    MovedExecutes,
    /// The counter of fencing tokens stays behind when a slot moves.
    CounterStays,
    /// The places of waiters stay behind when a slot moves.
    QueueStays,
    /// The epoch stays when the map of slots changes.
    EpochWithoutMap,
    /// The epoch is that of the connection to the first node.
    EpochOfOneNode,
    /// It is not said that a request was sent once more.
    OrderNotSaid,
    /// It is not said of one that failed then.
    OrderLostInError,
    /// A request that is sent once more has another token.
    TokenAnew,
    /// A request that ran out of time when it was sent once more is said not to have happened, though the first was lost.
    DoubtDropped,
    /// An acquire takes a key that others share.
    WriterBesideReaders,
    /// Who wants to share a key that others share does so, whoever waits.
    ReaderPassesWriter,
    /// A release grants a key that is to be shared to the first of those who could share it.
    OneReaderAtATime,
    /// A waiter that takes an expired key by its own check does not let in those behind it.
    TakerLetsNobodyIn,
    /// Each permit counts as one, however many a token takes.
    WeightIgnored,
    /// There is one permit more than the total.
    OneTooMany,
    /// Permits of another total are given.
    TotalOverwritten,
    /// A renewal of one share renews the others, too.
    RenewalRaisesAll,
    /// A key that is shared expires with the first of its shares once one was given back.
    GroupEndsWithFirst,
    /// A share that is over counts for as long as others last.
    DeadShareCounts,
    /// Who comes to share a key draws a number of its own.
    SharedRaisesFence,
    /// A lease that becomes a shared one is given back first.
    DowngradeLetsIn,
    /// What is taken of several keys is kept though not all of them are free.
    AllOrNoneKeepsSome,
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

    /// All that only failovers show.
    pub const OF_REPLICAS: [Self; 4] = [Self::CopyLacksKeys, Self::CopyCountsOn, Self::FormerWins, Self::EpochKept];

    /// All that only slots which move show.
    pub const OF_SLOTS: [Self; 9] = [
        Self::MovedExecutes,
        Self::CounterStays,
        Self::QueueStays,
        Self::EpochWithoutMap,
        Self::EpochOfOneNode,
        Self::OrderNotSaid,
        Self::OrderLostInError,
        Self::TokenAnew,
        Self::DoubtDropped,
    ];

    /// All that only leases of several modes show.
    pub const OF_MODES: [Self; 13] = [
        Self::WriterBesideReaders,
        Self::ReaderPassesWriter,
        Self::OneReaderAtATime,
        Self::TakerLetsNobodyIn,
        Self::WeightIgnored,
        Self::OneTooMany,
        Self::TotalOverwritten,
        Self::RenewalRaisesAll,
        Self::GroupEndsWithFirst,
        Self::DeadShareCounts,
        Self::SharedRaisesFence,
        Self::DowngradeLetsIn,
        Self::AllOrNoneKeepsSome,
    ];
}
