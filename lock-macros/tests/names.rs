//! Names in the user's code that those of the expansion could collide with.

use lock_core::{Error, LockManager, distributed_lock};

#[distributed_lock(key = "<guard>:<key>:<ttl>:<manager>:<request>:<__lock_acquire>", ttl = "3s", lease = __x)]
#[allow(clippy::too_many_arguments)]
async fn internal_names(
    guard: u8,
    key: u8,
    ttl: u8,
    lease: u8,
    manager: u8,
    request: u8,
    client: u8,
    __lock_acquire: u8,
) -> Result<String, Error> {
    let sum = guard + key + ttl + lease + manager + request + client + __lock_acquire;
    Ok(format!("{} {sum}", __x.key()))
}

#[tokio::test]
async fn bad_input_58_arguments_may_have_the_names_that_the_expansion_uses() -> Result<(), Error> {
    let text = LockManager::in_memory().scope(internal_names(1, 2, 3, 4, 5, 6, 7, 8)).await?;
    assert_eq!(text, "1:2:3:5:6:8 36");
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
