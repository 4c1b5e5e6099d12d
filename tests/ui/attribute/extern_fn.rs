// bad_input_47
use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "goods:<id>")]
async extern "C" fn sell(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
