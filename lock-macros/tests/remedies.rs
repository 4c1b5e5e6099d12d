//! What a message says to write compiles, and does what was meant: each function here is the twin of a mistake in
//! `tests/ui/attribute`.

use std::time::Duration;

use lock_core::{Error, LockManager, distributed_lock};

/// Of `values_without_colon_between` and `values_with_other_text_between`.
#[distributed_lock(key = "goods:<shop>:<id>", lease = lease)]
async fn values_with_colon_between(shop: u64, id: u64) -> Result<String, Error> {
    Ok(lease.key().to_owned())
}

/// Of `values_in_a_list_without_colon_between`.
#[distributed_lock(keys = ["stock", "goods:<shop>:<id>"], lease = leases)]
async fn values_in_a_list(shop: u64, id: u64) -> Result<String, Error> {
    Ok(leases.iter().map(lock_core::Lease::key).collect::<Vec<_>>().join(" "))
}

/// Of `percent_in_template`.
#[distributed_lock(key = "sale:50%25:<id>", lease = lease)]
async fn percent(id: u64) -> Result<String, Error> {
    Ok(lease.key().to_owned())
}

/// Of `percent_in_lower_case`.
#[distributed_lock(key = "sale%3A<id>", lease = lease)]
async fn colon_in_a_part(id: u64) -> Result<String, Error> {
    Ok(lease.key().to_owned())
}

/// Of `percent_in_constant_key`, by an expression, which is raw.
#[distributed_lock(key = format!("sale of {percent}%"), lease = lease)]
async fn raw_percent(percent: u64) -> Result<String, Error> {
    Ok(lease.key().to_owned())
}

/// Of `value_without_display`.
#[derive(Debug)]
struct Id(u64);

#[distributed_lock(keys = ["goods:<id.0>", format!("goods:{id:?}")], lease = leases)]
async fn value_with_display(id: Id) -> Result<String, Error> {
    Ok(leases.iter().map(lock_core::Lease::key).collect::<Vec<_>>().join(" "))
}

/// Of `misspelt_argument_in_braces`, in both ways that the message names.
#[distributed_lock(keys = ["goods:<id>", "goods:{{goods_id}}"], lease = leases)]
async fn misspelt_in_braces(id: u64) -> Result<String, Error> {
    Ok(leases.iter().map(lock_core::Lease::key).collect::<Vec<_>>().join(" "))
}

fn refused(error: Error) -> String {
    error.code().to_owned()
}

/// Of `on_busy_call`, `on_busy_is_a_path`, `on_error_in_quotes` and `on_error_gives_another_type`.
#[distributed_lock(key = "goods:<id>", wait = "0s", on_error = refused)]
async fn function(id: u64) -> Result<u64, String> {
    Ok(id)
}

/// Of `on_busy_is_a_closure`, `on_error_is_no_function` and `on_error_of_no_arguments`.
#[distributed_lock(key = "goods:<id>", wait = "0s", on_error = |_| String::new())]
async fn closure(id: u64) -> Result<u64, String> {
    Ok(id)
}

/// Of `on_error_moves_what_the_body_needs` and `on_error_borrows_what_the_body_moves`.
#[distributed_lock(key = "goods:<id>", wait = "0s", on_error = {
    let id = id.clone();
    move |error| format!("{id}: {}", error.code())
})]
async fn clone_for_the_closure(id: String) -> Result<String, String> {
    Ok(id)
}

/// Of `skip_with_on_error_returns_number` and `returns_number`.
#[distributed_lock(key = "goods:<id>", wait = "0s", on_error = |_| 0)]
async fn number(id: u64) -> u64 {
    id
}

/// Of `returns_nothing`, in both ways that the message names.
#[distributed_lock(key = "goods:<id>", wait = "0s", on_error = |error| assert!(error.is_busy()))]
async fn nothing(id: u64) {
    assert_ne!(id, 7, "locked by the test");
}

#[distributed_lock(key = "goods:<id>", on_busy = skip, on_lost = cancel)]
async fn nothing_or_skipped(id: u64) {
    assert_ne!(id, 7, "locked by the test");
}

/// Of `returns_impl_future`.
#[distributed_lock(key = "goods:<id>")]
async fn no_future(id: u64) -> Result<u64, Error> {
    Ok(id)
}

/// Of `ttl_constant_of_another_type`, `ttl_of_seconds`, `ttl_with_suffix` and `wait_forever_in_quotes`.
const TTL: Duration = Duration::from_secs(3);

#[distributed_lock(key = "goods:<id>", ttl = TTL, wait = forever, max_hold = Duration::from_secs(id + 3), at_least = "1ms")]
async fn durations(id: u64) -> Result<u64, Error> {
    Ok(id)
}

/// Of `error_of_the_standard_library`: the two that hold any error.
#[distributed_lock(key = "goods:<id>", wait = "0s")]
async fn any_error(id: u64) -> anyhow::Result<u64> {
    anyhow::ensure!(id > 0, "no goods");
    Ok(id)
}

#[distributed_lock(key = "goods:<id>", wait = "0s")]
async fn io_error(id: u64) -> std::io::Result<u64> {
    Ok(id)
}

#[tokio::test]
async fn remedies_compile_and_do_what_was_meant() -> anyhow::Result<()> {
    let locks = LockManager::in_memory();
    let all = async {
        assert_eq!(values_with_colon_between(1, 2).await?, "goods:1:2");
        assert_eq!(values_in_a_list(1, 2).await?, "goods:1:2 stock");
        assert_eq!(percent(1).await?, "sale:50%25:1");
        assert_eq!(colon_in_a_part(1).await?, "sale%3A1");
        assert_eq!(raw_percent(50).await?, "sale of 50%");
        assert_eq!(value_with_display(Id(1)).await?, "goods:1 goods:Id(1)");
        assert_eq!(misspelt_in_braces(1).await?, "goods:1 goods:{goods_id}");
        assert_eq!((function(1).await, closure(1).await, number(1).await), (Ok(1), Ok(1), 1));
        assert_eq!((no_future(1).await?, durations(1).await?), (1, 1));
        assert_eq!((any_error(2).await?, io_error(2).await?), (2, 2));

        let _guard = locks.lock("goods:7").await?;
        assert_eq!(function(7).await, Err("lock_busy".to_owned()));
        assert_eq!(closure(7).await, Err(String::new()));
        assert_eq!(clone_for_the_closure("7".into()).await, Err("7: lock_busy".to_owned()));
        assert_eq!(number(7).await, 0);
        nothing(7).await;
        nothing_or_skipped(7).await;
        assert!(any_error(7).await.unwrap_err().downcast::<Error>()?.is_busy());
        assert_eq!(io_error(7).await.unwrap_err().kind(), std::io::ErrorKind::ResourceBusy);
        Ok(())
    };
    locks.scope(all).await
}
