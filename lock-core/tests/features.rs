//! What is said where a feature is off; run by `.ci/run` with fewer features than the other tests.

use lock_core::LockManager;

fn refusal(url: &str) -> String {
    let error = LockManager::builder().url(url).build().expect_err("the feature is off");
    assert!(!format!("{error} {error:?}").contains("secret"), "no password in an error");
    error.to_string()
}

#[test]
#[cfg(all(feature = "redis", not(feature = "tls")))]
fn bad_input_29_a_tls_url_without_the_feature_is_an_error_that_names_it() {
    assert!(refusal("rediss://:secret@localhost").contains("feature `tls`"));
}

#[test]
#[cfg(not(feature = "redis"))]
fn a_redis_url_without_the_feature_is_an_error_that_names_it() {
    for url in ["redis://:secret@localhost", "rediss://:secret@localhost", "unix:///socket?pass=secret"] {
        assert!(refusal(url).contains("feature `redis`"), "{url}");
    }
}

#[test]
fn what_needs_no_feature_works_without_one() {
    assert!(LockManager::builder().url("memory://").build().is_ok());
    assert!(refusal("http://:secret@localhost").contains("unknown"));
}
