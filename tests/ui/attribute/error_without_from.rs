// bad_input_54
use lock_core::distributed_lock;

struct Failure;

#[distributed_lock(key = "goods:<id>")]
async fn sell(id: u64) -> Result<u64, Failure> {
    if id == 0 { Err(Failure) } else { Ok(id) }
}

fn main() {}
