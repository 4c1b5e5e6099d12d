//! `lockctl release`.

use crate::support::{LONG, Server, UNLESS_STOPPED};

#[test]
fn a_key_that_is_released_is_free_and_the_command_of_its_holder_stopped() {
    let server = Server::start();
    let holder = server.run(&["k", "--ttl=6s"], UNLESS_STOPPED);
    let done = server.done(&["release", "k", "--yes"]);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    let lines: Vec<_> = done.out.lines().collect();
    assert!(lines[0].starts_with("\"k\" is held by lockctl on "), "{done:?}");
    assert_eq!(lines[2], "\"k\" was released. Until its old holder notices, two may rely on the key.");
    let holder = holder.done();
    assert_eq!((holder.code, holder.out.as_str()), (Some(79), ""), "{holder:?}");
    let again = server.done(&["release", "k", "--yes"]);
    assert_eq!((again.code, again.out.as_str()), (Some(1), "\"k\" is free.\n"));
}

#[test]
fn nothing_is_released_without_a_terminal_or_yes() {
    let server = Server::start();
    let mut holder = server.run(&["k", LONG], UNLESS_STOPPED);
    let done = server.done(&["release", "k"]);
    assert_eq!((done.code, done.out.as_str()), (Some(64), ""));
    assert!(
        done.err.contains("could not release \"k\": there is no terminal") && done.err.contains("--yes"),
        "{done:?}"
    );
    holder.say("go");
    assert_eq!(holder.done().out, "not stopped\n");
}

#[test]
fn a_lock_of_another_library_is_released_only_if_that_is_said() {
    let server = Server::start();
    let _: String = server.call(&["SET", "k", "theirs"]);
    let done = server.done(&["release", "k", "--yes"]);
    assert_eq!(done.code, Some(78));
    assert!(done.err.contains("another library holds it") && done.err.contains("--foreign"), "{done:?}");
    assert!(server.is_locked("k"));
    assert_eq!(server.done(&["release", "k", "--yes", "--foreign"]).code, Some(0));
    assert!(!server.is_locked("k"));
}

#[test]
fn a_release_that_nobody_reads_of_is_done_all_the_same() {
    let server = Server::start();
    let holder = server.run(&["k", "--ttl=6s"], UNLESS_STOPPED);
    let done = server.done_unread(&["release", "k", "--yes"]);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    assert!(!server.is_locked("k"));
    assert_eq!(holder.done().code, Some(79));
    let again = server.done_unread(&["release", "k", "--yes"]);
    assert_eq!((again.code, again.err.as_str()), (Some(1), ""), "it is free by now");
    let _: String = server.call(&["SET", "k", "theirs"]);
    assert_eq!(server.done_unread(&["release", "k", "--yes"]).code, Some(78), "another library holds it");
}
