//! Who has a key in this process, and who waits for it.
//!
//! [`tenure`] keeps what this process possesses: a *tenure* is its stay in possession of a key, with one token; a
//! *hold* is one local holder's part of it. A guard knows (tenure, hold) and speaks to the tenure, never to the backend
//! by token. [`polling`] is the one seam of waiting: it says when a waiter whose key was busy tries again.

pub(crate) mod polling;
pub(crate) mod tenure;
