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
    ptr,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError,
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

use super::stream::Stream;

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
        if !only_sends(cx)
            && let Some(wire) = self.wire.take()
        {
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

/// Whether a poll is one of [`send_by`].
fn only_sends(cx: &Context<'_>) -> bool {
    ptr::eq(cx.waker(), &*NOBODY)
}

/// Polls a call so that it puts its commands. The task to which it belongs polls it again, and leaves its waker then.
pub(super) fn send_by<F: Future + ?Sized>(call: Pin<&mut F>) -> Poll<F::Output> {
    call.poll(&mut Context::from_waker(&NOBODY))
}

/// Completes in the task to which a future belongs. Timers are made there, since they belong to the runtime in which they are polled.
pub(super) async fn in_task() {
    poll_fn(|cx| if only_sends(cx) { Poll::Pending } else { Poll::Ready(()) }).await;
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

/// The waker of a poll that only sends. It is compared by its address, since equal wakers may be elsewhere.
static NOBODY: LazyLock<Waker> = LazyLock::new(|| Waker::noop().clone());

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
mod tests {
    use std::time::Duration;

    use proptest::{collection::vec, prelude::*};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn wire() -> (Wire, Reader, DuplexStream) {
        let (ours, servers) = duplex(1 << 10);
        let (wire, reader) = Wire::new(Box::new(ours));
        (wire, reader, servers)
    }

    fn ping() -> Cmd {
        redis::cmd("PING")
    }

    async fn said(server: &mut DuplexStream, length: usize) -> String {
        let mut bytes = vec![0; length];
        server.read_exact(&mut bytes).await.expect("the other end is open");
        String::from_utf8(bytes).expect("commands of these tests are text")
    }

    /// All values of a text, read at once.
    fn read(text: &[u8]) -> RedisResult<Vec<Value>> {
        let (mut at, mut values) = (0, Vec::new());
        while let Some(value) = value(text, &mut at, 0)? {
            values.push(value);
        }
        Ok(values)
    }

    #[tokio::test]
    async fn commands_leave_in_one_write_and_replies_come_in_their_order() {
        let (wire, mut reader, mut server) = wire();
        let mut several = Pipeline::new();
        several.cmd("MULTI").cmd("EXEC");
        let (one, two, three) = (wire.put(&ping()), wire.put_several(&several), wire.put(&ping()));
        let answered = reader.carry(async { tokio::join!(one, two, three) });
        let serve = async {
            let commands = said(&mut server, 14 + 15 + 14 + 14).await;
            assert_eq!(commands, "*1\r\n$4\r\nPING\r\n*1\r\n$5\r\nMULTI\r\n*1\r\n$4\r\nEXEC\r\n*1\r\n$4\r\nPING\r\n");
            // The parts of a reply may come one by one.
            for byte in b"+PONG\r\n+OK\r\n*2\r\n$3\r\na\r\n\r\n:-7\r\n-ERR no\r\n" {
                server.write_all(&[*byte]).await.expect("the other end is open");
                tokio::task::yield_now().await;
            }
        };
        let ((one, two, three), ()) = tokio::join!(answered, serve);
        assert_eq!(one, Ok(Value::SimpleString("PONG".to_owned())));
        let executed = Value::Array(vec![Value::BulkString(b"a\r\n".to_vec()), Value::Int(-7)]);
        assert_eq!(two, Ok(Value::Array(vec![Value::Okay, executed])));
        assert_eq!(
            three.and_then(Value::extract_error).map_err(|error| error.code().map(str::to_owned)),
            Err(Some("ERR".to_owned()))
        );
    }

    #[tokio::test]
    async fn a_reply_whose_receiver_was_dropped_is_not_taken_for_that_of_the_next_command() {
        let (wire, mut reader, mut server) = wire();
        drop(wire.put(&ping()));
        let second = wire.put(&ping());
        server.write_all(b":1\r\n:2\r\n").await.expect("the other end is open");
        assert_eq!(reader.carry(second).await, Ok(Value::Int(2)));
    }

    #[tokio::test]
    async fn no_commands_have_no_replies() {
        let (wire, mut reader, _server) = wire();
        assert_eq!(reader.carry(wire.put_several(&Pipeline::new())).await, Ok(Value::Array(Vec::new())));
    }

    #[tokio::test]
    async fn messages_between_replies_are_kept_and_subscriptions_are_replies() {
        let (wire, mut reader, mut server) = wire();
        let mut several = Pipeline::new();
        several.cmd("SUBSCRIBE").arg("a").cmd("SSUBSCRIBE").arg("b");
        let subscribed = wire.put_several(&several);
        let pushed = ">3\r\n+message\r\n+a\r\n$2\r\nhi\r\n>3\r\n$9\r\nsubscribe\r\n+a\r\n:1\r\n>2\r\n+sunsubscribe\r\n+c\r\n-NOPERM no\r\n";
        server.write_all(pushed.as_bytes()).await.expect("the other end is open");
        let Ok(Value::Array(replies)) = reader.carry(subscribed).await else { panic!("both were answered") };
        assert!(
            matches!(&replies[..], [Value::Push { kind: PushKind::Subscribe, .. }, Value::ServerError(_)]),
            "{replies:?}"
        );
        let kinds: Vec<_> = reader.take_pushes().into_iter().map(|push| push.kind).collect();
        assert_eq!(kinds, [PushKind::Message, PushKind::SUnsubscribe]);
        assert!(reader.take_pushes().is_empty());
    }

    #[tokio::test]
    async fn the_end_of_a_connection_is_the_answer_to_all_that_has_none() {
        for last in [&b"+OK\r\n"[..], b"+OK\r\n*2\r\n:1\r\n", b"+OK\r\nHTTP/1.1 400 Bad Request\r\n\r\n"] {
            let (wire, mut reader, mut server) = wire();
            let (first, second) = (wire.put(&ping()), wire.put(&ping()));
            server.write_all(last).await.expect("the other end is open");
            drop(server);
            let (first, second) = reader.carry(async { tokio::join!(first, second) }).await;
            assert_eq!(first, Ok(Value::Okay), "it came before the end");
            let kind = second.expect_err("none came").kind();
            assert_eq!(kind, if last.contains(&b'H') { ErrorKind::Parse } else { ErrorKind::Io });
            let late = wire.put(&ping()).await;
            assert_eq!(late.expect_err("it is over").kind(), ErrorKind::Io);
            assert!(poll_fn(|cx| Poll::Ready(reader.poll(cx))).await.is_ready(), "and stays so");
        }
    }

    #[tokio::test]
    async fn a_refusal_before_the_end_is_the_answer_to_its_commands() {
        let (wire, mut reader, mut server) = wire();
        let mut hello = Pipeline::new();
        hello.cmd("HELLO").arg(3).cmd("SELECT").arg(1);
        let (hello, after) = (wire.put_several(&hello), wire.put(&ping()));
        server.write_all(b"-ERR max number of clients reached\r\n").await.expect("the other end is open");
        drop(server);
        let (hello, after) = reader.carry(async { tokio::join!(hello, after) }).await;
        let Ok(Value::Array(replies)) = hello else { panic!("it was refused: {hello:?}") };
        assert!(matches!(&replies[..], [Value::ServerError(error)] if error.details().is_some()), "{replies:?}");
        assert_eq!(after.expect_err("nothing came").kind(), ErrorKind::Io);
    }

    #[tokio::test]
    async fn the_drop_of_the_reader_closes_the_connection() {
        let (wire, reader, mut server) = wire();
        let asked = wire.put(&ping());
        drop(reader);
        assert_eq!(asked.await.expect_err("nothing reads").kind(), ErrorKind::Io);
        assert_eq!(server.read(&mut [0; 64]).await.ok(), Some(0), "closed, and nothing was written");
    }

    #[tokio::test]
    async fn a_reply_that_nobody_has_asked_for_ends_the_connection() {
        let (_wire, mut reader, mut server) = wire();
        server.write_all(b"+OK\r\n").await.expect("the other end is open");
        poll_fn(|cx| reader.poll(cx)).await;
    }

    #[tokio::test]
    async fn what_a_full_stream_does_not_take_leaves_later_and_replies_are_read_meanwhile() {
        let (wire, mut reader, mut server) = wire();
        let mut large = ping();
        large.arg(vec![b'x'; 5_000]);
        let (first, second) = (wire.put(&ping()), wire.put(&large));
        let serve = async {
            server.write_all(b"+OK\r\n").await.expect("the other end is open");
            let length = ping().get_packed_command().len() + large.get_packed_command().len();
            let written = said(&mut server, length).await;
            server.write_all(b"+OK\r\n").await.expect("the other end is open");
            written
        };
        let (answers, written) = tokio::join!(reader.carry(async { tokio::join!(first, second) }), serve);
        assert_eq!(answers, (Ok(Value::Okay), Ok(Value::Okay)));
        assert!(written.ends_with("x\r\n"));
    }

    #[tokio::test]
    async fn a_command_leaves_by_a_flush_or_by_the_reader_that_is_woken_for_it() {
        let (wire, mut reader, mut server) = wire();
        let reads = tokio::spawn(async move { poll_fn(|cx| reader.poll(cx)).await });
        tokio::task::yield_now().await;
        for flushes in [true, false] {
            let mut asked = wire.put(&ping());
            assert!(send_by(Pin::new(&mut asked)).is_pending());
            if flushes {
                wire.flush();
            } else {
                assert!(tokio::time::timeout(Duration::ZERO, &mut asked).await.is_err());
            }
            assert_eq!(said(&mut server, 14).await, "*1\r\n$4\r\nPING\r\n");
            server.write_all(b"+OK\r\n").await.expect("the other end is open");
            assert_eq!(asked.await, Ok(Value::Okay));
        }
        drop(server);
        reads.await.expect("it ends with the connection");
    }

    #[tokio::test]
    async fn a_flush_that_the_stream_does_not_take_is_completed_by_the_reader() {
        let (wire, mut reader, mut server) = wire();
        let reads = tokio::spawn(async move { poll_fn(|cx| reader.poll(cx)).await });
        tokio::task::yield_now().await;
        let mut large = ping();
        large.arg(vec![b'x'; 5_000]);
        let asked = wire.put(&large);
        wire.flush();
        said(&mut server, large.get_packed_command().len()).await;
        let late = wire.put(&ping());
        drop(server);
        wire.flush();
        assert!(asked.await.is_err() && late.await.is_err());
        reads.await.expect("it ends with the connection");
    }

    #[test]
    fn bytes_that_are_not_a_reply_are_refused_at_once_and_never_waited_for() {
        let deep = "*1\r\n".repeat(DEPTH + 2);
        let long = format!("+{}", "x".repeat(LONGEST_LINE + 1));
        for text in [
            "HTTP/1.1",
            ":x\r\n",
            ":\r\n",
            "$x\r\n",
            "$1\r\nab\r\n",
            "$9999999999\r\n",
            "*x\r\n",
            "%x\r\n",
            "\r\n",
            "#x\r\n",
            &deep,
            &long,
        ] {
            assert!(read(text.as_bytes()).is_err(), "{text:?}");
        }
        for text in
            ["", "+", "$3\r\nab", "*2\r\n:1\r\n", "*9999999\r\n", ">2\r\n+message\r\n", "%1\r\n:1\r\n", "!5\r\nERR"]
        {
            assert_eq!(read(text.as_bytes()), Ok(Vec::new()), "{text:?}");
        }
    }

    fn any_value() -> impl Strategy<Value = Vec<u8>> {
        let leaf = prop_oneof![
            any::<i64>().prop_map(|number| format!(":{number}\r\n").into_bytes()),
            vec(any::<u8>(), 0..30)
                .prop_map(|bytes| [format!("${}\r\n", bytes.len()).as_bytes(), &bytes, b"\r\n"].concat()),
            "[a-zA-Z ]{0,9}".prop_map(|text| format!("+{text}\r\n").into_bytes()),
            "(ERR|NOPERM|X) [a-z]{0,9}".prop_map(|text| format!("-{text}\r\n").into_bytes()),
            prop_oneof![
                Just("$-1\r\n"),
                Just("*-1\r\n"),
                Just("_\r\n"),
                Just("#t\r\n"),
                Just(",1.5\r\n"),
                Just("(12345678901234567890\r\n"),
                Just("!5\r\nERR x\r\n"),
                Just("=8\r\ntxt:ab\r\n\r\n"),
                Just("+OK\r\n"),
            ]
            .prop_map(|text| text.as_bytes().to_vec()),
        ];
        leaf.prop_recursive(3, 24, 5, |inner| {
            (prop_oneof![Just(('*', 1)), Just(('~', 1)), Just(('%', 2))], vec(inner, 0..6)).prop_map(
                |((kind, each), values)| {
                    let count = values.len() / each;
                    let values = values[..count * each].concat();
                    [format!("{kind}{count}\r\n").as_bytes(), &values].concat()
                },
            )
        })
    }

    proptest! {
        /// The redis crate reads the same, and a part of a value is none.
        #[test]
        fn values_are_read_as_the_redis_crate_reads_them(text in any_value()) {
            let known = parse_redis_value(&text);
            let mut at = 0;
            prop_assert_eq!(value(&text, &mut at, 0), known.map(Some));
            prop_assert_eq!(at, text.len());
            for part in 0..text.len() {
                let part = value(&text[..part], &mut 0, 0);
                prop_assert!(matches!(part, Ok(None)), "{:?}", part);
            }
        }

        #[test]
        fn nonsense_does_no_harm(text in vec(prop_oneof![any::<u8>(), Just(b'\r'), Just(b'\n'), Just(b'*'), Just(b'$'), Just(b'9')], 0..60)) {
            let _ = read(&text);
        }
    }
}
