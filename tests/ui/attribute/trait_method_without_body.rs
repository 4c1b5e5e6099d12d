// bad_input_61
use lock_core::{Error, distributed_lock};

trait Shop {
    #[distributed_lock(key = "goods:<id>")]
    async fn sell(&self, id: u64) -> Result<u64, Error>;
}

fn main() {}
