use lock_core::distributed_lock;

#[distributed_lock(key = "goods:<id>", on_error = |error| format!("{id}: {error}"))]
async fn sell(id: String) -> Result<String, String> {
    Ok(id)
}

fn main() {}
