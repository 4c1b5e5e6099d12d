//! The wire of a connection: commands that share a write, and their replies, in order.
//!
//! Commands are appended to one buffer, which [`Wire::flush`] writes, or the [`Reader`]: the first poll of a reply wakes it. The reader also
//! hands each reply to the command that has waited longest, and keeps what the server pushes between replies. A connection ends with an
//! error of the stream, with bytes that are not a reply, or with its reader.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io, mem,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker, ready},
};

use redis::{PushInfo, PushKind, RedisError, RedisResult, Value};
use smallvec::SmallVec;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::oneshot,
    task::coop::unconstrained,
};

use super::{
    commands::Commands,
    parse::{garbage, value},
    stream::Stream,
};

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

/// Commands that were put together.
struct InFlight {
    /// How many replies are to come.
    awaited: usize,
    /// Those that have come.
    replies: Values,
    sender: Sender,
}

/// The replies to commands, some of which may be errors of the server.
pub(super) type Values = SmallVec<[Value; 1]>;

type Sender = oneshot::Sender<RedisResult<Values>>;

/// The replies to come. What was put is executed although this is dropped.
pub(super) struct Replies {
    receiver: oneshot::Receiver<RedisResult<Values>>,
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

type Answered = SmallVec<[(Sender, RedisResult<Values>); 2]>;

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

    /// Puts commands, which leave in one write. Each has one reply: a subscription is to one channel.
    pub(super) fn put(&self, commands: &Commands) -> Replies {
        let (sender, receiver) = oneshot::channel();
        let (awaited, replies) = (commands.count(), Values::with_capacity(commands.count()));
        let mut state = self.state();
        if awaited == 0 {
            drop(sender.send(Ok(replies)));
        } else if state.stream.is_some() {
            // After the end, the drop of the sender is the answer.
            self.put.fetch_add(1, Ordering::Relaxed);
            commands.write(&mut state.out);
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
        if state.stream.is_none() {
            return false;
        }
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
    fn handle_reply(&mut self, reply: Value) -> RedisResult<Option<(Sender, RedisResult<Values>)>> {
        let first = self.in_flight.front_mut().ok_or_else(|| garbage("a reply to nothing"))?;
        first.awaited -= 1;
        first.replies.push(reply);
        if first.awaited > 0 {
            return Ok(None);
        }
        Ok(self.in_flight.pop_front().map(|InFlight { sender, replies, .. }| (sender, Ok(replies))))
    }

    /// Ends the connection: the error is the answer to all that is in flight. The stream is to be dropped without the lock.
    fn end(&mut self, error: &RedisError, answered: &mut Answered) -> Option<Box<dyn Stream>> {
        self.out = Vec::new();
        answered.extend(self.in_flight.drain(..).map(|InFlight { sender, replies, .. }| {
            // A server that refuses a connection says why, and closes it. Errors of single commands are among other replies.
            let is_refused = !replies.is_empty() && replies.iter().all(|reply| matches!(reply, Value::ServerError(_)));
            (sender, if is_refused { Ok(replies) } else { Err(error.clone()) })
        }));
        self.stream.take()
    }
}

impl Future for Replies {
    type Output = RedisResult<Values>;

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

fn closed() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

/// How often the reader reads before it gives its task time for other work.
const READS: u32 = 16;
/// The room for what is read, to begin with.
const LEAST_INPUT: usize = 4 << 10;
/// The room that is kept when it is no longer needed.
const MOST_KEPT: usize = 64 << 10;

#[cfg(test)]
mod tests;
