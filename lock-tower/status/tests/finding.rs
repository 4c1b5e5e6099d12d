//! How an operator finds out which locks these are, and finds a key among many.

use std::time::Duration;

use lock_core::{LockManager, backend::MemoryBackend};
use lock_status::Status;

use crate::{
    client::{get, mounted, post, releasing, two},
    showing::{documented, shape},
    support::{until, until_waited_for},
};

#[tokio::test]
async fn each_page_names_service_environment_and_prefix() {
    let manager = LockManager::builder().url("memory://").client_name("shop").prefix("stock:").build().unwrap();
    let _guard = manager.lock("goods:1").await.unwrap();
    let status = Status::new(manager.clone()).environment("<production>").allow_force_release();
    let address = mounted(status.clone()).await;
    let pages = [
        (get(address, "/locks").await, "locks"),
        (get(address, "/locks?release=goods:1").await, "release by force"),
        (get(address, "/locks?release=goods:2").await, "locks"),
        (post(address, "").await, "locks"),
    ];
    for (page, name) in pages {
        let title = format!("<title>shop (&lt;production&gt;) · {name} · prefix stock:</title>");
        assert!(page.body.contains(&title), "{title}: {}", page.body);
        for part in ["Locks of shop</", "<p class=environment>&lt;production&gt;</p>", "prefix <code>stock:</code></p>"]
        {
            assert!(page.body.contains(part), "{part}: {}", page.body);
        }
    }
    let json = get(address, "/locks?format=json").await.json();
    assert_eq!(
        ["service", "environment", "key_prefix"].map(|name| json[name].as_str().unwrap()),
        ["shop", "<production>", "stock:"]
    );
    let page = get(mounted(Status::new(manager)).await, "/locks").await.body;
    assert!(page.contains("<title>shop · locks · prefix stock:</title>") && !page.contains("environment"), "{page}");
    let page = get(address, "/locks").await.body;
    assert!(page.contains("Locks of shop<"), "a clone that was changed is another page");
}

#[tokio::test]
async fn keys_are_found_by_waiters_silence_holder_and_host() {
    let [one, two] = two().await;
    let lock = |manager: &LockManager, key: &str, label| manager.lock(key).label(label).ttl(Duration::from_secs(600));
    let _guards = [
        lock(&one, "goods:1", "sell").await.unwrap(),
        lock(&one, "goods:2", "count").await.unwrap(),
        lock(&two, "goods:3", "sell").await.unwrap(),
        lock(&two, "orders:1", "pay").await.unwrap(),
    ];
    // As if its process had died.
    let _dead = lock(&one, "goods:4", "dead").await.unwrap().hand_over().unwrap();
    let waits = tokio::spawn(one.lock("goods:3").wait_forever().acquire());
    until_waited_for(&two, "goods:3").await;
    let address = mounted(Status::new(two.clone())).await;
    let keys = async |query: &str| {
        let json = get(address, &format!("/locks?order=key&format=json&{query}")).await.json();
        let keys: Vec<_> =
            json["keys"].as_array().unwrap().iter().map(|key| key["key"].as_str().unwrap().to_owned()).collect();
        (keys.join(" "), json["unknown"].as_u64().unwrap())
    };
    let said = |keys: &str, unknown| (keys.to_owned(), unknown);
    assert_eq!(keys("").await, said("goods:1 goods:2 goods:3 goods:4 orders:1", 0));
    assert_eq!(keys("only=waiting").await, said("goods:3", 0));
    assert_eq!(keys("only=silent").await, said("goods:4", 0));
    assert_eq!(keys("by=one").await, said("goods:1 goods:2", 1));
    assert_eq!(keys("by=sell").await, said("goods:1 goods:3", 1));
    assert_eq!(keys("by=sell&only=waiting").await, said("goods:3", 1));
    assert_eq!(keys("by=pay&prefix=goods").await, said("", 1));
    assert_eq!(keys("by=pay&prefix=orders").await, said("orders:1", 0));
    let host = two.inspect("goods:3").await.unwrap().holder().unwrap().party().host().to_owned();
    assert_eq!(keys(&format!("host={host}&after=goods:1")).await, said("goods:2 goods:3 orders:1", 1));
    assert_eq!(keys(&format!("host={host}-other")).await, said("", 1));

    // Each link and the form keep what the others have chosen.
    let page = get(address, "/locks?prefix=goods&by=%3Cb%3E&only=waiting&refresh=5&order=key").await.body;
    let kept = "prefix=goods&amp;only=waiting&amp;by=%3Cb%3E";
    for part in [
        &format!("<a href=\"?{kept}&amp;refresh=5\">longest first</a>"),
        &format!("<a href=\"?{kept}&amp;order=key\">by hand</a>"),
        &format!("<a href=\"?{kept}&amp;order=key&amp;format=json\">JSON</a>"),
        "<a href=\"?prefix=goods&amp;only=silent&amp;by=%3Cb%3E&amp;order=key&amp;refresh=5\">silent (0)</a>",
        "<a href=\"?prefix=goods&amp;by=%3Cb%3E&amp;order=key&amp;refresh=5\">all (1)</a> <b aria-current=true>waited for (1)</b>",
        "name=by list=of-by value=\"&lt;b&gt;\"",
        "<option value=\"&lt;b&gt;two&lt;/b&gt;\"><option value=\"one\">",
        "<input type=hidden name=only value=waiting><input type=hidden name=order value=key><input type=hidden name=refresh value=5>",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("Left out"), "a silent key that nobody waits for: {page}");
    let page = get(address, "/locks?by=nobody").await.body;
    let left_out = "Left out, because the holder is not known: <a href=\"?only=silent\">1 silent key</a>.";
    assert!(page.contains(left_out) && page.contains("No such key"), "{page}");
    waits.abort();
}

#[tokio::test]
async fn a_long_key_is_clipped_and_its_whole_text_is_there() {
    let manager = LockManager::in_memory();
    let key = format!("report:<{}>", "é".repeat(500));
    let label: &str = String::leak("y".repeat(1_000));
    let _guard = manager.lock(&key).label(label).await.unwrap();
    let address = releasing(&manager).await;
    let clipped = format!("<code>report:&lt;{}<i>…</i>{}&gt;</code>", "é".repeat(56), "é".repeat(23));
    let whole = format!("<code>report:&lt;{}&gt;</code>", "é".repeat(500));
    let page = get(address, "/locks").await.body;
    let row = format!(
        "<summary><h3>{clipped}</h3><span class=fact>the whole key, 1,009 bytes</span></summary>{whole}</details>"
    );
    assert!(page.contains(&row), "{row}: {page}");
    assert!(page.contains("y<i>…</i>y") && !page.contains(label), "{page}");
    let (_, link) = page.split_once("class=\"release\" href=\"").unwrap();
    let confirmation = get(address, &format!("/locks{}", link.split_once('"').unwrap().0)).await;
    for part in [&format!("Release {clipped} by force?"), &whole] {
        assert!(confirmation.body.contains(part), "{part}: {}", confirmation.body);
    }
    let done = post(address, &confirmation.action()).await.body;
    assert!(done.contains(&format!("{clipped} was released by force")), "{done}");
    assert!(!manager.is_locked(&key).await.unwrap());
}

#[tokio::test]
async fn a_release_is_grey_and_needs_a_tick_unless_a_key_is_waited_for_whose_holder_is_silent() {
    let store = MemoryBackend::new();
    let manager = LockManager::builder().backend(store).build().unwrap();
    let lock = |key: &str| manager.lock(key).shared().ttl(Duration::from_secs(600));
    let _guards = [lock("alive").await.unwrap(), lock("half").await.unwrap()];
    let _dead = [lock("half").await.unwrap().hand_over().unwrap(), lock("dead").await.unwrap().hand_over().unwrap()];
    manager.lock("kept").at_least(Duration::from_secs(600)).await.unwrap().release().await.unwrap();
    let waits = ["half", "dead"].map(|key| tokio::spawn(manager.lock(key).wait_forever().acquire()));
    let address = releasing(&manager).await;
    while get(address, "/locks?only=waiting&format=json").await.json()["matching"] != 2 {
        tokio::task::yield_now().await;
    }
    let page = get(address, "/locks").await.body;
    for (key, is_needed) in [("alive", false), ("half", true), ("dead", true), ("kept", false)] {
        let class = if is_needed { "release needed" } else { "release" };
        assert!(page.contains(&format!("class=\"{class}\" href=\"?release={key}\"")), "{key}: {page}");
        let confirmation = get(address, &format!("/locks?release={key}")).await.body;
        assert_eq!(confirmation.contains("<input type=checkbox required"), !is_needed, "{key}: {confirmation}");
    }
    let kept = get(address, "/locks?release=kept").await.body;
    assert!(kept.contains("If <code>at_least</code> keeps the key, the work may be done again."), "{kept}");
    waits.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn rates_are_those_of_this_process_since_an_earlier_look() {
    let manager = LockManager::in_memory();
    let address = mounted(Status::new(manager.clone())).await;
    let page = get(address, "/locks").await.body;
    assert!(page.contains("This process alone") && page.contains("Rates are known from the second look on."), "{page}");
    // Another page, whose first look this is: on a slow machine the next one here may be the second.
    let other = mounted(Status::new(manager.clone())).await;
    assert_eq!(get(other, "/locks?format=json").await.json()["rates"], serde_json::Value::Null);
    let _guard = manager.lock("k").await.unwrap();
    for _ in 0..3 {
        assert!(manager.lock("k").try_acquire().await.unwrap().is_none());
    }
    manager.force_release("k").await.unwrap();
    until("rates", async || !get(address, "/locks?format=json").await.json()["rates"].is_null()).await;
    let json = get(address, "/locks?format=json").await.json();
    let rates = &json["rates"];
    assert_eq!(shape(rates), shape(&documented()["rates"]));
    assert_eq!(["acquired", "busy", "lost"].map(|name| rates[name].as_u64().unwrap()), [1, 3, 1], "{rates}");
    let page = get(address, "/locks").await.body;
    assert!(page.contains("Since its start: 1 acquired, 3 given up, lost: <b>1 released by force</b>."), "{page}");
    assert!(page.contains("In the last ") && page.contains("</b> given up because the key was busy"), "{page}");
}
