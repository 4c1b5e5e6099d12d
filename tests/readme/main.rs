//! The README, word by word: its commands run in an empty folder beside the checkout, and its code is the program there. Then leader election of the
//! cookbook.
//!
//! Builds of its own take about a minute, so only `.ci/nightly` runs this.

mod block;
mod cookbook;

use std::{
    fs,
    os::unix::{fs::symlink, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use lock_tests::{LONG, eventually, free_port, left_out};
use tokio::net::TcpStream;

use self::block::{Block, blocks};

const README: &str = include_str!("../../README.md");
const CHECKOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

#[tokio::test]
async fn commands_and_programs_of_the_readme_do_what_it_says() {
    if let Err(error) = Command::new("curl").arg("--version").output() {
        return left_out("the README, word by word", &format!("there is no curl: {error}"), true);
    }
    let mut reader = Reader::new("readme");
    for block in blocks(README) {
        match block {
            Block::Program(code) => reader.paste(code).await,
            Block::Part(code) => reader.part = Some(code),
            Block::Commands(commands) => {
                for (command, shown) in commands {
                    reader.run(command, &shown).await;
                }
            }
        }
    }
    reader.run_pasted().await;
    assert_eq!((reader.programs, reader.commands), (4, 10), "programs, and commands");
}

/// Somebody who follows the README.
struct Reader {
    /// A folder that holds nothing but the checkout, under the name that the README gives it.
    folder: PathBuf,
    /// The port on which the service of the README listens, in place of 3000.
    port: String,
    /// Lines of which the next program has to consist in part.
    part: Option<&'static str>,
    /// A program that was pasted and has not run yet.
    pasted: Option<String>,
    service: Option<Service>,
    programs: usize,
    commands: usize,
}

impl Reader {
    fn new(page: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("lock-{page}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        symlink(CHECKOUT, folder.join("lock-core")).expect("a link");
        let port = free_port().to_string();
        Self { folder, port, part: None, pasted: None, service: None, programs: 0, commands: 0 }
    }

    /// Pastes a program, which the next `cargo run` runs.
    async fn paste(&mut self, code: &str) {
        self.run_pasted().await;
        if let Some(part) = self.part.take() {
            assert!(code.contains(part), "the next program lacks these lines:\n{part}");
        }
        self.pasted = Some(code.replace("127.0.0.1:3000", &format!("127.0.0.1:{}", self.port)));
        self.programs += 1;
    }

    /// Runs a program for which the README shows no command.
    async fn run_pasted(&mut self) {
        if self.pasted.is_some() {
            self.cargo_run(&[]).await;
        }
    }

    /// Runs a command, which has to succeed and to print what is shown.
    async fn run(&mut self, command: &str, shown: &[&str]) {
        self.commands += 1;
        if command == "cargo run" {
            return self.cargo_run(shown).await;
        }
        let is_new = command.starts_with("cargo new ");
        let folder = match command {
            _ if is_new => &self.folder,
            _ if command.starts_with("cargo run -p ") => &self.folder.join("lock-core"),
            _ => &self.own_crate(),
        };
        let command = command.replace("localhost:3000", &format!("localhost:{}", self.port));
        expect(&command, folder, shown);
        if is_new {
            // The versions that the tests have: a release of today's cannot make this one fail.
            fs::copy(self.folder.join("lock-core/Cargo.lock"), self.own_crate().join("Cargo.lock"))
                .expect("it is there");
        }
        if command.starts_with("curl ") {
            self.service = None;
        }
    }

    /// Runs what was pasted; a service goes on until it was asked once.
    async fn cargo_run(&mut self, shown: &[&str]) {
        let (program, own) = (self.pasted.take().expect("a program was pasted"), self.own_crate());
        let serves = program.contains("axum::serve(");
        fs::write(own.join("src/main.rs"), program).expect("the crate is there");
        if serves {
            expect("cargo build", &own, shown);
            self.service = Some(Service::start(&own, &self.port).await);
        } else {
            expect("cargo run", &own, shown);
        }
    }

    fn own_crate(&self) -> PathBuf {
        self.folder.join("first-lock")
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The service of the README; its processes are stopped with it.
struct Service(Child);

impl Service {
    async fn start(folder: &Path, port: &str) -> Self {
        let service = Self(shell("cargo run", folder).process_group(0).spawn().expect("bash starts"));
        let address = format!("127.0.0.1:{port}");
        eventually(LONG, "the service listens", async || TcpStream::connect(&address).await.is_ok()).await;
        service
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = Command::new("bash").args(["-c", &format!("kill -- -{}", self.0.id())]).status();
        let _ = self.0.wait();
    }
}

/// Runs a command, which has to succeed and to print these lines; numbers may differ.
#[track_caller]
fn expect(command: &str, folder: &Path, shown: &[&str]) {
    // What cargo says goes where the test's own errors go.
    let done = shell(command, folder).stderr(Stdio::inherit()).output().expect("bash starts");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{command}: {}\n{said}", done.status);
    for line in shown {
        assert!(
            said.lines().any(|other| without_digits(other) == without_digits(line)),
            "{command}: {line:?} not in {said:?}"
        );
    }
}

fn without_digits(line: &str) -> String {
    line.replace(|c: char| c.is_ascii_digit(), "")
}

/// A command for bash, with builds that leave the workspace's alone.
fn shell(command: &str, folder: &Path) -> Command {
    let mut shell = Command::new("bash");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme");
    shell.args(["-c", command]).current_dir(folder).env("CARGO_TARGET_DIR", target).env("CARGO_PROFILE_DEV_DEBUG", "0");
    // What cargo has told this test about its own package.
    for (name, _) in
        std::env::vars().filter(|(name, _)| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
    {
        shell.env_remove(name);
    }
    shell
}
