//! The wire of a connection: commands that share a write, and their replies, in order.
//!
//! Commands are appended to one buffer, which [`Wire::flush`] writes, or the [`Reader`]: the first poll of a reply wakes it. The reader also
//! hands each reply to the command that has waited longest, and keeps what the server pushes between replies. A connection ends with an
//! error of the stream, with bytes that are not a reply, or with its reader.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    io, mem,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker, ready},
};

use redis::{Cmd, ErrorKind, Pipeline, PushInfo, PushKind, RedisError, RedisResult, Value, parse_redis_value};
use smallvec::SmallVec;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::oneshot,
    task::coop::unconstrained,
};

use super::{commands::Commands, stream::Stream};

/// The end on which commands are put. Clones share it.
#[derive(Clone)]
pub(super) struct Wire {
    state: Arc<Mutex<State>>,
    /// How many requests were put, and how many of them were answered.
    put: Arc<AtomicU64>,
    answered: Arc<AtomicU64>,
}

struct State {
    /// `None` if the connection has ended.
    stream: Option<Box<dyn Stream>>,
    /// What was put, of which the first `written` bytes have left.
    out: Vec<u8>,
    written: usize,
    /// Whether the stream keeps nothing back of what was written.
    flushed: bool,
    /// The commands without a reply, in order.
    in_flight: VecDeque<InFlight>,
    /// The task that polls the reader.
    reader: Option<Waker>,
    /// Whether that task was woken since it has polled.
    woken: bool,
}

/// One command, or several that were put together.
struct InFlight {
    /// How many replies are to come.
    awaited: usize,
    /// Those that have come, if there are several.
    replies: Option<Vec<Value>>,
    sender: Sender,
}

type Sender = oneshot::Sender<RedisResult<Value>>;

/// The reply to one command, or an array of the replies to several. What was put is executed although this is dropped.
pub(super) struct Replies {
    receiver: oneshot::Receiver<RedisResult<Value>>,
    /// The wire, until the reader was woken to write.
    wire: Option<Wire>,
}

/// The end that reads and writes for as long as it is polled. Its drop closes the connection.
pub(super) struct Reader {
    wire: Wire,
    input: Input,
    pushes: Vec<PushInfo>,
}

/// What was read. The bytes from `handled` to `filled` are the part of a value.
struct Input {
    bytes: Vec<u8>,
    handled: usize,
    filled: usize,
}

type Answered = SmallVec<[(Sender, RedisResult<Value>); 8]>;

impl Wire {
    /// Begins with a stream over which nothing was said.
    pub(super) fn new(stream: Box<dyn Stream>) -> (Self, Reader) {
        let (out, in_flight) = (Vec::new(), VecDeque::new());
        let state =
            State { stream: Some(stream), out, written: 0, flushed: true, in_flight, reader: None, woken: false };
        let wire = Self { state: Arc::new(Mutex::new(state)), put: Arc::default(), answered: Arc::default() };
        let input = Input { bytes: vec![0; LEAST_INPUT], handled: 0, filled: 0 };
        let reader = Reader { wire: wire.clone(), input, pushes: Vec::new() };
        (wire, reader)
    }

    /// Puts a command.
    pub(super) fn put(&self, command: &Cmd) -> Replies {
        self.put_in_flight(1, None, |out| command.write_packed_command(out))
    }

    /// Puts several commands, which leave in one write. Each has one reply: a subscription is to one channel.
    pub(super) fn put_several(&self, commands: &Pipeline) -> Replies {
        let replies = Vec::with_capacity(commands.len());
        self.put_in_flight(commands.len(), Some(replies), |out| {
            commands.cmd_iter().for_each(|command| command.write_packed_command(out));
        })
    }

    /// Puts requests for locks, which leave in one write. If they are several, the answer is an array of their replies.
    pub(super) fn put_commands(&self, commands: &Commands) -> Replies {
        let count = commands.count();
        self.put_in_flight(count, (count > 1).then(|| Vec::with_capacity(count)), |out| commands.write(out))
    }

    fn put_in_flight(&self, awaited: usize, replies: Option<Vec<Value>>, write: impl FnOnce(&mut Vec<u8>)) -> Replies {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state();
        if awaited == 0 {
            drop(sender.send(Ok(Value::Array(Vec::new()))));
        } else if state.stream.is_some() {
            // After the end, the drop of the sender is the answer.
            self.put.fetch_add(1, Ordering::Relaxed);
            write(&mut state.out);
            state.in_flight.push_back(InFlight { awaited, replies, sender });
        }
        drop(state);
        Replies { receiver, wire: Some(self.clone()) }
    }

    /// Returns how many requests were answered, as a number that will rise, and how many were put by now: a request that is put later is
    /// not answered before the one number exceeds the other.
    pub(super) fn counts(&self) -> (Arc<AtomicU64>, u64) {
        (Arc::clone(&self.answered), self.put.load(Ordering::Relaxed))
    }

    /// Writes what was put as far as the stream takes it now. The reader writes the rest. Returns whether the connection is sound.
    pub(super) fn flush(&self) -> bool {
        let mut state = self.state();
        // The reader was not polled yet; its first poll writes.
        let Some(reader) = state.reader.clone() else { return true };
        let written = {
            // The task whose thread this is may have used up its budget.
            let write = pin!(unconstrained(poll_fn(|cx| state.write(cx))));
            write.poll(&mut Context::from_waker(&reader))
        };
        !matches!(written, Poll::Ready(Err(_)))
    }

    /// Has the reader write what was put.
    fn wake_reader(&self) {
        let mut state = self.state();
        let is_written = state.out.is_empty() && state.flushed;
        let reader = if is_written || mem::replace(&mut state.woken, true) { None } else { state.reader.clone() };
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Wakes those who wait, which may be anybody's code: without the lock.
    fn answer(&self, answered: Answered) {
        let count = answered.len() as u64;
        for (sender, reply) in answered {
            // The receiver may be dropped.
            drop(sender.send(reply));
        }
        self.answered.fetch_add(count, Ordering::Release);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Writes as much of what was put as the stream takes now.
    fn write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(Ok(())) };
        let mut stream = Pin::new(stream);
        while self.written < self.out.len() {
            self.flushed = false;
            match ready!(stream.as_mut().poll_write(cx, &self.out[self.written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
        }
        self.written = 0;
        self.out.clear();
        self.out.shrink_to(MOST_KEPT);
        if !self.flushed {
            ready!(stream.poll_flush(cx))?;
            self.flushed = true;
        }
        Poll::Ready(Ok(()))
    }

    /// Writes and reads until nothing more comes.
    fn exchange(
        &mut self,
        input: &mut Input,
        answered: &mut Answered,
        pushes: &mut Vec<PushInfo>,
        cx: &mut Context<'_>,
    ) -> RedisResult<()> {
        for _ in 0..READS {
            // What the server has said before it closed the connection is read in any case.
            let written = match self.write(cx) {
                Poll::Ready(Err(error)) => Err(error),
                Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
            };
            let Some(stream) = &mut self.stream else { return Ok(()) };
            match input.poll_read(stream, cx) {
                Poll::Pending => return Ok(written?),
                Poll::Ready(read) => read?,
            }
            while let Some(value) = input.next()? {
                match value {
                    Value::Push { kind, data } if !matches!(kind, PushKind::Subscribe | PushKind::SSubscribe) => {
                        pushes.push(PushInfo { kind, data });
                    }
                    reply => answered.extend(self.handle_reply(reply)?),
                }
            }
            input.make_room();
        }
        // The task that polls this has other work.
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Takes a reply to the command that has waited longest. Returns whom to answer, and what.
    fn handle_reply(&mut self, reply: Value) -> RedisResult<Option<(Sender, RedisResult<Value>)>> {
        let first = self.in_flight.front_mut().ok_or_else(|| garbage("a reply to nothing"))?;
        first.awaited -= 1;
        let reply = match &mut first.replies {
            None => reply,
            Some(replies) => {
                replies.push(reply);
                if first.awaited > 0 {
                    return Ok(None);
                }
                Value::Array(mem::take(replies))
            }
        };
        Ok(self.in_flight.pop_front().map(|InFlight { sender, .. }| (sender, Ok(reply))))
    }

    /// Ends the connection: the error is the answer to all that is in flight. The stream is to be dropped without the lock.
    fn end(&mut self, error: &RedisError, answered: &mut Answered) -> Option<Box<dyn Stream>> {
        self.out = Vec::new();
        answered.extend(self.in_flight.drain(..).map(|InFlight { sender, replies, .. }| {
            // A server that refuses a connection says why, and closes it.
            let refused = replies.filter(|replies| replies.iter().any(|reply| matches!(reply, Value::ServerError(_))));
            (sender, refused.map(Value::Array).ok_or_else(|| error.clone()))
        }));
        self.stream.take()
    }
}

impl Future for Replies {
    type Output = RedisResult<Value>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(wire) = self.wire.take() {
            wire.wake_reader();
        }
        let replied = ready!(Pin::new(&mut self.receiver).poll(cx));
        Poll::Ready(replied.unwrap_or_else(|_| Err(closed())))
    }
}

impl Reader {
    /// Carries what `exchange` puts and waits for.
    pub(super) async fn carry<T>(&mut self, exchange: impl Future<Output = T>) -> T {
        let mut exchange = pin!(exchange);
        poll_fn(|cx| {
            if let Poll::Ready(done) = exchange.as_mut().poll(cx) {
                return Poll::Ready(done);
            }
            // At the end of the connection, this poll answers the requests that wait.
            let _ = self.poll(cx);
            // An answer that has arrived counts, even if the time is over by now.
            exchange.as_mut().poll(cx)
        })
        .await
    }

    /// Takes what the server has pushed.
    pub(super) fn take_pushes(&mut self) -> Vec<PushInfo> {
        mem::take(&mut self.pushes)
    }

    /// Writes what was put, and reads what has come. Ready at the end of the connection, and may be polled after it.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut answered = Answered::new();
        let mut state = self.wire.state();
        if state.stream.is_none() {
            return Poll::Ready(());
        }
        let exchanged = state.exchange(&mut self.input, &mut answered, &mut self.pushes, cx);
        let (waker, ended) = match &exchanged {
            Ok(()) => {
                state.woken = false;
                (state.reader.replace(cx.waker().clone()), None)
            }
            Err(error) => (None, state.end(error, &mut answered)),
        };
        drop(state);
        drop((waker, ended));
        self.wire.answer(answered);
        if exchanged.is_ok() { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut answered = Answered::new();
        let ended = self.wire.state().end(&closed(), &mut answered);
        drop(ended);
        self.wire.answer(answered);
    }
}

impl Input {
    fn poll_read(&mut self, stream: &mut Box<dyn Stream>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut rest = ReadBuf::new(&mut self.bytes[self.filled..]);
        ready!(Pin::new(stream).poll_read(cx, &mut rest))?;
        let count = rest.filled().len();
        self.filled += count;
        Poll::Ready(if count == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) })
    }

    /// Returns the next value that has come as a whole.
    fn next(&mut self) -> RedisResult<Option<Value>> {
        let mut at = self.handled;
        let value = value(&self.bytes[..self.filled], &mut at, 0)?;
        if value.is_some() {
            self.handled = at;
        }
        Ok(value)
    }

    /// Forgets what was handled, and makes room for more.
    fn make_room(&mut self) {
        self.bytes.copy_within(self.handled..self.filled, 0);
        self.filled -= mem::take(&mut self.handled);
        if self.filled == self.bytes.len() {
            self.bytes.resize(2 * self.filled, 0);
        } else if self.filled == 0 && self.bytes.len() > MOST_KEPT {
            self.bytes = vec![0; LEAST_INPUT];
        }
    }
}

/// Reads the value at `at`, which moves behind it. `None` if its end has not come yet.
///
/// Most replies are of the few forms that are read here. The redis crate knows the others.
fn value(input: &[u8], at: &mut usize, depth: usize) -> RedisResult<Option<Value>> {
    let begin = *at;
    let Some((kind, line)) = line(input, at)? else { return Ok(None) };
    Ok(Some(match kind {
        b'+' if line == b"OK" => Value::Okay,
        b'+' => Value::SimpleString(text(line)?.to_owned()),
        b':' => Value::Int(number(line)?),
        b'$' => match usize::try_from(number(line)?) {
            Err(_) => Value::Nil,
            Ok(length) => match bulk(input, at, length)? {
                Some(bytes) => Value::BulkString(bytes.to_vec()),
                None => return Ok(None),
            },
        },
        b'*' => match usize::try_from(number(line)?) {
            Err(_) => Value::Nil,
            Ok(_) if depth == DEPTH => return Err(garbage("too deep")),
            Ok(length) => {
                // No more than what has come can be read now.
                let mut values = Vec::with_capacity(length.min(input.len() - *at));
                for _ in 0..length {
                    match value(input, at, depth + 1)? {
                        Some(value) => values.push(value),
                        None => return Ok(None),
                    }
                }
                Value::Array(values)
            }
        },
        b'_' => Value::Nil,
        _ => {
            *at = begin;
            if !skip(input, at, depth)? {
                return Ok(None);
            }
            parse_redis_value(&input[begin..*at])?
        }
    }))
}

/// Moves `at` behind the value there. Returns whether the end of it has come.
fn skip(input: &[u8], at: &mut usize, depth: usize) -> RedisResult<bool> {
    let Some((kind, line)) = line(input, at)? else { return Ok(false) };
    let values = match kind {
        b'$' | b'!' | b'=' => {
            let length = usize::try_from(number(line)?);
            return Ok(match length {
                Ok(length) => bulk(input, at, length)?.is_some(),
                Err(_) => true,
            });
        }
        b'*' | b'~' | b'>' => number(line)?,
        b'%' => number(line)?.saturating_mul(2),
        b'|' => number(line)?.saturating_mul(2).saturating_add(1),
        _ => 0,
    };
    if values > 0 && depth == DEPTH {
        return Err(garbage("too deep"));
    }
    for _ in 0..values {
        if !skip(input, at, depth + 1)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the kind of the value at `at`, and the rest of its first line, behind which `at` moves.
fn line<'a>(input: &'a [u8], at: &mut usize) -> RedisResult<Option<(u8, &'a [u8])>> {
    let Some(kind) = input.get(*at) else { return Ok(None) };
    if !b"+-:$*_,#!=(%~>|".contains(kind) {
        return Err(garbage("no reply begins so"));
    }
    let rest = &input[*at + 1..];
    match rest.windows(2).position(|end| end == b"\r\n") {
        Some(length) => {
            *at += 1 + length + 2;
            Ok(Some((*kind, &rest[..length])))
        }
        None if rest.len() > LONGEST_LINE => Err(garbage("a line without an end")),
        None => Ok(None),
    }
}

/// Returns the bytes at `at`, which moves behind them and the end of their line. `None` if that has not come yet.
fn bulk<'a>(input: &'a [u8], at: &mut usize, length: usize) -> RedisResult<Option<&'a [u8]>> {
    let rest = &input[*at..];
    let Some(end) = length.checked_add(2).filter(|_| length <= LONGEST_BULK) else {
        return Err(garbage("a string that is too long"));
    };
    match rest.get(length..end) {
        None => Ok(None),
        Some(b"\r\n") => {
            *at += end;
            Ok(Some(&rest[..length]))
        }
        Some(_) => Err(garbage("a string without its end")),
    }
}

fn number(line: &[u8]) -> RedisResult<i64> {
    text(line)?.parse().map_err(|_| garbage("no number"))
}

fn text(line: &[u8]) -> RedisResult<&str> {
    str::from_utf8(line).map_err(|_| garbage("no text"))
}

fn garbage(what: &'static str) -> RedisError {
    (ErrorKind::Parse, what).into()
}

fn closed() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

/// How often the reader reads before it gives its task time for other work.
const READS: u32 = 16;
/// The room for what is read, to begin with.
const LEAST_INPUT: usize = 4 << 10;
/// The room that is kept when it is no longer needed.
const MOST_KEPT: usize = 64 << 10;
/// How deep arrays may be nested.
const DEPTH: usize = 16;
/// The longest line, and the longest string: more than any server sends.
const LONGEST_LINE: usize = 64 << 10;
const LONGEST_BULK: usize = 512 << 20;

#[cfg(test)]
mod tests;
