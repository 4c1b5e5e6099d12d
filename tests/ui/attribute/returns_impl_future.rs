use std::future::Future;

use lock_core::distributed_lock;

#[distributed_lock(key = "goods:<id>")]
fn sell(id: u64) -> impl Future<Output = Result<u64, lock_core::Error>> {
    async move { Ok(id) }
}

fn main() {}
