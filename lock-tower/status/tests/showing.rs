//! What the page shows.

use std::time::Duration;

use axum::Router;
use lock_core::{
    LockManager,
    backend::{Answer, Backend, BackendError, Batch, MemoryBackend, Reply},
    key::LockKey,
};
use lock_status::Status;
use serde_json::Value;

use crate::{
    client::{get, look, mounted, post, releasing, send, two},
    support::{serve, until, until_waited_for},
};

#[tokio::test]
async fn holders_and_waiters_of_all_processes_are_shown_wherever_it_is_mounted() {
    let [one, two] = two().await;
    let _guard = two.lock("goods:1").label("sell").await.unwrap();
    let waits = tokio::spawn(one.lock("goods:1").label("order").wait_forever().acquire());
    until_waited_for(&two, "goods:1").await;
    let address = mounted(Status::new(one.clone())).await;
    for target in ["/locks", "/locks/", "/locks/a/b", "/locks?prefix=goods"] {
        let page = get(address, target).await;
        assert_eq!(page.status, 200, "{target}");
        for part in [
            "<code>goods:1</code>",
            "&lt;b&gt;two&lt;/b&gt;",
            "<code>sell</code>",
            "<code>order</code>",
            "1 request waiting",
        ] {
            assert!(page.body.contains(part), "{target}: {part}: {}", page.body);
        }
        assert!(!page.body.contains("<b>two") && !page.body.contains("?release"), "{}", page.body);
    }
    assert!(!get(address, "/locks?prefix=x").await.body.contains("goods"));
    let routed = serve(Router::new().route_service("/ops/locks", Status::new(one))).await;
    assert!(get(routed, "/ops/locks?order=key").await.body.contains("<code>goods:1</code>"));
    waits.abort();
}

#[tokio::test]
async fn a_process_that_does_not_answer_is_said_to_be_missing() {
    let store = MemoryBackend::new();
    let of = |name| LockManager::builder().backend(store.clone()).client_name(name).build().unwrap();
    let (one, two) = (of("one"), of("two"));
    let _guard = one.lock("goods:1").await.unwrap();
    // It listens, and its runtime is driven no further.
    let stopped = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            two.is_locked("begin").await.unwrap();
            tokio::task::yield_now().await;
        });
        (runtime, two)
    });
    let (runtime, _two) = stopped.join().unwrap();
    let address = releasing(&one).await;
    let page = look(address, "/locks").await.body;
    assert!(
        page.contains("<b>1 of 2 processes did not answer</b>; its holders and waiters are missing here."),
        "{page}"
    );
    assert!(page.contains("No process that answered waits") && !page.contains("Nobody waits"), "{page}");
    let key = &look(address, "/locks?format=json").await.json()["keys"][0];
    assert_eq!((&key["processes"]["asked"], &key["processes"]["answered"]), (&2.into(), &1.into()));
    runtime.shutdown_background();
}

#[tokio::test]
async fn all_who_share_a_key_and_the_modes_of_all_who_wait_are_shown() {
    let [one, two] = two().await;
    let first = one.lock("goods:1").label("first").shared().await.unwrap();
    let _second = two.lock("goods:1").label("second").shared().await.unwrap();
    let writes = tokio::spawn(one.lock("goods:1").label("writer").wait_forever().acquire());
    until_waited_for(&two, "goods:1").await;
    let reads = tokio::spawn(two.lock("goods:1").label("reader").shared().wait_forever().acquire());
    let mut both = false;
    for _ in 0..1_000 {
        both = one.inspect("goods:1").await.unwrap().waiters().len() == 2;
        if both {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(both, "two wait");
    let address = releasing(&one).await;
    let page = get(address, "/locks").await.body;
    for part in
        ["<code>first</code> (shared)", "and 1 other", "<code>second</code> (shared)", "<code>reader</code> (shared)"]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(page.contains("<code>writer</code>") && !page.contains("<code>writer</code> ("), "{page}");
    let confirmation = get(address, "/locks?release=goods:1").await.body;
    assert!(confirmation.contains("The leases of all its holders end."), "{confirmation}");
    writes.abort();
    reads.abort();
    first.release().await.unwrap();
}

#[tokio::test]
async fn leases_for_which_nobody_answers_are_shown_beside_those_that_answer() {
    let [one, two] = two().await;
    let ttl = Duration::from_secs(60);
    let lock = |key: &str| one.lock(key).ttl(ttl);
    let _reader = lock("shared").shared().await.unwrap();
    // As if their processes had died: none has them until they are taken up.
    let first = lock("shared").shared().await.unwrap().hand_over().unwrap();
    let address = releasing(&two).await;
    let alone = "<b>1 more lease did not answer</b>: its holder has died, is stopped or is cut off, or cannot use messages, or the \
                 lease is between two holders. It counts until its own ttl is over, in ";
    for target in ["/locks", "/locks?release=shared"] {
        let page = get(address, target).await.body;
        assert!(page.contains(alone) && page.contains("\u{a0}s at the latest.</p>"), "{page}");
    }
    assert!(get(address, "/locks").await.body.contains("<li class=bad><h3><code>shared</code>"));
    assert!(get(address, "/locks?release=shared").await.body.contains("The leases of all its holders end."));
    let key = get(address, "/locks?format=json").await.json()["keys"][0].clone();
    assert_eq!((&key["leases"], key["holders"].as_array().map(Vec::len)), (&2.into(), Some(1)));
    assert_eq!((&key["silent"]["leases"], &key["silent"]["permits"]), (&1.into(), &0.into()));
    let ends = |name: &str| key["silent"][name].as_u64().unwrap();
    assert!(0 < ends("first_end_ms") && ends("first_end_ms") <= ends("last_end_ms") && ends("last_end_ms") <= 60_000);
    drop(first);

    let _permit = lock("permits").permits(9).await.unwrap();
    let several = [
        lock("permits").permits(9).take(3).await.unwrap().hand_over().unwrap(),
        lock("permits").permits(9).await.unwrap().hand_over().unwrap(),
    ];
    let silent = [
        lock("silent").shared().await.unwrap().hand_over().unwrap(),
        lock("silent").shared().await.unwrap().hand_over().unwrap(),
    ];
    let keys = get(releasing(&two).await, "/locks?format=json&order=key").await.json()["keys"].clone();
    let mode = |key: usize| ["mode", "permits", "total"].map(|name| keys[key]["holders"][0][name].clone());
    assert_eq!(keys[0]["key"], "permits");
    assert_eq!(mode(0), [Value::from("permits"), 1.into(), 9.into()]);
    assert_eq!(mode(1), [Value::from("shared"), 0.into(), 0.into()]);
    let page = get(address, "/locks?release=permits").await.body;
    assert!(page.contains("<b>2 more leases with 4 permits did not answer</b>: their holders have died, "), "{page}");
    let nobody = get(address, "/locks?release=silent").await.body;
    assert!(nobody.contains("<b>nobody answered</b>") && nobody.contains("<p>It has <b>2 leases</b>.</p>"), "{nobody}");
    drop((several, silent));
}

#[tokio::test]
async fn every_answer_forbids_scripts_frames_and_copies() {
    let manager = LockManager::in_memory();
    let address = releasing(&manager).await;
    let targets =
        ["/locks", "/locks?format=json", "/locks?style=1", "/locks?release=k", "/locks?release=k&format=json"];
    for target in targets {
        let answer = get(address, target).await;
        assert_eq!(answer.status, 200, "{target}");
        let policy = "content-security-policy: default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; \
                      frame-ancestors 'none'\r\n";
        let lines =
            [policy, "cache-control: no-store\r\n", "x-frame-options: deny\r\n", "x-content-type-options: nosniff\r\n"];
        for line in lines {
            assert!(format!("{}\r\n", answer.head).contains(line), "{target}: {line}: {}", answer.head);
        }
        assert!(!answer.body.contains("<script") && !answer.body.contains("//"), "{target}: {}", answer.body);
    }
    let refused = send(address, "DELETE", "/locks", &[]).await;
    assert_eq!(refused.status, 405);
    assert!(
        refused.head.contains("\r\nallow: get, head, post") && refused.head.contains("no-store"),
        "{}",
        refused.head
    );
    let head = send(address, "HEAD", "/locks", &[]).await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}

#[tokio::test]
async fn json_has_the_fields_that_the_documentation_shows() {
    let manager = LockManager::builder().url("memory://").client_name("shop").build().unwrap();
    let guard = manager.lock("goods:1").label("sell").ttl(Duration::from_secs(600)).await.unwrap();
    let waits = tokio::spawn(manager.lock("goods:1").label("sell").wait_forever().acquire());
    until_waited_for(&manager, "goods:1").await;
    let address = mounted(Status::new(manager.clone())).await;
    let shown = get(address, "/locks?format=json").await;
    assert!(shown.head.contains("content-type: application/json"), "{}", shown.head);
    let shown = shown.json();
    let (mut shown, mut documented) = (shown, documented());
    // Not in every look; there is a test for each.
    for part in ["rates", "missed"] {
        assert!(
            [&mut shown, &mut documented]
                .map(|value| value.as_object_mut().unwrap().remove(part))
                .iter()
                .all(Option::is_some)
        );
    }
    assert_eq!(shape(&shown), shape(&documented));
    let key = &shown["keys"][0];
    assert_eq!((key["key"].as_str(), key["holders"][0]["service"].as_str()), (Some("goods:1"), Some("shop")));
    assert_eq!(key["holders"][0]["fencing_token"].as_u64(), Some(guard.fencing_token().get()));
    assert_eq!((key["holders"][0]["ttl_ms"].as_u64(), key["waiters"][0]["place"].as_u64()), (Some(600_000), Some(1)));
    let accepted = send(address, "GET", "/locks?prefix=x", &["accept: application/json"]).await.json();
    assert_eq!((accepted["matching"].as_u64(), accepted["keys"].as_array().map(Vec::len)), (Some(0), Some(0)));
    waits.abort();
}

/// The JSON of the documentation.
pub(super) fn documented() -> Value {
    let source = include_str!("../src/lib.rs");
    let json = source.split("```json\n").nth(1).unwrap().split("//! ```").next().unwrap().replace("//!", "");
    serde_json::from_str(&json).unwrap()
}

/// The names of all fields, with the kinds of their values.
pub(super) fn shape(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, value)| shape(value).into_iter().map(move |rest| format!("{name}.{rest}")))
            .collect(),
        Value::Array(items) => items.iter().flat_map(shape).map(|rest| format!("[].{rest}")).collect(),
        // A number or none, as of a renewal that has not been.
        Value::Number(_) | Value::Null => vec!["number".to_owned()],
        Value::String(_) => vec!["text".to_owned()],
        Value::Bool(_) => vec!["bool".to_owned()],
    }
}

#[tokio::test]
async fn losses_and_slack_of_the_process_are_shown() {
    let manager = LockManager::in_memory();
    let lock = manager.lock("k").ttl(Duration::from_secs(600)).renew_every(Duration::from_millis(20));
    let _guard = lock.await.unwrap();
    until("a renewal", async || manager.health().renewal_slack().is_some()).await;
    manager.force_release("k").await.unwrap();
    let address = mounted(Status::new(manager)).await;
    let body = get(address, "/locks").await.body;
    assert!(body.contains("1 released by force") && !body.contains("nothing renewed"), "{body}");
    let json = get(address, "/locks?format=json").await.json();
    assert_eq!(json["manager"]["lost"]["forced"].as_u64(), Some(1));
    assert!(json["manager"]["renewal_slack_ms"].as_u64().is_some_and(|slack| slack < 600_000), "{json}");
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_shown_as_such() {
    let manager = LockManager::in_memory();
    let address = releasing(&manager).await;
    manager.shutdown(Duration::ZERO).await;
    for target in ["/locks", "/locks?release=k", "/locks?format=json", "/locks?release=k&format=json"] {
        let answer = get(address, target).await;
        assert_eq!(answer.status, 503, "{target}");
        assert!(answer.body.contains("shut down"), "{target}: {}", answer.body);
    }
    assert!(get(address, "/locks").await.body.contains("Backend: <b class=bad>down</b>"));
    assert_eq!(get(address, "/locks?format=json").await.json()["manager"]["up"], false);
    assert_eq!(post(address, "?release=k").await.status, 503);
}

/// A store that answers each request with one error.
#[derive(Debug)]
struct Refusing(fn() -> BackendError);

impl Backend for Refusing {
    fn call(&self, _batch: Batch) -> Reply<Answer> {
        Reply::ready(Err(self.0()))
    }

    fn list(&self, _prefix: String) -> Reply<Vec<LockKey>> {
        Reply::ready(Err(self.0()))
    }
}

#[tokio::test]
async fn a_store_that_refuses_the_user_is_a_mistake_of_the_service_and_not_an_outage() {
    let refusals: [(fn() -> BackendError, u16); 3] = [
        (|| BackendError::unavailable("it is down"), 503),
        (|| BackendError::denied("no permissions to run the 'scan' command"), 500),
        (|| BackendError::unsupported("it has no such command"), 500),
    ];
    for (refusal, status) in refusals {
        let manager = LockManager::builder().backend(Refusing(refusal)).build().unwrap();
        let address = releasing(&manager).await;
        for target in ["/locks", "/locks?format=json", "/locks?release=k", "/locks?release=k&format=json"] {
            assert_eq!(get(address, target).await.status, status, "{target}: {}", refusal());
        }
    }
}

#[tokio::test]
async fn ten_thousand_keys_are_shown_in_pages() {
    let manager = LockManager::in_memory();
    let mut guards = Vec::new();
    for number in 0..10_000 {
        // The thread does nothing else meanwhile, also where that takes longer than the usual ttl.
        let lock = manager.lock(format!("goods:{number:05}")).label("sell").ttl(Duration::from_secs(600));
        guards.push(lock.await.unwrap());
    }
    let address = releasing(&manager).await;
    let first = get(address, "/locks").await.body;
    assert!(first.contains("These are the 200 with the longest") && first.contains("All 10,000 keys"), "{first}");
    assert!(first.contains("<b>A process has more than 500 holders and waiters</b>"), "{first}");
    assert!(!first.contains("too many keys"), "keys with a known holder come first");
    assert!(first.len() < 200_000, "{} bytes", first.len());
    let mut target = "/locks?order=key&format=json&prefix=goods:".to_owned();
    let (mut seen, mut pages) = (Vec::new(), 0);
    loop {
        let page = get(address, &target).await.json();
        assert_eq!(page["matching"], 10_000);
        seen.extend(page["keys"].as_array().unwrap().iter().map(|key| key["key"].as_str().unwrap().to_owned()));
        pages += 1;
        match page["next"].as_str() {
            Some(next) => target = format!("/locks?format=json&prefix=goods:&after={next}"),
            None => break,
        }
    }
    assert_eq!((pages, seen.len()), (50, 10_000));
    assert!(seen.is_sorted());
    let page = get(address, "/locks?after=goods:00199").await.body;
    assert!(page.contains("goods:00200") && page.contains("?after=goods%3A00399\">The next keys"));
    assert!(page.contains("too many keys"), "{page}");
    // A key that the list does not describe is asked about alone.
    let confirmation = get(address, "/locks?release=goods:00200").await.body;
    assert!(confirmation.contains("<code>sell</code>"), "{confirmation}");
}

#[tokio::test]
async fn a_page_that_reloads_itself_says_so_and_a_confirmation_does_not() {
    let manager = LockManager::in_memory();
    let _guard = manager.lock("k").await.unwrap();
    let address = releasing(&manager).await;
    let tag = "<meta http-equiv=refresh content=5>";
    assert!(!get(address, "/locks").await.body.contains("http-equiv"));
    assert!(get(address, "/locks?refresh=5").await.body.contains(tag));
    assert!(!get(address, "/locks?release=k&refresh=5").await.body.contains("http-equiv"));
}
