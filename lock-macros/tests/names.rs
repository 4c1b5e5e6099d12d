//! Names in the user's code that those of the expansion could collide with.

use lock_core::{Error, LockManager, distributed_lock};

/// The names of the words that the arguments of the attribute and its documentation use.
#[distributed_lock(key = "<guard>:<key>:<ttl>:<manager>:<request>", ttl = "3s", lease = __x)]
async fn plain_names(
    guard: u8,
    key: u8,
    ttl: u8,
    lease: u8,
    manager: u8,
    request: u8,
    client: u8,
) -> Result<String, Error> {
    let sum = guard + key + ttl + lease + manager + request + client;
    Ok(format!("{} {sum}", __x.key()))
}

/// The very names that the expansion gives to its variables, in the body, where they would be shadowed.
#[distributed_lock(
    key = "<__lock_acquired>:<__lock_guard>:<__lock_refuse>:<__lock_lose>:<__lock_value>:<__lock_error>:<__lock_acquire>",
    ttl = "3s", on_lost = cancel, lease = lease
)]
async fn variables_of_the_expansion(
    __lock_acquired: u8,
    __lock_guard: u8,
    __lock_refuse: u8,
    __lock_lose: u8,
    __lock_value: u8,
    __lock_error: u8,
    __lock_acquire: u8,
) -> Result<String, Error> {
    let early = __lock_acquired + __lock_guard + __lock_refuse + __lock_lose;
    let sum = early + __lock_value + __lock_error + __lock_acquire;
    Ok(format!("{} {sum}", lease.key()))
}

/// The names of the variables for values that are given. A value behind another one, and the key, would see that one instead.
#[distributed_lock(
    key = "<__lock_ttl>:<__lock_wait>:<__lock_max_hold>:<__lock_at_least>:<__lock_request>",
    ttl = seconds(__lock_at_least), wait = seconds(__lock_ttl), max_hold = seconds(__lock_wait) * 1_000,
    at_least = seconds(__lock_max_hold), lease = lease
)]
async fn variables_of_given_times(
    __lock_ttl: u8,
    __lock_wait: u8,
    __lock_max_hold: u8,
    __lock_at_least: u8,
    __lock_request: u8,
) -> Result<String, Error> {
    let sum = __lock_ttl + __lock_wait + __lock_max_hold + __lock_at_least + __lock_request;
    Ok(format!("{} {:?} {sum}", lease.key(), lease.ttl()))
}

#[distributed_lock(
    key = "<__lock_permits>:<__lock_take>", ttl = "3s", permits = total(__lock_take), take = total(__lock_permits),
    lease = lease
)]
async fn variables_of_permits(__lock_permits: u8, __lock_take: u8) -> Result<String, Error> {
    Ok(format!("{} {:?} {}", lease.key(), lease.mode(), __lock_permits + __lock_take))
}

#[distributed_lock(
    key = "<__lock_replicas>:<__lock_replicas_timeout>", ttl = "3s", replicas = total(__lock_replicas_timeout),
    replicas_timeout = seconds(__lock_replicas), lease = lease
)]
async fn variables_of_replicas(__lock_replicas: u8, __lock_replicas_timeout: u8) -> Result<String, Error> {
    Ok(format!("{} {}", lease.key(), __lock_replicas + __lock_replicas_timeout))
}

fn seconds(count: u8) -> std::time::Duration {
    std::time::Duration::from_secs(count.into())
}

fn total(count: u8) -> u32 {
    count.into()
}

#[tokio::test(start_paused = true)]
async fn bad_input_58_arguments_may_have_the_names_that_the_expansion_uses() -> Result<(), Error> {
    let manager = LockManager::in_memory();
    assert_eq!(manager.scope(plain_names(1, 2, 3, 4, 5, 6, 7)).await?, "1:2:3:5:6 28");
    let text = manager.scope(variables_of_the_expansion(1, 2, 3, 4, 5, 6, 7)).await?;
    assert_eq!(text, "1:2:3:4:5:6:7 28");
    assert_eq!(manager.scope(variables_of_given_times(1, 2, 3, 4, 5)).await?, "1:2:3:4:5 4s 15");
    let text = manager.scope(variables_of_permits(2, 5)).await?;
    assert_eq!(text, "2:5 Permits { total: 5, take: 2 } 7");
    assert_eq!(manager.scope(variables_of_replicas(1, 2)).await?, "1:2 3");
    Ok(())
}

mod shadowed {
    #![allow(dead_code, non_camel_case_types, unused_macros)]

    struct Result;
    struct Option;
    struct String;
    struct Ok;
    struct Err;
    struct Some;
    struct None;
    struct Duration;
    struct LockManager;
    struct u64;
    trait From {}
    trait Send {}
    mod std {}
    mod core {}
    mod lock_core {}
    macro_rules! format {
        () => {};
    }
    macro_rules! unreachable {
        () => {};
    }

    #[::lock_core::distributed_lock(
        key = "<id>", ttl = "3s", wait = "1s", max_hold = "1h", renew = false, manager = manager, lease = lease
    )]
    pub(super) async fn run(
        id: u8,
        manager: &::lock_core::LockManager,
    ) -> ::core::result::Result<::std::string::String, ::lock_core::Error> {
        ::core::result::Result::Ok(::std::borrow::ToOwned::to_owned(lease.key()))
    }
}

#[tokio::test]
async fn names_of_the_prelude_may_be_taken() -> Result<(), Error> {
    assert_eq!(shadowed::run(3, &LockManager::in_memory()).await?, "3");
    Ok(())
}

/// Where a pattern is the name of a constant or a static, it binds nothing.
mod constants {
    #![allow(non_upper_case_globals, dead_code)]

    macro_rules! taken {
        ($kind:tt) => {
            taken!($kind refuse lose acquire acquired guard value error request manager key text by ttl
                wait max_hold at_least on_error duration);
        };
        ($kind:tt $($name:ident)*) => {
            $($kind $name: u8 = 1;)*
        };
    }

    taken!(const);

    pub(super) mod statics {
        taken!(static);

        #[lock_core::distributed_lock(keys = ["<id>", "b"], ttl = "3s", on_busy = skip, on_lost = finish)]
        pub(in super::super) async fn several(id: u8) -> Result<Option<u8>, lock_core::Error> {
            Ok(Some(id))
        }
    }

    const TIME: std::time::Duration = std::time::Duration::from_secs(60);

    fn refused(_: lock_core::Error) -> u8 {
        0
    }

    #[lock_core::distributed_lock(key = "<id>", ttl = "3s", wait = "1s", max_hold = "1h", at_least = "1ms")]
    pub(super) async fn one(id: u8) -> Result<u8, lock_core::Error> {
        Ok(id)
    }

    #[lock_core::distributed_lock(
        key = "<id>", ttl = TIME, wait = TIME, max_hold = TIME, at_least = TIME / 60_000, on_error = move |_| id,
        lease = lease
    )]
    pub(super) async fn closure(id: u8) -> u8 {
        id + u8::from(lease.is_held())
    }

    #[lock_core::distributed_lock(key = "<id>", on_error = refused, lease = lease)]
    pub(super) async fn called(id: u8) -> u8 {
        id + u8::from(lease.is_held())
    }
}

#[tokio::test]
async fn constants_and_statics_may_have_any_name() -> Result<(), Error> {
    let manager = LockManager::in_memory();
    assert_eq!(manager.scope(constants::one(3)).await?, 3);
    assert_eq!(manager.scope(constants::called(4)).await, 5);
    assert_eq!(manager.scope(constants::closure(6)).await, 7);
    assert_eq!(manager.scope(constants::statics::several(5)).await?, Some(5));
    Ok(())
}

mod without_a_prelude {
    #![no_implicit_prelude]

    #[::lock_core::distributed_lock(
        keys = ["<id>", "b:<id>"], at_least = "1ms", on_busy = skip, on_lost = finish, manager = manager, lease = leases
    )]
    pub(super) async fn several(id: u8, manager: &::lock_core::LockManager) -> ::core::option::Option<usize> {
        ::core::option::Option::Some(::core::iter::Iterator::count(leases.iter()))
    }

    #[::lock_core::distributed_lock(key = "<id>", on_error = refused)]
    pub(super) async fn one(id: u8) -> bool {
        id == 3
    }

    fn refused(_: ::lock_core::Error) -> bool {
        false
    }
}

#[tokio::test]
async fn prelude_may_be_left_out() -> Result<(), Error> {
    let manager = LockManager::in_memory();
    assert_eq!(without_a_prelude::several(4, &manager).await, Some(2));
    assert!(manager.scope(without_a_prelude::one(3)).await);
    Ok(())
}

#[distributed_lock(
    keys = ["<keys>", "<error>"], on_error = refused, on_lost = finish, at_least = "1ms", lease = leases
)]
async fn names_of_the_policies(
    refuse: u8,
    lose: u8,
    keys: u8,
    error: u8,
    skip: u8,
    call: u8,
) -> Result<(usize, u8), Error> {
    Ok((leases.iter().count(), refuse + lose + keys + error + skip + call))
}

fn refused(error: Error) -> Result<(usize, u8), Error> {
    Err(error)
}

#[tokio::test]
async fn arguments_may_have_the_names_of_the_policies() -> Result<(), Error> {
    assert_eq!(LockManager::in_memory().scope(names_of_the_policies(1, 2, 3, 4, 5, 6)).await?, (2, 21));
    Ok(())
}

macro_rules! locked {
    ($name:ident, $key:literal, $ttl:literal) => {
        #[distributed_lock(key = $key, ttl = $ttl, lease = l)]
        async fn $name(id: u8) -> Result<String, Error> {
            Ok(format!("{} {id}", l.key()))
        }
    };
}

locked!(from_a_macro, "macro:<id>", "3s");

#[tokio::test]
async fn a_literal_from_outside_a_macro_names_the_arguments_inside() -> Result<(), Error> {
    assert_eq!(LockManager::in_memory().scope(from_a_macro(3)).await?, "macro:3 3");
    Ok(())
}
