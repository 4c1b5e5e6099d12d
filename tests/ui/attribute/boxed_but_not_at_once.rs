// bad_input_46
use std::pin::Pin;

use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "goods:<id>")]
fn sell(id: u64) -> Pin<Box<dyn Future<Output = Result<u64, Error>>>> {
    let next = id + 1;
    Box::pin(async move { Ok(next) })
}

fn main() {}
