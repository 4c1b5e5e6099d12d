//! What stands in `docs/lockctl.md`, run word by word.

use std::{fs, path::PathBuf, process::Command};

use crate::support::{BINARY, Done, PATIENT, Run, Server, eventually, quoted};

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/lockctl.md");
    fs::read_to_string(path).expect("the page stands beside the crate")
}

/// Returns the blocks of a language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let begin = format!("```{language}\n");
    page.split(&*begin).skip(1).filter_map(|rest| rest.split("\n```").next()).collect()
}

/// The date of all runs.
const TODAY: &str = "2026-11-24";

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
        // No test may run over midnight.
        for (name, line) in [("job", &*job), ("date", &format!("test \"$1\" = +%F && echo {TODAY}"))] {
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
        let mut command = Command::new("sh");
        command.args(["-c", &line]).env("PATH", path).env("LOCK_URL", &server.url).env_remove("LOCK_PREFIX");
        command.env("LOCK_COMMAND_TIMEOUT", PATIENT);
        Done::of(command.stdin(std::process::Stdio::null()).output().expect("a shell starts"))
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
    let _holder = Run::start(server.lockctl(&["run", "backup", "--", "sleep", "600"]));
    eventually("the backup runs", || server.is_locked("backup"));
    let _waiter = Run::start(server.lockctl(&["run", "backup", "--wait-forever", "--", "true"]));
    server.until_waiters("backup", 1);
    let mut count = 0;
    for block in blocks(&page, "console") {
        for example in block.split("$ lockctl ").skip(1) {
            let (line, shown) = example.split_once('\n').expect("a command and what it says");
            // A holder that did not answer in time is asked again.
            let mut done = folder.shell(&server, &format!("lockctl {line}"));
            for _ in 0..20 {
                if words(&done.out, host.trim()) != words(shown, host.trim())
                    && ["who", "list"].iter().any(|look| line.starts_with(look))
                {
                    done = folder.shell(&server, &format!("lockctl {line}"));
                }
            }
            assert_eq!(words(&done.out, host.trim()), words(shown, host.trim()), "{line}: {done:?}");
            assert_eq!(done.err, "", "{line}");
            count += 1;
        }
    }
    assert_eq!(count, 6, "examples");
}

#[test]
fn the_lines_for_cron_systemd_and_kubernetes_run() {
    let (server, folder, page) = (Server::start(), Folder::new("lines"), page());
    let cron = blocks(&page, "crontab")[0].lines().last().expect("a line");
    let cron = cron.splitn(6, ' ').last().expect("a command behind five fields");
    let unit = blocks(&page, "ini")[0].lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
    let field = |name: &str| {
        let line =
            blocks(&page, "yaml")[0].lines().find_map(|line| line.trim().strip_prefix(name)).expect("it is there");
        serde_json::from_str::<Vec<String>>(line).expect("a list of strings")
    };
    assert_eq!(field("command: "), ["/bin/sh", "-c"]);
    let job = field("args: ").concat();
    for (expected, line) in [(1, cron), (1, cron), (2, unit), (3, unit), (3, &*job)] {
        let done = folder.shell(&server, line);
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{line}");
        // The key of cron and Kubernetes stays busy for the rest of the date.
        assert_eq!(folder.count(), expected, "{line}");
    }
    let deleted: i64 = server.call(&["DEL", &format!("jobs:nightly:{TODAY}")]);
    assert_eq!(deleted, 1, "the key names the run");
    assert_eq!((folder.shell(&server, &job).code, folder.count()), (Some(0), 4));
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
