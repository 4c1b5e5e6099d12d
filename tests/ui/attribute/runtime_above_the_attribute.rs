// bad_input_46, bad_input_60
use lock_core::{Error, distributed_lock};

#[tokio::main(flavor = "current_thread")]
#[distributed_lock(key = "goods")]
async fn main() -> Result<(), Error> {
    Ok(())
}
