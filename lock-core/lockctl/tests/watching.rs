//! `lockctl list` for people who look at it for a while, on a terminal.

use std::io::{BufRead, BufReader};

use unicode_width::UnicodeWidthStr as _;

use crate::support::{LONG, Run, Server, UNTIL_TOLD, eventually, on_terminal};

#[test]
fn a_list_that_is_watched_shows_what_comes_and_goes() {
    let server = Server::start();
    let mut holder = server.run(&["first", LONG], UNTIL_TOLD);
    let mut watch = Run::start(server.lockctl(&["list", "--watch=100ms"]));
    while !watch.line().starts_with("first ") {}
    holder.say("go");
    let _second = server.run(&["second", LONG], UNTIL_TOLD);
    while !watch.line().starts_with("second ") {}
    // A look that fails does not end it.
    let err = BufReader::new(watch.child.stderr.take().expect("piped"));
    let _: String = server.call(&["ACL", "SETUSER", "default", "-scan"]);
    // Lines of earlier looks come first, such as that no key is held.
    let failure = err.lines().take(1_000).map_while(Result::ok).find(|line| line.starts_with("lockctl: could not "));
    assert!(failure.is_some());
    let _: String = server.call(&["ACL", "SETUSER", "default", "+scan"]);
    let _third = server.run(&["third", LONG], UNTIL_TOLD);
    while !watch.line().starts_with("third ") {}
}

#[test]
fn keys_without_a_waiter_are_left_out_if_that_is_asked() {
    let server = Server::start();
    let _holders = ["a", "b"].map(|key| server.run(&[key, LONG], UNTIL_TOLD));
    // A process that did not answer in time is asked again, here and below.
    eventually("nothing is waited for, and that is said", || {
        let none = server.done(&["list", "--waiting"]);
        assert_eq!((none.code, none.out.as_str()), (Some(0), ""));
        none.err == "lockctl: no key is waited for\n"
    });
    let _waiter = Run::start(server.lockctl(&["run", "b", "--wait-forever", "--", "true"]));
    server.until_waiters("b", 1);
    eventually("only the second key is listed", || {
        let listed = server.done(&["list", "--waiting"]).out;
        listed.lines().map(|line| &line[..2]).eq(["KE", "b "])
    });
    eventually("also as JSON", || {
        let json = server.json(&["list", "--waiting"]);
        (json.as_array().map(Vec::len), json[0]["key"].as_str()) == (Some(1), Some("b"))
    });
}

#[test]
fn long_keys_are_clipped_on_a_terminal_and_whole_elsewhere() {
    let server = Server::start();
    let key = format!("begin{}end", "x".repeat(1_000));
    let wide = "店".repeat(60);
    let _holders = [&key, &wide].map(|key| server.run(&[key, LONG], UNTIL_TOLD));
    let _waiter = Run::start(server.lockctl(&["run", &key, "--wait-forever", "--", "true"]));
    server.until_waiters(&key, 1);
    assert!([&key, &wide].iter().all(|key| server.done(&["list"]).out.contains(*key)));
    let Some(plain) = on_terminal(&server, &["NO_COLOR", "list"], "WAITERS", "") else { return };
    assert!(plain.out.contains("begin") && plain.out.contains("…") && plain.out.contains("xend  "), "{plain:?}");
    assert!(plain.out.contains("店…店"), "{plain:?}");
    // One of its characters takes two columns.
    assert!(plain.out.lines().all(|line| line.trim_end().width() <= 80), "{plain:?}");
    let is_shown = |arguments: &[&str], words: &str| {
        eventually(&format!("{arguments:?} shows {words:?}"), || {
            on_terminal(&server, arguments, "", "").expect("as before").out.contains(words)
        });
    };
    is_shown(&["list"], "\u{1b}[33m1\u{1b}[0m");
    is_shown(&["who", &key], "\u{1b}[33m1 request waits for it:\u{1b}[0m");
}
