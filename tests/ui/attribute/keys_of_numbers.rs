use lock_core::{Error, distributed_lock};

#[distributed_lock(keys = &ids)]
async fn sell(ids: Vec<u64>) -> Result<usize, Error> {
    Ok(ids.len())
}

fn main() {}
