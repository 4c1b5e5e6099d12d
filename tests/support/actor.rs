//! Second processes that use the lock and write it down, as a test directs them.

use std::time::Duration;

use serde_json::json;

use crate::{
    history::{Mode, Run},
    process::Process,
    resp::Reply,
    server::RedisServer,
    wait::{SOON, eventually},
};

/// Starts a process in the role `act`: `actor!(run, server.url(), "p1")`. The name is also that of its connection. With
/// `through ["env", "A=B"]` behind it, that command starts it.
#[macro_export]
macro_rules! actor {
    ($run:expr, $url:expr, $name:expr $(,)?) => {
        $crate::Actor::start(env!("CARGO_BIN_EXE_lock-role"), &$run, &$url, $name)
    };
    ($run:expr, $url:expr, $name:expr, through $command:expr) => {
        $crate::Actor::start_through(&$command, env!("CARGO_BIN_EXE_lock-role"), &$run, &$url, $name)
    };
}

/// Starts processes in the role `contend` or `foreign`: `team!(run, "contend", 4, "p", ["keys=3", …])`. They are called
/// `p0`, `p1`, …
#[macro_export]
macro_rules! team {
    ($run:expr, $role:expr, $count:expr, $name:expr, [$($option:expr),* $(,)?] $(,)?) => {
        $crate::Team::start(
            env!("CARGO_BIN_EXE_lock-role"),
            &$run,
            $role,
            $count,
            $name,
            &[$(::std::string::ToString::to_string(&$option)),*],
        )
    };
}

/// A process in the role `act`, see `tests/roles/act.rs`.
#[derive(Debug)]
pub struct Actor {
    /// Its name in the history.
    pub name: String,
    /// The process, to be stopped or talked to in other words.
    pub process: Process,
}

impl Actor {
    /// See [`actor!`](crate::actor!).
    ///
    /// # Panics
    /// When it isn't ready soon.
    pub async fn start(program: &str, run: &Run, url: &str, name: &str) -> Self {
        Self::start_through(&[], program, run, url, name).await
    }

    /// The same, started by another command, which must become `program` (as `env` does) and not stay beside it.
    ///
    /// # Panics
    /// When it isn't ready soon.
    pub async fn start_through(command: &[&str], program: &str, run: &Run, url: &str, name: &str) -> Self {
        let folder = run.folder_text();
        let mut words = command.iter().copied().chain([program, "act", url, &folder, name]);
        let first = words.next().expect("there is a program");
        let mut process = Process::start(first, words);
        process.expect("ready", SOON).await;
        Self { name: name.to_owned(), process }
    }

    /// Lets it begin to acquire `key`, and returns when it is about to.
    ///
    /// # Panics
    /// When it says nothing.
    pub async fn begin(&mut self, key: &str, ttl: Duration, wait: Duration) {
        self.begin_in(Mode::Exclusive, key, ttl, wait).await;
    }

    /// The same in another mode.
    ///
    /// # Panics
    /// When it says nothing.
    pub async fn begin_in(&mut self, mode: Mode, key: &str, ttl: Duration, wait: Duration) {
        let (ttl_ms, wait_ms) = (ttl.as_millis(), wait.as_millis());
        self.process.send(&format!("acquire {key} {ttl_ms} {wait_ms} {}", json!(mode))).await;
        self.process.expect("waiting", SOON).await;
    }

    /// Lets it acquire `key`, which it can have at once, and returns the fencing token.
    ///
    /// # Panics
    /// When it doesn't get it.
    pub async fn acquire_in(&mut self, mode: Mode, key: &str, ttl: Duration) -> u64 {
        self.begin_in(mode, key, ttl, SOON).await;
        self.held(SOON).await
    }

    /// Lets it acquire `key`, which is free, and returns the fencing token.
    ///
    /// # Panics
    /// When it doesn't get it.
    pub async fn acquire(&mut self, key: &str, ttl: Duration) -> u64 {
        self.begin(key, ttl, SOON).await;
        self.held(SOON).await
    }

    /// Waits until it holds what it was told to acquire; returns the fencing token.
    ///
    /// # Panics
    /// When that takes longer.
    pub async fn held(&mut self, within: Duration) -> u64 {
        self.process.expect("held ", within).await.parse().expect("a fencing token is a number")
    }

    /// Gives it an order that it carries out at once, and returns what it says.
    ///
    /// # Panics
    /// When it says nothing.
    pub async fn tell(&mut self, order: &str) -> String {
        self.process.send(order).await;
        loop {
            let line = self.process.line(SOON).await.unwrap_or_else(|| panic!("{} has ended", self.name));
            // This comes when it comes.
            if !line.starts_with("lost ") {
                return line;
            }
        }
    }

    /// Waits until it says that its lease is lost; returns the reason, and when it knew.
    ///
    /// # Panics
    /// When that takes longer.
    pub async fn lost(&mut self, within: Duration) -> (String, f64) {
        let told = self.process.expect("lost ", within).await;
        let (reason, at) = told.split_once(' ').expect("a reason and a time");
        (reason.to_owned(), at.parse().expect("a time is a number"))
    }

    /// Kills it, and writes that down.
    ///
    /// # Panics
    /// When the system refuses.
    pub async fn kill(&mut self, run: &Run) {
        self.process.kill().await;
        run.crashed(&self.name);
    }
}

/// Waits until `places` waiters of the key `k` have a place in its queue: from then on they surely wait.
///
/// # Panics
/// When they don't.
pub async fn has_places(server: &RedisServer, places: usize) {
    eventually(SOON, format!("{places} wait"), async || {
        let fields = server.call(&["HKEYS", "{0}lock-core:queue:k"]).await;
        fields.items().iter().filter_map(Reply::text).filter(|field| field.starts_with('#')).count() == places
    })
    .await;
}

/// Several processes that contend until they are told to stop.
#[derive(Debug)]
pub struct Team {
    /// The processes.
    pub members: Vec<Process>,
}

impl Team {
    /// See [`team!`](crate::team!). They wait for [`go`](Self::go).
    ///
    /// # Panics
    /// When one isn't ready soon.
    pub async fn start(program: &str, run: &Run, role: &str, count: usize, name: &str, options: &[String]) -> Self {
        let start = |member| Self::one(program, run, role, &format!("{name}{member}"), options);
        let mut members: Vec<_> = (0..count).map(start).collect();
        for member in &mut members {
            member.expect("ready", SOON).await;
        }
        Self { members }
    }

    fn one(program: &str, run: &Run, role: &str, name: &str, options: &[String]) -> Process {
        let mut arguments = vec![role.to_owned(), format!("folder={}", run.folder_text()), format!("name={name}")];
        arguments.extend_from_slice(options);
        Process::start(program, arguments)
    }

    /// Lets them begin.
    ///
    /// # Panics
    /// When one has ended.
    pub async fn go(&mut self) {
        for member in &mut self.members {
            member.send("go").await;
        }
    }

    /// Starts one more, which begins at once; it is told the same as the others, and called `name`.
    ///
    /// # Panics
    /// When it isn't ready soon.
    pub async fn join(&mut self, program: &str, run: &Run, role: &str, name: &str, options: &[String]) {
        let mut member = Self::one(program, run, role, name, options);
        member.expect("ready", SOON).await;
        member.send("go").await;
        self.members.push(member);
    }

    /// Lets them finish their rounds; returns how many each has had.
    ///
    /// # Panics
    /// When one doesn't end within `within`.
    pub async fn stop(mut self, within: Duration) -> Vec<u64> {
        for member in &mut self.members {
            member.send("stop").await;
        }
        let mut rounds = Vec::new();
        for member in &mut self.members {
            rounds.push(member.expect("done ", within).await.parse().expect("a number of rounds"));
            member.close_input();
            member.wait(SOON).await;
        }
        rounds
    }
}
