// bad_input_53
use lock_core::distributed_lock;

#[distributed_lock(key = "goods:<id>")]
async fn sell(id: u64) -> Option<u64> {
    Some(id)
}

fn main() {}
