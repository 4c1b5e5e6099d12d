use lock_core::{Error, distributed_lock};

fn refused(_: Error) -> u64 {
    0
}

#[distributed_lock(key = "goods:<id>", on_error = refused)]
async fn sell(id: u64) -> Result<u64, String> {
    Ok(id)
}

fn main() {}
