//! Advice about a server or a user with which something works less well than it could: logged once for each manager, not at each reconnect.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
};

use super::info;

/// The advice that was given already.
#[derive(Default)]
pub(super) struct Advice {
    no_publish: AtomicBool,
    no_subscribe: AtomicBool,
    no_resp3: AtomicBool,
    evicts: AtomicBool,
}

impl Advice {
    /// Waiters of other processes cannot be called, and will come by themselves. Questions about holders and waiters cannot be asked or
    /// answered.
    pub(super) fn no_publish(&self, address: &str) {
        if first(&self.no_publish) {
            log!(
                warn,
                address,
                "the user may not PUBLISH to `lock-core:calls:*` (in a cluster also SPUBLISH to `{{*}}lock-core:calls:*`); waiters \
                 in other processes are not notified and will poll, and `inspect` and `list` may miss holders and waiters of other \
                 processes; grant the rights that docs/protocol.md lists"
            );
        }
    }

    /// Nobody can call this process.
    pub(super) fn no_subscribe(&self, address: &str, error: &dyn fmt::Display) {
        if first(&self.no_subscribe) {
            log!(warn,
                address,
                %error,
                "could not subscribe to `lock-core:calls:*` (in a cluster also `{{*}}lock-core:calls:*`, which needs Redis 7); \
                 waiters will poll, and `inspect` and `list` may miss holders and waiters of other processes; grant the rights that \
                 docs/protocol.md lists"
            );
        }
    }

    /// Nobody can call this process: the server, or a proxy before it, speaks only the older protocol.
    pub(super) fn no_resp3(&self, address: &str) {
        if first(&self.no_resp3) {
            log!(
                info,
                address,
                "the server does not support RESP3; falling back to RESP2, waiters will poll, and `inspect` and `list` may miss \
                 holders and waiters of other processes"
            );
        }
    }

    /// Warns of a server that may evict locks: if its memory is limited, it may drop any key with a ttl unless its policy is
    /// `noeviction`. `info` is the answer of INFO about memory; empty if the user may not ask.
    pub(super) fn memory(&self, address: &str, info: &str) {
        let limited = info::field(info, "maxmemory").is_some_and(|bytes| bytes != "0");
        let policy = info::field(info, "maxmemory_policy").unwrap_or("noeviction");
        if limited && policy != "noeviction" && first(&self.evicts) {
            log!(
                warn,
                address,
                policy,
                "the server evicts keys when its memory is full, and an evicted lock is freed early; set \
                 maxmemory-policy to noeviction, or use a separate server for locks"
            );
        }
    }
}

/// Whether it has not been said yet.
fn first(said: &AtomicBool) -> bool {
    !said.swap(true, Ordering::Relaxed)
}
