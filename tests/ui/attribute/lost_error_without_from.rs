use lock_core::distributed_lock;

#[distributed_lock(key = "goods:<id>", on_lost = finish)]
async fn sell(id: u64) -> Result<u64, String> {
    Ok(id)
}

fn main() {}
