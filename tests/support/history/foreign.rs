//! A client of another library on the same key, such as redis-py's `Lock`: `SET NX PX`, polling, compare-and-delete.

use std::{io, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    clock::now,
    event::{Event, Op, Outcome},
    record::Recorder,
};
use crate::resp::{RawClient, Reply};

/// How well it behaves. All but the first are there to be caught.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manners {
    /// As its library does.
    #[default]
    Good,
    /// Sets the key whether or not it is there.
    IgnoresHolders,
    /// Deletes the key whoever has it.
    DeletesBlindly,
    /// Believes in its lease for as long as it likes.
    ForgetsTheTtl,
}

/// One task of a process, without lock-core.
#[derive(Debug)]
pub struct ForeignClient {
    redis: RawClient,
    recorder: Arc<Recorder>,
    process: String,
    manners: Manners,
    acquires: u32,
}

impl ForeignClient {
    /// Connects to the Redis at `address`.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn connect(address: &str, recorder: &Arc<Recorder>, task: &str, manners: Manners) -> io::Result<Self> {
        let process = format!("{}/{task}", recorder.name());
        Ok(Self {
            redis: RawClient::tcp(address).await?,
            recorder: Arc::clone(recorder),
            process,
            manners,
            acquires: 0,
        })
    }

    /// Tries until it has the key or `wait` has passed; returns the token. Without a ttl the key lives for ever.
    ///
    /// # Errors
    /// Those of the connection and of the server.
    pub async fn acquire(&mut self, key: &str, ttl: Option<Duration>, wait: Duration) -> io::Result<Option<String>> {
        self.acquires += 1;
        let token = format!("foreign-{}-{}", self.process.replace('/', "-"), self.acquires);
        let ttl_ms = ttl.map(|ttl| ttl.as_millis().to_string());
        let mut command = vec!["SET", key, &token];
        if self.manners != Manners::IgnoresHolders {
            command.push("NX");
        }
        if let Some(ttl_ms) = &ttl_ms {
            command.extend(["PX", ttl_ms]);
        }
        let mut event = Event::new(self.process.as_str(), Op::Acquire, now()).on(key);
        event.foreign = true;
        event.only_tries = wait.is_zero();
        event.ttl = ttl.map(|ttl| ttl.as_secs_f64() * 1_000.0);
        let mut call = self.recorder.begin(event);
        let give_up = Instant::now() + wait;
        loop {
            let sent = now();
            match self.redis.call(&command).await? {
                Reply::Status(_) => {
                    call.event.token = Some(token.clone());
                    call.event.deadline = call.event.ttl.map(|ttl| sent + ttl);
                    if self.manners == Manners::ForgetsTheTtl {
                        call.event.deadline = Some(sent + 60_000.0);
                    }
                    call.end(Outcome::Ok);
                    return Ok(Some(token));
                }
                Reply::Nil if Instant::now() >= give_up => {
                    call.end(Outcome::Fail);
                    return Ok(None);
                }
                Reply::Nil => sleep(PAUSE).await,
                reply => return Err(io::Error::other(format!("{reply:?}"))),
            }
        }
    }

    /// Gives the key back; whether it was still there as its own.
    ///
    /// # Errors
    /// Those of the connection and of the server.
    pub async fn release(&mut self, key: &str, token: &str) -> io::Result<bool> {
        let call = self.recorder.begin(Event::new(self.process.as_str(), Op::Release, now()).on(key).of(token));
        let reply = match self.manners {
            Manners::DeletesBlindly => self.redis.call(&["DEL", key]).await?,
            _ => self.redis.call(&["EVAL", RELEASE, "1", key, token]).await?,
        };
        let removed = match reply {
            Reply::Integer(removed) => removed == 1,
            reply => return Err(io::Error::other(format!("{reply:?}"))),
        };
        call.end(Outcome::of(Some(removed)));
        Ok(removed)
    }
}

/// Of redis-py.
const RELEASE: &str = "
local token = redis.call('get', KEYS[1])
if not token or token ~= ARGV[1] then return 0 end
redis.call('del', KEYS[1])
return 1";

/// Shorter than redis-py's 100 ms, to be in the way more often.
const PAUSE: Duration = Duration::from_millis(15);
