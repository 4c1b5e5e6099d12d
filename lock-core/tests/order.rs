//! Who comes first, while waiters ask again on their own account; virtual time.

use std::sync::{Arc, Mutex};

use lock_core::{LockManager, backend::MemoryBackend};
use tokio::time::sleep;

use crate::support::{ms, secs};

/// Ten checks of each waiter: long enough that every place was asked for again.
const HELD: std::time::Duration = secs(5);

#[tokio::test(start_paused = true)]
async fn waiters_of_several_processes_keep_their_places_however_often_they_ask() {
    let store = MemoryBackend::new();
    let manager = |seed| LockManager::builder().backend(store.clone()).__seed(seed).build().unwrap();
    let holder = manager(0).lock("k").ttl(secs(30)).await.unwrap();
    let came = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for number in 1..=6 {
        let (acquire, came) = (manager(number).lock("k").wait(secs(60)).acquire(), Arc::clone(&came));
        waiters.push(tokio::spawn(async move {
            let guard = acquire.await.unwrap();
            came.lock().unwrap().push(number);
            guard.release().await.unwrap();
        }));
        sleep(ms(20)).await;
    }
    sleep(HELD).await;
    holder.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    assert_eq!(*came.lock().unwrap(), [1, 2, 3, 4, 5, 6]);
}
