// bad_input_46
use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "goods:<id>")]
fn sell(id: u64) -> Result<u64, Error> {
    std::future::ready(()).await;
    Ok(id)
}

fn main() {}
