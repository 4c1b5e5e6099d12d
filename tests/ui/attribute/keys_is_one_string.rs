use lock_core::{Error, distributed_lock};

#[distributed_lock(keys = &name)]
async fn sell(name: String) -> Result<usize, Error> {
    Ok(name.len())
}

fn main() {}
