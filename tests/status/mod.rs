//! The page for operators in a real browser, over a real Redis.

mod browser;
mod picture;

use std::net::SocketAddr;

use axum::Router;
use lock_core::{LockManager, LossReason};
use lock_status::Status;
use lock_tests::{LONG, RedisServer, SOON, eventually, ms, role, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::patient;
use crate::status::browser::Browser;

async fn manager(server: &RedisServer, name: &str) -> LockManager {
    patient::builder().url(server.url()).client_name(name).connect().await.expect("it answers")
}

/// Serves the page at `/locks`.
async fn serve(manager: &LockManager) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let status = Status::new(manager.clone()).environment("production").allow_force_release();
    let router = Router::new().nest_service("/locks", status);
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// The keys that the page shows.
async fn keys(browser: &Browser) -> Vec<String> {
    let keys = browser.value("[...document.querySelectorAll('.keys h3')].map(key => key.innerText)").await;
    serde_json::from_value(keys).expect("texts")
}

#[tokio::test]
#[ignore = "needs a browser; run by .ci/run"]
async fn an_operator_finds_a_key_and_releases_it() {
    let Some(browser) = Browser::start("the status page, used in a browser").await else { return };
    let server = RedisServer::start().await;
    let [shop, ops] = [manager(&server, "shop").await, manager(&server, "ops").await];
    let address = serve(&ops).await;
    // A key is watched from its first renewal on.
    let often = ms(1_000);
    let guard = shop.lock("goods:7").label("sell").ttl(LONG).renew_every(often).await.expect("it is free");
    let _other = shop.lock("orders:1").ttl(LONG).await.expect("it is free");
    let waits = tokio::spawn(ops.lock("goods:7").label("stock").wait_forever().acquire());
    let what = "a waiter";
    eventually(SOON, what, async || ops.inspect("goods:7").await.is_ok_and(|info| !info.waiters().is_empty())).await;

    browser.open(&format!("http://{address}/locks")).await;
    assert_eq!(browser.value("document.title").await, "ops (production) · locks · database 0");
    let header = browser.text("header").await;
    assert!(header.starts_with("Locks of ops\nproduction\nno prefix · database 0\nas of "), "{header}");
    assert_eq!(keys(&browser).await, ["goods:7", "orders:1"]);
    let row = browser.text(".keys li").await;
    assert!(row.contains("by shop on ") && row.contains("1 request waiting"), "{row}");
    browser.click("summary").await;
    assert!(browser.text("details ol").await.contains("stock"));

    browser.write("input[name=prefix]", "goods:").await;
    browser.click("form button").await;
    // Only the next page has it as an attribute; the keys of the present one are still there after the click.
    browser.text("input[value='goods:']").await;
    assert_eq!(keys(&browser).await, ["goods:7"]);
    browser.click("nav a[href*='only=waiting']").await;
    browser.text("input[name=only][value=waiting]").await;
    browser.write("input[name=by]", "stock").await;
    browser.click("form button").await;
    browser.text("input[value=stock]").await;
    assert_eq!(keys(&browser).await, Vec::<String>::new(), "it waits, and does not hold");
    browser.open(&format!("http://{address}/locks?by=sell&only=waiting&prefix=goods:")).await;
    assert_eq!(keys(&browser).await, ["goods:7"]);

    browser.click("a.release").await;
    let asked = browser.text("main:has(form.confirm)").await;
    for part in ["Release goods:7 by force?", "by shop on", "sell", "The first of 1 request waiting gets the key"] {
        assert!(asked.contains(part), "{part}: {asked}");
    }
    assert!(guard.is_held(), "nothing was confirmed");
    let colour = "getComputedStyle(document.querySelector('button.danger')).color";
    let grey = browser.value(colour).await;
    browser.click("button.danger").await;
    assert_eq!(browser.value("document.querySelector('form.confirm').checkValidity()").await, false, "not sent");
    assert!(guard.is_held(), "the box is not ticked");
    browser.click(".tick input").await;
    assert_ne!(browser.value(colour).await, grey);
    browser.click("button.danger").await;
    assert_eq!(browser.text(".done").await, "goods:7 was released by force.");
    assert_eq!(within(SOON, guard.ended()).await.loss(), Some(LossReason::Taken));
    let next = within(SOON, waits).await.expect("no panic").expect("its turn");
    next.release().await.expect("it is held");

    eventually(SOON, "the key is gone", async || {
        browser.open(&format!("http://{address}/locks?prefix=goods:")).await;
        keys(&browser).await.is_empty()
    })
    .await;
    assert!(browser.text(".none").await.contains("No such key"));
    assert_eq!(browser.complaints().await, Vec::<String>::new());
}

#[tokio::test]
#[ignore = "needs a browser; run by .ci/run"]
async fn a_key_of_markup_is_text() {
    let Some(browser) = Browser::start("keys of markup on the status page").await else { return };
    let server = RedisServer::start().await;
    let manager = manager(&server, "<svg/onload=alert(2)>").await;
    let address = serve(&manager).await;
    let key = "<img src=x onerror=alert(1)>\n\"'";
    let guard = manager.lock(key).label("</code><script>alert(3)</script>").await.expect("it is free");

    browser.open(&format!("http://{address}/locks?prefix=%22%3E%3Cscript%3Ealert(4)%3C/script%3E")).await;
    assert_eq!(keys(&browser).await, Vec::<String>::new());
    browser.open(&format!("http://{address}/locks")).await;
    assert_eq!(keys(&browser).await, ["<img src=x onerror=alert(1)>\\n\"'"]);
    let strangers = "document.querySelectorAll('img, script, svg').length";
    assert_eq!(browser.value(strangers).await, 0);
    browser.click("a.release").await;
    browser.text("form.confirm").await;
    assert_eq!(browser.value(strangers).await, 0);
    browser.click(".tick input").await;
    browser.click("button.danger").await;
    assert!(browser.text(".done").await.ends_with("was released by force."));
    assert!(!guard.is_held());
    // Chromium complains about each script that the policy forbids: there was none.
    assert_eq!(browser.complaints().await, Vec::<String>::new());
}

#[tokio::test]
#[ignore = "needs a browser; run by .ci/run"]
async fn a_lock_of_another_library_is_named_as_such_and_not_called_free() {
    let Some(browser) = Browser::start("the lock of another library on the status page").await else { return };
    let server = RedisServer::start().await;
    let address = serve(&manager(&server, "ops").await).await;
    server.call(&["SET", "goods:3", "token of another library"]).await;
    browser.open(&format!("http://{address}/locks?release=goods:3")).await;
    let asked = browser.text("main").await;
    assert!(asked.contains("another library") && asked.contains("does not end by itself"), "{asked}");
    assert!(!asked.contains("token of another"), "{asked}");
    browser.click("button.danger").await;
    assert_eq!(browser.text(".done").await, "goods:3 was released by force.");
    assert_eq!(server.keys("goods:*").await, Vec::<String>::new());
}

#[tokio::test]
#[ignore = "needs a browser; run by .ci/run"]
async fn nothing_is_wider_than_a_phone() {
    let Some(browser) = Browser::start("the status page on a phone").await else { return };
    let server = RedisServer::start().await;
    let manager = manager(&server, &"a-service-with-a-long-name".repeat(4)).await;
    let address = serve(&manager).await;
    let long = "x".repeat(300);
    let _guards =
        manager.lock_all(["goods:7", &long]).label("no-space-anywhere-in-this-label-of-a-request").await.expect("free");
    browser.screen(390, 844, true).await;
    for query in ["", "?refresh=30&only=silent", &format!("?release={long}"), &format!("?prefix={long}&by={long}")] {
        browser.open(&format!("http://{address}/locks{query}")).await;
        assert_eq!(browser.value("document.documentElement.scrollWidth").await, 390, "{query}");
        assert_eq!(browser.value("getComputedStyle(document.body).margin").await, "0px", "the style sheet is there");
    }
    assert_eq!(browser.complaints().await, Vec::<String>::new());
}

/// What a client without a browser gets.
async fn get(address: SocketAddr, target: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let head = format!("GET {target} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    within(SOON, stream.read_to_string(&mut answer)).await.expect("text");
    answer
}

#[tokio::test]
async fn a_process_that_is_stopped_is_named_and_its_key_is_silent() {
    let server = RedisServer::start().await;
    let ops = manager(&server, "ops").await;
    let address = serve(&ops).await;
    let mut holds = role!("hold", server.url(), "goods:7", LONG.as_millis(), 0);
    holds.expect("held", SOON).await;
    let waits = tokio::spawn(ops.lock("goods:7").wait_forever().acquire());
    let holder = async |part: &str| get(address, "/locks").await.contains(part);
    eventually(SOON, "an answer", async || holder("Held for ").await).await;
    holds.pause();
    let named = "Answered before, and not now:</p><ul><li><b>";
    eventually(SOON, "no answer", async || {
        holder("<b>1 of 2 processes did not answer</b>").await && holder(named).await
    })
    .await;
    let silent = get(address, "/locks?only=silent").await;
    assert!(silent.contains("<code>goods:7</code>") && silent.contains("class=\"release needed\""), "{silent}");
    holds.resume();
    eventually(SOON, "all answer", async || !holder("did not answer").await).await;
    waits.abort();
}

#[tokio::test]
async fn a_holder_whose_process_was_killed_is_counted_beside_those_that_share_the_key_and_live() {
    let server = RedisServer::start().await;
    let ops = manager(&server, "ops").await;
    let shared = || ops.lock("goods:7").shared().ttl(LONG);
    let _living = [shared().await.expect("free"), shared().await.expect("shared")];
    let mut dies = role!("hold", server.url(), "goods:7", LONG.as_millis(), 0, "shared");
    dies.expect("held", SOON).await;
    eventually(SOON, "all three answer", async || {
        let info = ops.inspect("goods:7").await.expect("it answers");
        (info.leases(), info.holders().len(), info.silent()) == (3, 3, None)
    })
    .await;
    dies.kill().await;
    // Two leases are of the process that asks, which knows of them without an answer.
    for info in [ops.inspect("goods:7").await.expect("it answers"), ops.list("").await.expect("it answers").remove(0)] {
        let silent = info.silent().expect("one has died");
        assert_eq!((info.leases(), info.holders().len(), silent.leases()), (3, 2, 1));
        assert!(silent.last_end().is_some_and(|end| !end.is_zero() && end <= LONG), "{silent:?}");
    }
    let address = serve(&ops).await;
    let page = get(address, "/locks").await;
    assert!(page.contains("and 1 other") && page.contains("<b>1 more lease did not answer</b>: its holder"), "{page}");
    let shown = get(address, "/locks?format=json").await;
    let (_, body) = shown.split_once("\r\n\r\n").expect("a head and a body");
    let shown: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!((&shown["keys"][0]["leases"], &shown["keys"][0]["silent"]["leases"]), (&3.into(), &1.into()), "{shown}");
}
