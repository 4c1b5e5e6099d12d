//! Functions under the lock: the key, and each argument of the attribute.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use lock_core::{Error, ErrorKind, LockManager, LossReason, distributed_lock};

#[derive(Clone)]
struct Order {
    id: u64,
    lines: Vec<String>,
}

mod runs_under_the_lock {
    use super::*;

    #[distributed_lock(key = "goods:<id>", ttl = "3s")]
    async fn sell(id: u64) -> Result<bool, Error> {
        LockManager::current()?.is_locked(format!("goods:{id}")).await
    }

    #[tokio::test]
    async fn body_holds_the_key_and_the_caller_does_not() -> Result<(), Error> {
        let manager = LockManager::in_memory();
        assert!(manager.scope(sell(7)).await?);
        assert!(!manager.is_locked("goods:7").await?);
        Ok(())
    }

    #[distributed_lock(key = "count:<key>")]
    async fn count(key: u8, inside: &AtomicUsize) -> Result<usize, Error> {
        let others = inside.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        inside.fetch_sub(1, Ordering::SeqCst);
        Ok(others)
    }

    #[tokio::test]
    async fn calls_with_one_key_take_turns_and_with_two_keys_do_not() -> Result<(), Error> {
        let manager = LockManager::in_memory();
        let inside = AtomicUsize::new(0);
        let same = async { tokio::join!(count(1, &inside), count(1, &inside), count(1, &inside)) };
        let (a, b, c) = manager.scope(same).await;
        assert_eq!((a?, b?, c?), (0, 0, 0));

        let different = async { tokio::join!(count(1, &inside), count(2, &inside)) };
        let (a, b) = manager.scope(different).await;
        assert_eq!(a? + b?, 1, "the second came in while the first was inside");
        Ok(())
    }

    #[distributed_lock(key = "outer")]
    #[distributed_lock(key = "inner")]
    async fn both() -> Result<(bool, bool), Error> {
        let manager = LockManager::current()?;
        Ok((manager.is_locked("outer").await?, manager.is_locked("inner").await?))
    }

    #[tokio::test]
    async fn two_attributes_take_two_locks() -> Result<(), Error> {
        assert_eq!(LockManager::in_memory().scope(both()).await?, (true, true));
        Ok(())
    }
}

mod key {
    use super::*;

    #[distributed_lock(key = "<order.id>:<order.lines[0]>:<order.lines.iter().map(|l| l.len()).sum::<usize>()>", lease = l)]
    async fn expressions(order: Order) -> Result<String, Error> {
        Ok(l.key().to_owned())
    }

    #[distributed_lock(key = "{cart:<user>}: <<<user>>>:<7> {{}} {{user}} \" \\ é %25s", lease = l)]
    async fn signs(user: &str) -> Result<String, Error> {
        Ok(l.key().to_owned())
    }

    #[distributed_lock(key = "{{cart}} of <<all>>", lease = l)]
    async fn without_values() -> Result<String, Error> {
        Ok(l.key().to_owned())
    }

    #[distributed_lock(key = r#"<(a > b)>:<find('>', ">")>"#, lease = l)]
    async fn angle_brackets_inside(a: u8, b: u8) -> Result<String, Error> {
        Ok(l.key().to_owned())
    }

    fn find(a: char, b: &str) -> usize {
        b.find(a).expect("there")
    }

    #[distributed_lock(keys = ["goods:<id>", format!("goods:{id:04}"), "goods:{{id}}"], lease = leases)]
    async fn in_place_of_braces(id: u64) -> Result<Vec<String>, Error> {
        Ok(leases.iter().map(|lease| lease.key().to_owned()).collect())
    }

    #[tokio::test]
    async fn bad_input_50_what_the_refusal_of_a_value_in_braces_says_to_write_is_taken() -> Result<(), Error> {
        let keys = LockManager::in_memory().scope(in_place_of_braces(7)).await?;
        assert_eq!(keys, ["goods:0007", "goods:7", "goods:{id}"]);
        Ok(())
    }

    const REGION: &str = "eu";

    #[distributed_lock(key = "<self::REGION>:<r#type>", lease = l)]
    async fn constants_and_raw_names(r#type: char) -> Result<String, Error> {
        Ok(l.key().to_owned())
    }

    #[tokio::test]
    async fn values_of_a_template_are_the_display_of_expressions() -> Result<(), Error> {
        let order = Order { id: 5, lines: vec!["ab".into(), "c".into()] };
        LockManager::in_memory()
            .scope(async {
                assert_eq!(expressions(order).await?, "5:ab:3");
                assert_eq!(signs("ann").await?, "{cart:ann}: <ann>:7 {} {user} \" \\ é %25s");
                assert_eq!(without_values().await?, "{cart} of <all>");
                assert_eq!(angle_brackets_inside(2, 1).await?, "true:0");
                assert_eq!(constants_and_raw_names('t').await?, "eu:t");
                Ok(())
            })
            .await
    }

    #[distributed_lock(key = REGION, lease = l)]
    async fn a_constant() -> Result<String, Error> {
        Ok(l.key().to_owned())
    }

    #[distributed_lock(key = name, lease = l)]
    async fn an_argument(name: String) -> Result<(String, String), Error> {
        Ok((l.key().to_owned(), name))
    }

    #[distributed_lock(key = format!("{}/{}", order.id, order.lines.join("+")), lease = l)]
    async fn a_call(order: Order) -> Result<String, Error> {
        drop(order);
        Ok(l.key().to_owned())
    }

    #[distributed_lock(key = concat!("{", "id}"), lease = l)]
    async fn a_text_that_a_template_refuses(id: u8) -> Result<String, Error> {
        Ok(format!("{} {id}", l.key()))
    }

    #[tokio::test]
    async fn a_key_may_be_any_expression_of_a_string() -> Result<(), Error> {
        let order = Order { id: 5, lines: vec!["ab".into(), "c".into()] };
        LockManager::in_memory()
            .scope(async {
                assert_eq!(a_constant().await?, "eu");
                assert_eq!(an_argument("n".into()).await?, ("n".into(), "n".into()));
                assert_eq!(a_call(order).await?, "5/ab+c");
                assert_eq!(a_text_that_a_template_refuses(1).await?, "{id} 1");
                Ok(())
            })
            .await
    }

    #[distributed_lock(key = "<order.id>:<name>", lease = l)]
    async fn moves(order: Order, name: String) -> Result<String, Error> {
        let moved = tokio::task::spawn(async move { (order, name) }).await.expect("no panic");
        Ok(format!("{} {} {}", l.key(), moved.0.id, moved.1))
    }

    #[tokio::test]
    async fn bad_input_59_key_is_made_before_the_body_moves_its_arguments() -> Result<(), Error> {
        let order = Order { id: 5, lines: vec![] };
        assert_eq!(LockManager::in_memory().scope(moves(order, "n".into())).await?, "5:n 5 n");
        Ok(())
    }

    #[distributed_lock(key = "<id>", lease = l)]
    async fn changes(mut id: u8) -> Result<(String, u8), Error> {
        id += 1;
        Ok((l.key().to_owned(), id))
    }

    #[tokio::test]
    async fn bad_input_59_key_keeps_the_value_that_came_in() -> Result<(), Error> {
        assert_eq!(LockManager::in_memory().scope(changes(1)).await?, ("1".into(), 2));
        Ok(())
    }
}

mod options {
    use super::*;

    #[distributed_lock(key = "k", ttl = "3s", lease = lease)]
    async fn three_seconds() -> Result<Duration, Error> {
        Ok(lease.remaining())
    }

    #[distributed_lock(key = "k", lease = lease)]
    async fn default_ttl() -> Result<Duration, Error> {
        Ok(lease.remaining())
    }

    #[tokio::test]
    async fn ttl_bounds_what_remains() -> Result<(), Error> {
        let manager = LockManager::in_memory();
        let remaining = manager.scope(three_seconds()).await?;
        assert!(remaining <= Duration::from_secs(3) && remaining > Duration::from_secs(1), "{remaining:?}");
        let remaining = manager.scope(default_ttl()).await?;
        assert!(remaining <= Duration::from_secs(10) && remaining > Duration::from_secs(5), "{remaining:?}");
        Ok(())
    }

    #[distributed_lock(key = "k", wait = "0s")]
    async fn only_tries() -> Result<(), Error> {
        Ok(())
    }

    #[distributed_lock(key = "k", wait = "30ms")]
    async fn waits_a_little() -> Result<(), Error> {
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn wait_bounds_the_waiting() -> Result<(), Error> {
        let manager = LockManager::in_memory();
        let guard = manager.lock("k").await?;
        let began = tokio::time::Instant::now();
        let error = manager.scope(only_tries()).await.unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Busy, Some("k")));
        assert_eq!(manager.scope(waits_a_little()).await.unwrap_err().kind(), ErrorKind::Busy);
        let waited = began.elapsed();
        assert!((Duration::from_millis(30)..Duration::from_millis(40)).contains(&waited), "{waited:?}");
        drop(guard);
        manager.scope(waits_a_little()).await
    }

    #[distributed_lock(key = "k", ttl = "50ms", renew = false)]
    async fn outlives_its_lease(_dropped: Dropped<'_>) -> Result<(), Error> {
        std::future::pending().await
    }

    #[distributed_lock(key = "k", ttl = "1s", renew = true, lease = lease)]
    async fn outlives_its_ttl() -> Result<bool, Error> {
        tokio::time::sleep(Duration::from_millis(1300)).await;
        Ok(lease.is_held())
    }

    struct Dropped<'a>(&'a AtomicUsize);

    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_not_renewed_ends_with_its_ttl_and_the_body_with_it() -> Result<(), Error> {
        let manager = LockManager::in_memory();
        let dropped = AtomicUsize::new(0);
        let ending = manager.scope(outlives_its_lease(Dropped(&dropped)));
        let error =
            tokio::time::timeout(Duration::from_secs(5), ending).await.expect("the body was stopped").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost(LossReason::Expired));
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
        assert!(manager.scope(outlives_its_ttl()).await?);
        Ok(())
    }

    #[distributed_lock(key = "k", max_hold = "50ms")]
    async fn never_ends() -> Result<(), Error> {
        std::future::pending().await
    }

    #[tokio::test(start_paused = true)]
    async fn max_hold_ends_a_body_that_is_stuck() {
        let began = tokio::time::Instant::now();
        let error = LockManager::in_memory().scope(never_ends()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost(LossReason::MaxHold));
        let held = began.elapsed().as_millis();
        assert!((50..55).contains(&held), "{held} ms");
    }

    #[distributed_lock(key = "k", lease = held)]
    async fn token() -> Result<u64, Error> {
        assert!(held.is_held());
        assert_eq!(held.key(), "k");
        Ok(held.fencing_token().get())
    }

    #[tokio::test]
    async fn lease_gives_a_larger_fencing_token_every_time() -> Result<(), Error> {
        let manager = LockManager::in_memory();
        let first = manager.scope(token()).await?;
        assert!(manager.scope(token()).await? > first);
        Ok(())
    }

    #[distributed_lock(
        key = "all",
        ttl = "1h",
        wait = "2m",
        renew = false,
        max_hold = "1h",
        manager = given,
        lease = lease,
        crate = lock_core,
    )]
    async fn all(given: &LockManager) -> Result<String, Error> {
        Ok(lease.key().to_owned())
    }

    #[tokio::test]
    async fn all_options_go_together() -> Result<(), Error> {
        assert_eq!(all(&LockManager::in_memory()).await?, "all");
        Ok(())
    }
}
