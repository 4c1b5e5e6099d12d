// bad_input_55
use lock_core::distributed_lock;

#[distributed_lock(key = "goods:<id>")]
async fn sell(id: u64) -> impl std::fmt::Debug {
    id
}

fn main() {}
