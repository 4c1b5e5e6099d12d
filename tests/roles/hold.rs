//! A holder: `hold URL KEY TTL_MS WAIT_MS`, or `hold URL KEY TTL_MS WAIT_MS shared`.
//!
//! Says `held FENCE`, or `refused KIND`. At a line of input it releases the lease, says `released` and ends; when its input ends, it ends.

use std::{error::Error, time::Duration};

use lock_core::LockManager;

pub(crate) async fn hold(
    url: &str,
    key: &str,
    ttl_ms: &str,
    wait_ms: &str,
    is_shared: bool,
) -> Result<(), Box<dyn Error>> {
    let mut lines = crate::input();
    let manager = crate::connected(LockManager::builder().url(url)).await?;
    let request = manager.lock(key).ttl(milliseconds(ttl_ms)?).wait(milliseconds(wait_ms)?);
    let request = if is_shared { request.shared() } else { request };
    let guard = match request.await {
        Ok(guard) => guard,
        Err(error) => {
            println!("refused {:?}", error.kind());
            return Ok(());
        }
    };
    println!("held {}", guard.fencing_token());
    if lines.recv().await.is_some() {
        guard.release().await?;
        println!("released");
    }
    Ok(())
}

fn milliseconds(text: &str) -> Result<Duration, Box<dyn Error>> {
    Ok(Duration::from_millis(text.parse()?))
}
