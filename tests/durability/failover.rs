//! What an acquire that a replica has confirmed buys when its primary dies, and what it does not.

use lock_core::ErrorKind;
use lock_tests::{LONG, SOON, ms};

use crate::durability::group::{Group, one};

const KEY: &str = "goods:1";

#[tokio::test]
async fn promoted_replica_has_the_lease_that_it_has_confirmed() {
    let mut group = Group::start(1).await;
    let manager = group.manager().await;
    // What the primary is told reaches the replica a while later.
    group.replicas[0].network.delay(ms(100), ms(0));
    let plain = manager.lock("plain").ttl(LONG).await.expect("it is free");
    let held = manager.lock(KEY).ttl(LONG).durability(one(SOON)).await.expect("the replica confirms");
    let token = group.value(KEY).await;
    group.replicas[0].network.hole();
    let late = manager.lock("late").ttl(LONG).await.expect("it is free");
    group.primary.stop();

    let replica = &group.replicas[0];
    let after = replica.promote().await;
    assert!(token.is_some() && replica.value(KEY).await == token, "the token of the holder stands there");
    let busy = after.lock(KEY).wait(ms(0)).await.expect_err("the holder has it");
    assert_eq!(busy.kind(), ErrorKind::Busy);
    assert!(after.is_locked("plain").await.expect("it answers"), "it was granted before, so the replica has it, too");
    assert!(!after.is_locked("late").await.expect("it answers"), "nobody waited for the replica");
    let second = after.lock("late").await.expect("it is free there");
    assert!(late.is_held() && second.fencing_token() > late.fencing_token(), "two holders, and the fences rise");
    drop((plain, held));
}

#[tokio::test]
async fn replica_that_has_not_confirmed_makes_two_holders_when_it_is_promoted_and_fences_rise() {
    let mut group = Group::start(2).await;
    let manager = group.manager().await;
    group.replicas[1].network.hole();
    let first = manager.lock(KEY).ttl(LONG).durability(one(SOON)).await.expect("the other replica confirms");
    group.primary.stop();

    let after = group.replicas[1].promote().await;
    assert_eq!(group.replicas[1].value(KEY).await, None);
    let second = after.lock(KEY).ttl(LONG).await.expect("this replica has never had it");
    assert!(first.is_held() && second.is_held(), "two holders");
    assert!(second.fencing_token() > first.fencing_token());
    assert!(group.replicas[0].value(KEY).await.is_some(), "the one that confirmed has it");
}

#[tokio::test]
async fn all_replicas_may_be_asked_for_so_that_each_may_be_promoted() {
    let group = Group::start(2).await;
    let manager = group.manager().await;
    let both = |timeout| lock_core::Replicas::new(2, timeout);
    let held = manager.lock(KEY).ttl(LONG).durability(both(SOON)).await.expect("both confirm");
    for replica in &group.replicas {
        assert_eq!(replica.value(KEY).await, group.value(KEY).await);
    }
    held.release().await.expect("it is held");
    group.replicas[1].network.hole();
    let error = manager.lock(KEY).durability(both(ms(1_000))).await.expect_err("one of them is cut off");
    assert_eq!((error.kind(), error.key()), (ErrorKind::NotReplicated, Some(KEY)));
    let said = error.to_string();
    assert!(
        said.contains("1 of the 2 required replicas") && said.contains("within 1s") && said.contains(KEY),
        "{said}"
    );
    assert_eq!(group.value(KEY).await, None, "it was released before the error came");
}
