use lock_core::{Error, distributed_lock};

fn refused() -> Result<u64, Error> {
    Ok(0)
}

#[distributed_lock(key = "goods:<id>", on_busy = call(refused))]
async fn sell(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
