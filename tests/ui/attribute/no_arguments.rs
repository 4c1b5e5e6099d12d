// bad_input_43
use lock_core::{Error, distributed_lock};

#[distributed_lock]
async fn sell(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
