//! Renewal: what keeps a lease while its work runs (the "watchdog" of other libraries).
//!
//! One scheduler for all leases of a manager. Each lease is renewed a third of its ttl after the last success, in
//! batches, and sooner again after a failure, until its local deadline; an answer "not yours" ends it at once.
//! [`wheel`] and [`schedule`] decide and are pure; [`task`] owns the clock and talks to the backend.

pub(crate) mod schedule;
pub(crate) mod slack;
pub(crate) mod task;
pub(crate) mod wheel;
