// bad_input_50
use lock_core::{Error, distributed_lock};

struct Order {
    id: u64,
}

#[distributed_lock(key = "goods:{order.id}")]
async fn sell(order: Order) -> Result<u64, Error> {
    Ok(order.id)
}

fn main() {}
