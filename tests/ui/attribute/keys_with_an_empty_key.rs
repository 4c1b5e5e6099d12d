// bad_input_52
use lock_core::{Error, distributed_lock};

#[distributed_lock(keys = ["goods:<id>", ""])]
async fn sell(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
