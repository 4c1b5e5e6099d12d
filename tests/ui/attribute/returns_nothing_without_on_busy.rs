// bad_input_53
use lock_core::distributed_lock;

#[distributed_lock(key = "goods:<id>", on_lost = ignore)]
async fn sell(id: u64) {
    drop(id);
}

fn main() {}
