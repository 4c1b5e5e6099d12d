use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "goods:<id>", replicas_timeout = "300ms")]
async fn sell(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
