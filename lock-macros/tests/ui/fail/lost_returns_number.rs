// bad_input_53
use lock_core::{Error, distributed_lock};

fn refused(_: Error) -> u64 {
    0
}

#[distributed_lock(key = "goods:<id>", on_busy = call(refused), on_lost = cancel)]
async fn sell(id: u64) -> u64 {
    id
}

fn main() {}
