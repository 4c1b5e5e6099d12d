use lock_core::{Error, distributed_lock};

#[distributed_lock(keys = ["goods:<id>", "stock"], lease = leases, ttl = "3")]
async fn sell(id: u64) -> Result<u64, Error> {
    Ok(leases.iter().count() as u64 + id)
}

fn main() {}
