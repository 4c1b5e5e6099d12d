//! Holders in several operating-system processes, on one Redis.

use lock_tests::{LONG, RedisServer, SOON, role};

const KEY: &str = "goods:1";

#[tokio::test]
async fn processes_exclude_each_other_and_lose_no_update() {
    let server = RedisServer::start().await;
    let (processes, rounds) = (4, 25);
    let mut counters: Vec<_> =
        (0..processes).map(|_| role!("count", server.url(), server.address(), KEY, rounds)).collect();
    for counter in &mut counters {
        counter.expect("counted", LONG).await;
    }
    let number = server.call(&["GET", "goods:1:number"]).await.text();
    assert_eq!(number, Some((processes * rounds).to_string()));
    assert!(server.call(&["GET", KEY]).await.is_nil());
}

#[tokio::test]
async fn next_process_comes_in_after_the_ttl_of_a_killed_one_with_a_larger_fencing_token() {
    let server = RedisServer::start().await;
    let mut first = role!("hold", server.url(), KEY, 1_000, 0);
    let first_fence = fence(&first.expect("held", SOON).await);
    let mut second = role!("hold", server.url(), KEY, 1_000, LONG.as_millis());
    first.kill().await;
    let second_fence = fence(&second.expect("held", SOON).await);
    assert!(second_fence > first_fence, "{second_fence} after {first_fence}");
}

fn fence(text: &str) -> u64 {
    text.parse().expect("a fencing token is a number")
}
