//! A split: the former primary is cut off from the sentinels and from the other servers, but not from its clients. It answers them as
//! before, so that nothing but the word of the sentinels tells them to leave.

use lock_tests::RawClient;

use crate::topologies::*;

/// The password by which the servers and the sentinels know one another. Clients have a user of their own.
const AMONG_SERVERS: &str = "among-servers";

/// A connection of the user that clients have.
async fn as_client(server: &RedisServer) -> RawClient {
    let mut client = RawClient::tcp(&server.address()).await.expect("it listens");
    let signed_in = client.call(&["AUTH", "shop", "secret"]).await.expect("it answers");
    assert_eq!(signed_in, Reply::Status("OK".to_owned()));
    client
}

async fn call(client: &mut RawClient, command: &[&str]) -> Reply {
    client.call(command).await.expect("it answers clients")
}

async fn has(client: &mut RawClient, key: &str) -> bool {
    call(client, &["EXISTS", key]).await.integer() == Some(1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_14_a_primary_that_only_its_clients_still_reach_grants_nothing_after_the_switch_is_learned() {
    let sentinels = Sentinels::builder().password(AMONG_SERVERS).start().await;
    sentinels.be_patient().await;
    for server in sentinels.servers() {
        let rules = ["ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all"];
        assert_eq!(server.call(&rules).await, Reply::Status("OK".to_owned()));
    }
    let addresses: Vec<_> = sentinels.sentinels().iter().map(RedisServer::address).collect();
    let url = format!("redis+sentinel://shop:secret@{}/{}", addresses.join(","), Sentinels::SERVICE);
    let manager = manager(&url, "p1").await;
    let mut held = manager.lock("held").ttl(LONG).await.expect("free");
    eventually(SOON, "all is replicated", async || sentinels.is_replicated().await).await;
    let mut former = as_client(&sentinels.servers()[0]).await;
    sentinels_be_quick(&sentinels).await;

    // From here on the former primary lets no server in.
    call(&mut former, &["CONFIG", "SET", "requirepass", "of-nobody"]).await;
    call(&mut former, &["CLIENT", "KILL", "USER", "default"]).await;
    sentinels.await_switch(0, Instant::now()).await;
    sentinels.be_patient().await;
    let primary = &sentinels.servers()[sentinels.primary().await];
    let mut new = as_client(primary).await;

    // Acquires a key that was never held. Returns whether the former primary granted it, or `None` after an error, which a change of
    // connections may cost. (If connections change before the answer comes, both grant it.)
    let mut number = 0;
    let mut is_of_former = async |former: &mut RawClient| {
        number += 1;
        let key = format!("key:{number}");
        let guard = manager.lock(&key).ttl(LONG).await.ok()?;
        let is_of_former = has(former, &key).await;
        assert!(has(&mut new, &key).await || is_of_former, "one server has {key}");
        guard.release().await.ok()?;
        Some(is_of_former)
    };
    eventually(SOON, "the new primary grants a lease", async || is_of_former(&mut former).await == Some(false)).await;

    // From the first lease by the new primary on: none by the former one, also over the next connection.
    for round in 0..2 {
        let mut granted = 0;
        eventually(LONG, "25 leases were granted", async || {
            let is_of_former = is_of_former(&mut former).await;
            assert_ne!(is_of_former, Some(true), "by the former primary, after {granted} leases in round {round}");
            granted += u32::from(is_of_former.is_some());
            granted == 25
        })
        .await;
        for client in primary.client_list().await.iter().filter(|client| client.name() == "p1") {
            primary.call(&["CLIENT", "KILL", "ID", client.field("id")]).await;
        }
    }
    eventually(SOON, "the lease is extended by the new primary", async || held.extend(LONG).await.is_ok()).await;
    eventually(SOON, "the manager has left the former primary", async || {
        let clients = call(&mut former, &["CLIENT", "LIST"]).await.text().unwrap_or_default();
        !clients.contains(" name=p1 ")
    })
    .await;
    let role = call(&mut former, &["ROLE"]).await;
    assert_eq!(role.items()[0].text().as_deref(), Some("master"), "it still takes itself for the primary");
    held.release().await.expect("held");
}
