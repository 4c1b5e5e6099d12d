//! `lockctl doctor`.

mod rights;
mod topologies;

use std::io::Write;

use serde_json::Value;

use crate::{
    fake::{Fake, Says},
    support::{Done, PATIENT, Server, free_port, lockctl, on_terminal},
};

/// A report, as programs read it.
struct Report {
    code: Option<i32>,
    json: Value,
}

impl Report {
    fn of(url: &str, arguments: &[&str]) -> Self {
        Self::with(url, arguments, &[])
    }

    fn with(url: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let ttl = if arguments.iter().any(|argument| argument.starts_with("--ttl")) { &[][..] } else { &["--ttl=60s"] };
        let mut lockctl = lockctl(url, &[&["doctor", "--json"], ttl, arguments].concat());
        let done = Done::of(
            lockctl.envs(environment.iter().copied()).env("LOCK_COMMAND_TIMEOUT", PATIENT).output().expect("it starts"),
        );
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
    assert_eq!(report.json["checks"].as_array().map(Vec::len), Some(16));
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
}

#[test]
fn what_no_test_can_do_to_a_server_is_noticed_too() {
    let said = |info: &[(&'static str, &str)]| {
        let info = info.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Report::of(&Fake::start(Says { info, ..Says::default() }).url, &[])
    };
    let healthy = said(&[]);
    for check in ["version", "eviction", "memory", "persistence", "replicas", "clock", "latency", "clients"] {
        healthy.says(check, "green", "");
    }
    healthy.says("connection", "red", "");
    for (info, check, level, words) in [
        (&[("redis_version", "5.0.14")][..], "version", "red", "Redis 5.0.14: the library needs 6"),
        (&[("redis_version", "6.0.16")], "version", "amber", "was not tested"),
        (&[("redis_version", "6.2.1")], "version", "green", "Redis 6.2.1"),
        (&[("valkey_version", "8.1.0")], "version", "green", "Valkey 8.1.0"),
        (&[("used_memory", "80000000")], "memory", "amber", "80 MB used, 80 % of 100 MB of maxmemory"),
        (&[("used_memory", "97000000")], "memory", "red", "new leases fail when it is full"),
        (
            &[("maxmemory", "0"), ("used_memory_rss", "90"), ("total_system_memory", "100")],
            "memory",
            "amber",
            "the machine",
        ),
        (
            &[("used_memory_scripts_eval", "2000000")],
            "memory",
            "green",
            "1 % of 100 MB of maxmemory, 2.0 MB of it by scripts",
        ),
        (&[("maxmemory_policy", "")], "eviction", "amber", "could not be checked: INFO has no maxmemory_policy"),
        (&[("maxmemory", "")], "memory", "amber", "could not be checked: INFO has no maxmemory"),
        (&[("redis_version", "")], "version", "amber", "could not be checked: INFO has no redis_version"),
        (&[("aof_enabled", "")], "persistence", "amber", "could not be checked: INFO has no aof_enabled"),
        (&[("maxclients", "many")], "clients", "amber", "could not be checked: maxclients in INFO is not a number"),
        (&[("aof_last_write_status", "err")], "persistence", "red", "the last write to the append-only file failed"),
        (&[("rdb_last_bgsave_status", "err")], "persistence", "red", "the last snapshot failed"),
        (&[("connected_clients", "80")], "clients", "amber", "80 of 100 connected"),
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
    let ends = says(Says { ends_at: "ZSCORE", ..Says::default() });
    ends.says("rights", "amber", "could not be checked: a trial of the rights failed: ");
    says(Says { ahead: 3_600, ..Says::default() }).says("clock", "amber", "ahead of this machine's");
    says(Says { ahead: -3_600, ..Says::default() }).says("clock", "amber", "behind this machine's");
}

#[test]
fn the_server_is_compared_with_the_times_of_services() {
    let server = healthy();
    Report::of(&server.url, &["--ttl=5s"]).says("timeouts", "red", "ttl 5s, command timeout 20s");
    Report::of(&server.url, &["--ttl=20s"]).says("timeouts", "amber", "leaves no time for another");
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
fn lines_are_for_people_with_colours_on_a_terminal_only() {
    let server = Server::start();
    set(&server, "maxmemory", "1gb");
    set(&server, "maxmemory-policy", "allkeys-lru");
    let done = server.done(&["doctor", "--ttl=60s"]);
    assert_eq!((done.code, done.err.as_str()), (Some(78), ""));
    let lines: Vec<_> = done.out.lines().collect();
    assert_eq!(lines.len(), 17, "a line for each check, and the counts: {done:?}");
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
    assert_eq!(lines[16], "1 red, 1 amber, 14 green");
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

#[cfg(feature = "tls")]
#[test]
fn a_server_is_asked_through_tls_too() {
    let mut cannot =
        std::process::Command::new(std::env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into()));
    // It refuses to start in any case: for lack of the certificate, or of TLS.
    cannot.args([
        "--port",
        "0",
        "--tls-port",
        "1",
        "--tls-cert-file",
        "/missing.pem",
        "--tls-key-file",
        "/missing.pem",
    ]);
    if !String::from_utf8_lossy(&cannot.output().expect("it starts").stdout).contains("Failed to configure TLS") {
        let _ = writeln!(std::io::stderr(), "left out: lockctl doctor through TLS: redis-server was built without TLS");
        return;
    }
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate can be made");
    let folder = std::env::temp_dir().join(format!("lockctl-{}-tls", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert, own.cert.pem()).expect("a file");
    std::fs::write(&key, own.signing_key.serialize_pem()).expect("a file");
    let (cert, port) = (cert.display().to_string(), free_port());
    let lines =
        format!("tls-port {port}\ntls-cert-file \"{cert}\"\ntls-key-file \"{}\"\ntls-auth-clients no", key.display());
    let _server = Server::start_with(&format!("appendonly yes\nappendfsync always\n{lines}"));
    let report = Report::with(&format!("rediss://localhost:{port}"), &[], &[("SSL_CERT_FILE", &cert)]);
    assert_eq!((report.sick(), report.code), (Vec::new(), Some(0)), "{}", report.json);
    let stranger = Report::of(&format!("rediss://localhost:{port}"), &[]);
    stranger.says(
        "connection",
        "red",
        "has a certificate that is not accepted (invalid peer certificate: UnknownIssuer)",
    );
    assert_eq!(stranger.sick(), ["connection"]);
    let _ = std::fs::remove_dir_all(folder);
}
