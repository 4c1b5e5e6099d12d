// bad_input_54
use lock_core::distributed_lock;

#[distributed_lock(key = "goods:<id>", on_busy = skip)]
async fn sell(id: u64) -> Result<(), String> {
    Err(id.to_string())
}

fn main() {}
