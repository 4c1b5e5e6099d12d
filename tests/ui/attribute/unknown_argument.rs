// bad_input_44
use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "goods:<id>", tll = "3s")]
async fn sell(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
