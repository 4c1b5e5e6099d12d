use lock_core::distributed_lock;

#[distributed_lock(key = "goods:<id>", on_busy = skip, on_lost = cancel)]
async fn sell(id: u64) -> u64 {
    id
}

fn main() {}
