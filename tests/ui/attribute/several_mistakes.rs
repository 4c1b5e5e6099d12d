use lock_core::distributed_lock;

#[distributed_lock(key = "goods:<nope>", tll = "3s", wait = "5")]
async fn sell(id: u64) -> () {
    drop(id)
}

fn main() {}
