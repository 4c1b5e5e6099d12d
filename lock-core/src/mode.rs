use std::fmt;

/// The mode in which a lease is held or waited for.
///
/// A key is held by one exclusive lease, by any number of shared ones, or by permits of one total, and never by two of these
/// at a time. Requests of all modes wait in one queue, in the order in which they came: a shared request that came after
/// an exclusive one waits behind it, so that neither readers nor writers starve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// One holder at a time; see [`LockManager::lock`](crate::LockManager::lock).
    Exclusive,
    /// Any number of holders, none of whom is exclusive; see [`LockRequest::shared`](crate::LockRequest::shared).
    Shared,
    /// Holders who take at most `total` permits between them; see [`LockRequest::permits`](crate::LockRequest::permits).
    #[non_exhaustive]
    Permits {
        /// How many permits the key has.
        total: u32,
        /// How many of them the lease takes.
        take: u32,
    },
}

/// What is in the way of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BusyReason {
    /// A lease of this library, or several that share the key.
    Holder,
    /// A lease of another library, which notifies no waiter.
    Foreign,
    /// Waiters who come first: the key was granted to one that may not have been notified yet, or has room that is theirs.
    Waiters,
    /// Permits of the total that is asked for: fewer are left than are wanted, or waiters come first.
    Permits,
    /// Permits of another total: the request waits until the last of them is given back.
    OtherTotal {
        /// How many permits the key has at present.
        total: u32,
    },
}

impl Mode {
    /// Returns whether a lease in this mode excludes all others.
    #[must_use]
    pub fn is_exclusive(self) -> bool {
        self == Self::Exclusive
    }

    /// Writes it for messages and tokens: `exclusive`, `shared`, or `2/10`.
    pub(crate) fn write(self) -> String {
        match self {
            Self::Exclusive | Self::Shared => self.to_string(),
            Self::Permits { total, take } => format!("{take}/{total}"),
        }
    }

    /// Reads what [`write`](Self::write) wrote.
    pub(crate) fn read(text: &str) -> Option<Self> {
        match text {
            "exclusive" => Some(Self::Exclusive),
            "shared" => Some(Self::Shared),
            _ => {
                let (take, total) = text.split_once('/')?;
                let number = |text: &str| text.parse::<u32>().ok().filter(|number| number.to_string() == text);
                let (take, total) = (number(take)?, number(total)?);
                (0 < take && take <= total).then_some(Self::Permits { total, take })
            }
        }
    }

    /// Returns how many permits a lease takes; zero if it is not one of permits.
    pub(crate) fn permits(self) -> u32 {
        match self {
            Self::Permits { take, .. } => take,
            Self::Exclusive | Self::Shared => 0,
        }
    }

    /// Returns whether leases in the two modes may hold a key at the same time, if it has permits enough.
    pub(crate) fn goes_with(self, other: Self) -> bool {
        match (self, other) {
            (Self::Shared, Self::Shared) => true,
            (Self::Permits { total, .. }, Self::Permits { total: others, .. }) => total == others,
            _ => false,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared => f.write_str("shared"),
            Self::Permits { total, take } => write!(f, "{take} of {total} permits"),
        }
    }
}
