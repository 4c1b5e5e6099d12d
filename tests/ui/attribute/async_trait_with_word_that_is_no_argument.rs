// bad_input_50
use lock_core::{Error, distributed_lock};

#[async_trait::async_trait]
trait Shop {
    #[distributed_lock(key = "goods:<idd>")]
    async fn sell(&self, (id, price): (u64, u64), buyer: &str) -> Result<u64, Error> {
        Ok(id * price + buyer.len() as u64)
    }
}

fn main() {}
