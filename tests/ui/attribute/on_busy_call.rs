use lock_core::{Error, distributed_lock};

fn refused(_: Error) -> Error {
    unreachable!()
}

#[distributed_lock(key = "goods:<id>", on_busy = call(refused))]
async fn sell(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
