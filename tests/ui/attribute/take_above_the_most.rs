use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "goods:<id>", permits = 3, take = 9_999_999_999_999_999_999_999)]
async fn sell(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
