//! Signals to `lockctl run`.

use std::{thread::sleep, time::Duration};

use crate::support::{LONG, Run, Server, UNTIL_TOLD, eventually, is_running, state};

#[test]
fn signals_go_to_the_command_and_its_processes_and_the_key_is_free_when_they_have_ended() {
    let server = Server::start();
    for (signal, code) in [("INT", 3), ("TERM", 4), ("HUP", 5), ("USR1", 6)] {
        // The inner shell has the output, too, which closes when both have ended; the outer one waits for it.
        let script = format!("trap 'exit {code}' {signal}; sh -c 'echo ready; read -r line; echo not signalled'");
        let run = server.run(&["k", LONG], &script);
        run.signal(signal);
        let done = run.done();
        assert_eq!((done.code, done.out.as_str()), (Some(code), ""), "{signal}: {done:?}");
        assert!(!server.is_locked("k"));
    }
}

#[test]
fn a_command_that_a_signal_ends_keeps_no_key_busy_and_one_that_then_ends_well_does() {
    let server = Server::start();
    for (key, script, code) in
        [("stopped", "echo ready; read -r line", 143), ("done", "trap 'exit 0' TERM; echo ready; read -r line", 0)]
    {
        let run = server.run(&[key, LONG, "--at-least", "60s"], script);
        run.signal("TERM");
        assert_eq!(run.done().code, Some(code), "{key}");
        assert_eq!(server.is_locked(key), code == 0, "{key}");
    }
}

#[test]
fn the_key_stays_held_while_a_command_takes_its_time_after_a_signal() {
    let server = Server::start();
    let mut run = server.run(&["k", LONG], "trap 'echo ending; read -r line; exit 0' TERM; echo ready; read -r line");
    run.signal("TERM");
    assert_eq!(run.line(), "ending");
    assert!(server.is_locked("k"));
    run.say("go");
    assert_eq!(run.done().code, Some(0));
    assert!(!server.is_locked("k"));
}

#[test]
fn a_signal_ends_a_command_that_is_stopped() {
    let server = Server::start();
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let run = Run::start(server.lockctl(&["run", "k", LONG, "--", "sh", "-c", "echo $$; kill -STOP $$"]));
        let shell = run.line();
        eventually("the command has stopped itself", || state(&shell).starts_with('T'));
        run.signal(signal);
        assert_eq!(run.done().code, Some(code), "{signal}");
        assert!(!server.is_locked("k"));
    }
}

#[test]
fn the_key_stays_held_while_a_program_of_a_shell_takes_its_time_after_a_signal() {
    let server = Server::start();
    // The outer shell ends at once with the signal.
    let script = "echo $$; sh -c 'trap \"echo ending; read -r line; exit 0\" TERM; echo ready; read -r line'; true";
    let mut run = Run::start(server.lockctl(&["run", "k", LONG, "--", "sh", "-c", script]));
    let shell = run.line();
    assert_eq!(run.line(), "ready");
    run.signal("TERM");
    assert_eq!(run.line(), "ending");
    eventually("the shell ends", || !is_running(&shell));
    for _ in 0..20 {
        assert!(server.is_locked("k"));
        sleep(Duration::from_millis(10));
    }
    run.say("go");
    assert_eq!(run.done().code, Some(143));
    assert!(!server.is_locked("k"));
}

#[test]
fn a_signal_ends_the_wait_and_leaves_no_place_in_the_queue() {
    let server = Server::start();
    let _holder = server.run(&["k", LONG], UNTIL_TOLD);
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let waiter = Run::start(server.lockctl(&["run", "k", "--wait-forever", "--", "echo", "ran"]));
        server.until_waiters("k", 1);
        waiter.signal(signal);
        let done = waiter.done();
        assert_eq!((done.code, done.out.as_str()), (Some(code), ""));
        server.until_waiters("k", 0);
        let left: Vec<String> = server.call(&["KEYS", "*queue*"]);
        assert!(left.is_empty(), "{left:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_signal_that_was_ignored_from_the_start_stays_ignored_as_with_nohup() {
    use std::os::unix::process::CommandExt;

    use crate::support::{BINARY, PATIENT};

    let server = Server::start();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", BINARY]).process_group(0).env("LOCK_URL", &server.url);
    command.env("LOCK_COMMAND_TIMEOUT", PATIENT);
    command.args(["run", "k", LONG, "--", "sh", "-c", "echo ready; read -r line; echo done"]);
    let mut run = Run::start(command);
    assert_eq!(run.line(), "ready");
    run.signal("HUP");
    run.say("go");
    let done = run.done();
    assert_eq!((done.code, done.out.as_str()), (Some(0), "done\n"));
}
