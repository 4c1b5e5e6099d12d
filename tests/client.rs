//! The ways to say which server and which user: by a client that is there already, by the builder, by other schemes.
#![expect(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use lock_core::{ErrorKind, LockManager};
use lock_tests::{RedisServer, SOON, eventually, server_version};

use crate::patient;

/// A server with a user whose password means something in a URL.
async fn server() -> RedisServer {
    let server = RedisServer::builder().unix_socket().start().await;
    let rules = ["ACL", "SETUSER", "shop", "on", ">se:cret@/#", "~*", "&*", "+@all"];
    assert_eq!(server.call(&rules).await.text().as_deref(), Some("OK"));
    server
}

/// Locks a key, and expects it in a database of the server, by a connection of a user.
async fn locks_in(manager: &LockManager, server: &RedisServer, database: &str, user: &str) {
    let guard = manager.lock("k").await.unwrap();
    // An attempt to connect that was not answered soon may have been followed by another, which is about to be closed.
    let mut clients = Vec::new();
    eventually(SOON, "one connection is left", async || {
        clients = server.client_list().await;
        clients.retain(|client| client.name() == "ours");
        clients.len() == 1
    })
    .await;
    let ours = &clients[0];
    assert_eq!((ours.field("user"), ours.field("db")), (user, database), "{ours:?}");
    assert!(ours.field("resp") == "3" || server_version() < 7, "{ours:?}");
    let mut client = server.connect().await.unwrap();
    client.call(&["SELECT", database]).await.unwrap();
    assert!(!client.call(&["GET", "k"]).await.unwrap().is_nil());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_manager_is_made_from_a_client_with_a_connection_of_its_own() {
    let server = server().await;
    let url = format!("redis://shop:se%3Acret%40%2F%23@{}/3", server.address());
    let client = redis::Client::open(url).unwrap();
    let config = redis::AsyncConnectionConfig::new().set_connection_timeout(Some(SOON)).set_response_timeout(None);
    let mut theirs = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
    let manager = patient::builder().client(&client).client_name("ours").connect().await.unwrap();
    locks_in(&manager, &server, "3", "shop").await;
    // The client blocks its own connection, and no lease.
    let blocked =
        tokio::spawn(
            async move { redis::cmd("BLPOP").arg("list").arg(0).query_async::<redis::Value>(&mut theirs).await },
        );
    eventually(SOON, "it blocks", async || server.info("blocked_clients").await == "1").await;
    locks_in(&manager, &server, "3", "shop").await;
    blocked.abort();
}

#[tokio::test]
async fn user_password_and_database_of_the_builder_are_used_and_not_shown() {
    let server = server().await;
    for url in [format!("redis://{}", server.address()), format!("redis://nobody:secret@{}/3", server.address())] {
        let builder = patient::builder().url(url).client_name("ours");
        let builder = builder.username("shop").password("se:cret@/#").database(3);
        let manager = builder.connect().await.unwrap();
        locks_in(&manager, &server, "3", "shop").await;
        assert!(!format!("{manager:?}").contains("cret"));
    }
    let builder = patient::builder().url(server.url()).username("shop").password("secret-wrong");
    assert!(!format!("{builder:?}").contains("secret"));
    let denied = builder.connect().await.expect_err("a wrong password");
    assert_eq!(denied.cause().unwrap().kind(), ErrorKind::Denied, "{denied}");
    assert!(!format!("{denied} {denied:?}").contains("secret"), "{denied}");
}

#[tokio::test]
async fn every_server_of_a_quorum_has_the_user_of_the_builder() {
    let servers = [server().await, server().await, server().await];
    let urls = servers.each_ref().map(|server| format!("redis://{}", server.address()));
    let builder = patient::builder().quorum(urls).client_name("ours");
    let manager = builder.username("shop").password("se:cret@/#").database(2).connect().await.unwrap();
    let _guard = manager.lock("k").await.unwrap();
    for server in &servers {
        eventually(SOON, "it is signed in", async || {
            server.client_list().await.iter().any(|client| client.field("user") == "shop" && client.field("db") == "2")
        })
        .await;
    }
}

#[tokio::test]
async fn sockets_are_reached_by_each_of_their_schemes_and_by_a_client() {
    let server = server().await;
    let path = server.socket_url().replace("unix://", "");
    for scheme in ["unix", "redis+unix", "valkey+unix"] {
        let url = format!("{scheme}://{path}?db=3&user=shop&pass=se:cret@/%23");
        let manager = patient::builder().url(url).client_name("ours").connect().await.unwrap();
        locks_in(&manager, &server, "3", "shop").await;
        drop(manager);
        eventually(SOON, "the connection is closed", async || server.client_list().await.is_empty()).await;
    }
    let info = redis::ConnectionAddr::Unix(path.into());
    let info = redis::IntoConnectionInfo::into_connection_info(info).unwrap();
    let builder = patient::builder().connection_info(info).client_name("ours").database(3);
    locks_in(&builder.connect().await.unwrap(), &server, "3", "default").await;
}

#[test]
fn what_only_a_connection_of_ones_own_can_use_is_refused_beside_another_backend() {
    let builder = || LockManager::builder().backend(lock_core::backend::MemoryBackend::new());
    for (builder, method) in [
        (builder().password("secret"), "`password`"),
        (builder().username("shop"), "`username`"),
        (builder().database(3), "`database`"),
    ] {
        let error = builder.build().expect_err("there is no such connection");
        assert!(error.to_string().contains(method) && !format!("{error:?}").contains("secret"), "{error}");
    }
    // A test exchanges the URL alone.
    let builder = LockManager::builder().url("memory://").username("shop").password("secret").database(3);
    assert!(builder.build().is_ok());
    let client = redis::Client::open("redis://:secret@localhost").unwrap();
    let twice = LockManager::builder().client(&client).url("redis://localhost").build().expect_err("two backends");
    assert!(twice.to_string().contains("one of `client` and one of `url`"), "{twice}");
}
