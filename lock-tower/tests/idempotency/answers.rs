//! The store in memory.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use lock_tower::idempotency::{Answers, MemoryAnswers};

const A_DAY: Duration = Duration::from_secs(24 * 3600);

#[tokio::test(start_paused = true)]
async fn attack_12_an_answer_is_kept_for_its_time_and_no_longer() {
    let answers = MemoryAnswers::new();
    let put = async |key, answer: &'static str, keep| answers.put_if_absent(key, answer.into(), keep).await.unwrap();
    assert_eq!(put("short", "1", Duration::from_secs(1)).await, "1");
    assert_eq!(put("long", "1", A_DAY).await, "1");
    assert_eq!(put("long", "2", Duration::from_secs(1)).await, "1", "the first is kept");
    assert_eq!(put("forever", "1", Duration::MAX).await, "1");
    let there = async |key| answers.get(key).await.unwrap().is_some();
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(!there("short").await && there("long").await);
    // What came again is not ended by the end of what was there before.
    assert_eq!(put("short", "2", A_DAY).await, "2");
    tokio::time::advance(A_DAY - Duration::from_secs(1)).await;
    assert!(there("short").await && !there("long").await);
    tokio::time::advance(A_DAY).await;
    assert!(!there("short").await && there("forever").await);
}

#[tokio::test(start_paused = true)]
async fn what_is_over_takes_no_memory() {
    let (answers, count) = (MemoryAnswers::new(), Arc::<[u8]>::from(*b"1"));
    for number in 0..10_000 {
        let answer = Bytes::from_owner(Arc::clone(&count));
        answers.put_if_absent(&number.to_string(), answer, Duration::from_secs(10)).await.unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert!(Arc::strong_count(&count) < 2_000, "{}", Arc::strong_count(&count));
}
