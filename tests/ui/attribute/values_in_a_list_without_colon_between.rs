use lock_core::{Error, distributed_lock};

#[distributed_lock(keys = ["stock", "goods:<shop>%3A<id>"])]
async fn sell(shop: u64, id: u64) -> Result<u64, Error> {
    Ok(shop + id)
}

fn main() {}
