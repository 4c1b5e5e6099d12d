//! Processes that play for a key: the bench starts itself once more for each.
//!
//! A player reads orders from its standard input, a line each, and answers with lines; it ends when its input does, so
//! with the bench, however that ends.

use std::{
    env::{args, current_exe},
    fmt::Write as _,
    io::{BufRead as _, BufReader, Write as _, stdin, stdout},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio, exit},
    str::FromStr,
    thread,
    time::Duration,
};

use redis::{AsyncConnectionConfig, aio::MultiplexedConnection};
use tokio::{sync::mpsc, task::JoinSet, time::sleep};

use super::{
    clock,
    history::Hold,
    server::{client, ping},
    sides::Locks,
};

/// A child process as the bench sees it; killed on drop.
pub(crate) struct Player {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// What a player says after an order.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) holds: Vec<Hold>,
    /// In ns.
    pub(crate) pings: Vec<u64>,
    /// How often a key was taken and given back.
    pub(crate) pairs: u64,
}

impl Player {
    /// Starts one for a side and with a connection to each of the addresses; several start side by side.
    pub(crate) fn start_all(count: usize, side: &str, urls: &[&str]) -> Vec<Self> {
        Self::when_ready((0..count).map(|_| Self::start(&[&["player", side], urls].concat())))
    }

    /// Returns whether there is a Python that has python-redis-lock.
    pub(crate) fn has_python() -> bool {
        let probe = Command::new("python3").args(["-c", "import redis_lock"]).stderr(Stdio::null()).status();
        probe.is_ok_and(|status| status.success())
    }

    /// Starts players of python-redis-lock, who know the order `contend` alone.
    pub(crate) fn start_all_in_python(count: usize, urls: &[&str]) -> Vec<Self> {
        Self::when_ready((0..count).map(|_| {
            let mut python = Command::new("python3");
            python.args(["-c", include_str!("player.py")]).args(urls);
            Self::spawn(&mut python)
        }))
    }

    fn when_ready(players: impl Iterator<Item = Self>) -> Vec<Self> {
        let mut players: Vec<_> = players.collect();
        for player in &mut players {
            assert_eq!(player.line(), "ready");
        }
        players
    }

    /// Starts this program with other arguments.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let program = current_exe().expect("this program has a file");
        Self::spawn(Command::new(program).arg("--child").args(arguments))
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program of a player starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, input, output }
    }

    pub(crate) fn order(&mut self, order: &str) {
        writeln!(self.input, "{order}").expect("the player lives");
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the player speaks in text");
        assert!(!line.is_empty(), "a player died");
        line.trim_end().to_owned()
    }

    /// Waits for the answer to an order. Blocks the thread: to be called in `block_in_place`.
    fn answer(&mut self, player: usize, answer: &mut Answer) {
        loop {
            let line = self.line();
            let mut words = line.split(' ');
            match words.next() {
                Some("hold") => {
                    let (asked, held, released) = (word(&mut words), word(&mut words), word(&mut words));
                    answer.holds.push(Hold { player, asked, held, released });
                }
                Some("ping") => answer.pings.push(word(&mut words)),
                Some("pairs") => answer.pairs += word::<u64>(&mut words),
                Some("done") => return,
                _ => panic!("a player said {line:?}"),
            }
        }
    }

    /// The answers of all, together.
    pub(crate) fn answers(players: &mut [Self]) -> Answer {
        tokio::task::block_in_place(|| {
            let mut answer = Answer::default();
            for (number, player) in players.iter_mut().enumerate() {
                player.answer(number, &mut answer);
            }
            answer
        })
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What this process was started for, if it is a child.
pub(crate) fn child_arguments() -> Option<Vec<String>> {
    let mut arguments = args().skip(1);
    (arguments.next().as_deref() == Some("--child")).then(|| arguments.collect())
}

/// Ends this process when its input ends. Gives its lines.
pub(crate) fn orders() -> mpsc::UnboundedReceiver<String> {
    let (send, orders) = mpsc::unbounded_channel();
    thread::spawn(move || {
        for line in stdin().lock().lines().map_while(Result::ok) {
            let _ = send.send(line);
        }
        exit(0);
    });
    orders
}

/// Plays until the input ends: `hand KEY ME OTHER END`, `contend CONNECTION KEY START END`, `crowd KEY KEYS TASKS HOLD START END`.
pub(crate) async fn play<L: Locks>(urls: &[String]) {
    let mut orders = orders();
    let mut sides = Vec::new();
    for url in urls {
        sides.push(L::connect(url).await);
    }
    let raw = client(&urls[0]).get_multiplexed_async_connection().await.expect("the server answers");
    let patient = AsyncConnectionConfig::new().set_response_timeout(None);
    let turns = client(&urls[0]).get_multiplexed_async_connection_with_config(&patient).await;
    let turns = turns.expect("the server answers");

    println!("ready");
    while let Some(order) = orders.recv().await {
        let mut words = order.split(' ');
        let game = match words.next() {
            Some("hand") => {
                let (key, me, other) = (word(&mut words), word(&mut words), word(&mut words));
                let hands = Hands { side: sides[0].clone(), raw: raw.clone(), turns: turns.clone(), key, me, other };
                tokio::spawn(hands.play(word(&mut words)))
            }
            Some("contend") => {
                let side = sides[word::<usize>(&mut words)].clone();
                tokio::spawn(contend(side, word(&mut words), word(&mut words), word(&mut words)))
            }
            Some("crowd") => {
                let (side, key) = (sides[0].clone(), word::<String>(&mut words));
                let (keys, tasks) = (word(&mut words), word(&mut words));
                let hold = Duration::from_micros(word(&mut words));
                tokio::spawn(crowd(side, key, (keys, tasks), hold, (word(&mut words), word(&mut words))))
            }
            _ => panic!("no such order: {order:?}"),
        };
        // In a task, as in a service, and not in the future that this thread blocks on.
        let text = game.await.expect("no request fails");
        stdout().lock().write_all(text.as_bytes()).expect("the bench listens");
    }
}

/// Two of them pass a key back and forth. One asks only when the other has it, or whoever releases would often be the
/// next to have it, where the lock has no order; and it is held until the other is in line.
struct Hands<L> {
    side: L,
    raw: MultiplexedConnection,
    /// Waits for its turn, in a list of the server, so that nobody polls.
    turns: MultiplexedConnection,
    key: String,
    me: String,
    other: String,
}

impl<L: Locks> Hands<L> {
    async fn play(mut self, end: u64) -> String {
        let mut text = String::new();
        loop {
            let (_, turn): (String, String) =
                redis::cmd("BLPOP").arg(&self.me).arg(0).query_async(&mut self.turns).await.expect("BLPOP");
            if turn == "over" {
                break;
            }
            let asked = clock::now();
            let held_key = self.side.acquire(&self.key).await;
            let held = clock::now();
            let last = held >= end;
            self.turn(if last { "over" } else { "ask" }).await;
            // What a raw round trip takes, while the other gets in line.
            for _ in 0..PINGS {
                let time = ping(&mut self.raw).await;
                let _ = writeln!(text, "ping {time}");
            }
            let released = clock::now();
            L::release(held_key).await;
            let _ = writeln!(text, "hold {asked} {held} {released}");
            if last {
                break;
            }
        }
        text + "done\n"
    }

    async fn turn(&mut self, turn: &str) {
        let push = redis::cmd("RPUSH").arg(&self.other).arg(turn).query_async(&mut self.raw).await;
        let _: u32 = push.expect("RPUSH");
    }
}

/// Takes a key and gives it back, from start to end, as fast as it can; a guard goes out of scope, nobody awaits its
/// release.
async fn contend<L: Locks>(side: L, key: String, start: u64, end: u64) -> String {
    sleep(Duration::from_nanos(start.saturating_sub(clock::now()))).await;
    let mut holds = Vec::new();
    loop {
        let asked = clock::now();
        if asked >= end {
            break;
        }
        let held_key = side.acquire(&key).await;
        let held = clock::now();
        // Told apart from `held`, so that two holders at a time show; the lease is given back at once.
        let released = clock::now();
        L::give_back(held_key).await;
        holds.push((asked, held, released));
    }
    let mut text = String::with_capacity(64 * holds.len());
    for (asked, held, released) in holds {
        let _ = writeln!(text, "hold {asked} {held} {released}");
    }
    text + "done\n"
}

/// Several tasks take keys and give them back, from start to end, each the one of its number. What is held for a while is told in
/// full.
async fn crowd<L: Locks>(
    side: L,
    key: String,
    (keys, tasks): (usize, usize),
    hold: Duration,
    (start, end): (u64, u64),
) -> String {
    sleep(Duration::from_nanos(start.saturating_sub(clock::now()))).await;
    let mut set = JoinSet::new();
    for task in 0..tasks {
        let (side, key) = (side.clone(), format!("{key}:{}", task % keys));
        set.spawn(async move {
            let (mut pairs, mut text) = (0, String::new());
            loop {
                let asked = clock::now();
                if asked >= end {
                    return format!("pairs {pairs}\n{text}");
                }
                let held_key = side.acquire(&key).await;
                let held = clock::now();
                if !hold.is_zero() {
                    sleep(hold).await;
                    let _ = writeln!(text, "hold {asked} {held} {}", clock::now());
                }
                L::release(held_key).await;
                pairs += u64::from(clock::now() < end);
            }
        });
    }
    set.join_all().await.concat() + "done\n"
}

fn word<'a, T: FromStr>(words: &mut impl Iterator<Item = &'a str>) -> T {
    words.next().and_then(|word| word.parse().ok()).expect("orders and answers are complete")
}

const PINGS: usize = 10;
