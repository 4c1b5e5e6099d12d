//! Several processes on one key, each taking it and giving it back as fast as it can.

use std::time::Duration;

use redis::aio::MultiplexedConnection;

use super::{
    clock,
    history::History,
    player::Player,
    relay::Relay,
    server::{Server, ping_p50, usage},
    sides::Locks,
    stats::{self, Rounds},
};

/// What a round measured.
pub(crate) struct Round {
    pub(crate) owner_changes_per_second: f64,
    pub(crate) requests_per_handoff: f64,
    /// Calls of scripts, and transactions, per owner change, by the server's count, without the relay.
    pub(crate) scripts_per_handoff: f64,
    pub(crate) fairness: f64,
    /// In ms.
    pub(crate) wait_p99: f64,
    /// The median round trip of a PING while nothing else goes on, in s.
    pub(crate) ping: f64,
}

/// Some players of a side on one key.
pub(crate) struct Crowd {
    side: &'static str,
    players: Vec<Player>,
    connection: MultiplexedConnection,
    relay: Relay,
    pub(crate) rounds: Vec<Round>,
}

impl Crowd {
    /// Of this program's own.
    pub(crate) async fn start<L: Locks>(server: &Server, players: usize) -> Self {
        Self::start_with(server, L::NAME, |urls| Player::start_all(players, L::NAME, urls)).await
    }

    /// Of python-redis-lock; none where Python does not have it.
    pub(crate) async fn start_python(server: &Server, players: usize) -> Option<Self> {
        if !Player::has_python() {
            return None;
        }
        Some(Self::start_with(server, PYTHON, |urls| Player::start_all_in_python(players, urls)).await)
    }

    async fn start_with(server: &Server, side: &'static str, start: impl FnOnce(&[&str]) -> Vec<Player>) -> Self {
        let relay = Relay::start(server.port).await;
        // The first connection goes straight to the server, the second through the relay.
        let urls = [server.url.clone(), relay.url.clone()];
        let players = tokio::task::block_in_place(|| start(&urls.each_ref().map(|url| &**url)));
        Self { side, players, connection: server.connect().await, relay, rounds: Vec::new() }
    }

    /// Plays for some seconds straight, and for some through the relay; a round that warms up is not kept.
    pub(crate) async fn round(&mut self, straight: f64, counted: f64, keep: bool) {
        let ping = ping_p50(&self.connection, Duration::from_millis(150)).await / 1e6;

        let scripts = self.scripts().await;
        let (start, end) = self.order(0, straight);
        let history = self.history();
        let scripts = self.scripts().await - scripts;
        let waits = stats::histogram(history.waits(start, end));

        let (from, to) = self.order(1, counted);
        sleep_until(from).await;
        let requests = self.relay.requests();
        sleep_until(to).await;
        let requests = self.relay.requests() - requests;
        let counted = self.history();

        if keep {
            self.rounds.push(Round {
                owner_changes_per_second: history.owner_changes(start, end) as f64 / straight,
                requests_per_handoff: requests as f64 / counted.owner_changes(from, to) as f64,
                scripts_per_handoff: scripts as f64 / history.owner_changes(0, u64::MAX) as f64,
                fairness: history.fairness(start, end),
                wait_p99: stats::quantile(&waits, 0.99) / 1e3,
                ping,
            });
        }
    }

    /// A measure of all rounds.
    pub(crate) fn figure(&self, of: impl Fn(&Round) -> f64) -> Rounds {
        Rounds::of(self.rounds.iter().map(of))
    }

    /// A measure of all rounds, beside another one of each.
    pub(crate) fn beside(&self, of: impl Fn(&Round) -> f64, other: impl Fn(&Round) -> f64) -> Rounds {
        Rounds::beside(self.rounds.iter().map(|round| (of(round), other(round))))
    }

    fn order(&mut self, connection: usize, seconds: f64) -> (u64, u64) {
        let start = clock::now() + 50_000_000;
        let end = start + (seconds * 1e9) as u64;
        for player in &mut self.players {
            player.order(&format!("contend {connection} {} {start} {end}", self.side));
        }
        (start, end)
    }

    fn history(&mut self) -> History {
        let history = History::new(Player::answers(&mut self.players).holds, self.players.len());
        assert_eq!(history.overlaps(), 0, "{} let two processes hold the key", self.side);
        history
    }

    async fn scripts(&mut self) -> u64 {
        let mut sum = 0;
        for command in ["evalsha", "eval", "exec"] {
            sum += usage(&mut self.connection, command).await.0;
        }
        sum
    }
}

/// As told to the players.
const PYTHON: &str = "python-redis-lock";

async fn sleep_until(moment: u64) {
    tokio::time::sleep(Duration::from_nanos(moment.saturating_sub(clock::now()))).await;
}
