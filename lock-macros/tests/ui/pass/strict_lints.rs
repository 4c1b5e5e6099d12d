// Everything that the expansion adds is silent under the strictest lints that users turn on. bad-input 60
#![deny(warnings, missing_docs, unused, unreachable_pub, unused_qualifications, rust_2018_idioms, rust_2024_compatibility)]
#![forbid(unsafe_code)]

//! A crate that denies everything.

use lock_core::{Error, LockManager, distributed_lock};

#[distributed_lock(key = "goods:<id>", ttl = "3s", wait = "1s", renew = false, max_hold = "1m", lease = lease)]
async fn sell(id: u64, _unused: &LockManager) -> Result<impl Iterator<Item = u64>, Error> {
    Ok(std::iter::once(id + lease.fencing_token().get()))
}

fn main() {
    drop(sell(1, &LockManager::in_memory()));
}
