//! Clients of another library that contend for the same keys: `foreign OPTION=VALUE…`.
//!
//! Options are `address` of the Redis, `folder`, `name`, `tasks`, `keys`, `ttl`, `hold` and `pause` as of `contend`. It says and hears
//! the same.

use std::{error::Error, path::Path, time::Duration};

use lock_tests::{
    Dice,
    history::{ForeignClient, Manners, Recorder},
};
use tokio::{sync::watch, task::JoinSet, time::sleep};

use crate::contend::Options;

pub(crate) async fn foreign(arguments: &[&str]) -> Result<(), Box<dyn Error>> {
    let options = Options(arguments.iter().filter_map(|argument| argument.split_once('=')).collect());
    let mut lines = crate::input();
    let name = options.text("name")?;
    let recorder = Recorder::open(Path::new(options.text("folder")?), name);
    let keys = options.number("keys", 1)?;
    let ttl = options.milliseconds("ttl", 2_000)?;
    let hold = options.milliseconds("hold", 2)?;
    let pause = options.milliseconds("pause", 5)?;
    let (stop, stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    println!("ready");
    lines.recv().await;
    for task in 0..options.number("tasks", 1)? {
        let task = format!("t{task}");
        let mut client = ForeignClient::connect(options.text("address")?, &recorder, &task, Manners::Good).await?;
        let mut dice = Dice::named(&format!("{name}/{task}"));
        let stopped = stopped.clone();
        tasks.spawn(async move {
            let mut had = 0_u64;
            while !*stopped.borrow() {
                let key = format!("k{}", dice.below(keys));
                if let Ok(Some(token)) = client.acquire(&key, Some(ttl), Duration::from_secs(60)).await {
                    had += 1;
                    sleep(dice.between(Duration::ZERO, hold)).await;
                    let _ = client.release(&key, &token).await;
                }
                sleep(dice.between(Duration::ZERO, pause)).await;
            }
            had
        });
    }
    lines.recv().await;
    stop.send_replace(true);
    let rounds: u64 = tasks.join_all().await.into_iter().sum();
    println!("done {rounds}");
    Ok(())
}
