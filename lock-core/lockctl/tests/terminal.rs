//! `lockctl` on a terminal.

use crate::support::{
    BINARY, Done, LONG, LOOKS, Server, UNTIL_TOLD, eventually, line_on_terminal_while, on_terminal, on_terminal_while,
    quoted,
};

#[test]
fn a_command_on_a_terminal_can_read_from_it() {
    let server = Server::start();
    let script = "echo ready; read -r line; echo \"read <$line>\"; exit 5";
    let Some(done) = on_terminal(&server, &["run", "k", LONG, "--", "sh", "-c", script], "ready", "hello") else {
        return;
    };
    assert!(done.out.contains("read <hello>"), "{done:?}");
    assert_eq!(done.code, Some(5), "{done:?}");
    assert!(!server.is_locked("k"));
}

#[test]
fn ctrl_c_goes_to_the_command_and_the_key_is_free_when_it_has_ended() {
    let server = Server::start();
    let script = "trap 'echo ended in order; exit 6' INT; echo ready; read -r line";
    let Some(done) = on_terminal(&server, &["run", "k", LONG, "--", "sh", "-c", script], "ready", "\u{3}") else {
        return;
    };
    assert!(done.out.contains("ended in order"), "{done:?}");
    assert_eq!(done.code, Some(6), "{done:?}");
    assert!(!server.is_locked("k"));
}

#[test]
fn ctrl_c_ends_a_command_that_is_stopped() {
    let server = Server::start();
    let stops = ["run", "k", LONG, "--", "sh", "-c", "echo ready; kill -STOP $$"];
    let Some(done) = on_terminal(&server, &stops, "ready", "\u{3}") else { return };
    assert_eq!(done.code, Some(130), "{done:?}");
    assert!(!server.is_locked("k"));
}

#[test]
fn what_a_terminal_sends_to_all_is_not_passed_on_a_second_time() {
    let server = Server::start();
    // The terminal would have sent SIGINT to the command, too; the other signal comes through lockctl, behind it.
    let script =
        "trap 'echo passed on; exit 6' USR1; kill -s INT $PPID; kill -s USR1 $PPID; while :; do sleep 0.1; done";
    let Some(done) = on_terminal(&server, &["run", "k", LONG, "--", "sh", "-c", script], "", "") else { return };
    assert!(done.out.contains("passed on"), "{done:?}");
    assert_eq!(done.code, Some(6), "{done:?}");
}

#[test]
fn a_release_asks_on_a_terminal() {
    let server = Server::start();
    let _holder = server.run(&["k", LONG], UNTIL_TOLD);
    for answer in ["n", ""] {
        let Some(done) = on_terminal(&server, &["release", "k"], "[y/N] ", answer) else { return };
        assert!(done.out.contains("two may rely on the key.\r\nRelease it? [y/N] "), "{done:?}");
        assert!(done.out.contains("Nothing was released."), "{done:?}");
        assert_eq!(done.code, Some(1));
        assert!(server.is_locked("k"));
    }
    // A holder that does not answer in time is taken for another one.
    let confirmed = || on_terminal(&server, &["release", "k"], "[y/N] ", "y").expect("as before");
    let done = (0..LOOKS).map(|_| confirmed()).find(|done| !done.out.contains("may have another holder"));
    let done = done.expect("the holder answers");
    assert!(done.code == Some(0) && done.out.contains("\"k\" was released."), "{done:?}");
    assert!(!server.is_locked("k"));
}

#[test]
fn a_release_that_nobody_can_read_of_is_not_confirmed_and_fails() {
    let server = Server::start();
    let _holder = server.run(&["k", LONG], UNTIL_TOLD);
    // `lockctl` starts when its reader has ended.
    let until_unread = "trap '' PIPE; while echo; do :; done 2>/dev/null";
    let line = format!("({until_unread}; {} release k; echo \"code <$?>\" >&2) | :", quoted(BINARY));
    let Some(done) = line_on_terminal_while(&server, &line, "code <", || {}, "y") else { return };
    assert!(done.out.contains("could not release \"k\": ") && done.out.contains("code <71>"), "{done:?}");
    assert!(server.is_locked("k"));
}

#[test]
fn a_release_that_is_confirmed_late_spares_the_next_holder() {
    spares_the_next(|| {
        let server = Server::start();
        let first = std::cell::RefCell::new(server.run(&["k", LONG], UNTIL_TOLD));
        let next = std::cell::RefCell::new(None);
        let another_comes = || {
            first.borrow_mut().say("go");
            *next.borrow_mut() = Some(server.run(&["k", LONG], UNTIL_TOLD));
        };
        let done = on_terminal_while(&server, &["release", "k"], "[y/N] ", another_comes, "y");
        done.map(|done| (done, server.is_locked("k")))
    });
}

/// They have no name: only the end of their lock tells one from the next.
#[test]
fn a_release_that_is_confirmed_late_spares_the_next_client_of_another_library() {
    let server = Server::start();
    let lock = |ttl: &[&str]| {
        let _: String = server.call(&[&["SET", "k", "theirs"], ttl].concat());
    };
    let release = ["release", "k", "--foreign"];
    for (first, next) in [(&["EX", "600"][..], &["EX", "900"][..]), (&[], &["EX", "600"]), (&["EX", "600"], &[])] {
        lock(first);
        let Some(done) = on_terminal_while(&server, &release, "[y/N] ", || lock(next), "y") else { return };
        assert!(done.code == Some(1) && done.out.contains("\"k\" may have another holder by now"), "{done:?}");
        assert!(server.is_locked("k"));
    }
    for ttl in [&["EX", "600"][..], &[]] {
        lock(ttl);
        let done = on_terminal(&server, &release, "[y/N] ", "y").expect("as before");
        assert!(done.code == Some(0) && !server.is_locked("k"), "{done:?}");
    }
}

/// Readers who overlap have one fencing token in common.
#[test]
fn a_release_that_is_confirmed_late_spares_the_next_reader() {
    spares_the_next(|| {
        let server = Server::start();
        let reader = || server.run(&["k", LONG, "--shared"], UNTIL_TOLD);
        let first = std::cell::RefCell::new(reader());
        let next = std::cell::RefCell::new(None);
        let another_comes = || {
            // The one that asks at the terminal, too.
            eventually("everybody answers", || !server.done(&["who", "k"]).out.contains("did not answer"));
            *next.borrow_mut() = Some(reader());
            first.borrow_mut().say("go");
            eventually("the first has ended", || server.done(&["who", "k"]).out.matches("(process").count() == 1);
        };
        let done = on_terminal_while(&server, &["release", "k"], "[y/N] ", another_comes, "y");
        done.map(|done| (done, server.is_locked("k")))
    });
}

/// Has a key released while another holder comes, until the first one has answered in time: one that does not cannot be told from another.
fn spares_the_next(mut release: impl FnMut() -> Option<(Done, bool)>) {
    for _ in 0..LOOKS {
        let Some((done, is_locked)) = release() else { return };
        if done.out.contains(" by lockctl on ") || done.out.contains("shared: lockctl on ") {
            assert!(done.code == Some(1) && done.out.contains("\"k\" may have another holder by now"), "{done:?}");
            assert!(is_locked);
            return;
        }
    }
    panic!("the first holder never answers");
}
