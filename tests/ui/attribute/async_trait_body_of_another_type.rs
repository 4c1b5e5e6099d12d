use lock_core::{Error, distributed_lock};

#[async_trait::async_trait]
trait Shop {
    #[distributed_lock(key = "goods:<id>")]
    async fn sell(&self, id: u64) -> Result<u64, Error> {
        Ok(format!("sold {id}"))
    }
}

fn main() {}
