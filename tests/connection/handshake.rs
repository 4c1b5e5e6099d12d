//! The beginning of a connection: the protocol, who the server is, and servers that break off.

use super::*;

use crate::patient;

/// A proxy before `server` that answers HELLO with `refusal`, or closes the connection on it.
async fn without_hello(server: &RedisServer, refusal: Option<&'static str>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let (address, server) = (listener.local_addr().expect("it is bound").to_string(), server.address());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let server = server.clone();
            tokio::spawn(async move {
                let mut buffer = vec![0; 16_384];
                let read = client.read(&mut buffer).await?;
                if String::from_utf8_lossy(&buffer[..read]).contains("HELLO") {
                    let Some(refusal) = refusal else { return Ok(()) };
                    // Two more commands come along.
                    client.write_all(format!("-{refusal}\r\n+OK\r\n+OK\r\n").as_bytes()).await?;
                    let _until_it_hangs_up = client.read(&mut buffer).await?;
                    return Ok(());
                }
                let mut upstream = tokio::net::TcpStream::connect(server).await?;
                upstream.write_all(&buffer[..read]).await?;
                tokio::io::copy_bidirectional(&mut client, &mut upstream).await.map(drop)
            });
        }
    });
    address
}

#[tokio::test]
async fn proxy_that_knows_only_resp2_is_spoken_to_in_resp2_whatever_its_words() {
    let server = RedisServer::start().await;
    for refusal in [
        Some("NOPROTO unsupported protocol version"),
        Some("ERR unknown command `HELLO`, with args beginning with: `3`"),
        Some("ERR unknown command 'hello'"),
        Some("ERR Unknown Command 'HELLO'"),
        Some("ERR unsupported command"),
        Some("ERR invalid request"),
        None,
    ] {
        let address = without_hello(&server, refusal).await;
        let manager = patient::connect(&format!("redis://{address}")).await;
        let manager = manager.unwrap_or_else(|error| panic!("{refusal:?}: {error}"));
        manager.lock("k").await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn resp2_is_spoken_by_choice() {
    if !is_redis_7("resp2_is_spoken_by_choice") {
        return;
    }
    let server = RedisServer::start().await;
    for (options, resp) in [("", "3"), ("?protocol=resp3", "3"), ("?protocol=resp2", "2"), ("/?protocol=2", "2")] {
        let manager = patient::connect(&format!("{}{options}", server.url())).await.unwrap();
        manager.lock("k").await.unwrap().release().await.unwrap();
        // An attempt to connect that was not answered soon may have been followed by another, which is about to be closed.
        eventually(SOON, "one connection is left", async || server.client_list().await.len() == 1).await;
        assert_eq!(server.client_list().await[0].field("resp"), resp, "{options}");
        manager.shutdown(SOON).await;
        eventually(SOON, "it is disconnected", async || server.client_list().await.is_empty()).await;
    }
}

/// A proxy passes nothing on before it has read all of it: what waited for an answer would never come.
#[tokio::test]
async fn all_that_connect_asks_leaves_before_any_answer() {
    let server = RedisServer::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
    let address = listener.local_addr().expect("a listener has an address").to_string();
    let real = server.address();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = TcpStream::connect(&real).await.expect("the server is up");
            tokio::spawn(async move {
                let mut asked = Vec::new();
                while !["HELLO", "CLIENT", "SUBSCRIBE", "EVALSHA"].iter().all(|name| is_in(&asked, name)) {
                    if client.read_buf(&mut asked).await? == 0 {
                        return Ok(());
                    }
                }
                server.write_all(&asked).await?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await.map(drop)
            });
        }
    });
    let manager = patient::connect(&server.url_at(&address)).await.expect("connects");
    manager.lock("k").await.expect("the key is free").release().await.expect("held");
}

/// Later, a server may hold scripts back, and the former connection is closed first.
#[tokio::test]
async fn scripts_are_tried_over_the_first_connection_only() {
    let server = RedisServer::start().await;
    let manager = patient::connect(&server.url()).await.expect("connects");
    manager.lock("k").await.expect("the key is free").release().await.expect("held");
    let tried = server.calls_of("eval").await;
    assert!(tried > 0);
    assert!(server.kill_clients().await > 0);
    manager.lock("k").await.expect("the key is free").release().await.expect("held");
    assert_eq!(server.calls_of("eval").await, tried);
}

fn is_in(bytes: &[u8], text: &str) -> bool {
    String::from_utf8_lossy(bytes).contains(text)
}

/// A balancer without a server hangs up at once; the server that comes then speaks the newer protocol.
#[tokio::test]
async fn server_that_comes_up_behind_a_balancer_is_not_taken_for_an_old_one() {
    if !is_redis_7("server_that_comes_up_behind_a_balancer_is_not_taken_for_an_old_one") {
        return;
    }
    let server = RedisServer::start().await;
    for hang_ups in 0..6 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let address = listener.local_addr().expect("a listener has an address").to_string();
        let real = server.address();
        tokio::spawn(async move {
            for _ in 0..hang_ups {
                let (mut client, _) = listener.accept().await.expect("a client");
                let _ = client.read(&mut [0; 1_024]).await;
            }
            loop {
                let (mut client, _) = listener.accept().await.expect("a client");
                let mut server = TcpStream::connect(&real).await.expect("the server is up");
                tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
            }
        });
        let name = format!("hung-up-{hang_ups}");
        let manager = patient::builder().url(server.url_at(&address)).client_name(&name);
        let manager = manager.connect().await.expect("connects");
        manager.lock("k").await.expect("the key is free").release().await.expect("held");
        let clients = server.call(&["CLIENT", "LIST"]).await.text().expect("a text");
        let ours = clients.lines().find(|client| client.contains(&format!("name={name} "))).expect("it is connected");
        assert!(ours.contains("resp=3"), "after {hang_ups} hang-ups: {ours}");
    }
}

/// Passes all to a server. Hangs up on the first client when told to, and on the second one with the last answer of its
/// handshake: answers and end come at once.
async fn hangs_up_after_the_handshake(server: String, told: Arc<Notify>) -> (String, Arc<AtomicUsize>) {
    let accepted = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&accepted);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
    let address = listener.local_addr().expect("a listener has an address").to_string();
    tokio::spawn(async move {
        for connection in 0.. {
            let (mut client, _) = listener.accept().await.expect("a client");
            counted.fetch_add(1, Ordering::Relaxed);
            let mut server = TcpStream::connect(&server).await.expect("the server is up");
            let told = Arc::clone(&told);
            tokio::spawn(async move {
                if connection == 1 {
                    let (mut asked, mut answered) = (vec![0; 65_536], vec![0; 65_536]);
                    let bytes = client.read(&mut asked).await.expect("the client asks");
                    server.write_all(&asked[..bytes]).await.expect("the server reads");
                    tokio::time::sleep(ms(100)).await;
                    let bytes = server.read(&mut answered).await.expect("the server answers");
                    // Nothing else runs on this thread between the two.
                    assert_eq!(client.try_write(&answered[..bytes]).expect("there is room"), bytes);
                } else {
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        () = told.notified(), if connection == 0 => {}
                    }
                }
            });
        }
    });
    (address, accepted)
}

#[tokio::test]
async fn connection_that_ends_with_the_last_answer_of_its_handshake_is_replaced() {
    let server = RedisServer::start().await;
    let told = Arc::new(Notify::new());
    let (address, accepted) = hangs_up_after_the_handshake(server.address(), Arc::clone(&told)).await;
    let manager = patient::connect(&server.url_at(&address)).await.expect("connects");
    let guard = manager.lock("k").ttl(LONG).await.expect("the key is free");
    told.notify_one();
    eventually(SOON, "it is replaced", async || accepted.load(Ordering::Relaxed) >= 3).await;
    assert!(!manager.is_locked("other").await.expect("connected again"));
    assert!(guard.is_held(), "{guard:?}");
    guard.release().await.expect("held");
}

#[tokio::test]
async fn identity_is_the_run_of_the_server_whatever_its_name_is_in_the_url() {
    let (server, other) = (RedisServer::start().await, RedisServer::start().await);
    let run = server.info("run_id").await.trim().to_owned();
    let urls = [server.url(), server.url().replace("127.0.0.1", "localhost"), other.url()];
    let mut identities = Vec::new();
    for url in urls {
        let backend = RedisBackend::from_url(&url, "identity", SOON).expect("a sound URL");
        assert_eq!(backend.identity(), None, "there is no connection yet");
        with_driver(&backend, async {
            backend.call(Batch::new()).await.expect("the server answers");
            identities.push(backend.identity().expect("the server tells"));
        })
        .await;
    }
    assert_eq!(&*identities[0], run);
    assert_eq!(identities[0], identities[1]);
    assert_ne!(identities[0], identities[2]);
}
