// The compiler does not propose to replace the whole template by a method.
use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "goods:<id.trimm()>")]
async fn sell(id: &str) -> Result<&str, Error> {
    Ok(id)
}

fn main() {}
