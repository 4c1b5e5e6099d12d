use lock_core::distributed_lock;

#[distributed_lock(key = "goods:<id>", on_busy = skip, on_error = |_| 0)]
async fn sell(id: u64) -> u64 {
    id
}

fn main() {}
