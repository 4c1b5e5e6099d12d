use std::{sync::Arc, time::Duration};

use crate::error::LossReason;

/// The state of a manager and its backend, returned by [`LockManager::health`](crate::LockManager::health).
///
/// It contains what this process knows without a round trip. A server that stopped answering counts as up until a request or the
/// heartbeat has noticed, which takes at most a second and a command timeout.
///
/// # Examples
///
/// A readiness probe, as of Kubernetes:
///
/// ```
/// use axum::{Router, extract::State, http::StatusCode, routing::get};
/// use lock_core::LockManager;
///
/// async fn ready(State(locks): State<LockManager>) -> StatusCode {
///     if locks.health().is_up() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
/// }
///
/// let router: Router = Router::new().route("/ready", get(ready)).with_state(LockManager::in_memory());
/// # let _ = router;
/// ```
///
/// Use it for readiness, not for liveness: a restart of the service does not help against a server that is down, and
/// loses every lease.
#[derive(Clone, Debug)]
pub struct Health {
    pub(crate) admits: bool,
    pub(crate) nodes: Vec<NodeHealth>,
    pub(crate) held: usize,
    pub(crate) slack: Option<Duration>,
    pub(crate) losses: [(LossReason, u64); 5],
    pub(crate) acquired: u64,
    pub(crate) busy: u64,
}

getters! { health: Health =>
    /// Returns whether requests are accepted and can be answered: the manager was not shut down, it has a runtime, and more
    /// than half of its nodes are up. A private store in the process is always up.
    is_up: bool = health.admits && health.up() > health.nodes.len() / 2;

    /// Returns the nodes of the backend: one for one server, all of a quorum in their order.
    nodes: &[NodeHealth] = &health.nodes;

    /// Returns the latest error of any node, if there was one.
    last_error: Option<&Fault> = health.nodes.iter().filter_map(NodeHealth::last_error).min_by_key(|fault| fault.age);

    /// Returns how many leases this manager holds.
    held: usize = health.held;

    /// Returns the least time that any lease had left when its renewal was answered, within the last 30 to 60 seconds. It is zero if a
    /// lease expired because no renewal was answered, and `None` if nothing was renewed.
    ///
    /// A lease is renewed when a third of its ttl has passed, so two thirds of the shortest ttl are healthy. Near zero, leases are
    /// about to be lost.
    renewal_slack: Option<Duration> = health.slack;

    /// Returns how many leases this manager has lost since it was made, for each reason.
    ///
    /// These are the leases of this process only, counted whether the feature `metrics` is on or not. A lease that is released in
    /// time is not lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::{LockManager, LossReason};
    ///
    /// let manager = LockManager::in_memory();
    /// let _guard = manager.lock("goods:1").await?;
    /// manager.force_release("goods:1").await?;
    /// assert!(manager.health().losses().contains(&(LossReason::Forced, 1)));
    /// # Ok(()) }
    /// ```
    losses: &[(LossReason, u64)] = &health.losses;

    /// Returns how many leases this manager has acquired since it was made.
    acquired: u64 = health.acquired;

    /// Returns how many requests of this manager have ended since it was made because their key was busy.
    busy: u64 = health.busy;
}

impl Health {
    /// Returns for how long the backend has been up, or down, at least. Returns `None` if the backend does not report it, like a
    /// store in the process.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        let is_up = self.up() > self.nodes.len() / 2;
        // The state holds for as long as the nodes that suffice for it have all been in it.
        let majority = self.nodes.len() / 2 + 1;
        let suffice = if is_up { majority } else { self.nodes.len() + 1 - majority };
        let mut ages: Vec<_> = self.nodes.iter().filter(|node| node.up == is_up).map(|node| node.age).collect();
        ages.sort_unstable_by(|one, other| other.cmp(one));
        ages.into_iter().nth(suffice.checked_sub(1)?).flatten()
    }

    fn up(&self) -> usize {
        self.nodes.iter().filter(|node| node.up).count()
    }
}

/// The state of one node of a backend, as far as this process knows; a part of [`Health`].
#[derive(Clone, Debug)]
pub struct NodeHealth {
    address: Arc<str>,
    pub(crate) database: Option<i64>,
    up: bool,
    age: Option<Duration>,
    last_error: Option<Fault>,
}

getters! { node: NodeHealth =>
    /// Returns the host and port, or the path of the socket; without user and password.
    address: &str = &node.address;

    /// Returns the number of the Redis database, or `None` if the backend is not Redis.
    database: Option<i64> = node.database;

    /// Returns whether there is a connection that is not known to be broken.
    is_up: bool = node.up;

    /// Returns for how long it has been up, or down, or `None` if that is not known.
    age: Option<Duration> = node.age;

    /// Returns the last error, if there was one. The problem may be long over.
    last_error: Option<&Fault> = node.last_error.as_ref();
}

sets! { NodeHealth =>
    /// Sets for how long it has been up, or down.
    #[must_use]
    pub with_age(age: Duration) => age = Some(age);

    /// Sets the last error.
    #[must_use]
    pub with_error(last_error: Fault) => last_error = Some(last_error);
}

impl NodeHealth {
    /// Makes the health of a node that is up or down. The address has no password in it; it is a name for people.
    #[must_use]
    pub fn new(address: impl Into<Arc<str>>, up: bool) -> Self {
        Self { address: address.into(), database: None, up, age: None, last_error: None }
    }

    /// Marks the node as down, for a reason that was found just now.
    pub(crate) fn without_vote(mut self, message: String) -> Self {
        self.up = false;
        self.with_error(Fault::new(message, Duration::ZERO))
    }
}

/// The last error of a node, which may be over or continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    message: String,
    age: Duration,
}

getters! { fault: Fault =>
    /// Returns what went wrong. It names the node's address, but no password and no key.
    message: &str = &fault.message;

    /// Returns how long ago the error occurred.
    age: Duration = fault.age;
}

impl Fault {
    /// Makes a fault from a message, which must contain no passwords and tokens, and the time that has passed since.
    #[must_use]
    pub fn new(message: impl Into<String>, age: Duration) -> Self {
        Self { message: message.into(), age }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(nodes: &[(bool, u64)]) -> Health {
        let node = |&(up, age)| NodeHealth::new("n", up).with_age(Duration::from_secs(age));
        of(nodes.iter().map(node).collect())
    }

    fn of(nodes: Vec<NodeHealth>) -> Health {
        Health {
            admits: true,
            nodes,
            held: 0,
            slack: None,
            losses: LossReason::ALL.map(|reason| (reason, 0)),
            acquired: 0,
            busy: 0,
        }
    }

    #[test]
    fn a_quorum_is_up_with_a_majority_and_for_as_long_as_that_majority_is() {
        let says = |nodes| {
            let health = health(nodes);
            (health.is_up(), health.age().map(|age| age.as_secs()))
        };
        assert_eq!(says(&[(true, 5)]), (true, Some(5)));
        assert_eq!(says(&[(false, 5)]), (false, Some(5)));
        assert_eq!(says(&[(true, 9), (true, 3), (true, 1)]), (true, Some(3)));
        assert_eq!(says(&[(true, 9), (false, 3), (true, 1)]), (true, Some(1)));
        assert_eq!(says(&[(false, 9), (false, 3), (true, 1)]), (false, Some(3)));
        assert_eq!(says(&[(false, 9), (false, 3), (true, 1), (true, 1)]), (false, Some(3)), "two of four are too few");
        assert_eq!(says(&[]), (false, None));
    }

    #[test]
    fn a_manager_that_takes_no_requests_is_not_up() {
        assert!(!Health { admits: false, ..health(&[(true, 5)]) }.is_up());
    }

    #[test]
    fn the_latest_error_of_all_nodes_is_the_last() {
        let node =
            |message: &str, age| NodeHealth::new("n", true).with_error(Fault::new(message, Duration::from_secs(age)));
        let health = of(vec![node("old", 9), node("new", 2), NodeHealth::new("n", true)]);
        assert_eq!(health.last_error().map(Fault::message), Some("new"));
    }
}
