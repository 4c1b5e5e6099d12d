// bad_input_61
use lock_core::{Error, distributed_lock};

#[async_trait::async_trait]
trait Shop {
    #[distributed_lock(key = "goods:<id>")]
    async fn sell(&self, id: u64) -> Result<(), Error>;
}

fn main() {}
