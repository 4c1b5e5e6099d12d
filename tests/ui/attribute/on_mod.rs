// bad_input_63
use lock_core::distributed_lock;

#[distributed_lock(key = "goods")]
mod goods {
    pub async fn sell() {}
}

fn main() {}
