// bad_input_49
use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "goods:<id>", at_least = "1000000h")]
async fn sell(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
