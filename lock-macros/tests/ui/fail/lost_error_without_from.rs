// bad_input_54
use lock_core::{Error, distributed_lock};

fn refused(error: Error) -> Result<u64, String> {
    Err(error.to_string())
}

#[distributed_lock(key = "goods:<id>", on_busy = call(refused), on_lost = finish)]
async fn sell(id: u64) -> Result<u64, String> {
    Ok(id)
}

fn main() {}
