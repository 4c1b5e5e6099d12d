use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "goods:<id>")]
async fn sell(id: u64) -> Result<u64, Error> {
    if id == 0 {
        return Ok("none");
    }
    Ok(id)
}

fn main() {}
