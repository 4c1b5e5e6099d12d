//! An acquire of which a server has executed a part, and then refused the rest.

use lock_core::{
    ErrorKind,
    backend::{Acquire, Backend, Batch, Calls, Operation, RedisBackend, Token},
    key::LockKey,
};
use lock_tests::{LONG, RedisServer, Reply, SOON, eventually};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
};

use crate::patient;

/// Gives rights to the user of the manager.
async fn allow(server: &RedisServer, rights: &[&str]) {
    let user = ["ACL", "SETUSER", "user", "on", ">secret", "~*", "&*"];
    assert_eq!(server.call(&[&user, rights].concat()).await, Reply::Status("OK".to_owned()));
}

/// Without `MULTI`, the commands of a transaction are executed each by itself: the key is set, and then nothing gives it a number.
const IN_PART: [&str; 2] = ["-multi", "-xadd"];

#[tokio::test]
async fn a_key_that_was_set_without_a_fencing_token_is_released_after_the_error() {
    let server = RedisServer::start().await;
    allow(&server, &["+@all"]).await;
    let url = format!("redis://user:secret@{}", server.address());
    let manager = patient::connect(url).await.expect("connects");
    // From the second acquire on, a free key is asked for by a transaction.
    manager.lock("first").await.expect("free").release().await.expect("held");
    let before = server.calls_of("set").await;
    allow(&server, &IN_PART).await;
    let error = manager.lock("k").ttl(LONG).await.expect_err("there is no number for it");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().to_lowercase().contains("xadd"), "{error}");
    assert_eq!(server.calls_of("set").await, before + 1, "the key was set, outside of a transaction");
    eventually(SOON, "the key is released", async || server.left().await.is_empty()).await;
}

/// The engine also releases what was not executed in order. Others that use the backend have only the error to go by.
#[tokio::test]
async fn the_error_of_an_acquire_that_was_executed_in_part_says_that_it_may_have_happened() {
    let server = RedisServer::start().await;
    allow(&server, &["+@all"]).await;
    let url = format!("redis://user:secret@{}", server.address());
    let backend = RedisBackend::from_url(&url, "in part", SOON).expect("a sound URL");
    let acquire = |name: &str, token| {
        let key = LockKey::new(name).expect("a sound key");
        let acquire = Acquire::new(key, Token::from_random(token), LONG).expecting_free();
        backend.call(Batch::from([Operation::Acquire(acquire)]))
    };
    let work = async {
        acquire("first", 1).await.expect("free").outcomes.pop().expect("one").expect("free");
        allow(&server, &IN_PART).await;
        let before = server.calls_of("set").await;
        let mut answer = acquire("k", 2).await.expect("one by one");
        let error = answer.outcomes.pop().expect("one").expect_err("there is no number for it");
        assert_eq!(server.calls_of("set").await, before + 1, "the key was set, outside of a transaction");
        assert!(format!("{error:?}").contains("may_have_happened: true"), "{error:?}");

        // By the script alone, as from now on, nothing is set.
        let mut answer = acquire("other", 3).await.expect("is answered");
        let error = answer.outcomes.pop().expect("one").expect_err("there is no number for it");
        assert!(format!("{error:?}").contains("may_have_happened: false"), "{error:?}");
        assert_eq!(server.left().await, ["first", "k"]);
    };
    tokio::select! {
        () = backend.driver(Calls::to_nobody()) => unreachable!("the driver goes on for as long as it is polled"),
        () = work => {}
    }
}

/// A proxy before `server` that refuses transactions, and closes the connection on them.
async fn without_transactions(server: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
    let address = listener.local_addr().expect("a listener has an address").to_string();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = TcpStream::connect(&server).await.expect("the server is up");
            tokio::spawn(async move {
                let (mut from_client, mut to_client) = client.split();
                let (mut from_server, mut to_server) = server.split();
                let forth = async {
                    let mut buffer = vec![0; 65_536];
                    loop {
                        let read = from_client.read(&mut buffer).await?;
                        if read == 0 || String::from_utf8_lossy(&buffer[..read]).contains("MULTI") {
                            return Ok::<_, std::io::Error>(());
                        }
                        to_server.write_all(&buffer[..read]).await?;
                    }
                };
                tokio::select! {
                    _ = copy(&mut from_server, &mut to_client) => return,
                    _ = forth => {}
                }
                let _ = to_client.write_all(b"-ERR unknown command 'MULTI'\r\n").await;
            });
        }
    });
    address
}

#[tokio::test]
async fn a_transaction_that_is_refused_as_the_connection_ends_is_followed_by_the_script() {
    let server = RedisServer::start().await;
    let address = without_transactions(server.address()).await;
    let manager = patient::connect(server.url_at(&address)).await.expect("connects");
    for key in ["first", "k"] {
        manager.lock(key).ttl(LONG).await.expect("by the script").release().await.expect("held");
    }
}
