//! `lockctl list` and `lockctl who`.

use std::time::Duration;

use lock_core::LockManager;
use serde_json::Value;

use crate::support::{LONG, Run, Server, UNTIL_TOLD};

/// How long a request may take on a busy machine.
const PATIENT: Duration = Duration::from_secs(15);

#[test]
fn who_names_the_holder_and_the_queue_in_words_and_as_json() {
    let server = Server::start();
    let holder = server.run(&["k", LONG, "--label", "nightly backup"], UNTIL_TOLD);
    let waiter = Run::start(server.lockctl(&["run", "k", "--wait-forever", "--", "/bin/echo", "ran"]));
    server.until_waiters("k", 1);
    let done = server.told(&["who", "k"]);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    let process = holder.child.id();
    assert!(done.out.starts_with("\"k\" is held by lockctl on "), "{done:?}");
    assert!(done.out.contains(&format!("(process {process}, \"nightly backup\") for ")), "{done:?}");
    assert!(done.out.contains(" of its ttl of 1m are left.\n1 request waits for it:\n  1. lockctl on "), "{done:?}");
    assert!(done.out.contains(&format!("(process {}, \"echo\"), for ", waiter.child.id())), "{done:?}");
    let said = server.told_json(&["who", "k"]);
    assert_eq!((&said["key"], &said["locked"], &said["foreign"]), (&"k".into(), &true.into(), &false.into()));
    assert_eq!((&said["holders"][0]["process"], &said["holders"][0]["ttl_ms"]), (&process.into(), &60_000.into()));
    assert_eq!(
        (&said["holders"][0]["label"], &said["holders"][0]["service"]),
        (&"nightly backup".into(), &"lockctl".into())
    );
    assert_eq!((&said["waiters"][0]["place"], &said["waiters"][0]["label"]), (&1.into(), &"echo".into()));
    assert!(said["remaining_ms"].as_u64().is_some_and(|left| left > 0) && said["holders"][0]["fencing_token"].is_u64());
}

#[test]
fn columns_stand_below_one_another_beside_characters_that_take_two() {
    let server = Server::start();
    let _held = [server.run(&["鍵鍵鍵", LONG], UNTIL_TOLD), server.run(&["k", LONG], UNTIL_TOLD)];
    let begins = |line: &str| line.find("lockctl on ").map(|at| &line[..at]).map(str::to_owned);
    let said: Vec<_> = server.told(&["list"]).out.lines().filter_map(begins).collect();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said.iter().any(|line| line.starts_with("鍵鍵鍵 ")), "nothing is cut off: {said:?}");
    let width = |text: &str| text.chars().map(|of| if of == '鍵' { 2 } else { 1 }).sum::<usize>();
    assert_eq!(width(&said[0]), width(&said[1]), "{said:?}");
}

#[test]
fn a_reader_that_has_read_enough_changes_no_exit_code() {
    // A server that may evict locks is not fit for them.
    let server = Server::start_with("maxmemory 100mb\nmaxmemory-policy allkeys-lru");
    let _holder = server.run(&["k", LONG], UNTIL_TOLD);
    for (arguments, code) in [
        (&["who", "k"][..], 0),
        (&["who", "free"], 1),
        (&["who", "free", "--json"], 1),
        (&["list"], 0),
        (&["list", "--watch=1s"], 0),
        (&["doctor"], 78),
        (&["doctor", "--json"], 78),
        (&["completions", "bash"], 0),
    ] {
        let done = server.done_unread(arguments);
        assert_eq!((done.code, done.err.as_str()), (Some(code), ""), "{arguments:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_holders_of_a_key_are_named_and_counted() {
    let server = Server::start();
    let manager = LockManager::builder()
        .url(&server.url)
        .command_timeout(PATIENT)
        .client_name("shop")
        .connect()
        .await
        .expect("a server");
    let lock = |key: &str, label| manager.lock(key).label(label);
    let readers = [lock("r", "one").shared().await.expect("free"), lock("r", "two").shared().await.expect("shared")];
    let permits =
        [lock("p", "one").permits(5).take(2).await.expect("free"), lock("p", "two").permits(5).await.expect("room")];
    let said = |arguments: &[&str]| server.told(arguments).out;
    let who = said(&["who", "r"]);
    assert!(who.starts_with("\"r\" is shared by 2 leases; ") && who.contains("\n  shared: shop on "), "{who}");
    let who = said(&["who", "p"]);
    assert!(who.starts_with("\"p\" has 3 of 5 permits taken, by 2 leases; "), "{who}");
    assert!(who.contains("\n  2 of 5 permits: shop on ") && who.contains("\n  1 of 5 permits: shop on "), "{who}");
    assert!(said(&["list"]).contains(") and 1 other  "), "{}", said(&["list"]));
    let json = server.told_json(&["list"]);
    let mut modes: Vec<_> = json.as_array().expect("an array").iter().flat_map(modes).collect();
    modes.sort();
    assert_eq!(modes, ["permits 1/5", "permits 2/5", "shared 0/0", "shared 0/0"]);
    let released = server.done(&["release", "r", "--yes"]).out;
    assert!(released.contains("\"r\" was released. All its leases end."), "{released}");
    drop((readers, permits));
}

/// The modes of all holders of a key.
fn modes(key: &Value) -> Vec<String> {
    let holders = key["holders"].as_array().expect("an array").iter();
    let number = |holder: &Value, name: &str| holder[name].as_u64().expect("a number");
    holders
        .map(|holder| {
            let mode = holder["mode"].as_str().expect("a word");
            format!("{mode} {}/{}", number(holder, "permits"), number(holder, "total"))
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_has_died_is_counted_beside_those_that_live() {
    let server = Server::start();
    let manager = LockManager::builder()
        .url(&server.url)
        .command_timeout(PATIENT)
        .client_name("shop")
        .connect()
        .await
        .expect("a server");
    let ttl = Duration::from_secs(7_200);
    let lock = |key: &str| manager.lock(key).ttl(ttl);
    let _readers = [lock("r").shared().await.expect("free"), lock("r").shared().await.expect("shared")];
    let _permits = [lock("p").permits(5).await.expect("free"), lock("p").permits(5).take(2).await.expect("room")];
    // What a process leaves that died: the token of its share.
    let die = |key: &str, number: u32, mode: &str, ms: u64| {
        let now: (u64, u64) = server.call(&["TIME"]);
        let ends = now.0 * 1_000 + now.1 / 1_000 + ms;
        let token = format!("lock-core:1:{number:032x}{mode}");
        let _: i64 = server.call(&["ZADD", key, &ends.to_string(), &token]);
    };
    // Those that live answer, if not each time.
    let who = |key: &str, begins: &str| server.done_until(&["who", key], |done| done.out.starts_with(begins)).out;
    die("r", 1, ":shared", 3_000_000);
    die("p", 1, ":2/5", 3_000_000);
    let all = who("r", "\"r\" is shared by 3 leases; ");
    assert_eq!(all.matches("\n  shared: shop on ").count(), 2, "{all}");
    let dead = "1 more lease did not answer: its holder has died, is stopped or is cut off, or cannot use messages";
    assert!(all.contains(dead) && all.contains(". It counts until its own ttl is over, in 4"), "{all}");
    let said = server.json_until(&["who", "r"], |said| said["holders"][1].is_object());
    assert_eq!((&said["leases"], said["holders"].as_array().map(Vec::len)), (&3.into(), Some(2)));
    let silent = &said["silent"];
    assert_eq!((&silent["leases"], &silent["permits"]), (&1.into(), &0.into()));
    let ends = |name: &str| silent[name].as_u64().expect("a time");
    assert!((1..=3_000_000).contains(&ends("first_end_ms")), "{said}");
    assert!((3_000_001..=7_200_000).contains(&ends("last_end_ms")), "{said}");

    let all = who("p", "\"p\" has 5 of 5 permits taken, by 3 leases; ");
    assert!(all.contains("1 more lease with 2 permits did not answer: "), "{all}");
    let _many = lock("q").permits(9).take(2).await.expect("free");
    let _: i64 = server.call(&["ZADD", "q", "1e300", "a member of another program"]);
    let all = who("q", "\"q\" has 3 of 9 permits taken, by 2 leases; ");
    assert!(all.contains("1 more lease with 1 permit did not answer: "), "{all}");
    die("r", 2, ":shared", 3_100_000);
    let all = who("r", "\"r\" is shared by 4 leases; ");
    assert!(all.contains("\n2 more leases did not answer: their holders have died, "), "{all}");
    let listed = server.done_until(&["list"], |done| done.out.contains(" and 1 other")).out;
    let line = |key: &str| listed.lines().find(|line| line.starts_with(key)).unwrap_or_default();
    assert!(line("p ").contains(") and 1 other, 1 did not answer  "), "{listed}");
    assert!(line("r ").contains(") and 1 other, 2 did not answer  "), "{listed}");

    // Nobody is left but the dead.
    manager.shutdown(Duration::ZERO).await;
    let who = server.done(&["who", "r"]).out;
    assert!(who.starts_with("\"r\" is held by 2 leases, and ") && who.contains(" but nobody answered. "), "{who}");
    assert!(server.done(&["list"]).out.contains("nobody answered (2 leases)  "), "{listed}");
    let released = server.done(&["release", "r", "--yes"]).out;
    assert!(released.contains("\"r\" was released. All its leases end."), "{released}");
}

#[test]
fn who_exits_with_1_if_the_key_is_free() {
    let server = Server::start();
    let done = server.done(&["who", "k"]);
    assert_eq!((done.code, done.out.as_str()), (Some(1), "\"k\" is free.\n"));
    assert_eq!(server.json(&["who", "k"])["holders"][0], Value::Null);
}

#[test]
fn list_has_a_line_for_each_key_with_what_it_begins_with() {
    let server = Server::start();
    let _holders = ["shop:1", "shop:2", "other"].map(|key| server.run(&[key, LONG, "--label", key], UNTIL_TOLD));
    let done = server.told(&["list", "shop:"]);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    let lines: Vec<_> = done.out.lines().collect();
    assert!(lines[0].starts_with("KEY     HOLDER  ") && lines[0].ends_with("  FENCING TOKEN     WAITERS"), "{done:?}");
    assert!(lines[1].starts_with("shop:1  lockctl on ") && lines[2].starts_with("shop:2  lockctl on "), "{done:?}");
    assert_eq!(lines.len(), 3);
    let keys =
        |said: Value| said.as_array().expect("an array").iter().map(|key| key["key"].clone()).collect::<Vec<_>>();
    assert_eq!(keys(server.json(&["list"])), ["other", "shop:1", "shop:2"]);
    assert_eq!(keys(server.json(&["list", "--prefix", "shop:"])), ["1", "2"], "without the prefix");
    let none = server.done(&["list", "nothing"]);
    assert_eq!((none.code, none.out.as_str()), (Some(0), ""));
    assert_eq!(server.json(&["list", "nothing"]), Value::Array(Vec::new()));
}

#[test]
fn list_reads_no_large_values_of_other_programs() {
    let server = Server::start();
    let fill = "for i = 1, 64 do redis.call('SET', 'cache:' .. i, string.rep('x', 1000000)) end";
    let _: () = server.call(&["EVAL", fill, "0"]);
    let _holder = server.run(&["k", LONG], UNTIL_TOLD);
    let sent = || {
        let stats: String = server.call(&["INFO", "stats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:")).expect("it is counted");
        line.trim().parse::<u64>().expect("a number")
    };
    let before = sent();
    let done = server.done(&["list"]);
    assert_eq!((done.code, done.out.lines().count()), (Some(0), 2), "{done:?}");
    assert!(sent() - before < 1_000_000, "all values were read");
}

#[test]
fn a_holder_that_stands_still_is_said_not_to_answer() {
    let server = Server::start();
    // Its lease outlasts all looks.
    let holder = server.run(&["k", "--ttl=1h"], UNTIL_TOLD);
    holder.signal("STOP");
    let done = server.done(&["who", "k"]);
    assert_eq!(done.code, Some(0));
    assert!(
        done.out.contains("but nobody answered. One of these is so:\n  - the holder has died, is stopped"),
        "{done:?}"
    );
    let said = server.json(&["who", "k"]);
    assert_eq!((&said["locked"], &said["holders"][0], &said["truncated"]), (&true.into(), &Value::Null, &false.into()));
    assert_eq!((&said["leases"], &said["silent"]["leases"]), (&1.into(), &1.into()));
    let listed = server.done(&["list"]).out;
    assert!(listed.lines().nth(1).is_some_and(|line| line.starts_with("k    nobody answered ")), "{listed}");
    holder.signal("CONT");
}

#[test]
fn a_waiter_that_stands_still_is_said_to_be_missing() {
    let server = Server::start();
    let _holder = server.run(&["k", LONG], UNTIL_TOLD);
    let waiter = Run::start(server.lockctl(&["run", "k", "--wait-forever", "--", "/bin/echo", "ran"]));
    server.until_waiters("k", 1);
    waiter.signal("STOP");
    // The other one answers, if not each time.
    const MISSING: &str = "1 of 3 processes did not answer; its holders and waiters are missing here";
    let done = server.done_until(&["who", "k"], |done| done.out.contains(MISSING));
    assert!(done.out.contains(&format!("No process that answered waits for it. {MISSING}.\n")), "{done:?}");
    server.done_until(&["list"], |done| done.err.contains(MISSING));
    let waiting = server.done_until(&["list", "--waiting"], |done| done.err.contains(MISSING)).err;
    assert!(waiting.contains("no process that answered waits for a key\n"), "{waiting}");
    let lacks_one = |processes: &Value| (&processes["asked"], &processes["answered"]) == (&3.into(), &2.into());
    server.json_until(&["who", "k"], |said| lacks_one(&said["processes"]));
    server.json_until(&["list"], |said| lacks_one(&said[0]["processes"]));
    waiter.signal("CONT");
}

#[test]
fn a_lock_of_another_library_is_said_to_be_one() {
    let server = Server::start();
    let _: String = server.call(&["SET", "k", "theirs"]);
    let done = server.done(&["who", "k"]);
    assert!(done.out.contains("another library") && done.out.contains("without a ttl"), "{done:?}");
    let _: i64 = server.call(&["PEXPIRE", "k", "60000"]);
    assert!(server.done(&["who", "k"]).out.contains(" of its ttl are left."));
    assert_eq!(server.json(&["who", "k"])["foreign"], Value::Bool(true));
}

#[test]
fn keys_and_labels_cannot_steer_a_terminal() {
    let server = Server::start();
    let key = "a\u{1b}[2Jb\nc";
    let label = "x\u{1b}[2Jy\u{202e}z\u{9b}2J\u{7f}\u{e0001}ü店";
    let _holder = server.run(&[key, LONG, "--label", label], UNTIL_TOLD);
    let shown = server.done_until(&["who", key, "--json"], |done| done.out.contains("ü店")).out;
    assert!(shown.chars().all(|c| c == '\n' || c.escape_debug().len() == 1 || c == '"' || c == '\\'), "{shown}");
    let read: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!((read["key"].as_str(), read["holders"][0]["label"].as_str()), (Some(key), Some(label)));
    for done in [server.told(&["list"]), server.told(&["who", key]), server.done(&["release", key, "--yes"])] {
        assert!(done.out.contains(r"a\u{1b}[2Jb\nc"), "{done:?}");
        assert!(!done.out.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{done:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_with_more_than_it_names_is_said_to_have_more() {
    let server = Server::start();
    let builder = LockManager::builder().url(&server.url).command_timeout(PATIENT).client_name("shop");
    let manager = builder.connect().await.expect("a server");
    let keys: Vec<_> = (0..501).map(|number| format!("k{number}")).collect();
    let _held =
        manager.lock_all(&keys).ttl(Duration::from_secs(120)).wait(Duration::from_secs(60)).await.expect("free");
    const MORE: &str = "A process has more than 500 holders and waiters; those that it did not name are missing here";
    let listed = server.told(&["list"]);
    assert!(listed.err.contains(MORE) && listed.out.lines().count() == 502, "{listed:?}");
    assert_eq!(server.told_json(&["list"])[0]["truncated"], Value::Bool(true));
    let done = server.told(&["who", "k500"]);
    assert!(done.out.contains("held by shop on ") && !done.out.contains(MORE), "{done:?}");
}
