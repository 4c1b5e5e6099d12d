// The compiler does not propose to replace the whole template by a field.
use lock_core::{Error, distributed_lock};

struct Order {
    number: u64,
}

#[distributed_lock(key = "goods:<order.numbr>")]
async fn sell(order: Order) -> Result<u64, Error> {
    Ok(order.number)
}

fn main() {}
