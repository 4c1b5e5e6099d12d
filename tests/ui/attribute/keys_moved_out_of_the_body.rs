// bad_input_59
use lock_core::{Error, distributed_lock};

#[distributed_lock(keys = ids)]
async fn sell(ids: Vec<String>) -> Result<usize, Error> {
    Ok(ids.len())
}

fn main() {}
