//! `lockctl run` when the lease is lost, or `lockctl` itself is.

use std::{thread::sleep, time::Duration};

use crate::support::{
    LONG, Pipe, Run, Server, UNLESS_STOPPED, UNTIL_TOLD, eventually, is_running, kill, quoted, state,
};

/// Outlives SIGTERM, as a whole.
const STUBBORN: &str = "trap '' TERM; echo ready; while :; do sleep 0.1; done";

/// Ends with SIGTERM, but something that it started does not.
const STUBBORN_CHILD: &str = "(trap '' TERM; while :; do sleep 0.1; done) & echo ready; wait";

#[test]
fn a_command_is_stopped_when_its_key_is_taken_away() {
    let server = Server::start();
    for script in [UNLESS_STOPPED, STUBBORN, STUBBORN_CHILD] {
        let run = server.run(&["k", "--ttl=30s", "--kill-after=300ms"], script);
        let _: i64 = server.call(&["DEL", "k"]);
        let done = run.done();
        assert_eq!((done.code, done.out.as_str()), (Some(79), ""), "{script}: {done:?}");
        assert!(done.err.starts_with("lockctl: could not keep \"k\": the key was deleted"), "{done:?}");
        assert_eq!(done.err.lines().count(), 1, "{done:?}");
    }
}

/// Its standard error goes to a pipe that another process has filled.
#[test]
fn a_command_is_stopped_though_nobody_reads_what_lockctl_says() {
    let server = Server::start();
    for is_killed in [false, true] {
        let _: i64 = server.call(&["DEL", "k"]);
        let mut run = server.run(&["k", LONG, "--kill-after=300ms"], "echo ready; yes >&2 & echo $!; wait");
        let yes = run.line();
        eventually("the pipe is full", || state(&yes).starts_with('S'));
        if is_killed {
            run.child.kill().expect("it runs");
        } else {
            let _: i64 = server.call(&["DEL", "k"]);
        }
        assert_eq!(run.rest(), "", "all have ended");
        assert_eq!(run.end().code(), if is_killed { None } else { Some(79) });
    }
}

#[test]
fn a_command_is_stopped_when_the_server_is_gone() {
    let server = Server::start();
    let run = server.run(&["k", "--ttl=15s"], UNLESS_STOPPED);
    drop(server);
    let done = run.done();
    assert_eq!((done.code, done.out.as_str()), (Some(79), ""), "{done:?}");
    assert!(done.err.contains("could not keep \"k\": the lease was not renewed, and ends in "), "{done:?}");
    assert!(done.err.contains("check that Redis runs"), "{done:?}");
}

#[test]
fn a_command_is_stopped_when_the_server_hangs() {
    let server = Server::start();
    let run = server.run(&["k", "--ttl=9s"], UNLESS_STOPPED);
    server.pause();
    let done = run.done();
    assert_eq!(done.code, Some(79), "{done:?}");
}

/// The command has ended with 0, and `lockctl` waits for the watcher when the lease ends.
#[test]
fn a_key_that_is_lost_after_its_command_is_said_not_to_be_kept() {
    let server = Server::start();
    for attempt in 0..5 {
        let key = format!("k{attempt}");
        let script = "echo $$; ps -o pgid= -p $$; read -r line";
        let arguments = ["run", &key, "--ttl=3s", "--at-least=1h", "--", "sh", "-c", script];
        let mut run = Run::start(server.lockctl(&arguments));
        let (command, watcher) = (run.line(), run.line().trim().to_owned());
        kill("STOP", &watcher);
        run.say("go");
        eventually("the command has ended", || state(&command).is_empty());
        run.signal("STOP");
        let left: i64 = server.call(&["PTTL", &key]);
        if left < 10_000 {
            eventually("the key expires", || !server.is_locked(&key));
            run.signal("CONT");
            kill("CONT", &watcher);
            let done = run.done();
            assert_eq!(done.code, Some(0), "{done:?}");
            assert!(done.err.contains("could not be kept for --at-least"), "{done:?}");
            return;
        }
        // It no longer waited, and has released the key.
        run.signal("CONT");
        kill("CONT", &watcher);
    }
    panic!("lockctl never waited for its watcher");
}

#[test]
fn a_command_does_not_outlive_lockctl_and_ends_before_its_key_expires() {
    let server = Server::start();
    for script in [UNLESS_STOPPED, STUBBORN, STUBBORN_CHILD] {
        let _: i64 = server.call(&["DEL", "k"]);
        let mut run = server.run(&["k", LONG, "--kill-after=300ms"], script);
        run.child.kill().expect("it runs");
        assert_eq!(run.rest(), "", "{script}");
        assert!(server.is_locked("k"), "nobody has released it");
        assert!(run.done().err.starts_with("lockctl: lockctl was killed; stopping the command"));
    }
}

#[test]
fn a_command_is_stopped_when_lockctl_stands_still_and_the_lease_ends() {
    let server = Server::start();
    for script in [UNLESS_STOPPED, STUBBORN, STUBBORN_CHILD] {
        // Its output is lockctl's, too, which has not ended; so it has a pipe of its own.
        let pipe = Pipe::new();
        let run =
            server.run(&["k", "--ttl=6s", "--kill-after=300ms"], &format!("exec 3>{}; {script}", quoted(pipe.path())));
        run.signal("STOP");
        pipe.until_closed(script);
        eventually("the key expires", || !server.is_locked("k"));
        run.signal("CONT");
        let done = run.done();
        assert_eq!(done.code, Some(79), "{script}: {done:?}");
    }
}

#[test]
fn lockctl_ends_after_all_processes_of_a_command_that_it_stops() {
    let server = Server::start();
    let script = "sh -c 'trap \"\" TERM; echo $$; echo ready; while :; do sleep 0.1; done'; true";
    let mut run = Run::start(server.lockctl(&["run", "k", "--ttl=12s", "--kill-after=1s", "--", "sh", "-c", script]));
    let stubborn = run.line();
    assert_eq!(run.line(), "ready");
    let _: i64 = server.call(&["DEL", "k"]);
    assert_eq!(run.end().code(), Some(79));
    assert!(!is_running(&stubborn));
    // The watcher leaves it to lockctl.
    let done = run.done();
    assert_eq!(done.err.lines().count(), 1, "{done:?}");
}

#[test]
fn a_command_that_signals_its_own_group_does_not_end_its_watcher() {
    let server = Server::start();
    for signal in ["TERM", "ALRM", "TSTP"] {
        let _: i64 = server.call(&["DEL", "k"]);
        let script = format!("trap : {signal}; kill -s {signal} 0; trap - {signal}; echo ready; read -r line");
        let mut run = server.run(&["k", LONG], &script);
        run.child.kill().expect("it runs");
        assert_eq!(run.rest(), "", "{signal}");
    }
}

#[test]
fn a_command_that_was_stopped_for_longer_than_its_ttl_goes_on_if_the_lease_was_renewed() {
    let server = Server::start();
    let script = "echo ready; ps -o pgid= -p $$; while read -r line; do echo \"$line\"; done";
    let mut run = server.run(&["k", "--ttl=12s", "--kill-after=100ms"], script);
    let group = format!("-{}", run.line().trim());
    for _ in 0..2 {
        kill("STOP", &group);
        // More than the ttl, which lockctl renews meanwhile.
        sleep(Duration::from_millis(12_500));
        kill("CONT", &group);
        run.say("more");
        assert_eq!(run.line(), "more");
    }
    drop(run.child.stdin.take());
    let done = run.done();
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
}

#[test]
fn a_lease_that_was_waited_for_is_not_taken_for_one_that_is_about_to_end() {
    let server = Server::start();
    // A third of the ttl, far more than a granted lease may begin with.
    let patient = ["run", "k", LONG, "--kill-after=20s", "--wait-forever", "--", "echo", "ran"];
    let mut first = server.run(&["k", LONG], UNTIL_TOLD);
    let waiters: Vec<_> = (0..3).map(|_| Run::start(server.lockctl(&patient))).collect();
    server.until_waiters("k", 3);
    first.say("go");
    for waiter in waiters {
        let done = waiter.done();
        assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (Some(0), "ran\n", ""));
    }
}
