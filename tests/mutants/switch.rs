//! Deliberate bugs, one at a time, to show that the tests find them. `plant.rs` puts this into a copy of lock-core, in which the
//! replacements of the lists ask it whether their bug is on.
//!
//! A bug is on in a whole process and its children if the environment variable `LOCK_MUTANT` names it when the process starts. A
//! [`Mutant`] may also be on in one thread ([`Mutant::during`], for the simulation).

use std::{env, sync::OnceLock};

/// Whether the bug of this name is on in the whole process.
#[must_use]
pub fn is_on(bug: &str) -> bool {
    named() == Some(bug)
}

/// The script, which finds the name of the bug that is on in `BUG`. Its lines keep their numbers.
#[allow(dead_code, reason = "without Redis there is no script")]
pub(crate) fn script(source: &str) -> &'static str {
    static SCRIPT: OnceLock<String> = OnceLock::new();
    SCRIPT.get_or_init(|| format!("local BUG = '{}' {source}", named().unwrap_or_default()))
}

/// The bug that the environment names.
fn named() -> Option<&'static str> {
    static NAMED: OnceLock<Option<&str>> = OnceLock::new();
    *NAMED.get_or_init(|| {
        let name = env::var_os("LOCK_MUTANT")?;
        let bug = BUGS.iter().find(|bug| name == **bug);
        Some(*bug.unwrap_or_else(|| panic!("LOCK_MUTANT={} is not a bug of the lists", name.display())))
    })
}

/// A deliberate bug that the simulation must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mutant {
    /// The deadline counts from the answer to an acquire or renewal, not from its sending.
    DeadlineFromReply,
    /// A renewal raises the deadline of a lease that has lapsed.
    RenewalRevives,
    /// A lease that was released is renewed on.
    RenewalAfterRelease,
    /// A lease is renewed when its ttl is over.
    RenewalTooLate,
    /// A guard that is late acts on the tenure that has replaced its own.
    LateGuardActs,
    /// A dropped guard releases nothing.
    DroppedGuardKeeps,
    /// A clean-up that was answered is the last one, also after a reconnect.
    CleanUpOnce,
    /// The token of a request that was passed on to the next waiter is cleaned up.
    CleanUpInUse,
    /// A dropped acquire leaves nothing to clean up.
    DroppedAcquireForgets,
    /// A hold that follows inside the process has the fencing token of the one before.
    PassWithoutFence,
    /// A hold that follows inside the process counts on the whole ttl.
    PassForTheWholeTtl,
    /// An answer without validity left is an acquire.
    LateAnswerHolds,
    /// The futures of a holder are not woken when its lease ends.
    LossNotTold,
    /// The message of a grant is ignored.
    CallNotHeard,
    /// A grant counts as a lease, without an acquire that confirms it.
    GrantHolds,
    /// A grant to a token that no waiter has is not answered.
    StrayKept,
    /// A confirmation waits behind all other requests.
    ConfirmLast,
    /// The key is kept for a place for as long as the place itself lasts.
    GrantTooLong,
    /// A waiter that has a place and can be notified never asks again.
    NoChecks,
    /// The token of a place is in doubt only for its ttl, not for as long as the place can be granted the key.
    DoubtWithoutPlace,
    /// A lease whose grant is reported twice is held twice.
    TwiceToldTwiceHeld,
    /// An answer lowers a deadline.
    AnswerLowersDeadline,
    /// A lease goes on though its own later request found another holder.
    RefusalIgnored,
    /// A lease goes on though its key was granted to it once more.
    RegrantIgnored,
    /// A waiter trusts the grant of one node of several.
    NodeTrusted,
    /// A waiter trusts a grant though a later request of its own was answered.
    OldGrantTrusted,
    /// A waiter trusts a grant that leaves it no time.
    LateGrantTrusted,
    /// The deadline of a lease that began by a grant counts from when the message came.
    GrantFromHearing,
    /// A lease that began by a grant counts on its ttl.
    GrantForTheTtl,
    /// A lease that began by a grant is renewed as if it had its ttl.
    GrantNotRenewed,
    /// The message of a grant settles the requests in flight.
    GrantSettlesAll,
    /// An extend counts before it was answered.
    ExtendBeforeAnswer,
    /// An answer settles also what was sent after it.
    AnswerSettlesAll,
    /// An answer to a request that was repeated settles also the copy that was sent before it.
    RepeatSettles,
    /// The deadline of an extend counts from its answer.
    ExtendFromReply,
    /// The deadline that a refill of fencing tokens raises counts from its answer.
    RefillFromReply,
    /// A waiter asks with a new token each time, and goes to the end of the queue.
    PlaceNotKept,
    /// A place that cannot be notified is passed on without a request.
    DeafPlacePassedOn,
    /// A renewal that finds the lease gone counts as one that failed.
    GoneIsFailure,
    /// The waiter that came last in the process comes first.
    LastComeFirst,
    /// Several keys are acquired in the order in which they were named.
    SeveralAsNamed,
    /// A shutdown waits for no holder.
    ShutDownAtOnce,
    /// A shutdown releases nothing.
    ShutDownKeeps,
    /// A shutdown does not care for what futures have to release.
    ShutDownForgets,
    /// A quorum decides with one node too few.
    TooFewAgree,
    /// The nodes' smallest fencing token is given out, not the largest.
    SmallestFence,
    /// A lease of a quorum begins before a majority counts from its fencing token.
    FenceNotWrittenBack,
    /// A node is asked to count further for a token that was released.
    WriteBackAfterRelease,
    /// A node that took a lease instead of renewing it counts as one that had it.
    PutBackCounts,
    /// A release that a node of a quorum did not answer is not sent there again.
    UnansweredNotPending,
    /// An answered release settles also what a node may execute after it.
    ReleaseSettlesAll,
    /// A node's answer to a repeated acquire settles also the copy that was sent before it.
    RepeatKnown,
    /// A key that the queue node keeps for another is taken elsewhere.
    ReservedIgnored,
    /// A node is forgotten to have a place.
    LedgerForgetsPlace,
    /// The token of an acquire that only some nodes granted is not cleaned up.
    SplitKept,
    /// The token of an acquire that only some nodes granted is cleaned up, and used again for the next request.
    SplitTokenAgain,
    /// Of the waiters that begin to contend together, the last asks first.
    LaterContendFirst,
    /// A waiter asks for a place though the one before it in the process has not been told yet that it needs one.
    PlaceBeforeAnswer,
    /// What a call for several keys may have taken is not cleaned up if its future is dropped.
    TogetherForgets,
    /// A lease is forgotten whose change to a shared one was not answered.
    DowngradeForgets,
    /// Nothing is released in the background: neither what was dropped or lost, nor the places of waiters.
    NoCleanUp,
    /// The key of a waiter that was called loses its prefix.
    PrefixLost,
    /// Keys that are released in a call are deleted at its end, even if others have acquired them meanwhile.
    DeletedLast,
    /// A key is written before its number is drawn.
    DrawnLast,
    /// A grant is told before the key is written.
    ToldBeforeSet,
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
    /// A release deletes the key without a look at its token.
    ReleaseWithoutTokenCheck,
    /// A renewal extends the key without a look at its token.
    RenewWithoutTokenCheck,
    /// A release grants the key to nobody.
    NoGrantInRelease,
    /// An acquire that finds the key free, and others before it, grants the key to nobody.
    NoGrantInAcquire,
    /// A grant leaves the place where it is.
    PlaceKeptOnGrant,
    /// A waiter that acquires the key keeps its place.
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
    /// A quiet release grants the key.
    QuietGrants,
    /// An acquire takes a key that others share.
    WriterBesideReaders,
    /// A request to share a key that others share is granted, even if others wait before it.
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
    /// A request that joins a shared key draws a number of its own.
    SharedRaisesFence,
    /// A lease that becomes a shared one is given back first.
    DowngradeLetsIn,
    /// What is taken of several keys is kept though not all of them are free.
    AllOrNoneKeepsSome,
}

#[cfg(lock_mutants)]
mod switch {
    use std::{cell::Cell, sync::OnceLock};

    use super::Mutant;

    thread_local! {
        static PRESENT: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    impl Mutant {
        /// All that one node shows.
        pub const ALL: [Self; 43] = [
            Self::DeadlineFromReply,
            Self::RenewalRevives,
            Self::RenewalAfterRelease,
            Self::RenewalTooLate,
            Self::LateGuardActs,
            Self::DroppedGuardKeeps,
            Self::CleanUpOnce,
            Self::CleanUpInUse,
            Self::DroppedAcquireForgets,
            Self::PassWithoutFence,
            Self::PassForTheWholeTtl,
            Self::LateAnswerHolds,
            Self::LossNotTold,
            Self::CallNotHeard,
            Self::GrantHolds,
            Self::StrayKept,
            Self::ConfirmLast,
            Self::GrantTooLong,
            Self::NoChecks,
            Self::DoubtWithoutPlace,
            Self::TwiceToldTwiceHeld,
            Self::AnswerLowersDeadline,
            Self::RefusalIgnored,
            Self::RegrantIgnored,
            Self::OldGrantTrusted,
            Self::LateGrantTrusted,
            Self::GrantFromHearing,
            Self::GrantForTheTtl,
            Self::GrantNotRenewed,
            Self::GrantSettlesAll,
            Self::ExtendBeforeAnswer,
            Self::AnswerSettlesAll,
            Self::RepeatSettles,
            Self::ExtendFromReply,
            Self::RefillFromReply,
            Self::PlaceNotKept,
            Self::DeafPlacePassedOn,
            Self::GoneIsFailure,
            Self::LastComeFirst,
            Self::SeveralAsNamed,
            Self::ShutDownAtOnce,
            Self::ShutDownKeeps,
            Self::ShutDownForgets,
        ];

        /// All of the store that one node shows.
        pub const OF_STORE: [Self; 16] = [Self::ReleaseWithoutTokenCheck, Self::RenewWithoutTokenCheck, Self::NoGrantInRelease, Self::NoGrantInAcquire, Self::PlaceKeptOnGrant, Self::PlaceKeptOnTaking, Self::FenceByPlainIncr, Self::GrantWithoutClock, Self::Barging, Self::GrantWithoutEnd, Self::RenewalShortens, Self::OwnAcquireShortens, Self::DeadPlacesLive, Self::PlaceEndless, Self::WNotRaised, Self::ReleaseGrantsToItself];

        /// All of the node that one shows.
        pub const OF_NODE: [Self; 3] = [Self::DeletedLast, Self::DrawnLast, Self::ToldBeforeSet];

        /// All that only failovers show.
        pub const OF_REPLICAS: [Self; 4] = [Self::CopyLacksKeys, Self::CopyCountsOn, Self::FormerWins, Self::EpochKept];

        /// All that only slots which move show.
        pub const OF_SLOTS: [Self; 9] = [Self::MovedExecutes, Self::CounterStays, Self::QueueStays, Self::EpochWithoutMap, Self::EpochOfOneNode, Self::OrderNotSaid, Self::OrderLostInError, Self::TokenAnew, Self::DoubtDropped];

        /// All that only a quorum shows.
        pub const OF_QUORUMS: [Self; 14] = [
            Self::QuietGrants,
            Self::TooFewAgree,
            Self::SmallestFence,
            Self::FenceNotWrittenBack,
            Self::WriteBackAfterRelease,
            Self::PutBackCounts,
            Self::UnansweredNotPending,
            Self::ReleaseSettlesAll,
            Self::RepeatKnown,
            Self::ReservedIgnored,
            Self::LedgerForgetsPlace,
            Self::SplitKept,
            Self::SplitTokenAgain,
            Self::NodeTrusted,
        ];

        /// All that only leases of several modes show.
        pub const OF_MODES: [Self; 17] = [Self::LaterContendFirst, Self::PlaceBeforeAnswer, Self::TogetherForgets, Self::DowngradeForgets, Self::WriterBesideReaders, Self::ReaderPassesWriter, Self::OneReaderAtATime, Self::TakerLetsNobodyIn, Self::WeightIgnored, Self::OneTooMany, Self::TotalOverwritten, Self::RenewalRaisesAll, Self::GroupEndsWithFirst, Self::DeadShareCounts, Self::SharedRaisesFence, Self::DowngradeLetsIn, Self::AllOrNoneKeepsSome];

        /// All that the whole-system tests must notice, see `tests/mutants`.
        pub const OF_WHOLE_SYSTEM: [Self; 3] = [Self::NoCleanUp, Self::CallNotHeard, Self::PrefixLost];

        /// Runs `work` with this bug in all engines and nodes that this thread runs meanwhile.
        pub fn during<R>(self, work: impl FnOnce() -> R) -> R {
            struct End(Option<Mutant>);
            impl Drop for End {
                fn drop(&mut self) {
                    PRESENT.set(self.0);
                }
            }
            let _end = End(PRESENT.replace(Some(self)));
            work()
        }

        /// Whether this bug is on in this thread or in the whole process.
        #[must_use]
        pub fn is_on(self) -> bool {
            PRESENT.get().or_else(Self::of_process) == Some(self)
        }

        fn of_process() -> Option<Self> {
            static NAMED: OnceLock<Option<Mutant>> = OnceLock::new();
            *NAMED.get_or_init(|| {
                let name = super::named()?;
                let mut all =
                    Self::ALL.iter().chain(&Self::OF_STORE).chain(&Self::OF_QUORUMS).chain(&Self::OF_MODES).chain(&Self::OF_WHOLE_SYSTEM);
                all.find(|mutant| name == format!("{mutant:?}")).copied()
            })
        }
    }
}
