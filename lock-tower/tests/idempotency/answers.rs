//! The store in memory.

use std::time::Duration;

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
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!((answers.get("short").await.unwrap(), answers.len()), (None, 2));
    // What came again is not ended by the end of what was there before.
    assert_eq!(put("short", "2", A_DAY).await, "2");
    tokio::time::advance(A_DAY - Duration::from_secs(1)).await;
    assert_eq!((answers.get("long").await.unwrap(), answers.len()), (None, 2));
    tokio::time::advance(A_DAY).await;
    assert_eq!(answers.get("forever").await.unwrap().unwrap(), "1");
    assert!(!answers.is_empty());
}
