// bad_input_51
use lock_core::{Error, distributed_lock};

struct Id(u64);

#[distributed_lock(key = "goods:<id>")]
async fn sell(id: Id) -> Result<u64, Error> {
    Ok(id.0)
}

fn main() {}
