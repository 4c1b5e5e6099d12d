// bad_input_53
use lock_core::distributed_lock;

#[distributed_lock(key = "goods:<id>")]
async fn sell(id: u64) -> Result<u64, std::num::ParseIntError> {
    Ok(id)
}

fn main() {}
