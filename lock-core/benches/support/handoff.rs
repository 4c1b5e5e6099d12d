//! From release in one process to the lease in another that waits for it.

use hdrhistogram::Histogram;
use redis::aio::MultiplexedConnection;

use super::{
    clock,
    history::History,
    player::Player,
    server::Server,
    sides::Locks,
    stats::{self, Rounds},
};

/// What a round measured; times in µs.
pub(crate) struct Round {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// The median round trip of a PING, by the same processes in between.
    pub(crate) ping: f64,
}

/// All rounds, and all times together in ns.
pub(crate) struct Handoffs {
    pub(crate) rounds: Vec<Round>,
    pub(crate) handoffs: Histogram<u64>,
    pub(crate) pings: Histogram<u64>,
}

/// Two players of a side, and what they have played.
pub(crate) struct Match<L> {
    players: Vec<Player>,
    connection: MultiplexedConnection,
    pub(crate) played: Handoffs,
    side: std::marker::PhantomData<L>,
}

impl<L: Locks> Match<L> {
    pub(crate) async fn start(server: &Server) -> Self {
        let players = Player::start_all(2, L::NAME, &[&server.url]);
        let (handoffs, pings) = (stats::histogram([]), stats::histogram([]));
        let played = Handoffs { rounds: Vec::new(), handoffs, pings };
        Self { players, connection: server.connect().await, played, side: std::marker::PhantomData }
    }

    /// Plays for some seconds; a round that warms up is not kept.
    pub(crate) async fn round(&mut self, seconds: f64, keep: bool) {
        let end = clock::now() + (seconds * 1e9) as u64;
        for (player, (me, other)) in self.players.iter_mut().zip([("first", "second"), ("second", "first")]) {
            player.order(&format!("hand {key} {key}:{me} {key}:{other} {end}", key = L::NAME));
        }
        let first = format!("{}:first", L::NAME);
        let push = redis::cmd("RPUSH").arg(first).arg("ask").query_async(&mut self.connection).await;
        let _: u32 = push.expect("RPUSH");

        let answer = Player::answers(&mut self.players);
        let history = History::new(answer.holds, 2);
        assert_eq!(history.overlaps(), 0, "{} let two processes hold the key", L::NAME);
        if !keep {
            return;
        }
        let (handoffs, pings) = (stats::histogram(history.handoffs()), stats::histogram(answer.pings));
        let (p50, p99) = (stats::quantile(&handoffs, 0.5), stats::quantile(&handoffs, 0.99));
        self.played.rounds.push(Round { p50, p99, ping: stats::quantile(&pings, 0.5) });
        self.played.handoffs.add(handoffs).expect("it grows as needed");
        self.played.pings.add(pings).expect("it grows as needed");
    }
}

impl Handoffs {
    /// A measure of all rounds, beside the median PING of each.
    pub(crate) fn figure(&self, of: impl Fn(&Round) -> f64) -> Rounds {
        Rounds::beside(self.rounds.iter().map(|round| (of(round), round.ping)))
    }
}
