use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "goods:<id>", lease = lease, ttl = "3")]
async fn sell(id: u64) -> Result<u64, Error> {
    drop(lease);
    Ok(id + nope)
}

fn main() {}
