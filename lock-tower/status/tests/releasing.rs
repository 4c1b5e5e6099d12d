//! How the page releases a key by force, and when it does not.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use lock_core::{
    LockManager, LossReason,
    backend::{Answer, Backend, BackendError, Batch, BusyReason, MemoryBackend, Operation, Outcome, Reply},
    key::LockKey,
};
use lock_status::Status;

use crate::{
    client::{get, mounted, post, releasing, send, two},
    support::{soon, until_waited_for},
};

#[tokio::test]
async fn keys_of_any_characters_are_text_and_can_be_released() {
    let manager = LockManager::in_memory();
    let address = releasing(&manager).await;
    let keys =
        ["<script>alert(1)</script>", "\"'><img src=x>", "a\r\nb\n", "50%?&=+#/;", "\u{202e}gnihton", "店 ü", " "];
    for key in keys {
        let guard = manager.lock(key).label("<script>").await.unwrap();
        let list = get(address, "/locks").await;
        assert!(
            !list.body.contains("<script") && !list.body.contains("<img") && !list.body.contains('\u{202e}'),
            "{key:?}"
        );
        let links: Vec<_> = list.body.split("href=\"").skip(1).filter(|link| link.starts_with("?release")).collect();
        assert_eq!(links.len(), 1, "{key:?}");
        let link = links[0].split_once('"').unwrap().0.replace("&amp;", "&");
        let confirmation = get(address, &format!("/locks{link}")).await;
        assert!(!confirmation.body.contains("<script") && !confirmation.body.contains("<img"), "{key:?}");
        let done = post(address, &confirmation.action()).await;
        assert!(done.status == 200 && done.body.contains("was released by force"), "{key:?}: {}", done.body);
        assert_eq!(guard.ended().await.loss(), Some(LossReason::Forced), "{key:?}");
    }
}

#[tokio::test]
async fn nothing_is_released_unless_that_is_allowed() {
    let manager = LockManager::in_memory();
    let guard = manager.lock("k").await.unwrap();
    let query = format!("?release=k&holder={}", guard.fencing_token().get());
    let address = mounted(Status::new(manager.clone())).await;
    for answer in [get(address, &format!("/locks{query}")).await, post(address, &query).await] {
        assert_eq!(answer.status, 405);
        assert!(answer.head.contains("\r\nallow: get, head\r\n"), "{}", answer.head);
    }
    // Where it is allowed, looking changes nothing, whatever the query says.
    let address = releasing(&manager).await;
    for method in ["GET", "HEAD"] {
        let answer = send(address, method, &format!("/locks{query}"), &["sec-fetch-site: same-origin"]).await;
        assert_eq!(answer.status, 200);
    }
    assert!(guard.is_held() && manager.is_locked("k").await.unwrap());
    assert!(post(address, &query).await.body.contains("was released by force"));
    assert!(!guard.is_held());
}

#[tokio::test]
async fn the_confirmation_names_key_holder_and_what_follows() {
    let [one, two] = two().await;
    let guard = two.lock("goods:1").label("sell").renew_every(Duration::from_millis(100)).await.unwrap();
    let waits = tokio::spawn(one.lock("goods:1").wait_forever().acquire());
    until_waited_for(&two, "goods:1").await;
    let address = releasing(&one).await;
    let page = get(address, "/locks?release=goods:1").await;
    let token = guard.fencing_token().to_string();
    let parts = [
        "<code>goods:1</code>",
        "&lt;b&gt;two&lt;/b&gt;",
        "<code>sell</code>",
        "What follows",
        "first of 1 request waiting",
        &token,
    ];
    for part in parts {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    assert!(post(address, &page.action()).await.body.contains("was released by force"));
    // The holder is another process, and finds out at its next renewal; the waiter gets the key.
    assert_eq!(soon(guard.ended()).await.loss(), Some(LossReason::Taken));
    let next = soon(waits).await.unwrap().unwrap();
    // The page that was shown before does not release the next holder.
    let again = post(address, &page.action()).await;
    assert_eq!(again.status, 409);
    assert!(
        again.body.contains("another holder than a moment ago") && again.body.contains("<b>one</b>"),
        "{}",
        again.body
    );
    assert!(next.is_held());
    let as_json = post(address, &format!("{}&format=json", page.action())).await;
    assert_eq!((as_json.status, as_json.json()["outcome"].as_str()), (409, Some("changed")));
    assert!(post(address, &again.action()).await.body.contains("was released by force"));
    assert!(!next.is_held());
    assert!(post(address, &again.action()).await.body.contains("is free"));
}

/// Readers who overlap have one fencing token in common.
#[tokio::test]
async fn the_release_of_a_reader_spares_the_next_one() {
    let [one, two] = two().await;
    let first = one.lock("k").shared().await.unwrap();
    let address = releasing(&one).await;
    let shown = get(address, "/locks?release=k").await;
    let next = two.lock("k").shared().renew_every(Duration::from_millis(100)).await.unwrap();
    assert_eq!(first.fencing_token(), next.fencing_token());
    first.release().await.unwrap();
    let answer = post(address, &shown.action()).await;
    assert_eq!(answer.status, 409, "{}", answer.body);
    assert!(post(address, &answer.action()).await.body.contains("was released by force"));
    assert_eq!(soon(next.ended()).await.loss(), Some(LossReason::Taken));
}

/// Nobody answers for a lease that was handed over and not taken up yet.
#[tokio::test]
async fn the_release_of_a_silent_reader_spares_the_next_silent_one() {
    let [one, two] = two().await;
    let silent = async |manager: &LockManager| manager.lock("k").shared().await.unwrap().hand_over().unwrap();
    let first = silent(&one).await;
    let address = releasing(&one).await;
    let shown = get(address, "/locks?release=k").await;
    let next = silent(&two).await;
    let answer = post(address, &shown.action()).await;
    assert_eq!(answer.status, 409, "{}", answer.body);
    for handover in [first, next] {
        assert!(two.take_up(handover).await.is_ok(), "it has its lease");
    }
}

#[tokio::test]
async fn a_release_that_was_not_answered_may_have_been_done() {
    let manager = LockManager::builder().backend(Unanswering(MemoryBackend::new())).build().unwrap();
    let _guard = manager.lock("k").await.unwrap();
    let address = releasing(&manager).await;
    let action = get(address, "/locks?release=k").await.action();
    let answer = post(address, &action).await;
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("it is not known whether the key was released"), "{}", answer.body);
    assert!(!answer.body.contains("Nothing was changed"), "{}", answer.body);
    assert!(post(address, &action).await.body.contains("is free"));
}

/// Releases by force, and does not say so.
#[derive(Debug)]
struct Unanswering(MemoryBackend);

impl Backend for Unanswering {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        let is_forced = batch.iter().any(|operation| matches!(operation, Operation::Force { .. }));
        let reply = self.0.call(batch);
        let silence = || BackendError::unavailable("silence");
        if is_forced { Reply::new(async move { reply.await.and(Err(silence())) }) } else { reply }
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        self.0.list(prefix)
    }
}

/// They have no name: only the end of their lock tells one from the next.
#[tokio::test]
async fn the_release_of_a_client_of_another_library_spares_the_next_one() {
    let theirs = Theirs::default();
    let lock = |seconds: Option<u64>| *theirs.0.lock().unwrap() = seconds.map(Duration::from_secs);
    let manager = LockManager::builder().backend(theirs.clone()).build().unwrap();
    let address = releasing(&manager).await;
    let shown = async || get(address, "/locks?release=k").await.action();
    for (first, next) in [(Some(600), Some(900)), (Some(600), Some(300)), (None, Some(600)), (Some(600), None)] {
        lock(first);
        let action = shown().await;
        lock(next);
        let answer = post(address, &action).await;
        assert!(answer.status == 409 && answer.body.contains("another holder than a moment ago"), "{}", answer.body);
    }
    for seconds in [Some(600), None] {
        lock(seconds);
        assert!(post(address, &shown().await).await.body.contains("was released by force"), "{seconds:?}");
    }
}

/// Each key is locked by another library, for the time that is left.
#[derive(Clone, Debug, Default)]
struct Theirs(Arc<Mutex<Option<Duration>>>);

impl Backend for Theirs {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        let remaining = *self.0.lock().unwrap();
        let outcome = |operation: &Operation| match operation {
            Operation::Force { .. } => Ok(Outcome::Released),
            _ => Ok(Outcome::Busy { remaining, by: BusyReason::Foreign, position: None }),
        };
        let answer = Answer::new(batch.iter().map(outcome));
        Reply::new(async { Ok(answer) })
    }

    fn list(&self, _: String) -> Reply<Vec<LockKey>> {
        Reply::new(async { Ok(Vec::new()) })
    }
}

#[tokio::test]
async fn forms_of_other_sites_are_refused() {
    let manager = LockManager::in_memory();
    let guard = manager.lock("k").await.unwrap();
    let address = releasing(&manager).await;
    let target = format!("/locks?release=k&holder={}", guard.fencing_token().get());
    let own = format!("origin: http://{address}");
    let refused: [&[&str]; 5] = [
        &[],
        &["sec-fetch-site: cross-site"],
        &["sec-fetch-site: same-site", &own],
        &["origin: null"],
        &["origin: http://evil.example"],
    ];
    for lines in refused {
        let answer = send(address, "POST", &target, lines).await;
        assert_eq!(answer.status, 403, "{lines:?}");
        assert!(guard.is_held(), "{lines:?}");
    }
    assert_eq!(send(address, "POST", "/locks", &[&own]).await.status, 400, "no key");
    assert_eq!(send(address, "POST", "/locks?release=", &[&own]).await.status, 400, "no valid key");
    assert_eq!(send(address, "POST", &target, &[&own]).await.status, 200);
    assert!(!guard.is_held());
}
