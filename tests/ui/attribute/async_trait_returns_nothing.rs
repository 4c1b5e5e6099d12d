// bad_input_46, bad_input_53
use lock_core::distributed_lock;

#[async_trait::async_trait]
trait Shop {
    async fn sell(&self, id: u64);
}

#[async_trait::async_trait]
impl Shop for u64 {
    #[distributed_lock(key = "goods:<id>")]
    async fn sell(&self, id: u64) {
        drop(id);
    }
}

fn main() {}
