//! A holder: `hold URL KEY TTL_MS WAIT_MS`, or `hold URL KEY TTL_MS WAIT_MS shared`.
//!
//! Says `held FENCE`, or `refused KIND`, then does as it is told, one line each, until its input ends:
//!
//! | line | answer |
//! | --- | --- |
//! | `check` | `check held MS`, what remains, or `check lost` |
//! | `extend MS` | `extended`, or `failed KIND` |
//! | `release` | `released`, or `failed KIND`; the process ends |
//!
//! When the lease is lost it says `lost REASON`, and goes on.

use std::{error::Error, time::Duration};

use lock_core::{End, LockManager};

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
    let mut guard = match request.await {
        Ok(guard) => guard,
        Err(error) => {
            println!("refused {:?}", error.kind());
            return Ok(());
        }
    };
    println!("held {}", guard.fencing_token());
    let ended = guard.ended();
    tokio::spawn(async move {
        if let End::Lost(reason) = ended.await {
            println!("lost {reason:?}");
        }
    });
    while let Some(line) = lines.recv().await {
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("check", _) if guard.is_held() => println!("check held {}", guard.remaining().as_millis()),
            ("check", _) => println!("check lost"),
            ("extend", ttl_ms) => match guard.extend(milliseconds(ttl_ms)?).await {
                Ok(_) => println!("extended"),
                Err(error) => println!("failed {:?}", error.kind()),
            },
            ("release", _) => {
                match guard.release().await {
                    Ok(()) => println!("released"),
                    Err(error) => println!("failed {:?}", error.kind()),
                }
                return Ok(());
            }
            _ => return Err(format!("can't do {line:?}").into()),
        }
    }
    Ok(())
}

fn milliseconds(text: &str) -> Result<Duration, Box<dyn Error>> {
    Ok(Duration::from_millis(text.parse()?))
}
