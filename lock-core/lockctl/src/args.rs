//! The command line, and the texts of `--help`.

use std::{ffi::OsString, time::Duration};

use clap::{ArgGroup, Parser, Subcommand};
use clap_complete::Shell;
use lock_core::{BuildError, LockManager, LockManagerBuilder};

/// The examples of both forms of the help.
macro_rules! examples {
    () => {
        "\
Examples:
  lockctl run \"nightly:$(date -u -d '150 min ago' +%F)\" --skip-if-busy --at-least 7d -- ./clean-up
  lockctl run deploy:shop --wait 10m -- make deploy
  lockctl run build --permits 3 -- make image
  lockctl doctor
  lockctl list shop: --waiting --watch
  lockctl who nightly
  lockctl release nightly

Times are written as 500ms, 3s, 10m, 1h or 7d."
    };
}

/// Runs a command while it holds a lock in Redis, shows who has which lock, releases locks by force, and checks servers.
#[derive(Debug, Parser)]
#[command(version, name = "lockctl", after_help = EXAMPLES, after_long_help = EXAMPLES_AND_CODES)]
#[command(max_term_width = 100, subcommand_required = true, arg_required_else_help = false)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) server: Server,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Where the locks are.
#[derive(Debug, clap::Args)]
pub(crate) struct Server {
    /// Redis: redis://, rediss:// (if built with TLS), unix://, redis+sentinel:// or redis+cluster://
    ///
    /// Other users of the machine can read a password on the command line; put such a URL into LOCK_URL.
    #[arg(long, global = true, env = "LOCK_URL", hide_env_values = true, default_value = "redis://127.0.0.1")]
    #[arg(hide_default_value = false, value_name = "URL")]
    pub(crate) url: String,
    /// Text before every key, such as "shop:"; the same as in the services that share the locks
    #[arg(long, global = true, env = "LOCK_PREFIX", default_value = "", hide_default_value = true)]
    #[arg(value_name = "TEXT")]
    pub(crate) prefix: String,
    /// How long a request to Redis may take, at most an hour; longer for a server that is far away or busy
    #[arg(long, global = true, env = "LOCK_COMMAND_TIMEOUT", default_value = "1s", value_name = "TIME")]
    #[arg(value_parser = time)]
    pub(crate) command_timeout: Duration,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
    List(List),
    Who(Who),
    Release(Release),
    Doctor(Doctor),
    Completions(Completions),
}

/// Runs a command while the key is held
///
/// Acquires the key, runs the command, renews the lease meanwhile, and releases the key when the command has ended.
/// Exits with the code of the command.
///
/// The command finds the key in LOCK_KEY and the fencing token in LOCK_FENCING_TOKEN. The fencing token is larger
/// than that of every earlier holder: claim with it in the database before the first read, and write only if the claim
/// still stands.
///
/// If the lease is lost, or is not renewed until only --kill-after of it is left (a third of the ttl if that is less),
/// the command and the processes that it started get SIGTERM, and SIGKILL after --kill-after. The same happens if
/// lockctl itself is killed or stopped.
///
/// SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the command and its processes; the key is
/// held until they have ended. On a terminal the command stays in the foreground: keys such as Ctrl-C go to it
/// directly, and only the command itself gets the other signals.
#[derive(Debug, clap::Args)]
#[command(after_help = SEE_HELP, after_long_help = RUN_CODES)]
#[command(group = ArgGroup::new("patience").args(["wait", "wait_forever", "skip_if_busy"]))]
pub(crate) struct Run {
    /// The lock: 1 to 1,024 bytes, the prefix included
    pub(crate) key: String,
    /// How long the key stays busy if this machine dies: 10ms to 100 years
    ///
    /// It does not bound the command, since the lease is renewed every third of it.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub(crate) ttl: Duration,
    /// How long to wait for a busy key; 0s means one try [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) wait: Option<Duration>,
    /// Wait for as long as the key is busy
    #[arg(long)]
    pub(crate) wait_forever: bool,
    /// Try once; if the key is busy, exit with 0 and say nothing, as cron wants it
    #[arg(long)]
    pub(crate) skip_if_busy: bool,
    /// Share the key with other commands and services that share it; what holds it alone waits
    #[arg(long, conflicts_with_all = ["permits", "take"])]
    pub(crate) shared: bool,
    /// Take one of the N permits of the key, so that at most N commands run; name the same N everywhere
    #[arg(long, value_name = "N")]
    pub(crate) permits: Option<u32>,
    /// How many of the permits the command takes [default: 1]
    #[arg(long, value_name = "N", requires = "permits")]
    pub(crate) take: Option<u32>,
    /// The exit code if the key is busy [default: 75, and 0 with --skip-if-busy]
    #[arg(long, value_name = "N")]
    pub(crate) busy_code: Option<u8>,
    /// What `lockctl who` says this is for [default: the name of the command]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// Keep the key busy for this long, even if the command ends sooner with 0
    ///
    /// For a job that several machines start, and that is to run once. Name the run in the key by its scheduled time, as
    /// in "jobs:nightly:$(date -u -d '150 min ago' +%F)" for 02:30 UTC, and choose as long as any machine can be late.
    /// The key is free at once if the command fails, is ended by a signal, or is not found. A machine that dies in its
    /// run keeps the key for its ttl only.
    #[arg(long, value_name = "TIME", default_value = "0s", hide_default_value = true)]
    #[arg(value_parser = time)]
    pub(crate) at_least: Duration,
    /// How long after SIGTERM the command gets SIGKILL
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    pub(crate) kill_after: Duration,
    /// The command and its arguments, after --
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Lists the keys that are held or waited for
///
/// One line for each key: its holder (the service, its host, its process, and what the request is for), for how long
/// it is held, what is left of the ttl if nobody renews it, the fencing token, and how many requests wait.
///
/// *nobody answered* means that no process answers for a key that is held: `lockctl who` says more. The keys are found
/// by SCAN, which does not block Redis. Locks of other libraries are listed only if a request waits for them.
///
/// On a terminal, long keys are clipped in the middle. Elsewhere, and with --json, they are whole.
#[derive(Debug, clap::Args)]
#[command(after_help = SEE_HELP)]
pub(crate) struct List {
    /// The text that the keys begin with; all keys if it is missing
    #[arg(value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) begin: String,
    /// Only the keys that a request waits for
    #[arg(long)]
    pub(crate) waiting: bool,
    /// List again and again, every 2s or every TIME, until Ctrl-C
    ///
    /// Each time all keys are looked for and all processes are asked: for people, not for a monitor.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "2s")]
    #[arg(value_parser = time)]
    pub(crate) watch: Option<Duration>,
    /// Write JSON: an array with an object for each key
    #[arg(long)]
    pub(crate) json: bool,
}

/// Says who holds a key and who waits for it
///
/// Exits with 0 if the key is held, and with 1 if it is free.
#[derive(Debug, clap::Args)]
#[command(after_help = SEE_HELP)]
pub(crate) struct Who {
    /// The lock
    pub(crate) key: String,
    /// Write JSON: one object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Takes a key away from its holder
///
/// Says who has the key, and asks for confirmation. The old holder may rely on the key until it notices: at once in
/// most cases, and at its next renewal at the latest, if it is renewed. Until then two may rely on it. A command of
/// `lockctl run` is then stopped.
///
/// Exits with 0 if the key was released, and with 1 if it was free or the release was not confirmed.
#[derive(Debug, clap::Args)]
#[command(after_help = SEE_HELP)]
pub(crate) struct Release {
    /// The lock
    pub(crate) key: String,
    /// Do not ask; needed if the standard input is not a terminal
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Release the key even if another library has locked it
    #[arg(long)]
    pub(crate) foreign: bool,
}

/// Checks whether servers are fit for locks
///
/// One line for each check: green, amber (it works, but a fault costs more than it has to, or it could not be checked) or
/// red (locks fail, or are lost without a fault), what was found, and what to do. Looks at connection, version, role,
/// eviction, memory, persistence, rights, clock, latency, replicas, settings of connections, and the state of sentinels or
/// cluster. The replicas that sentinels or a cluster may promote are checked, too.
///
/// Run it with the URL, the user and the prefix of the services. The only key that is written is a probe, below the
/// prefix, which is deleted at once.
///
/// Exits with 0 if nothing is red, with 78 if something is, and with 69 or 77 if no server can be reached or logged in to.
#[derive(Debug, clap::Args)]
#[command(after_help = SEE_HELP)]
pub(crate) struct Doctor {
    /// The servers, or --url if none are given; several URLs are the servers of a quorum
    ///
    /// Other users of the machine can read a password on the command line; put such a URL into LOCK_URL.
    #[arg(value_name = "URL")]
    pub(crate) urls: Vec<String>,
    /// The shortest ttl of the services, which is compared with timeouts and failovers
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    pub(crate) ttl: Duration,
    /// Write JSON: an object with the worst level and all checks
    #[arg(long)]
    pub(crate) json: bool,
}

/// Writes the completion of a shell
///
/// For bash: `lockctl completions bash >/etc/bash_completion.d/lockctl`. The file of zsh is called _lockctl and stands in a
/// folder of $fpath, that of fish is ~/.config/fish/completions/lockctl.fish.
#[derive(Debug, clap::Args)]
#[command(after_help = SEE_HELP)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: Shell,
}

impl Server {
    /// Connects, or says why not.
    pub(crate) async fn connect(&self) -> Result<LockManager, BuildError> {
        self.builder().url(&self.url).connect().await
    }

    /// Begins a manager that has no server yet.
    pub(crate) fn builder(&self) -> LockManagerBuilder {
        let builder = LockManager::builder().prefix(&self.prefix).client_name("lockctl");
        builder.command_timeout(self.command_timeout)
    }
}

/// Reads a time. The parser's own error names units that no lock has.
pub(crate) fn time(text: &str) -> Result<Duration, &'static str> {
    humantime::parse_duration(text).map_err(|_| "times are written as 500ms, 3s, 10m, 1h or 7d")
}

const EXAMPLES: &str = concat!(examples!(), "\n\n`lockctl --help` has the exit codes.");

const EXAMPLES_AND_CODES: &str = concat!(
    examples!(),
    "

Exit codes:
  0    done; for `run`: the command ended with 0, or --skip-if-busy found the key busy
  1    no: the key is free (who, release), or the release was not confirmed
  64   the command line is wrong
  69   Redis cannot be reached, or did not answer in time
  71   the system refused something, such as another process
  75   another holder has the key (run)
  77   Redis refused the user, the password or the access to the key
  78   the URL, the key, an option or the server is not fit for a lock (doctor: a check is red)
  79   the lease was lost, and the command was stopped or not started (run)
  126  the command could not be started (run)
  127  the command was not found (run)
Every other code of `run` is that of the command, 128 + N if signal N ended it."
);

const SEE_HELP: &str = "`lockctl --help` has the exit codes.";

const RUN_CODES: &str = "\
Times are written as 500ms, 3s, 10m, 1h or 7d.

Exit codes of its own; `lockctl --help` has all:
  75   the key is busy; --busy-code changes it, --skip-if-busy makes it 0
  79   the lease was lost, and the command was stopped or not started
  126  the command could not be started
  127  the command was not found
A code that is in neither list is that of the command, 128 + N if signal N ended it.
A signal that comes while the key is waited for ends lockctl with 128 + N, too.

Examples:
  lockctl run \"nightly:$(date -u -d '150 min ago' +%F)\" --skip-if-busy --at-least 7d -- ./clean-up
  lockctl run report --ttl 1m --wait-forever -- sh -c 'make report && make mail'";
