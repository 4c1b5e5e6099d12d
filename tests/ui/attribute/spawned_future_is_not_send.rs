// bad_input_65
use std::rc::Rc;

use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "goods")]
async fn sell() -> Result<u64, Error> {
    let id = Rc::new(7);
    tokio::task::yield_now().await;
    Ok(*id)
}

fn main() {
    tokio::spawn(sell());
}
