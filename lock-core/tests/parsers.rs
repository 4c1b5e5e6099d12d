//! What users give as text: keys, URLs, handovers. Nothing panics, whatever they give; `PROPTEST_CASES` tries more.
#![cfg(feature = "redis")]

use std::time::Duration;

use lock_core::{Handover, LockManager, backend::RedisBackend, key::LockKey};
use proptest::{prelude::*, sample::select};

/// Anything, often with what matters to one of the parsers.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        select(vec![
            "{",
            "}",
            "lock-core:",
            "{0}lock-core:fence",
            "goods:1",
            ":",
            "\0",
            "\r\n",
            " ",
            "\u{e9}",
            "e\u{301}",
            "%",
            "lock-core-handover:1:",
            "3000:",
            "lock-core:1:",
            "00000000000000000000000000000000",
        ])
        .prop_map(str::to_owned),
        ".{0,12}",
        "[a-f0-9]{32}",
        "[a-z]{0,400}",
    ];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

/// URLs that are nearly right, with a password that must not be seen anywhere.
fn url() -> impl Strategy<Value = String> {
    let part = |parts: &'static [&'static str]| select(parts.to_vec());
    let parts = (
        part(&["", "redis", "rediss", "unix", "redis+unix", "valkey", "memory", "http", "REDIS", "re dis", "\u{e9}"]),
        part(&["", ":", ":/", "://", ":///", "//"]),
        part(&["", "hunter2@", ":hunter2@", "user:hunter2@", "user:hunter2%40@", "hunter2:@", "%zz:hunter2@", "@"]),
        part(&["", "localhost", "127.0.0.1", "[::1]", "[::1", "a b", "\u{e9}.example", "..", "-"]),
        part(&["", ":", ":6379", ":0", ":65536", ":-1", ":port", ":6379:6379"]),
        part(&["", "/", "/0", "/99", "/-1", "/x", "/99999999999999999999", "/tmp/s?db=1&pass=swordfish", "//"]),
        part(&["", "?", "?protocol=resp3", "?db=x&pass=swordfish", "?=&&", "#insecure", "#x", "?protocol=9"]),
    );
    let whole = parts.prop_map(|(a, b, c, d, e, f, g)| [a, b, c, d, e, f, g].concat());
    prop_oneof![5 => whole, 1 => text()]
}

/// What was found to matter, and is tried each time.
const KEYS: &[&str] =
    &["", " ", "{", "{}lock-core:", "{a}lock-core:x", "lock-core:x", "{}}lock-core:", "\0", "\u{202e}"];
const URLS: &[&str] = &[
    "unix://:hunter2@/socket",
    "user:hunter2@redis://localhost",
    "redis+unix://user:hunter2@/socket",
    "unix:///run/redis@1.sock?pass=swordfish",
    "redis://:hunter2@",
    "redis://hunter2@[::1",
    "redis://%zz:hunter2@localhost",
    "redis://:hunter2@localhost:65536/x?=&&#",
];
const HANDOVERS: &[&str] = &[
    "",
    "lock-core-handover:1:",
    "lock-core-handover:1:3000:",
    "lock-core-handover:2:3000:lock-core:1:00000000000000000000000000000000:k",
    "lock-core-handover:1:3000:lock-core:1:0000000000000000000000000000000\u{e9}:k",
    "lock-core-handover:1:18446744073709551616:lock-core:1:00000000000000000000000000000000:k",
    "lock-core-handover:1:+3000:lock-core:1:00000000000000000000000000000000:k",
];

fn key_is_checked(text: &str) -> Result<(), TestCaseError> {
    let side_key =
        text.starts_with('{') && text.split_once('}').is_some_and(|(_, rest)| rest.starts_with("lock-core:"));
    match LockKey::new(text) {
        Ok(key) => {
            prop_assert!((1..=1_024).contains(&text.len()) && !side_key);
            prop_assert_eq!((key.as_str(), key.wire()), (text, text), "unchanged");
            prop_assert!(!key.to_string().contains(char::is_control), "escaped where it is shown: {}", key);
        }
        Err(error) => {
            prop_assert!(text.is_empty() || text.len() > 1_024 || side_key, "{}", error);
            prop_assert!(!error.to_string().contains(char::is_control), "{}", error);
        }
    }
    Ok(())
}

fn handover_is_read_or_refused(text: &str) -> Result<(), TestCaseError> {
    if let Ok(handover) = text.parse::<Handover>() {
        let again = handover.reveal().parse::<Handover>();
        prop_assert!(again.is_ok_and(|again| again == handover), "{}", text);
        let end = format!(":{}", handover.key());
        prop_assert!(text.ends_with(&end));
    }
    Ok(())
}

fn url_shows_no_password(url: &str) -> Result<(), TestCaseError> {
    // A path may have an `@` in it, and is shown.
    let is_path = url.contains(":///");
    let builder = LockManager::builder().url(url);
    let shown = format!("{builder:?}");
    let shown = match builder.build() {
        Ok(manager) => format!("{shown} {manager:?}"),
        Err(error) => format!("{shown} {error} {error:?}"),
    };
    prop_assert!(is_path || !shown.contains("hunter2"), "{}: {}", url, shown);
    prop_assert!(!shown.contains("swordfish"), "{}: {}", url, shown);
    let _ = RedisBackend::from_url(url, "name", Duration::from_secs(1));
    Ok(())
}

#[test]
fn keys_urls_and_handovers_of_the_corpus_are_read_or_refused() {
    for url in URLS {
        url_shows_no_password(url).unwrap_or_else(|failure| panic!("{url:?}: {failure}"));
    }

    for key in KEYS {
        key_is_checked(key).unwrap_or_else(|failure| panic!("{key:?}: {failure}"));
    }
    for handover in HANDOVERS {
        handover_is_read_or_refused(handover).unwrap_or_else(|failure| panic!("{handover:?}: {failure}"));
        assert!(handover.parse::<Handover>().is_err() || handover.contains('+'), "{handover:?}");
    }
}

proptest! {
    #[test]
    fn any_key_is_taken_unchanged_or_refused(text in text()) {
        key_is_checked(&text)?;
    }

    #[test]
    fn any_handover_is_read_or_refused(text in text()) {
        handover_is_read_or_refused(&text)?;
    }

    #[test]
    fn a_handover_that_was_changed_on_its_way_is_read_or_refused(
        key in text(), ttl_ms in any::<u64>(), random in any::<u128>(), at in any::<prop::sample::Index>(), with in ".{0,3}",
    ) {
        let mut text = format!("lock-core-handover:1:{ttl_ms}:lock-core:1:{random:032x}:{key}");
        handover_is_read_or_refused(&text)?;
        let at = text.char_indices().map(|(at, _)| at).collect::<Vec<_>>()[at.index(text.chars().count())];
        text.replace_range(at..=at + text[at..].chars().next().map_or(0, |char| char.len_utf8() - 1), &with);
        handover_is_read_or_refused(&text)?;
    }

    #[test]
    fn any_url_is_read_or_refused_and_no_password_is_shown(url in url()) {
        url_shows_no_password(&url)?;
    }
}
