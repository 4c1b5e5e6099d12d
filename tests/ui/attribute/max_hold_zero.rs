// bad_input_48
use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "goods:<id>", max_hold = "0s")]
async fn sell(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
