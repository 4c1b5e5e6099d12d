// bad_input_48
use lock_core::{Error, distributed_lock};

const TTL: &str = "3s";

#[distributed_lock(key = "goods:<id>", ttl = TTL)]
async fn sell(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
