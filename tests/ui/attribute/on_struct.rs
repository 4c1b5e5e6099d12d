// bad_input_63
use lock_core::distributed_lock;

#[distributed_lock(key = "goods")]
struct Goods {
    id: u64,
}

fn main() {}
