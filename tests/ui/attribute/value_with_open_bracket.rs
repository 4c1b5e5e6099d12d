use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "goods:<format(id>")]
async fn sell(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
