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
    for text in ["", "+", "$3\r\nab", "*2\r\n:1\r\n", "*9999999\r\n", ">2\r\n+message\r\n", "%1\r\n:1\r\n", "!5\r\nERR"]
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
