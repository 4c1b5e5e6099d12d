//! The fenced register that a lock guards, kept in a Redis.

use std::io;

use crate::resp::{RawClient, Reply};

/// A number with the fencing token of its last writer. Whoever comes with a smaller one than any before is refused.
#[derive(Debug)]
pub struct Register {
    redis: RawClient,
}

impl Register {
    /// Connects to the Redis at `address`.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn connect(address: &str) -> io::Result<Self> {
        Ok(Self { redis: RawClient::tcp(address).await? })
    }

    /// Returns the fencing token of the last writer and what it wrote, 0 and 0 before the first; nothing where a larger
    /// fencing token has been here. From now on smaller ones than `fence` are refused: else an older holder could write
    /// between the reading and the writing of a younger one, whose update would undo it.
    ///
    /// # Errors
    /// Those of the connection and of the server.
    pub async fn read(&mut self, key: &str, fence: u64) -> io::Result<Option<(u64, u64)>> {
        let reply = self.redis.call(&["EVAL", READ, "1", &Self::name(key), &fence.to_string()]).await?;
        if reply.is_nil() {
            return Ok(None);
        }
        let number = |index: usize| match reply.items().get(index) {
            Some(Reply::Nil) => Ok(0),
            Some(item) => item.text().and_then(|text| text.parse().ok()).ok_or(()),
            None => Err(()),
        };
        match (number(0), number(1)) {
            (Ok(fence), Ok(value)) => Ok(Some((fence, value))),
            _ => Err(io::Error::other(format!("{reply:?}"))),
        }
    }

    /// Writes, unless a larger fencing token has been here; returns whether it did.
    ///
    /// # Errors
    /// Those of the connection and of the server: it may have been written.
    pub async fn write(&mut self, key: &str, fence: u64, value: u64) -> io::Result<bool> {
        let (fence, value) = (fence.to_string(), value.to_string());
        match self.redis.call(&["EVAL", WRITE, "1", &Self::name(key), &fence, &value]).await? {
            Reply::Integer(written) => Ok(written == 1),
            reply => Err(io::Error::other(format!("{reply:?}"))),
        }
    }

    /// The name of the register of `key`.
    pub fn name(key: &str) -> String {
        format!("{}{key}", Self::PREFIX)
    }

    /// What the names of all registers begin with.
    pub const PREFIX: &str = "register:";
}

/// Fencing tokens are microseconds: exact in Lua's numbers for the next two hundred years.
const WRITE: &str = "
if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'seen') or '0') then return 0 end
redis.call('HSET', KEYS[1], 'seen', ARGV[1], 'fence', ARGV[1], 'value', ARGV[2])
return 1";

const READ: &str = "
if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'seen') or '0') then return false end
redis.call('HSET', KEYS[1], 'seen', ARGV[1])
return redis.call('HMGET', KEYS[1], 'fence', 'value')";
