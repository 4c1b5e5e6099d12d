//! What `lockctl` says when it fails.

use crate::support::{Done, Server, lockctl};

const SECRET: &str = "hush-hush";

fn is_one_line_without_secret(done: &Done, code: i32) {
    assert_eq!(done.code, Some(code), "{done:?}");
    assert_eq!((done.out.as_str(), done.err.lines().count()), ("", 1), "{done:?}");
    assert!(done.err.starts_with("lockctl: could not "), "{done:?}");
    assert!(!done.err.contains(SECRET) && !done.err.contains("Error"), "{done:?}");
}

const EACH: [&[&str]; 4] = [&["run", "k", "--", "echo", "ran"], &["list"], &["who", "k"], &["release", "k", "--yes"]];

#[test]
fn no_server_is_one_line_with_address_and_remedy() {
    // No server of another test takes this port.
    let address = "127.0.0.1:1";
    for arguments in EACH {
        let mut lockctl = lockctl(&format!("redis://:{SECRET}@{address}"), arguments);
        let done = Done::of(lockctl.env("LOCK_COMMAND_TIMEOUT", "5s").output().expect("it starts"));
        is_one_line_without_secret(&done, 69);
        assert!(done.err.contains(address) && done.err.contains("check that it runs"), "{done:?}");
        assert!(done.err.contains("(Connection refused"), "the cause: {done:?}");
    }
}

#[test]
fn a_server_that_hangs_is_one_line_too() {
    let server = Server::start();
    server.pause();
    is_one_line_without_secret(&server.done(&["who", "k", "--command-timeout=1s"]), 69);
    let run = ["run", "k", "--wait-forever", "--command-timeout=1s", "--", "echo", "ran"];
    is_one_line_without_secret(&server.done(&run), 69);
}

#[test]
fn a_refused_password_is_a_code_of_its_own() {
    let server = Server::start();
    let _: String = server.call(&["CONFIG", "SET", "requirepass", "another"]);
    for arguments in EACH {
        let url = server.url.replace("redis://", &format!("redis://:{SECRET}@"));
        is_one_line_without_secret(&Done::of(lockctl(&url, arguments).output().expect("it starts")), 77);
    }
}

#[test]
fn what_is_out_of_its_range_is_a_code_of_its_own() {
    let server = Server::start();
    let _: i64 = server.call(&["HSET", "hash", "field", "value"]);
    for arguments in [
        &["run", "k", "--ttl", "1ms", "--", "echo", "ran"][..],
        &["run", "", "--", "echo", "ran"],
        &["run", "hash", "--ttl=2s", "--", "echo", "ran"],
        &["who", &"k".repeat(1_025)],
        &["release", "hash", "--yes"],
        &["--prefix", "a{b}", "list"],
        &["--command-timeout", "0s", "list"],
        &["--url", "http://:hush-hush@127.0.0.1", "list"],
    ] {
        is_one_line_without_secret(&server.done(arguments), 78);
    }
    assert!(server.is_locked("hash"), "it is left alone");
}

#[test]
fn a_wrong_command_line_is_64_and_help_shows_no_secret() {
    let server = Server::start();
    for arguments in [
        &["run", "k"][..],
        &["run", "--", "true"],
        &["run", "k", "--ttl", "soon", "--", "true"],
        &["run", "k", "--wait", "1s", "--wait-forever", "--", "true"],
        &["run", "k", "--skip-if-busy", "--wait", "1s", "--", "true"],
        &["what"],
        &[],
    ] {
        let done = server.done(arguments);
        assert_eq!((done.code, done.out.as_str()), (Some(64), ""), "{arguments:?}: {done:?}");
    }
    let help = server.lockctl(&["--help"]).env("LOCK_URL", format!("redis://:{SECRET}@127.0.0.1")).output();
    let help = Done::of(help.expect("it starts"));
    assert_eq!((help.code, help.err.as_str()), (Some(0), ""));
    assert!(!help.out.contains(SECRET) && !help.out.contains("__watcher"), "{}", help.out);
}
