use std::time::Duration;

use redis::ErrorKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;

fn wire() -> (Wire, Reader, DuplexStream) {
    let (ours, servers) = duplex(1 << 10);
    let (wire, reader) = Wire::new(Box::new(ours));
    (wire, reader, servers)
}

fn ping() -> Commands {
    Commands::one(["PING"])
}

/// The bytes of a command that the stream does not take at once.
const LARGE: usize = 4 + 10 + 7 + 5_002;

fn large() -> Commands {
    Commands::one(["PING", &"x".repeat(5_000)])
}

/// A single reply.
fn one(value: Value) -> RedisResult<Values> {
    Ok([value].into())
}

async fn said(server: &mut DuplexStream, length: usize) -> String {
    let mut bytes = vec![0; length];
    server.read_exact(&mut bytes).await.expect("the other end is open");
    String::from_utf8(bytes).expect("commands of these tests are text")
}

#[tokio::test]
async fn commands_leave_in_one_write_and_replies_come_in_their_order() {
    let (wire, mut reader, mut server) = wire();
    let mut several = Commands::one(["MULTI"]);
    several.add(["EXEC"]);
    let (first, second, third) = (wire.put(&ping()), wire.put(&several), wire.put(&ping()));
    let answered = reader.carry(async { tokio::join!(first, second, third) });
    let serve = async {
        let commands = said(&mut server, 14 + 15 + 14 + 14).await;
        assert_eq!(commands, "*1\r\n$4\r\nPING\r\n*1\r\n$5\r\nMULTI\r\n*1\r\n$4\r\nEXEC\r\n*1\r\n$4\r\nPING\r\n");
        // The parts of a reply may come one by one.
        for byte in b"+PONG\r\n+OK\r\n*2\r\n$3\r\na\r\n\r\n:-7\r\n-ERR no\r\n" {
            server.write_all(&[*byte]).await.expect("the other end is open");
            tokio::task::yield_now().await;
        }
    };
    let ((first, second, third), ()) = tokio::join!(answered, serve);
    assert_eq!(first, one(Value::SimpleString("PONG".to_owned())));
    let executed = Value::Array(vec![Value::BulkString(b"a\r\n".to_vec()), Value::Int(-7)]);
    assert_eq!(second, Ok([Value::Okay, executed].into_iter().collect()));
    assert!(matches!(third.as_deref(), Ok([Value::ServerError(error)]) if error.code() == "ERR"), "{third:?}");
}

#[tokio::test]
async fn a_reply_whose_receiver_was_dropped_is_not_taken_for_that_of_the_next_command() {
    let (wire, mut reader, mut server) = wire();
    drop(wire.put(&ping()));
    let second = wire.put(&ping());
    server.write_all(b":1\r\n:2\r\n").await.expect("the other end is open");
    assert_eq!(reader.carry(second).await, one(Value::Int(2)));
}

#[tokio::test]
async fn no_commands_have_no_replies() {
    let (wire, mut reader, _server) = wire();
    assert_eq!(reader.carry(wire.put(&Commands::default())).await, Ok(Values::new()));
}

#[tokio::test]
async fn messages_between_replies_are_kept_and_subscriptions_are_replies() {
    let (wire, mut reader, mut server) = wire();
    let mut several = Commands::one(["SUBSCRIBE", "a"]);
    several.add(["SSUBSCRIBE", "b"]);
    let subscribed = wire.put(&several);
    let pushed = ">3\r\n+message\r\n+a\r\n$2\r\nhi\r\n>3\r\n$9\r\nsubscribe\r\n+a\r\n:1\r\n>2\r\n+sunsubscribe\r\n+c\r\n-NOPERM no\r\n";
    server.write_all(pushed.as_bytes()).await.expect("the other end is open");
    let replies = reader.carry(subscribed).await.expect("both were answered");
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
        assert_eq!(first, one(Value::Okay), "it came before the end");
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
    let mut hello = Commands::one(["HELLO", "3"]);
    hello.add(["SELECT", "1"]);
    let (hello, after) = (wire.put(&hello), wire.put(&ping()));
    server.write_all(b"-ERR max number of clients reached\r\n").await.expect("the other end is open");
    drop(server);
    let (hello, after) = reader.carry(async { tokio::join!(hello, after) }).await;
    let replies = hello.expect("it was refused");
    assert!(matches!(&replies[..], [Value::ServerError(error)] if error.details().is_some()), "{replies:?}");
    assert_eq!(after.expect_err("nothing came").kind(), ErrorKind::Io);
}

#[tokio::test]
async fn an_error_among_the_replies_is_no_refusal_of_the_rest() {
    for replies in ["-WRONGTYPE x\r\n:1\r\n", ":1\r\n-WRONGTYPE x\r\n"] {
        let (wire, mut reader, mut server) = wire();
        let mut three = ping();
        three.add(["PING"]);
        three.add(["PING"]);
        let three = wire.put(&three);
        server.write_all(replies.as_bytes()).await.expect("the other end is open");
        drop(server);
        assert_eq!(reader.carry(three).await.expect_err("one is missing").kind(), ErrorKind::Io);
    }
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
    let (first, second) = (wire.put(&ping()), wire.put(&large()));
    let serve = async {
        server.write_all(b"+OK\r\n").await.expect("the other end is open");
        let written = said(&mut server, 14 + LARGE).await;
        server.write_all(b"+OK\r\n").await.expect("the other end is open");
        written
    };
    let (answers, written) = tokio::join!(reader.carry(async { tokio::join!(first, second) }), serve);
    assert_eq!(answers, (one(Value::Okay), one(Value::Okay)));
    assert!(written.ends_with("x\r\n"));
}

#[tokio::test]
async fn a_command_leaves_by_a_flush_or_by_the_reader_that_is_woken_for_it() {
    let (wire, mut reader, mut server) = wire();
    let reads = tokio::spawn(async move { poll_fn(|cx| reader.poll(cx)).await });
    tokio::task::yield_now().await;
    for flushes in [true, false] {
        let mut asked = wire.put(&ping());
        if flushes {
            wire.flush();
        } else {
            assert!(tokio::time::timeout(Duration::ZERO, &mut asked).await.is_err());
        }
        assert_eq!(said(&mut server, 14).await, "*1\r\n$4\r\nPING\r\n");
        server.write_all(b"+OK\r\n").await.expect("the other end is open");
        assert_eq!(asked.await, one(Value::Okay));
    }
    drop(server);
    reads.await.expect("it ends with the connection");
}

#[tokio::test]
async fn a_flush_that_the_stream_does_not_take_is_completed_by_the_reader() {
    let (wire, mut reader, mut server) = wire();
    let reads = tokio::spawn(async move { poll_fn(|cx| reader.poll(cx)).await });
    tokio::task::yield_now().await;
    let asked = wire.put(&large());
    wire.flush();
    said(&mut server, LARGE).await;
    let late = wire.put(&ping());
    drop(server);
    wire.flush();
    assert!(asked.await.is_err() && late.await.is_err());
    reads.await.expect("it ends with the connection");
}
