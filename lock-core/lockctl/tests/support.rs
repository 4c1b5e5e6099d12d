//! A Redis, processes of `lockctl`, and waiting with a deadline.

use std::{
    env::temp_dir,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpListener},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Output, Stdio, id},
    sync::{
        Once,
        atomic::{AtomicU32, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread::{self, sleep},
    time::{Duration, Instant},
};

use redis::FromRedisValue;
use serde_json::Value;

/// A server on a free port. It ends on drop, and also if this process dies in any other way.
pub(crate) struct Server {
    shell: Child,
    pid: String,
    pub(crate) url: String,
    /// Where its files are, its configuration among them. Deleted on drop.
    folder: PathBuf,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with("")
    }

    /// Starts a server with more lines in its configuration.
    pub(crate) fn start_with(lines: &str) -> Self {
        Self::configured(&format!("save \"\"\nappendonly no\n{lines}\n"), &[])
    }

    /// Starts a sentinel.
    pub(crate) fn sentinel(lines: &str) -> Self {
        Self::configured(lines, &["--sentinel"])
    }

    fn configured(lines: &str, arguments: &[&str]) -> Self {
        for _ in 0..5 {
            let server = Self::launch(free_port(), lines, arguments);
            if server.is_up() {
                return server;
            }
        }
        panic!("redis-server does not come up; install it, as in `apt-get install redis-server`");
    }

    fn launch(port: u16, lines: &str, arguments: &[&str]) -> Self {
        static LAUNCHED: AtomicU32 = AtomicU32::new(0);
        let folder = temp_dir().join(format!("lockctl-{}-{}", id(), LAUNCHED.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("redis.conf");
        fs::write(&file, format!("port {port}\nbind 127.0.0.1\ndir \"{}\"\n{lines}\n", folder.display()))
            .expect("a file");
        // The pipe to the shell closes when this process ends, however it ends.
        let mut shell = Command::new("sh")
            .args(["-c", r#""$@" </dev/null >/dev/null & echo $!; read -r end; kill -9 $!"#, "sh"])
            .arg(std::env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into()))
            .arg(&file)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell starts");
        let mut pid = String::new();
        BufReader::new(shell.stdout.take().expect("piped")).read_line(&mut pid).expect("the shell says the number");
        Self { shell, pid: pid.trim().to_owned(), url: format!("redis://127.0.0.1:{port}"), folder }
    }

    /// Waits until it answers; false if the port is somebody else's by now.
    fn is_up(&self) -> bool {
        let info = eventually_some("redis-server answers", || {
            let mut connection = redis::Client::open(&*self.url).expect("a URL").get_connection().ok()?;
            redis::cmd("INFO").arg("server").query::<String>(&mut connection).ok()
        });
        info.contains(&*self.folder.to_string_lossy())
    }

    /// Returns host and port.
    pub(crate) fn address(&self) -> &str {
        self.url.trim_start_matches("redis://")
    }

    /// Stops the server where it stands.
    pub(crate) fn pause(&self) {
        kill("STOP", &self.pid);
    }

    pub(crate) fn call<T: FromRedisValue>(&self, command: &[&str]) -> T {
        let client = redis::Client::open(&*self.url).expect("a URL");
        let mut connection = client.get_connection().expect("the server runs");
        redis::cmd(command[0]).arg(&command[1..]).query(&mut connection).expect("an answer")
    }

    pub(crate) fn is_locked(&self, key: &str) -> bool {
        self.call(&["EXISTS", key])
    }

    /// Prepares `lockctl`, away from the terminal that the test may run on.
    pub(crate) fn lockctl(&self, arguments: &[&str]) -> Command {
        lockctl(&self.url, arguments)
    }

    /// Runs `lockctl` to its end. The reader of its output has closed the pipe before.
    pub(crate) fn done_unread(&self, arguments: &[&str]) -> Done {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let child = self.lockctl(arguments).stdout(writer).stderr(Stdio::piped()).spawn().expect("it starts");
        Done::of(child.wait_with_output().expect("it ends"))
    }

    /// Runs `lockctl` to its end.
    pub(crate) fn done(&self, arguments: &[&str]) -> Done {
        Done::of(self.lockctl(arguments).output().expect("it starts"))
    }

    /// The same again and again, until it says what fits: a process has a quarter of a second for its answer, and on a busy machine it may
    /// miss that.
    pub(crate) fn done_until(&self, arguments: &[&str], fits: impl Fn(&Done) -> bool) -> Done {
        for _ in 1..LOOKS {
            let done = self.done(arguments);
            if fits(&done) {
                return done;
            }
        }
        let done = self.done(arguments);
        assert!(fits(&done), "{LOOKS} looks, and the last is {done:?}");
        done
    }

    /// The same, of processes that all live: one that did not answer in time is asked again.
    pub(crate) fn told(&self, arguments: &[&str]) -> Done {
        self.done_until(arguments, |done| {
            let lacks = |said: &str| done.out.contains(said) || done.err.contains(said);
            !lacks("nobody answered") && !lacks("did not answer")
        })
    }

    /// Returns what `lockctl` writes as JSON.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        self.json_until(arguments, |_| true)
    }

    /// The same again and again, until it fits.
    pub(crate) fn json_until(&self, arguments: &[&str], fits: impl Fn(&Value) -> bool) -> Value {
        let json = |done: &Done| -> Value {
            serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"))
        };
        json(&self.done_until(&[arguments, &["--json"]].concat(), |done| fits(&json(done))))
    }

    /// The same, of processes that all live.
    pub(crate) fn told_json(&self, arguments: &[&str]) -> Value {
        self.json_until(arguments, |said| {
            let processes = &said.get(0).unwrap_or(said)["processes"];
            processes["asked"] == processes["answered"]
        })
    }

    /// Returns how many requests have a place in the queue of a key.
    pub(crate) fn waiters(&self, key: &str) -> usize {
        let fields: Vec<String> = self.call(&["HKEYS", &format!("{{0}}lock-core:queue:{key}")]);
        fields.iter().filter(|field| field.starts_with('#')).count()
    }

    /// Waits until so many requests wait for a key.
    pub(crate) fn until_waiters(&self, key: &str, count: usize) {
        eventually(&format!("{count} wait for {key}"), || self.waiters(key) == count);
    }

    /// Starts `lockctl run`, and returns when its command has said "ready".
    pub(crate) fn run(&self, arguments: &[&str], script: &str) -> Run {
        let run = Run::start(self.lockctl(&[&["run"], arguments, &["--", "sh", "-c", script]].concat()));
        assert_eq!(run.line(), "ready");
        run
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    listener.and_then(|listener| listener.local_addr()).expect("a port is free").port()
}

pub(crate) fn lockctl(url: &str, arguments: &[&str]) -> Command {
    use std::os::unix::process::CommandExt;

    default_signals();
    let mut command = Command::new(BINARY);
    command.env("LOCK_COMMAND_TIMEOUT", PATIENT);
    command.args(arguments).env("LOCK_URL", url).env_remove("LOCK_PREFIX").process_group(0).stdin(Stdio::null());
    command
}

/// Has the processes that are started from here begin with the defaults for signals, also if this one was started by a parent that
/// ignores some: a shell does so for a job in the background, and so do `nohup` and some CI.
///
/// An ignored signal stays ignored in a child, a signal that has a handler does not. So an ignored signal gets a handler here, which does
/// nothing. Systems without `/proc` do not tell which signals are ignored, and keep theirs.
pub(crate) fn default_signals() {
    use tokio::signal::unix::{SignalKind, signal};

    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let ignored = ignored.map_or(0, |mask| u64::from_str_radix(mask.trim(), 16).expect("a mask in hexadecimal"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let entered = runtime.enter();
        for kind in
            [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::terminate(), SignalKind::user_defined1()]
        {
            if ignored & 1 << (kind.as_raw_value() - 1) != 0 {
                drop(signal(kind).expect("a handler")); // the handler stays
            }
        }
        drop(entered);
        runtime.shutdown_background(); // the test that comes first may be in a runtime of its own
    });
}

/// What became of a process.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Done {
    pub(crate) fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("text");
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// A `lockctl` that runs; it is killed on drop, and its watcher then stops the command.
pub(crate) struct Run {
    pub(crate) child: Child,
    lines: Receiver<String>,
}

impl Run {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("lockctl starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        // A thread reads, so that a test can wait for a line with a deadline.
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines }
    }

    /// Reads a line of the command's output.
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(WITHIN).expect("the command says something")
    }

    /// Sends a line to the command.
    pub(crate) fn say(&mut self, line: &str) {
        let mut input = self.child.stdin.as_ref().expect("piped");
        writeln!(input, "{line}").expect("it reads");
    }

    /// Sends a signal to `lockctl`.
    pub(crate) fn signal(&self, name: &str) {
        kill(name, &self.child.id().to_string());
    }

    /// Waits until the command and all processes that it has started have ended: they have the same output.
    pub(crate) fn rest(&self) -> String {
        let mut rest = String::new();
        loop {
            match self.lines.recv_timeout(WITHIN) {
                Ok(line) => rest += &format!("{line}\n"),
                Err(RecvTimeoutError::Disconnected) => return rest,
                Err(RecvTimeoutError::Timeout) => panic!("the command still runs; it said {rest:?}"),
            }
        }
    }

    /// Waits until `lockctl` has ended.
    pub(crate) fn end(&mut self) -> ExitStatus {
        eventually_some("lockctl ends", || self.child.try_wait().expect("it is a child"))
    }

    /// Waits until `lockctl`, its watcher and the command have ended, and returns the rest of what they said.
    pub(crate) fn done(mut self) -> Done {
        let (out, mut err) = (self.rest(), String::new());
        let code = self.end().code();
        self.child.stderr.take().expect("piped").read_to_string(&mut err).expect("text");
        Done { code, out, err }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A pipe with a name, which tells when the last process that has it open for writing has ended.
pub(crate) struct Pipe {
    path: String,
    closed: Receiver<()>,
}

impl Pipe {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = temp_dir().join(format!("lockctl-{}-pipe-{number}", id()));
        let path = path.to_str().expect("text").to_owned();
        assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo starts").success());
        let (sender, closed) = mpsc::channel();
        let name = path.clone();
        thread::spawn(move || {
            fs::read(name).expect("it is opened for writing, and closed");
            sender.send(())
        });
        Self { path, closed }
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn until_closed(self, whose: &str) {
        self.closed.recv_timeout(WITHIN).unwrap_or_else(|_| panic!("still runs: {whose}"));
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

pub(crate) fn kill(signal: &str, process: &str) {
    let status = Command::new("sh").args(["-c", "kill -s \"$0\" -- \"$1\"", signal, process]).status();
    assert!(status.expect("a shell starts").success(), "SIG{signal} could not be sent to {process}");
}

/// Returns whether a process runs: one that has ended and is not waited for does not.
pub(crate) fn is_running(process: &str) -> bool {
    let state = state(process);
    !state.is_empty() && !state.starts_with('Z')
}

/// Returns the state of a process as `ps` prints it; empty if there is no such process.
pub(crate) fn state(process: &str) -> String {
    let listed = Command::new("ps").args(["-o", "stat=", "-p", process]).output().expect("ps starts");
    String::from_utf8_lossy(&listed.stdout).into_owned()
}

/// A word of a shell.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Waits until the condition holds.
pub(crate) fn eventually(what: &str, condition: impl Fn() -> bool) {
    eventually_some(what, || condition().then_some(()));
}

pub(crate) fn eventually_some<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WITHIN;
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {WITHIN:?}: {what}");
        sleep(Duration::from_millis(5));
    }
}

/// Runs `lockctl` on a terminal of its own (if the first argument is NO_COLOR, without colours), and types a line when it has written `prompt`; `None` if the system has no `script` that can do that.
pub(crate) fn on_terminal(server: &Server, arguments: &[&str], prompt: &str, typed: &str) -> Option<Done> {
    on_terminal_while(server, arguments, prompt, || {}, typed)
}

/// Does something between the prompt and what is typed.
pub(crate) fn on_terminal_while(
    server: &Server,
    arguments: &[&str],
    prompt: &str,
    meanwhile: impl FnOnce(),
    typed: &str,
) -> Option<Done> {
    // The shell of `script` is in the foreground, too, and would end with Ctrl-C.
    let mut line = String::from(if arguments.first() == Some(&"NO_COLOR") { "NO_COLOR=1 exec " } else { "exec " });
    let words = arguments.iter().copied().filter(|word| *word != "NO_COLOR");
    line += &std::iter::once(BINARY).chain(words).map(quoted).collect::<Vec<_>>().join(" ");
    line_on_terminal_while(server, &line, prompt, meanwhile, typed)
}

/// Runs a line of a shell on a terminal of its own.
pub(crate) fn line_on_terminal_while(
    server: &Server,
    line: &str,
    prompt: &str,
    meanwhile: impl FnOnce(),
    typed: &str,
) -> Option<Done> {
    let has_script = Command::new("script").arg("--version").output().is_ok_and(|output| output.status.success());
    if !has_script {
        let _ = writeln!(std::io::stderr(), "left out: lockctl on a terminal: there is no `script` of util-linux");
        return None;
    }
    default_signals();
    // The width is that of documents; a terminal of `script` has none of its own.
    let line = format!("stty cols 80; {line}");
    let mut child = Command::new("timeout")
        .args(["300", "script", "--quiet", "--return", "--command", &line, "/dev/null"])
        .env("LOCK_URL", &server.url)
        .env("LOCK_COMMAND_TIMEOUT", PATIENT)
        .env("SHELL", "/bin/sh")
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("script starts");
    let mut output = child.stdout.take().expect("piped");
    let (mut out, mut part) = (Vec::new(), [0; 1_024]);
    // What is typed too early may be taken for lockctl's, which waits for the key.
    while !String::from_utf8_lossy(&out).contains(prompt) {
        let count = output.read(&mut part).expect("readable");
        assert!(count > 0, "it ended without {prompt:?}: {:?}", String::from_utf8_lossy(&out));
        out.extend(&part[..count]);
    }
    meanwhile();
    // The input stays open: its end would be typed, too.
    let mut input = child.stdin.take().expect("piped");
    let written = input.write_all(format!("{typed}\n").as_bytes());
    // What asks for nothing may have ended by now.
    assert!(typed.is_empty() || written.is_ok(), "it does not read: {written:?}");
    output.read_to_end(&mut out).expect("readable");
    let mut done = Done::of(child.wait_with_output().expect("it ends"));
    done.out = String::from_utf8(out).expect("text");
    Some(done)
}

/// The limit of what ought to take much less.
const WITHIN: Duration = Duration::from_secs(50);

/// How often a look is repeated that may miss an answer.
pub(crate) const LOOKS: usize = 200;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_lockctl");

/// How long a request may take: a busy machine answers late, and that is not the subject of a test.
pub(crate) const PATIENT: &str = "20s";

/// A ttl whose end no test waits for.
pub(crate) const LONG: &str = "--ttl=60s";

/// A script that says "ready", and ends with the next line of its input.
pub(crate) const UNTIL_TOLD: &str = "echo ready; read -r line";

/// A script that also says so if nothing has stopped it before that line.
pub(crate) const UNLESS_STOPPED: &str = "echo ready; read -r line; echo not stopped";
