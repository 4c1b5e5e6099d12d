// Everything that the expansion adds is silent under the strictest lints that users turn on. bad-input 60
#![deny(warnings, missing_docs, unused, unreachable_pub, unused_qualifications, rust_2018_idioms, rust_2024_compatibility)]
#![forbid(unsafe_code)]

//! A crate that denies everything.

use lock_core::{Error, LockManager, distributed_lock};

#[distributed_lock(key = "goods:<id>", ttl = "3s", wait = "1s", renew = false, max_hold = "1m", lease = lease)]
async fn sell(id: u64, _unused: &LockManager) -> Result<impl Iterator<Item = u64>, Error> {
    Ok(std::iter::once(id + lease.fencing_token().get()))
}

#[distributed_lock(keys = ["goods:<id>", id.to_string()], at_least = "1s", on_busy = skip, on_lost = finish, lease = leases)]
async fn skip(id: u64, _unused: &LockManager) -> Option<bool> {
    Some(leases.is_held())
}

fn refused(_: Error) -> bool {
    false
}

#[distributed_lock(keys = ids.iter().map(u64::to_string), on_busy = call(refused), on_lost = ignore)]
async fn call(ids: Vec<u64>) -> bool {
    ids.len() > 1
}

/// A trait.
#[async_trait::async_trait]
trait Shop {
    #[distributed_lock(key = "goods:<id>", on_busy = skip)]
    async fn sell(&self, id: u64, (price, _): (u64, u64)) -> Result<Option<u64>, Error> {
        Ok(Some(price))
    }
}

impl Shop for u64 {}

fn main() {
    drop(skip(1, &LockManager::in_memory()));
    drop(call(Vec::new()));
    drop(7.sell(1, (2, 3)));
    drop(sell(1, &LockManager::in_memory()));
}
