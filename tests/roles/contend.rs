//! Several tasks that contend for a few keys, and write down what they do: `contend OPTION=VALUE…`.
//!
//! | option | meaning |
//! | --- | --- |
//! | `url`, `folder`, `name` | the Redis of the locks, the folder of the history, the name of the process in it |
//! | `register` | the address of the Redis with the fenced registers; none are written without it |
//! | `unfenced` | the address of a Redis with a number for each key that is read and written without a fencing token |
//! | `tasks`, `keys` | how many; the keys are `k0`, `k1`, … |
//! | `ttl`, `wait`, `hold`, `pause` | in milliseconds; holds and pauses are random, up to that long; the default ttl outlasts each deadline of a test |
//! | `drops` | how many of a hundred acquires are dropped at a random moment, up to `drop_within` milliseconds |
//! | `extends` | how many of a hundred holds are extended once |
//! | `shares` | how many of a hundred acquires of these keys are shared: their holders read the register twice |
//! | `permits` | how many permits another key has, which is called `permits` and wanted in every third round; 0 for none |
//! | `churn` | 1 for one more task, which uses keys of its own in all ways that might leave something behind; see `churn.rs` |
//!
//! Says `ready` when it is connected, and begins at a line of input. When its input ends, or after a line that is not in this table,
//! each task finishes its round; then it says `done ROUNDS`.
//!
//! | line | answer |
//! | --- | --- |
//! | `report` | `report NAME=NUMBER…`, also before it begins: how many tasks its runtime has, how many rounds it has had, what its manager remembers |
//! | `rest` | `resting` when each task has finished its round |
//! | `sweep` | `swept NAME=NUMBER…`, when it rests: what was left after some more churning; see `churn.rs` |
//! | `visit URL` | `visiting`: another manager of its own has a lease there |
//! | `leave` | `left KIND`: a request of that manager has failed, its lease was dropped, and the manager is gone |

use std::{
    collections::HashMap,
    error::Error,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lock_core::LockManager;
use lock_tests::{
    Dice, RawClient,
    history::{Held, Mode, Recorded, Recorder, Register},
};
use tokio::{
    runtime::Handle,
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::churn::{Churn, Visit};

pub(crate) async fn contend(arguments: &[&str]) -> Result<(), Box<dyn Error>> {
    let options = Options(arguments.iter().filter_map(|argument| argument.split_once('=')).collect());
    let mut lines = crate::input();
    let name = options.text("name")?;
    let manager = crate::connected(LockManager::builder().url(options.text("url")?).client_name(name)).await?;
    let recorder = Recorder::open(Path::new(options.text("folder")?), name);
    let plan = Arc::new(Plan {
        keys: options.number("keys", 1)?,
        ttl: options.milliseconds("ttl", OUTLASTS)?,
        wait: options.milliseconds("wait", 60_000)?,
        hold: options.milliseconds("hold", 2)?,
        pause: options.milliseconds("pause", 0)?,
        drops: options.number("drops", 0)?,
        drop_within: options.milliseconds("drop_within", 20)?,
        extends: options.number("extends", 0)?,
        shares: options.number("shares", 0)?,
        permits: u32::try_from(options.number("permits", 0)?)?,
    });
    let (stop, stopped) = watch::channel(false);
    let (mut tasks, mut visit) = (JoinSet::new(), None);
    let (had, mut churn) = (Arc::new(AtomicU64::new(0)), Churn::new(&manager, name, plan.ttl));
    let churned = churn.rounds();
    let report = || {
        let sizes = manager.__sizes().into_iter().map(|(name, size)| format!(" {name}={size}"));
        let tasks = Handle::current().metrics().num_alive_tasks();
        let [had, churned] = [&had, &churned].map(|rounds| rounds.load(Ordering::Relaxed));
        println!("report tasks={tasks} had={had} churned={churned}{}", sizes.collect::<String>());
    };
    println!("ready");
    while lines.recv().await.is_some_and(|line| line == "report") {
        report();
    }
    for task in 0..options.number("tasks", 1)? {
        let task = format!("t{task}");
        let register = match options.text("register") {
            Ok(address) => Some(Register::connect(address).await?),
            Err(_) => None,
        };
        let unfenced = match options.text("unfenced") {
            Ok(address) => Some(RawClient::tcp(address).await?),
            Err(_) => None,
        };
        let client = Recorded::new(&manager, &recorder, &task);
        let dice = Dice::named(&format!("{name}/{task}"));
        let (plan, had) = (Arc::clone(&plan), Arc::clone(&had));
        tasks.spawn(rounds(client, plan, (register, unfenced), dice, stopped.clone(), had));
    }
    if options.number("churn", 0)? == 1 {
        let mut churn = churn.clone();
        let stopped = stopped.clone();
        tasks.spawn(async move {
            while !*stopped.borrow() {
                churn.round().await;
            }
        });
    }
    while let Some(line) = lines.recv().await {
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("report", _) => report(),
            ("rest", _) => {
                stop.send_replace(true);
                while tasks.join_next().await.is_some() {}
                println!("resting");
            }
            ("sweep", _) => println!("swept{}", churn.sweep().await?),
            ("visit", url) => {
                visit = Some(Visit::begin(url).await?);
                println!("visiting");
            }
            ("leave", _) => match visit.take() {
                Some(visit) => println!("left {:?}", visit.end().await),
                None => return Err("there is no visit".into()),
            },
            _ => break,
        }
    }
    stop.send_replace(true);
    while tasks.join_next().await.is_some() {}
    // What was dropped last is still to be sent, and this process ends here.
    manager.shutdown(Duration::from_secs(5)).await;
    println!("done {}", had.load(Ordering::Relaxed));
    Ok(())
}

struct Plan {
    keys: u64,
    ttl: Duration,
    wait: Duration,
    hold: Duration,
    pause: Duration,
    drops: u64,
    drop_within: Duration,
    extends: u64,
    shares: u64,
    permits: u32,
}

impl Plan {
    /// What is asked for next. Dice are thrown for it only if there is a choice.
    fn next(&self, dice: &mut Dice) -> (String, Mode) {
        if self.permits > 0 && dice.below(3) == 0 {
            let take = 1 + u32::try_from(dice.below(2)).expect("small");
            return ("permits".to_owned(), Mode::Permits { total: self.permits, take: take.min(self.permits) });
        }
        let key = format!("k{}", dice.below(self.keys));
        let is_shared = self.shares > 0 && dice.below(100) < self.shares;
        (key, if is_shared { Mode::Shared } else { Mode::Exclusive })
    }
}

/// Counts in `had` how often it had a lease.
async fn rounds(
    client: Recorded,
    plan: Arc<Plan>,
    (mut register, mut unfenced): (Option<Register>, Option<RawClient>),
    mut dice: Dice,
    stopped: watch::Receiver<bool>,
    had: Arc<AtomicU64>,
) {
    while !*stopped.borrow() {
        let (key, mode) = plan.next(&mut dice);
        let acquire = client.acquire_in(mode, &key, plan.ttl, |request| request.wait(plan.wait));
        let patience =
            if dice.below(100) < plan.drops { dice.between(Duration::ZERO, plan.drop_within) } else { Duration::MAX };
        let Ok(Ok(mut held)) = timeout(patience, acquire).await else {
            sleep(Duration::from_millis(1)).await; // no hot loop where it is refused at once
            continue;
        };
        had.fetch_add(1, Ordering::Relaxed);
        held.check();
        use_register(mode, &mut held, register.as_mut()).await;
        let hold = dice.between(Duration::ZERO, plan.hold);
        match &mut unfenced {
            Some(redis) => count_unfenced(redis, &key, hold).await,
            None => sleep(hold).await,
        }
        if dice.below(100) < plan.extends {
            let _ = held.extend(plan.ttl).await;
        }
        if mode == Mode::Shared {
            use_register(mode, &mut held, register.as_mut()).await;
        }
        held.check();
        if dice.below(100) < plan.drops {
            drop(held);
        } else {
            let _ = held.release().await;
        }
        sleep(dice.between(Duration::ZERO, plan.pause)).await;
    }
}

/// A writer counts, a reader reads, and permits guard nothing of the kind.
async fn use_register(mode: Mode, held: &mut Held, register: Option<&mut Register>) {
    match (mode, register) {
        (Mode::Exclusive, Some(register)) => _ = held.count(register).await,
        (Mode::Shared, Some(register)) => _ = held.read(register).await,
        _ => {}
    }
}

/// Reads a number, and writes one more a while later, whatever has become of the lease; counts the writes beside it.
async fn count_unfenced(redis: &mut RawClient, key: &str, hold: Duration) {
    let (number, writes) = (Register::name(&format!("unfenced:{key}")), Register::name(&format!("writes:{key}")));
    let read = redis.call(&["GET", &number]).await;
    sleep(hold).await;
    let Ok(read) = read else { return };
    let read: u64 = read.text().and_then(|text| text.parse().ok()).unwrap_or_default();
    if redis.call(&["SET", &number, &(read + 1).to_string()]).await.is_ok() {
        let _ = redis.call(&["INCR", &writes]).await;
    }
}

/// What was given as `name=value`.
pub(crate) struct Options<'a>(pub(crate) HashMap<&'a str, &'a str>);

impl<'a> Options<'a> {
    pub(crate) fn text(&self, name: &str) -> Result<&'a str, String> {
        self.0.get(name).copied().ok_or_else(|| format!("{name}= is missing"))
    }

    pub(crate) fn number(&self, name: &str, otherwise: u64) -> Result<u64, Box<dyn Error>> {
        Ok(self.0.get(name).map_or(Ok(otherwise), |text| text.parse())?)
    }

    pub(crate) fn milliseconds(&self, name: &str, otherwise: u64) -> Result<Duration, Box<dyn Error>> {
        Ok(Duration::from_millis(self.number(name, otherwise)?))
    }
}

/// The ttl of leases unless an option says otherwise, in milliseconds: that of `lock_tests::LONG`.
const OUTLASTS: u64 = 600_000;
