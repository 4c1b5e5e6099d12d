//! `lockctl doctor`.

use std::time::Duration;

use serde_json::Value;

use crate::{
    fake::{Fake, Says},
    support::{Done, Server, eventually, free_port, lockctl, on_terminal},
};

/// A report, as programs read it.
struct Report {
    code: Option<i32>,
    json: Value,
}

impl Report {
    fn of(url: &str, arguments: &[&str]) -> Self {
        let ttl = if arguments.iter().any(|argument| argument.starts_with("--ttl")) { &[][..] } else { &["--ttl=60s"] };
        let mut lockctl = lockctl(url, &[&["doctor", "--json"], ttl, arguments].concat());
        let done = Done::of(lockctl.env("LOCK_COMMAND_TIMEOUT", "10s").output().expect("it starts"));
        let json = serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"));
        assert_eq!(done.err, "");
        Self { code: done.code, json }
    }

    /// Returns what a check says, as `level: found; remedy`, a line for each server.
    fn said(&self, check: &str) -> String {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let rows = self.json["checks"].as_array().expect("an array").iter().filter(|row| row["check"] == check);
        rows.map(|row| format!("{}: {}; {}\n", text(&row["level"]), text(&row["found"]), text(&row["remedy"])))
            .collect()
    }

    /// Returns the checks that are not green.
    fn sick(&self) -> Vec<&str> {
        let rows = self.json["checks"].as_array().expect("an array").iter();
        rows.filter(|row| row["level"] != "green").filter_map(|row| row["check"].as_str()).collect()
    }

    #[track_caller]
    fn says(&self, check: &str, level: &str, words: &str) {
        let said = self.said(check);
        let is_said = |line: &str| line.starts_with(&format!("{level}: ")) && line.contains(words);
        assert!(said.lines().any(is_said), "{check} is not {level} with {words:?}, but {said}");
        if level == "red" {
            assert_eq!(self.json["level"], "red");
            assert_ne!(self.code, Some(0));
        }
    }
}

/// A server as *Before production* has it.
fn healthy() -> Server {
    Server::start_with("appendonly yes\nappendfsync always")
}

fn set(server: &Server, name: &str, value: &str) {
    let _: String = server.call(&["CONFIG", "SET", name, value]);
}

#[test]
fn a_server_that_is_set_up_well_is_green_and_keeps_nothing_of_the_probe() {
    let server = healthy();
    let report = Report::of(&server.url, &["--prefix", "shop:"]);
    assert_eq!((report.sick(), report.code, &report.json["level"]), (Vec::new(), Some(0), &"green".into()));
    assert_eq!(report.json["checks"].as_array().map(Vec::len), Some(17));
    report.says("connection", "green", server.address());
    assert_eq!(server.call::<usize>(&["DBSIZE"]), 0, "keys");
    let stats: String = server.call(&["INFO", "commandstats"]);
    assert!(stats.contains("cmdstat_set:calls=1,"), "the probe was there: {stats}");
    assert_eq!(server.call::<Vec<String>>(&["PUBSUB", "CHANNELS"]), Vec::<String>::new());
}

#[test]
fn each_setting_that_is_wrong_is_named_with_what_to_do() {
    let server = healthy();
    for (settings, check, level, words) in [
        (
            &["maxmemory-policy", "allkeys-lru"][..],
            "eviction",
            "amber",
            "no effect while maxmemory is 0; CONFIG SET maxmemory-policy",
        ),
        (
            &["maxmemory-policy", "allkeys-lru", "maxmemory", "1gb"],
            "eviction",
            "red",
            "allkeys-lru: when the memory is full, locks are evicted",
        ),
        (&["appendfsync", "everysec"], "persistence", "amber", "appendfsync is everysec"),
        (&["appendonly", "no", "save", "3600 1"], "persistence", "amber", "only snapshots are kept (save 3600 1)"),
        (
            &["appendonly", "no"],
            "persistence",
            "amber",
            "nothing is kept: a restart forgets every lease; set appendonly yes",
        ),
        (
            &["min-replicas-to-write", "1"],
            "min-replicas",
            "red",
            "1, with 0 replicas that answered within 10 s: the server refuses",
        ),
        (&["timeout", "5"], "timeout", "amber", "timeout is 5"),
        (&["tcp-keepalive", "0"], "tcp-keepalive", "amber", "tcp-keepalive is 0"),
        (
            &["client-output-buffer-limit", "pubsub 65536 32768 60"],
            "pubsub-buffer",
            "amber",
            "33 kB: a look at many keys",
        ),
        (&["slave-read-only", "yes", "timeout", "600"], "timeout", "green", "timeout is 600: a heartbeat"),
    ] {
        for pair in settings.chunks(2) {
            set(&server, pair[0], pair[1]);
        }
        let report = Report::of(&server.url, &[]);
        report.says(check, level, words);
        if level == "red" && check == "eviction" {
            assert_eq!(report.code, Some(78));
        }
        for (name, value) in [
            ("maxmemory", "0"),
            ("maxmemory-policy", "noeviction"),
            ("save", ""),
            ("appendonly", "yes"),
            ("appendfsync", "always"),
            ("min-replicas-to-write", "0"),
            ("timeout", "0"),
            ("tcp-keepalive", "300"),
            ("client-output-buffer-limit", "pubsub 33554432 8388608 60"),
        ] {
            set(&server, name, value);
        }
    }
    let client = redis::Client::open(&*server.url).expect("a URL");
    let mut scripts = redis::pipe();
    for number in 0..500 {
        scripts.cmd("SCRIPT").arg("LOAD").arg(format!("return {number}"));
    }
    scripts.exec(&mut client.get_connection().expect("it runs")).expect("an answer");
    Report::of(&server.url, &[]).says("scripts", "amber", "SCRIPT FLUSH");
}

#[test]
fn what_no_test_can_do_to_a_server_is_noticed_too() {
    let said = |info: &[(&'static str, &str)]| {
        let info = info.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Report::of(&Fake::start(Says { info, ..Says::default() }).url, &[])
    };
    let healthy = said(&[]);
    for check in ["version", "eviction", "memory", "persistence", "replicas", "clock", "latency", "scripts", "clients"]
    {
        healthy.says(check, "green", "");
    }
    healthy.says("connection", "red", "");
    for (info, check, level, words) in [
        (&[("redis_version", "5.0.14")][..], "version", "red", "Redis 5.0.14: the library needs 6"),
        (&[("redis_version", "6.2.1")], "version", "amber", "waiters in a cluster poll"),
        (&[("valkey_version", "8.1.0")], "version", "green", "Valkey 8.1.0"),
        (&[("used_memory", "80000000")], "memory", "amber", "80 MB used, 80 % of 100 MB of maxmemory"),
        (&[("used_memory", "97000000")], "memory", "red", "new leases fail when it is full"),
        (
            &[("maxmemory", "0"), ("used_memory_rss", "90"), ("total_system_memory", "100")],
            "memory",
            "amber",
            "the machine",
        ),
        (&[("evicted_keys", "12")], "eviction", "amber", "12 keys were evicted"),
        (&[("aof_last_write_status", "err")], "persistence", "red", "the last write to the append-only file failed"),
        (&[("rdb_last_bgsave_status", "err")], "persistence", "red", "the last snapshot failed"),
        (&[("connected_clients", "80")], "clients", "amber", "80 of 100 connected"),
        (&[("rejected_connections", "3")], "clients", "amber", "3 rejected"),
        (&[("used_memory_vm_eval", "90000000")], "scripts", "amber", "in 90 MB"),
        (&[("redis_mode", "sentinel")], "role", "red", "redis+sentinel://"),
        (&[("redis_mode", "cluster")], "role", "red", "redis+cluster://"),
        (
            &[
                ("connected_slaves", "1"),
                ("slave0", "ip=r,port=1,state=online,offset=1,lag=7"),
                ("master_repl_offset", "2001"),
            ],
            "replicas",
            "amber",
            "r:1 has not answered for 7 s, and is 2.0 kB behind",
        ),
        (&[("connected_slaves", "18446744073709551615")], "replicas", "green", "in sync"),
    ] {
        said(info).says(check, level, words);
    }
    let says = |says: Says| Report::of(&Fake::start(says).url, &[]);
    says(Says { ahead: 3_600, ..Says::default() }).says("clock", "amber", "ahead of this machine's");
    says(Says { ahead: -3_600, ..Says::default() }).says("clock", "amber", "behind this machine's");
    let first_ping = Duration::from_millis(2_600);
    says(Says { first_ping, ..Says::default() }).says("latency", "amber", "long for a command timeout of 10s");
}

#[test]
fn the_server_is_compared_with_the_times_of_services() {
    let server = healthy();
    Report::of(&server.url, &["--ttl=5s"]).says("timeouts", "red", "ttl 5s, command timeout 10s");
    Report::of(&server.url, &["--ttl=20s"]).says("timeouts", "amber", "leaves no time for another");
    let fake = Fake::start(Says { ping: Duration::from_millis(300), ..Says::default() });
    let report = Report::of(&fake.url, &["--command-timeout=1s"]);
    report.says("latency", "red", "too long for a command timeout of 1s");
}

/// Returns the rights that docs/protocol.md lists, and what comes before them.
fn rights() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md");
    let page = std::fs::read_to_string(path).expect("the page is there");
    let (_, block) = page.split_once("ACL SETUSER shop").expect("the line is there");
    let block = block.split("```").next().unwrap_or_default();
    block.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn each_right_of_the_protocol_is_tried_and_named_if_it_is_missing() {
    let server = healthy();
    let url = server.url.replace("redis://", "redis://shop:password@");
    let user = |more: &[&str]| {
        let rights = rights();
        let line: Vec<_> =
            ["ACL", "SETUSER", "shop", "reset"].into_iter().chain(rights.iter().map(String::as_str)).collect();
        let _: String = server.call(&[&*line, &["+scan", "+getrange", "+config|get"], more].concat());
        Report::of(&url, &["--prefix=shop:"])
    };
    let all = user(&[]);
    assert_eq!((all.sick(), all.code), (Vec::new(), Some(0)), "{}", all.json);
    all.says("rights", "green", "the user shop has all");
    let mut tried = 0;
    // A server refuses HELLO to nobody.
    for right in rights().iter().filter(|right| right.starts_with('+') && *right != "+hello") {
        let report = user(&[&right.replace('+', "-")]);
        let said = report.said("rights");
        assert!(
            said.contains(&format!("lacks {right}: ")) && said.contains(&format!("ACL SETUSER shop {right}")),
            "{right}: {said}"
        );
        tried += 1;
    }
    assert_eq!(tried, 37);
    for (without, level, words) in [
        ("-zadd", "red", "lacks +zadd: locks fail"),
        ("-publish", "amber", "waiters poll"),
        ("resetchannels", "amber", "lacks &lock-core:calls:*"),
        ("-scan", "amber", "lockctl list"),
        ("-multi", "amber", "free keys are acquired by the script"),
    ] {
        user(&[without]).says("rights", level, words);
    }
    user(&["resetkeys", "~shop:*"]).says("rights", "red", "lacks ~{*}lock-core:*");
    user(&["resetkeys", "~{*}lock-core:*"]).says("rights", "red", "lacks ~shop:*");
    Report::of(&url, &[]).says("rights", "amber", "give --prefix what the keys of the services begin with");
    let keys: Vec<String> = server.call(&["KEYS", "*"]);
    assert!(
        keys.iter().all(|key| key.starts_with("shop:lock-core:doctor:")),
        "only a probe that could not be deleted: {keys:?}"
    );
}

#[test]
fn what_the_user_may_not_ask_is_amber_and_says_how_to_allow_it() {
    let server = healthy();
    let _: String = server.call(&[
        "ACL",
        "SETUSER",
        "shop",
        "on",
        ">password",
        "allkeys",
        "allchannels",
        "+@all",
        "-info",
        "-config",
        "-time",
    ]);
    let report = Report::of(&server.url.replace("redis://", "redis://shop:password@"), &[]);
    for check in
        ["version", "role", "eviction", "memory", "persistence", "replicas", "min-replicas", "scripts", "clients"]
    {
        report.says(
            check,
            "amber",
            "could not be checked: the user shop may not run INFO; to allow it: ACL SETUSER shop +info",
        );
    }
    for check in ["timeout", "tcp-keepalive", "pubsub-buffer"] {
        report.says(check, "amber", "as an administrator, with +config|get");
    }
    report.says("clock", "amber", "could not be checked: the user shop may not run TIME");
    // The locks themselves need TIME.
    report.says("rights", "red", "lacks +time");
}

#[test]
fn servers_that_cannot_be_reached_or_logged_in_to_have_the_codes_of_other_commands() {
    const SECRET: &str = "hush-hush";
    let report = Report::of(&format!("redis://:{SECRET}@127.0.0.1:1"), &["--command-timeout=1s"]);
    report.says("connection", "red", "127.0.0.1:1 could not be reached");
    assert_eq!((report.code, report.sick()), (Some(69), vec!["connection"]));
    let server = Server::start();
    set(&server, "requirepass", "another");
    let report = Report::of(&server.url.replace("redis://", &format!("redis://:{SECRET}@")), &[]);
    report.says("connection", "red", "refused the user or the password");
    assert_eq!(report.code, Some(77));
    assert!(!report.json.to_string().contains(SECRET), "{}", report.json);
    for (url, code) in [("http://:hush-hush@127.0.0.1", 78), ("memory://", 78)] {
        let done = Done::of(lockctl(url, &["doctor"]).output().expect("it starts"));
        assert_eq!((done.code, done.out.as_str(), done.err.lines().count()), (Some(code), "", 1), "{done:?}");
        assert!(done.err.starts_with("lockctl: could not ") && !done.err.contains(SECRET), "{done:?}");
    }
}

#[test]
fn replicas_are_looked_at_from_both_sides() {
    // A replica that has to copy all data waits for this long.
    let (primary, replica) = (Server::start_with("repl-diskless-sync-delay 600"), Server::start());
    let port = primary.address().rsplit(':').next().expect("a port");
    let _: String = replica.call(&["REPLICAOF", "127.0.0.1", port]);
    let info = || primary.call::<String>(&["INFO", "replication"]);
    eventually("the replica is connected", || info().contains("state=wait_bgsave"));
    Report::of(&primary.url, &[]).says("replicas", "amber", "is not in sync yet (wait_bgsave)");
    let report = Report::of(&replica.url, &["--command-timeout=1s"]);
    report.says("role", "red", "the server is a replica: it takes no locks");
    report.says("connection", "red", "replica");
    set(&primary, "repl-diskless-sync-delay", "0");
    eventually("the replica is in sync", || info().contains("state=online") && info().contains(",lag=0"));
    let report = Report::of(&primary.url, &[]);
    report.says("replicas", "green", "1 in sync");
    report.says(
        "min-replicas",
        "amber",
        "a primary that is cut off grants leases that a failover forgets; add a second replica",
    );
    set(&primary, "min-replicas-to-write", "1");
    Report::of(&primary.url, &[]).says("min-replicas", "amber", "the loss of one stops all locks");
}

#[test]
fn sentinels_are_asked_for_the_primary_and_what_may_replace_it() {
    let (primary, replica) = (Server::start(), Server::start());
    let port = |server: &Server| server.address().rsplit(':').next().expect("a port").to_owned();
    let _: String = replica.call(&["REPLICAOF", "127.0.0.1", &port(&primary)]);
    set(&primary, "repl-diskless-sync-delay", "0");
    set(&replica, "maxmemory-policy", "allkeys-lru");
    set(&replica, "maxmemory", "1gb");
    let sentinel = Server::sentinel(&format!("sentinel monitor shop 127.0.0.1 {} 1", port(&primary)));
    eventually("the sentinel knows the replica", || {
        let replicas: Vec<redis::Value> = sentinel.call(&["SENTINEL", "REPLICAS", "shop"]);
        !replicas.is_empty()
    });
    let report = Report::of(&format!("redis+sentinel://{}/shop", sentinel.address()), &[]);
    report.says("connection", "green", primary.address());
    report.says("sentinels", "amber", "only 1: when the machine of one is lost, there is no failover");
    report.says("failover", "green", "takes up to 33s, as down-after-milliseconds says; leases of 1m survive it");
    report.says("eviction", "red", "allkeys-lru");
    let evicting = report.json["checks"].as_array().expect("an array").iter().find(|row| row["level"] == "red");
    assert_eq!(evicting.map(|row| row["server"].as_str()), Some(Some(replica.address())), "{}", report.json);
    report.says("role", "green", "a replica, whose link to the primary is ");
    let short = Report::of(&format!("redis+sentinel://{}/shop", sentinel.address()), &["--ttl=31s"]);
    short.says(
        "failover",
        "amber",
        "leases of 31s do not survive it; lower down-after-milliseconds, or raise the ttl to 51s",
    );
    // Of three that are named, two do not answer.
    let urls = format!("redis+sentinel://{},127.0.0.1:1,127.0.0.1:2/shop", sentinel.address());
    Report::of(&urls, &[]).says("sentinels", "red", "1 of 3 answer; 127.0.0.1:1: Connection refused");
}

#[test]
fn nodes_of_a_cluster_are_found_and_slots_without_one_are_red() {
    let node = Server::start_with("cluster-enabled yes\ncluster-node-timeout 1500");
    let _: String = node.call(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let state = || node.call::<String>(&["CLUSTER", "INFO"]);
    eventually("the cluster is up", || state().contains("cluster_state:ok"));
    let url = node.url.replace("redis://", "redis+cluster://");
    let report = Report::of(&url, &[]);
    report.says("connection", "green", node.address());
    report.says("cluster", "green", "all slots have a node; 1 primaries");
    report.says("failover", "green", "takes up to 4s 500ms, as cluster-node-timeout says");
    report.says("replicas", "amber", "none: no server can take over");
    report.says("rights", "green", "");
    Report::of(&node.url, &[]).says("role", "red", "write redis+cluster://");
    let _: String = node.call(&[
        "ACL",
        "SETUSER",
        "shop",
        "on",
        ">password",
        "allkeys",
        "allchannels",
        "+@all",
        "-spublish",
        "-asking",
    ]);
    let limited = Report::of(&url.replace("redis+cluster://", "redis+cluster://shop:password@"), &[]);
    limited.says("rights", "red", "lacks +asking: the nodes of the cluster are not found, or keys that move fail");
    limited.says("rights", "amber", "lacks +spublish: waiters poll");
    let _: String = node.call(&["CLUSTER", "DELSLOTS", "7"]);
    Report::of(&url, &[]).says("cluster", "red", "16383 of 16384 slots have a node");
}

#[test]
fn servers_of_a_quorum_are_counted() {
    let servers = [healthy(), healthy(), healthy()];
    let urls: Vec<_> = servers.iter().map(|server| &*server.url).collect();
    let report = Report::of("redis://127.0.0.1:1", &urls);
    assert_eq!((report.sick(), report.code), (Vec::new(), Some(0)), "{}", report.json);
    report.says("quorum", "green", "3 of 3 servers answer; locks go on while 1 are down");
    set(&servers[1], "maxmemory", "1gb");
    set(&servers[1], "maxmemory-policy", "volatile-ttl");
    let report = Report::of("", &urls);
    assert_eq!((report.sick(), report.code), (vec!["eviction"], Some(78)));
    let done = servers[0].done(&[&["doctor"], &*urls].concat());
    let shown: Vec<_> = done.out.lines().filter(|line| line.contains(" eviction ")).collect();
    assert!(
        shown[0].starts_with("✗ red    eviction") && shown[0].contains(&format!("{}: ", servers[1].address())),
        "{done:?}"
    );
    let (first, last) = (servers[0].address(), servers[2].address());
    assert!(shown[1].contains(&format!("{first}, {last}: maxmemory-policy is noeviction")), "{done:?}");
    let down = format!("redis://127.0.0.1:{}", free_port());
    let report = Report::of("", &[urls[0], urls[2], &down]);
    report.says("quorum", "amber", "2 of 3 servers answer");
    report.says("connection", "amber", "does not answer this machine: Connection refused");
    let twice = urls[0].replace("127.0.0.1", "localhost");
    Report::of("", &[urls[0], urls[2], &twice]).says("quorum", "red", "only 2 are different ones");
}

#[test]
fn lines_are_for_people_with_colours_on_a_terminal_only() {
    let server = Server::start();
    set(&server, "maxmemory", "1gb");
    set(&server, "maxmemory-policy", "allkeys-lru");
    let done = server.done(&["doctor", "--ttl=60s"]);
    assert_eq!((done.code, done.err.as_str()), (Some(78), ""));
    let lines: Vec<_> = done.out.lines().collect();
    assert_eq!(lines.len(), 18, "a line for each check, and the counts: {done:?}");
    assert!(!done.out.contains('\u{1b}'));
    assert!(
        lines.contains(&"✓ green  version        Redis 7.0.15") || lines[1].starts_with("✓ green  version  "),
        "{done:?}"
    );
    assert!(lines.iter().any(|line| line.starts_with("! amber  persistence    nothing is kept: ")), "{done:?}");
    assert!(
        lines.iter().any(|line| line.starts_with("✗ red    eviction       maxmemory-policy is allkeys-lru: ")),
        "{done:?}"
    );
    assert_eq!(lines[17], "1 red, 1 amber, 15 green");
    let Some(terminal) = on_terminal(&server, &["doctor", "--ttl=60s"], "green\u{1b}", "") else { return };
    assert!(terminal.out.contains("\u{1b}[31m✗ red  \u{1b}[0m  \u{1b}[1meviction"), "{terminal:?}");
    assert!(terminal.out.contains("\u{1b}[33m! amber\u{1b}[0m"), "{terminal:?}");
    let plain = on_terminal(&server, &["NO_COLOR", "doctor", "--ttl=60s"], "green", "").expect("as before");
    assert!(
        !plain.out.contains('\u{1b}') && plain.out.contains("\n                        → CONFIG SET maxmemory-policy"),
        "{plain:?}"
    );
    assert!(plain.out.lines().all(|line| line.trim_end().chars().count() <= 80), "{plain:?}");
}
