#![deny(unused_must_use)]
use lock_core::{Error, LockManager};

async fn sell(manager: &LockManager) -> Result<(), Error> {
    manager.lock("goods:1").await?;
    manager.lock_all(["goods:1", "goods:2"]).await?;
    Ok(())
}

fn main() {}
