// bad_input_44
use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "goods:<id>", on_lost = finnish)]
async fn sell(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
