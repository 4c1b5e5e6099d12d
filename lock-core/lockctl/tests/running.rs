//! `lockctl run` when all goes well, or the key is busy.

use std::{fs, io::Write, process::Stdio};

use crate::support::{BINARY, Done, LONG, PATIENT, Run, Server, UNTIL_TOLD, eventually};

#[test]
fn a_command_gets_key_and_token_and_lockctl_exits_with_its_code() {
    let server = Server::start();
    let script = "echo $LOCK_KEY $LOCK_FENCING_TOKEN; exit 7";
    let token = || {
        let done = server.done(&["--prefix", "shop:", "run", "a b", "--", "sh", "-c", script]);
        assert_eq!((done.code, done.err.as_str()), (Some(7), ""));
        done.out.strip_prefix("a b ").and_then(|token| token.trim().parse::<u64>().ok()).expect("key and token")
    };
    let first = token();
    assert!(first < token(), "later holders have larger tokens");
    assert!(!server.is_locked("shop:a b"));
}

#[test]
fn a_command_that_a_signal_ended_gives_128_and_its_number() {
    let server = Server::start();
    for (name, code) in [("TERM", 143), ("KILL", 137)] {
        let done = server.done(&["run", "k", "--", "sh", "-c", &format!("kill -s {name} $$")]);
        assert_eq!((done.code, done.err.as_str()), (Some(code), ""));
    }
    assert!(!server.is_locked("k"));
}

#[test]
fn exit_code_is_that_of_the_command_even_if_a_parent_ignores_the_end_of_children() {
    let server = Server::start();
    // Shells do not let SIGCHLD be ignored.
    let ignores = "$SIG{CHLD} = 'IGNORE'; exec @ARGV";
    let mut command = std::process::Command::new("perl");
    command.args(["-e", ignores, BINARY, "run", "k", "--", "sh", "-c", "exit 7"]).env("LOCK_URL", &server.url);
    command.env("LOCK_COMMAND_TIMEOUT", PATIENT);
    let done = Done::of(command.stdin(Stdio::null()).output().expect("perl starts"));
    assert_eq!((done.code, done.err.as_str()), (Some(7), ""));
}

/// Runs lockctl inside the command of lockctl, and so on.
fn nested(server: &Server, options: &[&[&str]]) -> Done {
    let (first, rest) = options.split_first().expect("one at least");
    let mut arguments = vec!["run", "k"];
    arguments.extend(*first);
    arguments.push("--");
    for options in rest {
        arguments.extend([BINARY, "run", "k", "--wait", "0s"]);
        arguments.extend(*options);
        arguments.push("--");
    }
    arguments.push("true");
    server.done(&arguments)
}

#[test]
fn commands_that_share_a_key_run_together_and_no_other_beside_them() {
    let server = Server::start();
    let shared: &[&str] = &["--shared"];
    assert_eq!(nested(&server, &[shared, shared, shared]).code, Some(0));
    for options in [[shared, &[]], [&[], shared], [shared, &["--permits", "3"]]] {
        assert_eq!(nested(&server, &options).code, Some(75), "{options:?}");
    }
    assert!(!server.is_locked("k"));
}

#[test]
fn as_many_commands_run_as_the_key_has_permits() {
    let server = Server::start();
    let (one, two): (&[&str], &[&str]) = (&["--permits", "3"], &["--permits", "3", "--take", "2"]);
    assert_eq!(nested(&server, &[one, one, one]).code, Some(0));
    assert_eq!(nested(&server, &[one, one, one, one]).code, Some(75));
    assert_eq!(nested(&server, &[one, two]).code, Some(0));
    assert_eq!(nested(&server, &[two, two]).code, Some(75));
    let other = nested(&server, &[one, &["--permits", "4"]]);
    assert_eq!(other.code, Some(75), "as busy as without a permit: {other:?}");
    assert!(other.err.contains('3') && other.err.contains('4'), "both totals are named: {other:?}");
    for wrong in [&["--permits", "0"][..], &["--permits", "1", "--take", "2"]] {
        let done = nested(&server, &[wrong]);
        assert_eq!(done.code, Some(78), "{done:?}");
    }
    for wrong in [&["--take", "1"][..], &["--shared", "--permits", "2"]] {
        assert_eq!(nested(&server, &[wrong]).code, Some(64), "{wrong:?}");
    }
    assert!(!server.is_locked("k"));
}

#[test]
fn any_time_can_be_given_to_a_command_that_is_stopped() {
    let server = Server::start();
    for time in ["0s", "1us", "18446744073709551615s"] {
        let done = server.done(&["run", "k", "--kill-after", time, "--", "true"]);
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{time}");
    }
}

#[test]
fn a_command_that_cannot_be_started_gives_the_codes_of_shells_and_frees_the_key() {
    let server = Server::start();
    for (command, code) in [("no-such-command", 127), ("/dev/null", 126)] {
        let done = server.done(&["run", "k", LONG, "--", command]);
        assert_eq!(done.code, Some(code), "{done:?}");
        assert!(done.err.starts_with(&format!("lockctl: could not start \"{command}\": ")), "{done:?}");
        assert_eq!(done.err.lines().count(), 1);
        assert!(!server.is_locked("k"));
    }
}

#[test]
fn input_and_outputs_are_those_of_the_command() {
    let server = Server::start();
    let mut command = server.lockctl(&["run", "k", "--", "sh", "-c", "cat; echo wrong >&2"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let text = "a line\n".repeat(1_000);
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads");
    let done = Done::of(child.wait_with_output().expect("it ends"));
    assert_eq!((done.code, done.err.as_str()), (Some(0), "wrong\n"));
    assert_eq!(done.out, text);
}

#[test]
fn a_busy_key_is_said_by_a_code_of_its_own_and_skipped_in_silence() {
    let server = Server::start();
    let mut holder = server.run(&["k", LONG], UNTIL_TOLD);
    let told = "held by someone else";
    for (arguments, code, says) in [
        (&["--wait", "0s"][..], 75, told),
        (&["--wait", "100ms"], 75, told),
        (&["--wait", "0s", "--busy-code", "9"], 9, told),
        (&["--skip-if-busy"], 0, ""),
        (&["--skip-if-busy", "--busy-code=3"], 3, ""),
    ] {
        let done = server.done(&[&["run", "k"], arguments, &["--", "echo", "ran"]].concat());
        assert_eq!((done.code, done.out.as_str()), (Some(code), ""), "{arguments:?}: {done:?}");
        assert!(done.err.contains(says) && done.err.is_empty() == says.is_empty(), "{arguments:?}: {done:?}");
        assert!(done.err.lines().count() <= 1, "{done:?}");
    }
    holder.say("go");
    assert_eq!(holder.done().code, Some(0));
}

#[test]
fn a_command_waits_for_its_turn() {
    let server = Server::start();
    let mut first = server.run(&["k", LONG], UNTIL_TOLD);
    let command = ["run", "k", LONG, "--wait-forever", "--", "echo", "second"];
    let second = Run::start(server.lockctl(&command));
    server.until_waiters("k", 1);
    first.say("go");
    assert_eq!(first.done().code, Some(0));
    let done = second.done();
    assert_eq!((done.code, done.out.as_str()), (Some(0), "second\n"));
    assert!(!server.is_locked("k"));
}

#[test]
fn a_key_stays_busy_for_at_least_as_long_as_told() {
    let server = Server::start();
    let nightly = ["run", "k", "--skip-if-busy", "--at-least", "60s", "--", "echo", "ran"];
    let [first, second] = [server.done(&nightly), server.done(&nightly)];
    assert_eq!((first.code, first.out.as_str()), (Some(0), "ran\n"));
    assert_eq!((second.code, second.out.as_str(), second.err.as_str()), (Some(0), "", ""));
}

#[test]
fn a_command_that_failed_or_was_not_found_keeps_no_key_busy() {
    let server = Server::start();
    let nightly = ["run", "k", "--skip-if-busy", "--at-least", "60s", "--"];
    for (command, code) in [
        (&["sh", "-c", "exit 3"][..], 3),
        (&["sh", "-c", "kill -s KILL $$"], 137),
        (&["no-such-command"], 127),
        (&["/dev/null"], 126),
    ] {
        let done = server.done(&[&nightly[..], command].concat());
        assert_eq!(done.code, Some(code), "{done:?}");
        assert!(!server.is_locked("k"), "{command:?}");
    }
    // The retry does it, and is the last.
    for out in ["ran\n", ""] {
        let done = server.done(&[&nightly[..], &["echo", "ran"]].concat());
        assert_eq!((done.code, done.out.as_str()), (Some(0), out));
    }
}

#[test]
fn twenty_commands_at_once_lose_no_update_of_a_file() {
    let server = Server::start();
    let file = std::env::temp_dir().join(format!("lockctl-{}-count", std::process::id()));
    fs::write(&file, "0").expect("a file");
    let script = "n=$(cat \"$0\"); sleep 0.02; echo $((n + 1)) >\"$0\"";
    let path = file.to_str().expect("text");
    let runs: Vec<_> = (0..20)
        .map(|_| Run::start(server.lockctl(&["run", "count", "--wait-forever", LONG, "--", "sh", "-c", script, path])))
        .collect();
    let count = || fs::read_to_string(&file).ok()?.trim().parse::<usize>().ok();
    // Each in its own time, one after the other.
    for number in 1..=20 {
        eventually(&format!("{number} have counted"), || count() >= Some(number));
    }
    for run in runs {
        let done = run.done();
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    }
    assert_eq!(fs::read_to_string(&file).expect("the file").trim(), "20");
    fs::remove_file(file).expect("the file");
}

/// Each has a manager, a connection and a place of its own.
#[test]
fn many_processes_that_wait_for_one_key_are_all_served() {
    let server = Server::start();
    let mut holder = server.run(&["k", LONG], UNTIL_TOLD);
    let waits = || Run::start(server.lockctl(&["run", "k", "--wait", "1h", "--", "echo", "served"]));
    let waiting: Vec<_> = (0..60).map(|_| waits()).collect();
    server.until_waiters("k", 60);
    holder.say("go on");
    assert_eq!(holder.done().code, Some(0));
    // Each in its own time, one after the other.
    for left in (0..60).rev() {
        eventually(&format!("{left} wait"), || server.waiters("k") <= left);
    }
    for run in waiting {
        let done = run.done();
        assert_eq!((done.code, done.out.as_str()), (Some(0), "served\n"), "{done:?}");
    }
    assert!(!server.is_locked("k"));
}
