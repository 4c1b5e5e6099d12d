use lock_core::distributed_lock;

#[distributed_lock(key = "goods:<id>", on_error = |error| error.to_string())]
async fn sell(id: u64) -> u64 {
    id
}

fn main() {}
