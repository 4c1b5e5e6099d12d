//! What stands in `docs/lockctl.md`, run word by word.

use std::{fs, path::PathBuf, process::Command};

use crate::support::{BINARY, Done, LOOKS, PATIENT, Run, Server, default_signals, eventually, quoted};

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/lockctl.md");
    fs::read_to_string(path).expect("the page stands beside the crate")
}

/// Returns the blocks of a language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let begin = format!("```{language}\n");
    page.split(&*begin).skip(1).filter_map(|rest| rest.split("\n```").next()).collect()
}

/// A folder where `lockctl`, `date` and a command of the page's are found, which counts its calls.
struct Folder {
    path: PathBuf,
}

impl Folder {
    fn new(name: &str) -> Self {
        use std::os::unix::fs::{PermissionsExt, symlink};

        let path = std::env::temp_dir().join(format!("lockctl-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        symlink(BINARY, path.join("lockctl")).expect("a link");
        let job = format!("echo ran >>{}", quoted(&path.join("ran").to_string_lossy()));
        // It counts back from the time in a file: no test may run over midnight.
        let now = quoted(&path.join("now").to_string_lossy());
        let date = format!("test \"$1 $2\" = '-u -d' && exec /bin/date -u -d \"$(cat {now}) UTC $3\" \"$4\"");
        for (name, line) in [("job", &job), ("date", &date)] {
            fs::write(path.join(name), format!("#!/bin/sh\n{line}\n")).expect("a file");
            fs::set_permissions(path.join(name), fs::Permissions::from_mode(0o755)).expect("its owner may");
        }
        Self { path }
    }

    /// Runs a line of the page by a shell.
    fn shell(&self, server: &Server, line: &str) -> Done {
        let job = self.path.join("job");
        let line = ["/opt/shop/clean-up", "/opt/shop/worker"]
            .iter()
            .fold(line.replace("/usr/local/bin/lockctl", &quoted(BINARY)), |line, name| {
                line.replace(name, &quoted(&job.to_string_lossy()))
            });
        let path = format!("{}:{}", self.path.display(), std::env::var("PATH").expect("there is one"));
        default_signals();
        let mut command = Command::new("sh");
        command.args(["-c", &line]).env("PATH", path).env("LOCK_URL", &server.url).env_remove("LOCK_PREFIX");
        command.env("LOCK_COMMAND_TIMEOUT", PATIENT);
        Done::of(command.stdin(std::process::Stdio::null()).output().expect("a shell starts"))
    }

    /// Sets what `date` counts back from.
    #[cfg(target_os = "linux")]
    fn set_clock(&self, now: &str) {
        fs::write(self.path.join("now"), now).expect("a file");
    }

    fn count(&self) -> usize {
        fs::read_to_string(self.path.join("ran")).map_or(0, |ran| ran.lines().count())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Leaves out the words that differ from run to run: numbers, times and the host.
fn words(text: &str, host: &str) -> Vec<String> {
    let text = text.replace(host, "HOST").replace("web-1", "HOST");
    text.lines()
        .map(|line| {
            let words = line.split_whitespace().filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
            words.collect::<Vec<_>>().join(" ")
        })
        .collect()
}

#[test]
fn commands_of_the_page_say_what_it_shows() {
    let (server, folder, page) = (Server::start(), Folder::new("page"), page());
    let host = String::from_utf8(Command::new("uname").arg("-n").output().expect("uname starts").stdout).expect("text");
    let backup = || {
        let holder = Run::start(server.lockctl(&["run", "backup", "--", "sleep", "600"]));
        eventually("the backup runs", || server.is_locked("backup"));
        let waiter = Run::start(server.lockctl(&["run", "backup", "--wait-forever", "--", "true"]));
        server.until_waiters("backup", 1);
        (holder, waiter)
    };
    let mut running = backup();
    let mut count = 0;
    for block in blocks(&page, "console") {
        for example in block.split("$ lockctl ").skip(1) {
            let (line, shown) = example.split_once('\n').expect("a command and what it says");
            // A holder that did not answer in time is asked again.
            let mut done = folder.shell(&server, &format!("lockctl {line}"));
            for _ in 0..LOOKS {
                let is_whole = words(&done.out, host.trim()) == words(shown, host.trim()) && done.err.is_empty();
                if is_whole {
                    break;
                }
                if line.starts_with("release") {
                    running = backup();
                }
                done = folder.shell(&server, &format!("lockctl {line}"));
            }
            assert_eq!(words(&done.out, host.trim()), words(shown, host.trim()), "{line}: {done:?}");
            assert_eq!(done.err, "", "{line}");
            count += 1;
        }
    }
    assert_eq!(count, 6, "examples");
    drop(running);
}

/// `date -d` is of GNU.
#[cfg(target_os = "linux")]
#[test]
fn the_line_for_cron_runs_once_a_night_also_on_a_machine_that_is_late_until_after_midnight() {
    let (server, folder, page) = (Server::start(), Folder::new("cron"), page());
    let cron = blocks(&page, "crontab")[0].lines().last().expect("a line");
    let cron = cron.splitn(6, ' ').last().expect("a command behind five fields").replace("\\%", "%");
    let run = |now: &str, line: &str| {
        folder.set_clock(now);
        let done = folder.shell(&server, line);
        (done.code, done.err, folder.count())
    };
    let failing = cron.replace("/opt/shop/clean-up", "false");
    assert_eq!(run("2026-11-24 02:30", &failing), (Some(1), String::new(), 0));
    for (now, count) in
        [("2026-11-24 02:30", 1), ("2026-11-24 12:00", 1), ("2026-11-25 00:30", 1), ("2026-11-25 02:30", 2)]
    {
        assert_eq!(run(now, &cron), (Some(0), String::new(), count), "{now}");
    }
    for key in ["jobs:nightly:2026-11-24", "jobs:nightly:2026-11-25"] {
        assert!(server.is_locked(key), "{key}");
    }
}

#[test]
fn the_line_for_systemd_runs_again_and_again() {
    let (server, folder, page) = (Server::start(), Folder::new("unit"), page());
    let unit = blocks(&page, "ini")[0].lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
    for count in [1, 2] {
        let done = folder.shell(&server, unit);
        assert_eq!((done.code, done.err.as_str(), folder.count()), (Some(0), "", count));
    }
}

#[test]
fn the_unit_for_systemd_has_no_limit_of_starts_and_so_no_failure_ends_it() {
    let page = page();
    let unit = blocks(&page, "ini")[0];
    let (unit, service) = unit.split_once("[Service]\n").expect("two sections");
    assert!(unit.starts_with("[Unit]\n") && unit.contains("\nStartLimitIntervalSec=0\n"), "{unit}");
    assert!(service.contains("\nRestart=always\n"), "{service}");
}

#[test]
fn the_job_for_kubernetes_is_repeated_for_a_pod_that_failed_or_was_killed_and_for_no_other() {
    let (server, folder, page) = (Server::start(), Folder::new("pods"), page());
    let yaml = blocks(&page, "yaml")[0];
    assert!(yaml.contains("- name: RUN\n"), "{yaml}");
    let field = |name: &str| {
        let line = yaml.lines().find_map(|line| line.trim().strip_prefix(name)).expect("it is there");
        serde_json::from_str::<Vec<String>>(line).expect("a list of strings")
    };
    // As Kubernetes does.
    let pod = [field("command: "), field("args: ")].concat().join(" ").replace("$(RUN)", "nightly-29924790");
    assert!(pod.contains(" --wait 1m "), "longer than the ttl of 30 s: {pod}");

    let failed = folder.shell(&server, &pod.replace("/opt/shop/clean-up", "false"));
    assert_eq!(failed.code, Some(1), "{failed:?}");
    let killed = pod.replace("--wait", "--ttl 6s --kill-after 100ms --wait");
    let killed = killed.replace("/opt/shop/clean-up", "sh -c 'kill -s KILL $PPID'");
    let killed = folder.shell(&server, &format!("{killed}; true"));
    assert!(killed.err.contains("lockctl was killed"), "{killed:?}");
    let retried = folder.shell(&server, &pod);
    assert_eq!((retried.code, retried.err.as_str(), folder.count()), (Some(0), "", 1));
    // Another cluster need not wait for long here.
    let other = folder.shell(&server, &pod.replace("--wait 1m", "--wait 0s"));
    assert_eq!((other.code, folder.count()), (Some(0), 1));
}

#[test]
fn options_and_exit_codes_of_the_page_are_those_of_the_help() {
    let (server, page) = (Server::start(), page());
    let rows = |mark: char| {
        page.lines()
            .filter_map(move |line| line.strip_prefix("| ")?.split(" | ").next())
            .filter(move |cell| cell.contains(mark) || mark == ' ')
            .collect::<Vec<_>>()
    };
    // `list` and `doctor` have their options in sentences.
    for command in ["list", "doctor"] {
        for option in server.done(&[command, "--help"]).out.lines().filter_map(|line| line.trim().strip_prefix("--")) {
            let name = option.split(['[', ' ']).next().unwrap_or_default();
            assert!(page.contains(&format!("`--{name}")), "--{name} of {command} is not on the page");
        }
    }
    let help = server.done(&["run", "--help"]).out;
    for cell in rows('`').into_iter().filter(|cell| cell.starts_with("`--")) {
        let option =
            cell.trim_matches('`').replace(" TIME", " <TIME>").replace(" TEXT", " <TEXT>").replace(" N", " <N>");
        assert!(help.contains(&format!("      {option}\n")), "{option}: {help}");
    }
    for option in
        help.lines().filter_map(|line| line.strip_prefix("      --")).filter_map(|rest| rest.split(' ').next())
    {
        assert!(page.contains(&format!("`--{option}")), "--{option} is not on the page");
    }
    let help = server.done(&["--help"]).out;
    let codes = rows(' ').into_iter().flat_map(|cell| cell.split(", ")).filter(|code| code.parse::<u8>().is_ok());
    assert_eq!(codes.inspect(|code| assert!(help.contains(&format!("\n  {code:<5}")), "{code}")).count(), 11);
}

#[test]
fn checks_of_the_doctor_are_those_of_the_page() {
    let (server, page) = (Server::start(), page());
    let table = page.split("| check | not green if |").nth(1).expect("a table");
    let names: Vec<_> = table
        .lines()
        .map_while(|line| if line.is_empty() { Some("") } else { line.strip_prefix("| ")?.split(" | ").next() })
        .flat_map(|cell| cell.split(", "))
        .filter_map(|name| name.strip_prefix('`')?.strip_suffix('`'))
        .collect();
    let report = server.json(&["doctor"]);
    let checks = report["checks"].as_array().expect("an array").iter().filter_map(|row| row["check"].as_str());
    assert_eq!(checks.inspect(|check| assert!(names.contains(check), "{check} is not in {names:?}")).count(), 16);
    // The others are of sentinels, clusters and quorums.
    assert_eq!(names.len(), 16 + 4, "{names:?}");
}
