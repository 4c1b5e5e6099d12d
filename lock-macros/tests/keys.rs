//! What a template makes of its values; and several keys: `keys = [..]`, and keys made from a collection.

use lock_core::{Argument, Error, ErrorKind, LockManager, distributed_lock, key};

/// Each key with the state that it has inside the body.
async fn held(keys: &[&str]) -> Result<Vec<bool>, Error> {
    let manager = LockManager::current()?;
    let mut held = Vec::new();
    for key in keys {
        held.push(manager.is_locked(key).await?);
    }
    Ok(held)
}

mod lists {
    use super::*;

    #[distributed_lock(keys = ["account:<from>", "account:<to>"], ttl = "3s", lease = leases)]
    async fn transfer(from: u64, to: u64) -> Result<Vec<String>, Error> {
        assert_eq!(held(&["account:1", "account:2", "account:3"]).await?, [true, true, false]);
        Ok(leases.iter().map(|lease| lease.key().to_owned()).collect())
    }

    #[tokio::test]
    async fn all_keys_of_the_list_are_held_and_given_back() -> Result<(), Error> {
        let manager = LockManager::in_memory();
        assert_eq!(manager.scope(transfer(2, 1)).await?, ["account:1", "account:2"]);
        assert!(!manager.is_locked("account:1").await? && !manager.is_locked("account:2").await?);
        Ok(())
    }

    #[distributed_lock(keys = ["account:<from>", "account:<to>"])]
    async fn slow_transfer(from: u64, to: u64) -> Result<(), Error> {
        tokio::task::yield_now().await;
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn two_lists_in_opposite_orders_do_not_deadlock() -> Result<(), Error> {
        let manager = LockManager::in_memory();
        // If the keys were acquired as they are listed, the first would wait for account:2, and the second would have
        // account:1 already and wait for account:2 behind the first: each would have what the other needs next.
        let held = manager.lock("account:2").await?;
        let release = async {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            held.release().await
        };
        let all = async { tokio::join!(slow_transfer(2, 1), slow_transfer(1, 2), release) };
        let (one, other, released) = manager.scope(all).await;
        one.and(other).and(released)
    }

    #[tokio::test]
    async fn key_that_is_named_twice_counts_once() -> Result<(), Error> {
        LockManager::in_memory().scope(slow_transfer(1, 1)).await
    }

    #[tokio::test]
    async fn without_a_manager_the_error_says_so() {
        assert_eq!(slow_transfer(1, 2).await.unwrap_err().kind(), ErrorKind::NoManager);
    }

    const STOCK: &str = "stock";

    struct Order {
        number: String,
        tenant: String,
    }

    #[distributed_lock(
        keys = [STOCK, "{<order.tenant>}:<order.number>", order.tenant, format!("{}!", order.number), "plain"],
        lease = leases,
    )]
    async fn mixed(order: Order) -> Result<Vec<String>, Error> {
        drop(order);
        Ok(leases.iter().map(|lease| lease.key().to_owned()).collect())
    }

    #[tokio::test]
    async fn list_holds_templates_and_expressions_and_moves_nothing() -> Result<(), Error> {
        let order = Order { number: "7".into(), tenant: "t".into() };
        let mut expected = ["stock", "{t}:7", "t", "7!", "plain"].map(String::from);
        expected.sort();
        assert_eq!(LockManager::in_memory().scope(mixed(order)).await?, expected);
        Ok(())
    }

    #[distributed_lock(keys = ["a", "b"], wait = "0s")]
    async fn tries() -> Result<(), Error> {
        Ok(())
    }

    #[tokio::test]
    async fn one_busy_key_is_enough_and_the_others_are_given_back() -> Result<(), Error> {
        let manager = LockManager::in_memory();
        let guard = manager.lock("b").await?;
        let error = manager.scope(tries()).await.unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Busy, Some("b")));
        drop(manager.lock("a").await?);
        drop(guard);
        Ok(())
    }
}

mod collections {
    use super::*;

    #[distributed_lock(keys = order.iter().map(|(id, _)| format!("goods:{id}")), ttl = "3s", lease = leases)]
    async fn buy(order: Vec<(u64, u32)>) -> Result<(Vec<bool>, u32), Error> {
        assert!(leases.fencing_token("goods:2").is_some() && leases.is_held());
        let bought = order.into_iter().map(|(_, count)| count).sum();
        Ok((held(&["goods:1", "goods:2", "goods:3"]).await?, bought))
    }

    #[distributed_lock(keys = ids, lease = leases)]
    async fn of_a_slice(ids: &[String]) -> Result<(usize, usize), Error> {
        Ok((leases.iter().count(), ids.len()))
    }

    #[distributed_lock(keys = &ids, lease = leases)]
    async fn of_a_borrowed_argument(ids: Vec<&str>) -> Result<(usize, usize), Error> {
        Ok((leases.iter().count(), ids.join("").len()))
    }

    #[distributed_lock(keys = ids, lease = leases)]
    async fn of_an_argument_that_the_body_needs_not(
        ids: impl IntoIterator<Item = &'static str>,
    ) -> Result<usize, Error> {
        Ok(leases.iter().count())
    }

    struct Cart {
        goods: Vec<u64>,
        locks: LockManager,
    }

    impl Cart {
        fn keys(&self) -> impl Iterator<Item = String> + '_ {
            self.goods.iter().map(|id| format!("goods:{id}"))
        }

        #[distributed_lock(keys = self.keys(), manager = self.locks, lease = leases)]
        async fn empty(&mut self) -> Result<usize, Error> {
            self.goods.clear();
            Ok(leases.iter().count())
        }
    }

    #[tokio::test]
    async fn every_key_of_the_collection_is_held() -> Result<(), Error> {
        let manager = LockManager::in_memory();
        let order = vec![(1, 10), (2, 20)];
        assert_eq!(manager.scope(buy(order)).await?, (vec![true, true, false], 30));
        assert_eq!(manager.scope(of_a_slice(&["a".into(), "b".into()])).await?, (2, 2));
        assert_eq!(manager.scope(of_a_borrowed_argument(vec!["a", "b", "a"])).await?, (2, 3));
        assert_eq!(manager.scope(of_an_argument_that_the_body_needs_not(["a"])).await?, 1);
        assert_eq!(Cart { goods: vec![1, 2], locks: manager }.empty().await?, 2);
        Ok(())
    }

    #[tokio::test]
    async fn empty_collection_is_an_error_and_the_body_does_not_run() {
        let error = LockManager::in_memory().scope(of_a_slice(&[])).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid(Argument::Keys));
    }

    #[test]
    fn what_the_keys_are_made_of_does_not_live_on_in_the_future() {
        #[distributed_lock(keys = std::rc::Rc::new([id.to_string()]).iter())]
        async fn of_an_rc(id: u8) -> Result<(), Error> {
            Ok(())
        }

        fn assert_send<T: Send>(_: T) {}
        assert_send(of_an_rc(1));
    }
}

/// A template and `key::join` are one rule.
mod parts {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// What clients send who want another's key.
    const HOSTILE: [&str; 16] = [
        "",
        "7",
        ":",
        "::",
        "%",
        "%%",
        "a:b",
        "a:",
        ":a",
        "50%",
        "%31",
        "%3A",
        "%25",
        "a b",
        "\u{1f980}",
        "a\0\r\n<{}>",
    ];

    #[distributed_lock(key = "goods:<id>", lease = lease)]
    async fn one(id: &str) -> Result<String, Error> {
        Ok(lease.key().to_owned())
    }

    #[distributed_lock(keys = ["sale:<shop>:<id.trim_end_matches('!')>"], lease = leases)]
    async fn of_a_list(shop: &str, id: &str) -> Result<String, Error> {
        Ok(leases.iter().map(lock_core::Lease::key).collect())
    }

    #[distributed_lock(key = "sale-<shop>:50%25:{<id>}", lease = lease)]
    async fn with_text_around(shop: &str, id: &str) -> Result<String, Error> {
        Ok(lease.key().to_owned())
    }

    #[distributed_lock(key = format!("goods:{id}"), lease = lease)]
    async fn raw(id: &str) -> Result<String, Error> {
        Ok(lease.key().to_owned())
    }

    #[tokio::test]
    async fn key_of_a_template_is_that_of_its_parts_joined() -> Result<(), Error> {
        let all = async {
            for id in HOSTILE {
                assert_eq!(one(id).await?, key::join(["goods", id]));
                assert_eq!(raw(id).await?, format!("goods:{id}"), "an expression is the key as it stands");
                for shop in HOSTILE {
                    assert_eq!(of_a_list(shop, id).await?, key::join(["sale", shop, id]));
                    let (dashed, tag) = (format!("sale-{shop}"), format!("{{{id}}}"));
                    assert_eq!(with_text_around(shop, id).await?, key::join([dashed.as_str(), "50%", &tag]));
                }
            }
            assert_eq!(one("7").await?, "goods:7");
            assert_eq!(one("a:b").await?, "goods:a%3Ab");
            Ok(())
        };
        LockManager::in_memory().scope(all).await
    }

    #[tokio::test]
    async fn two_values_never_make_the_key_of_two_others() -> Result<(), Error> {
        let all = async {
            let mut seen = HashMap::new();
            for (shop, id) in HOSTILE.iter().flat_map(|shop| HOSTILE.map(|id| (*shop, id))) {
                if let Some(other) = seen.insert(of_a_list(shop, id).await?, (shop, id)) {
                    panic!("{other:?} and {:?} make one key", (shop, id));
                }
            }
            Ok(())
        };
        LockManager::in_memory().scope(all).await
    }

    proptest! {
        #[test]
        fn any_values_are_joined_as_by_hand(shop in "[:%a0-9A\\PC]{0,8}", id in "[:%a0-9A\\PC]{0,8}") {
            let runtime = tokio::runtime::Builder::new_current_thread().build()?;
            let made = runtime.block_on(LockManager::in_memory().scope(of_a_list(&shop, &id)));
            prop_assert_eq!(made.map_err(|error| error.to_string()), Ok(key::join(["sale", &shop, id.trim_end_matches('!')])));
        }
    }
}
