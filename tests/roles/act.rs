//! A client that does as it is told and writes it down: `act URL FOLDER NAME`.
//!
//! Says `ready` when it is connected; then it obeys one line after the other, until its input ends:
//!
//! | line | answer |
//! | --- | --- |
//! | `acquire KEY TTL_MS WAIT_MS` | `waiting` at once; then `held FENCE` or `refused KIND`. A mode may follow, as histories have it: `"shared"` |
//! | `fixed KEY TTL_MS WAIT_MS` | the same for a lease that is not renewed |
//! | `work KEY TTL_MS WAIT_MS` | the same, with work that only a loss ends: `cancelled LAST NOW` then, when its last step was and now |
//! | `try KEY TTL_MS` | `held FENCE`, `busy`, or `refused KIND`. A mode may follow |
//! | `cancel` | `cancelled`: the acquire under way is dropped |
//! | `check` | `check held MS`, what remains, or `check lost` |
//! | `count ADDRESS` | `counted` into the register there, `stale`, or `unknown` |
//! | `read ADDRESS` | `read NUMBER`: what is in the number there that nobody fences |
//! | `write ADDRESS` | `written`: one more than it read, without a fencing token, whatever has become of the lease |
//! | `extend MS` | `extended`, or `failed KIND` |
//! | `why` | `why WORDS`: what an extension is told of a lease that is lost |
//! | `release` | `released`, or `failed KIND` |
//! | `wall` | `wall MS`: what its wall clock says, in ms since 1970 |
//! | `clock` | `clock S`: what its lease clock says, in seconds since its origin |
//!
//! When a lease is lost it says `lost REASON TIME`, on the clock of histories.

use std::{
    convert::Infallible,
    error::Error,
    path::Path,
    time::{Duration, SystemTime},
};

use lock_core::{
    End, LockManager,
    clock::{Clock, SystemClock},
};
use lock_tests::{
    RawClient,
    history::{Held, Mode, Recorded, Recorder, Register, now},
};
use tokio::{sync::mpsc, task::JoinHandle, time::sleep};

pub(crate) async fn act(url: &str, folder: &str, name: &str) -> Result<(), Box<dyn Error>> {
    let mut lines = crate::input();
    let manager = crate::connected(LockManager::builder().url(url).client_name(name)).await?;
    let recorder = Recorder::open(Path::new(folder), name);
    let (got, mut arrivals) = mpsc::unbounded_channel();
    let mut stage = Stage { manager, recorder, got, waiting: None, held: None, read: 0 };
    println!("ready");
    loop {
        tokio::select! {
            biased;
            Some(held) = arrivals.recv() => stage.held = Some(held),
            line = lines.recv() => match line {
                Some(line) => stage.obey(&line).await?,
                None => return Ok(()),
            },
        }
    }
}

struct Stage {
    manager: LockManager,
    recorder: std::sync::Arc<Recorder>,
    got: mpsc::UnboundedSender<Held>,
    waiting: Option<JoinHandle<()>>,
    held: Option<Held>,
    /// What it read last from the number that nobody fences.
    read: u64,
}

impl Stage {
    async fn obey(&mut self, line: &str) -> Result<(), Box<dyn Error>> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            [verb @ ("acquire" | "fixed" | "work"), key, ttl_ms, wait_ms, ref mode @ ..] => {
                let (ttl, wait, mode) = (milliseconds(ttl_ms)?, milliseconds(wait_ms)?, mode_of(mode)?);
                let (fixed, works) = (verb == "fixed", verb == "work");
                let client = Recorded::new(&self.manager, &self.recorder, "");
                let (key, got) = (key.to_owned(), self.got.clone());
                println!("waiting");
                self.waiting = Some(tokio::spawn(async move {
                    let options = |request: lock_core::LockRequest| {
                        let request = request.wait(wait);
                        if fixed { request.fixed() } else { request }
                    };
                    match client.acquire_in(mode, &key, ttl, options).await {
                        Ok(held) if works => work(held).await,
                        Ok(held) => arrive(held, &got),
                        Err(error) => println!("refused {:?}", error.kind()),
                    }
                }));
            }
            ["try", key, ttl_ms, ref mode @ ..] => {
                let client = Recorded::new(&self.manager, &self.recorder, "");
                match client.try_acquire_in(mode_of(mode)?, key, milliseconds(ttl_ms)?).await {
                    Ok(Some(held)) => arrive(held, &self.got),
                    Ok(None) => println!("busy"),
                    Err(error) => println!("refused {:?}", error.kind()),
                }
            }
            ["cancel"] => {
                if let Some(waiting) = self.waiting.take() {
                    waiting.abort();
                    let _ = waiting.await;
                }
                println!("cancelled");
            }
            ["check"] => {
                let held = self.held()?;
                if held.check() {
                    println!("check held {}", held.guard().remaining().as_millis());
                } else {
                    println!("check lost");
                }
            }
            ["count", address] => {
                let mut register = Register::connect(address).await?;
                println!(
                    "{}",
                    match self.held()?.count(&mut register).await {
                        Some(true) => "counted",
                        Some(false) => "stale",
                        None => "unknown",
                    }
                );
            }
            ["read", address] => {
                let number = RawClient::tcp(address).await?.call(&["GET", UNFENCED]).await?.text();
                self.read = number.as_deref().unwrap_or("0").parse()?;
                println!("read {}", self.read);
            }
            ["write", address] => {
                let number = (self.read + 1).to_string();
                RawClient::tcp(address).await?.call(&["SET", UNFENCED, &number]).await?;
                println!("written");
            }
            ["extend", ttl_ms] => match self.held()?.extend(milliseconds(ttl_ms)?).await {
                Ok(()) => println!("extended"),
                Err(error) => println!("failed {:?}", error.kind()),
            },
            ["why"] => match self.held()?.extend(Duration::from_secs(1)).await {
                Ok(()) => return Err("the lease is held".into()),
                Err(error) => println!("why {error}"),
            },
            ["release"] => match self.held.take().ok_or(NOTHING)?.release().await {
                Ok(()) => println!("released"),
                Err(error) => println!("failed {:?}", error.kind()),
            },
            ["clock"] => println!("clock {}", SystemClock.now().since_origin().as_secs()),
            ["wall"] => println!("wall {}", SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_millis()),
            _ => return Err(format!("can't do {line:?}").into()),
        }
        Ok(())
    }

    fn held(&mut self) -> Result<&mut Held, &'static str> {
        self.held.as_mut().ok_or(NOTHING)
    }
}

/// Says so, and has the loss told.
fn arrive(held: Held, got: &mpsc::UnboundedSender<Held>) {
    let ended = held.guard().ended();
    tokio::spawn(async move {
        if let End::Lost(reason) = ended.await {
            println!("lost {reason:?} {}", now());
        }
    });
    let fence = held.fence();
    let _ = got.send(held); // first, so that it is there when the next line comes
    println!("held {fence}");
}

/// Does a step of its work every millisecond, until that is cancelled.
async fn work(held: Held) {
    struct Work(f64);
    impl Drop for Work {
        fn drop(&mut self) {
            println!("cancelled {} {}", self.0, now());
        }
    }
    println!("held {}", held.fence());
    let work = async {
        let mut work = Work(now());
        loop {
            work.0 = now();
            sleep(Duration::from_millis(1)).await;
        }
    };
    let Err(error) = held.work(work).await.map(|never: Infallible| match never {});
    println!("failed {:?}", error.kind());
}

/// The mode that is named, if one is.
fn mode_of(words: &[&str]) -> Result<Mode, serde_json::Error> {
    words.first().map_or(Ok(Mode::Exclusive), |word| serde_json::from_str(word))
}

fn milliseconds(text: &str) -> Result<Duration, Box<dyn Error>> {
    Ok(Duration::from_millis(text.parse()?))
}

const UNFENCED: &str = "register:unfenced";
const NOTHING: &str = "nothing is held";
