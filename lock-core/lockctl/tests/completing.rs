//! `lockctl completions`, and messages about the command line.

use std::process::Command;

use crate::support::{Done, Server, lockctl};

fn completion(shell: &str) -> String {
    let done = Done::of(lockctl("", &["completions", shell]).output().expect("it starts"));
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{shell}");
    done.out
}

#[test]
fn a_shell_completes_commands_and_options() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = completion(shell);
        assert!(script.contains("doctor") && script.contains("skip-if-busy"), "{shell}: {script}");
        assert!(!script.contains("watcher"), "{shell}: {script}");
    }
    let completed = |words: &[&str]| {
        let (last, line) = (words.len() - 1, words.join(" "));
        let ask = format!(
            "COMP_WORDS=({line}) COMP_CWORD={last}; _lockctl lockctl {} {}; echo \"${{COMPREPLY[@]}}\"",
            words[last],
            words[last - 1]
        );
        let script = format!("{}\n{ask}", completion("bash"));
        Done::of(Command::new("bash").args(["-c", &script]).output().expect("bash starts")).out
    };
    assert_eq!(completed(&["lockctl", "do"]), "doctor\n");
    assert_eq!(completed(&["lockctl", "list", "--wai"]), "--waiting\n");
}

#[test]
fn messages_name_no_command_of_lockctls_own_and_units_as_the_help_does() {
    let server = Server::start();
    for arguments in [&[][..], &["what"], &["help"], &["--help"], &["__watch"], &["__watcher"]] {
        let done = server.done(arguments);
        let shown = format!("{}{}", done.out, done.err).replace("'__watcher'", "").replace("'__watch'", "");
        assert!(!shown.contains("__watch"), "{arguments:?}: {done:?}");
    }
    for arguments in [
        &["run", "k", "--ttl", "3x", "--", "true"][..],
        &["run", "k", "--wait", "soon", "--", "true"],
        &["list", "--watch=often"],
        &["doctor", "--ttl", "long"],
        &["list", "--command-timeout", "9 parsecs"],
    ] {
        let done = server.done(arguments);
        assert_eq!(done.code, Some(64), "{done:?}");
        assert!(done.err.contains(": times are written as 500ms, 3s, 10m, 1h or 7d\n"), "{done:?}");
        assert!(!done.err.contains("months"), "{done:?}");
    }
}
