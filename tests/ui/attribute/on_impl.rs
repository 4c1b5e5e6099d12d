// bad_input_63
use lock_core::{Error, distributed_lock};

struct Shop;

#[distributed_lock(key = "goods:<id>")]
impl Shop {
    async fn sell(&self, id: u64) -> Result<u64, Error> {
        Ok(id)
    }
}

fn main() {}
