// bad_input_45
use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "goods:<id>", ttl = "3s", ttl = "5s")]
async fn sell(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
