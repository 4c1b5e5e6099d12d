// bad_input_51
use lock_core::{Error, distributed_lock};

#[distributed_lock(keys = ["stock", "goods:<id>"])]
async fn sell(id: Vec<u64>) -> Result<usize, Error> {
    Ok(id.len())
}

fn main() {}
