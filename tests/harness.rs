//! The harness itself: if this fails, look here first.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use lock_tests::{RawClient, RedisServer, Reply, SOON, eventually, role};
use tokio::time::timeout;

#[tokio::test]
async fn servers_are_apart() {
    let (one, other) = tokio::join!(RedisServer::start(), RedisServer::start());
    assert_ne!(one.port(), other.port());
    assert_eq!(one.call(&["SET", "k", "v"]).await, Reply::Status("OK".into()));
    assert_eq!(one.keys("*").await, ["k"]);
    assert!(other.call(&["GET", "k"]).await.is_nil());
    assert_eq!(one.info("process_id").await, one.pid().to_string());
}

#[tokio::test]
async fn server_is_gone_after_drop() {
    let server = RedisServer::start().await;
    let (address, folder) = (server.address(), server.folder().to_owned());
    assert!(folder.join("redis.log").exists());
    drop(server);
    assert!(TcpStream::connect(address).is_err());
    assert!(!folder.exists());
}

#[tokio::test]
async fn server_comes_back_on_its_port_without_its_keys() {
    let mut server = RedisServer::start().await;
    let (port, pid) = (server.port(), server.pid());
    server.call(&["SET", "k", "v"]).await;
    server.stop();
    assert!(TcpStream::connect(server.address()).is_err());
    server.start_again().await;
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
    assert!(server.call(&["GET", "k"]).await.is_nil());
    server.restart().await;
    assert_eq!(server.port(), port);
}

#[tokio::test]
async fn server_keeps_its_keys_where_it_is_told_to() {
    let mut server =
        RedisServer::builder().option("--appendonly", "yes").option("--appendfsync", "always").start().await;
    server.call(&["SET", "k", "v"]).await;
    server.restart().await;
    assert_eq!(server.call(&["GET", "k"]).await.text().as_deref(), Some("v"));
}

#[tokio::test]
#[should_panic(expected = "no-such-option")]
async fn wrong_option_is_shown() {
    RedisServer::builder().option("--no-such-option", "1").start().await;
}

#[tokio::test]
async fn paused_server_says_nothing_and_goes_on() {
    let server = RedisServer::start().await;
    let mut client = server.connect().await.unwrap();
    server.pause();
    client.send(&["PING"]).await.unwrap();
    assert!(timeout(Duration::from_millis(100), client.read()).await.is_err());
    server.resume();
    assert_eq!(client.read().await.unwrap(), Reply::Status("PONG".into()));
}

#[tokio::test]
async fn password_is_asked_for() {
    let password = "p@ss:w/rd %";
    let server = RedisServer::builder().password(password).start().await;
    assert!(server.url().starts_with("redis://:p%40ss%3Aw%2Frd%20%25@127.0.0.1:"));
    assert_eq!(server.call(&["PING"]).await, Reply::Status("PONG".into()));
    let mut stranger = RawClient::tcp(&server.address()).await.unwrap();
    let answer = stranger.call(&["PING"]).await.unwrap();
    assert!(matches!(answer, Reply::Error(text) if text.starts_with("NOAUTH")));
}

#[tokio::test]
async fn socket_in_the_file_system_answers() {
    let server = RedisServer::builder().unix_socket().start().await;
    let url = server.socket_url();
    let path = url.strip_prefix("unix://").unwrap();
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
}

#[tokio::test]
async fn client_list_shows_others_only() {
    let server = RedisServer::start().await;
    let _own = server.connect().await.unwrap();
    let mut other = RawClient::tcp(&server.address()).await.unwrap();
    other.call(&["CLIENT", "SETNAME", "somebody"]).await.unwrap();
    let clients = server.client_list().await;
    assert_eq!(clients.len(), 1);
    assert_eq!(clients[0].name(), "somebody");
    assert!(!clients[0].field("id").is_empty());
}

#[tokio::test]
async fn debug_is_allowed() {
    let server = RedisServer::start().await;
    let answer = server.call(&["DEBUG", "SLEEP", "0"]).await;
    assert_eq!(answer, Reply::Status("OK".into()));
}

#[tokio::test]
async fn replies_are_read_whole() {
    let server = RedisServer::start().await;
    let nested = server.call(&["EVAL", "return {1, {'a\\r\\nb', false}, redis.status_reply('S')}", "0"]).await;
    let Reply::Array(items) = &nested else { panic!("{nested:?}") };
    assert_eq!(items[0].integer(), Some(1));
    assert_eq!(items[1].items(), [Reply::Bulk(b"a\r\nb".to_vec()), Reply::Nil]);
    assert_eq!(items[2].text().as_deref(), Some("S"));
    assert!(matches!(server.call(&["NO-SUCH"]).await, Reply::Error(_)));
}

#[tokio::test]
async fn process_is_talked_to_in_lines() {
    let mut process = role!("echo");
    process.send("one").await;
    process.send("two").await;
    assert_eq!(process.line(SOON).await.as_deref(), Some("echo one"));
    assert_eq!(process.expect("echo ", SOON).await, "two");
    process.close_input();
    assert!(process.wait(SOON).await.success());
    assert_eq!(process.line(SOON).await, None);
}

#[tokio::test]
async fn paused_process_says_nothing_and_goes_on() {
    let mut process = role!("echo");
    process.pause();
    process.send("late").await;
    assert!(timeout(Duration::from_millis(100), process.expect("echo ", SOON)).await.is_err());
    process.resume();
    assert_eq!(process.expect("echo ", SOON).await, "late");
}

#[tokio::test]
async fn killed_process_is_gone() {
    let mut process = role!("echo");
    process.kill().await;
    assert_eq!(process.line(SOON).await, None);
    assert!(!process.wait(SOON).await.success());
}

#[tokio::test]
async fn server_does_not_outlive_a_killed_process() {
    let mut process = role!("server");
    let said = process.expect("server ", SOON).await;
    let (address, folder) = said.split_once(' ').unwrap();
    assert!(TcpStream::connect(address).is_ok());
    process.kill().await;
    eventually(SOON, "the server is gone, and its folder", async || {
        TcpStream::connect(address).is_err() && !Path::new(folder).exists()
    })
    .await;
}

#[tokio::test]
#[should_panic(expected = "harness.rs")]
async fn awaited_condition_that_never_comes_names_the_test() {
    eventually(Duration::from_millis(20), "pigs fly", async || false).await;
}

#[tokio::test]
async fn condition_is_asked_until_it_holds() {
    let mut asked = 0;
    eventually(SOON, "asked three times", async || {
        asked += 1;
        asked == 3
    })
    .await;
    assert_eq!(asked, 3);
}

#[tokio::test]
async fn taken_port_is_passed_over() {
    // Ports are tried in a row: take the ones that come next, as another test binary would.
    let first = RedisServer::start().await;
    let taken: Vec<_> = (1..=5).filter_map(|step| TcpListener::bind(("127.0.0.1", first.port() + step)).ok()).collect();
    let second = RedisServer::start().await;
    assert!(taken.iter().all(|listener| listener.local_addr().unwrap().port() != second.port()));
    assert_eq!(second.call(&["PING"]).await, Reply::Status("PONG".into()));
}
