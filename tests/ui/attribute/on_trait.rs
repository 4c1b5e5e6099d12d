// bad_input_63
use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "goods:<id>")]
unsafe trait Shop {
    async fn sell(&self, id: u64) -> Result<u64, Error>;
}

fn main() {}
