//! The pictures of the documentation: `cargo test -p lock-tests --test system status::picture -- --ignored`.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use lock_tests::{LONG, RedisServer, SOON, role};
use tokio::time::sleep;

use crate::status::{browser::Browser, manager, serve};

#[tokio::test]
#[ignore = "draws docs/img/status.png"]
async fn draw() {
    let Some(browser) = Browser::start("the picture of the status page").await else { return };
    let mut server = RedisServer::start().await;
    let [first, second, ops] =
        [manager(&server, "shop-1").await, manager(&server, "shop-2").await, manager(&server, "ops").await];
    let address = serve(&ops).await;
    // The first look has no rates.
    browser.open(&format!("http://{address}/locks")).await;
    let mut guards = vec![first.lock("jobs:nightly").label("nightly").ttl(LONG).await.expect("free")];
    sleep(Duration::from_secs(15)).await;
    guards.push(first.lock("goods:7").label("goods:<good>").ttl(Duration::from_secs(3)).await.expect("free"));
    for _ in 0..130 {
        ops.lock("goods:4").label("stocktaking").await.expect("free").release().await.expect("held");
    }
    for _ in 0..3 {
        assert!(ops.lock("goods:7").label("stocktaking").try_acquire().await.expect("it answers").is_none());
    }
    let waits = |key: &'static str, label| {
        let (first, second) = (first.clone(), second.clone());
        for manager in [second, first] {
            tokio::spawn(manager.lock(key).label(label).wait_forever().acquire());
        }
    };
    waits("goods:7", "goods of an order");
    sleep(Duration::from_secs(12)).await;
    guards.push(second.lock("orders:4711").label("payment").ttl(Duration::from_secs(3)).await.expect("free"));
    waits("orders:4711", "payment");
    guards.push(second.lock("goods:2").label("goods:<good>").ttl(Duration::from_secs(3)).await.expect("free"));
    guards.push(ops.lock("goods:9").label("stocktaking").ttl(Duration::from_secs(3)).await.expect("free"));
    sleep(Duration::from_secs(3)).await;

    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/img");
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    let draw = async |path: PathBuf, query: &str, width, height, is_phone, scheme: &str| {
        browser.screen(width, height, is_phone).await;
        browser.scheme(scheme).await;
        browser.open(&format!("http://{address}/locks{query}")).await;
        save(&path, &browser.picture().await);
    };
    draw(folder.join("status.png"), "", 1_180, 1_010, false, "light").await;
    // To be looked at, and not kept.
    let folder = std::env::temp_dir();
    draw(folder.join("status-phone.png"), "", 390, 1_600, true, "light").await;
    draw(folder.join("status-dark.png"), "?refresh=5", 1_180, 760, false, "dark").await;
    draw(folder.join("status-confirm.png"), "?release=goods:7", 390, 844, true, "dark").await;
    // At night: a process stands still, and a key is long.
    let mut holds = role!("hold", server.url(), "import", LONG.as_millis(), 0);
    holds.expect("held", SOON).await;
    guards.push(
        second.lock(format!("report:{}", "0123456789".repeat(100))).label("report").ttl(LONG).await.expect("free"),
    );
    sleep(Duration::from_secs(2)).await;
    browser.open(&format!("http://{address}/locks")).await;
    holds.pause();
    sleep(Duration::from_secs(2)).await;
    draw(folder.join("status-night.png"), "", 1_180, 1_100, false, "dark").await;
    draw(folder.join("status-night-phone.png"), "?only=silent", 390, 1_200, true, "light").await;
    draw(folder.join("status-long.png"), "?prefix=report", 390, 1_200, true, "light").await;
    server.stop();
    sleep(Duration::from_secs(2)).await;
    draw(folder.join("status-down.png"), "", 1_180, 700, false, "dark").await;
}

fn save(path: &Path, base64: &str) {
    let script = "import base64, sys; open(sys.argv[1], 'wb').write(base64.b64decode(sys.stdin.read()))";
    let mut python = Command::new("python3").args(["-c", script]).arg(path).stdin(std::process::Stdio::piped()).spawn();
    let python = python.as_mut().expect("there is a Python");
    std::io::Write::write_all(python.stdin.as_mut().expect("a pipe"), base64.as_bytes()).expect("it reads");
    python.stdin = None;
    assert!(python.wait().expect("it ends").success());
}
