// bad_input_53
use lock_core::distributed_lock;

#[distributed_lock(key = "goods:<id>", on_busy = error, on_lost = ignore)]
async fn sell(id: u64) -> u64 {
    id
}

fn main() {}
