// bad_input_48
use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "goods:<id>", ttl = "")]
async fn sell(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
