// bad_input_63
use lock_core::distributed_lock;

#[distributed_lock(key = "goods")]
const GOODS: u64 = 1;

fn main() {}
