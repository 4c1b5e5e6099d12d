//! Primaries and their replicas, under sentinels and in clusters alike.

use crate::{SOON, eventually, launch::info_field, resp::Reply, server::RedisServer};

/// Whether `server` answers that it is a primary.
pub(crate) async fn is_primary(server: &RedisServer) -> bool {
    let role = server.ask(&["ROLE"]).await;
    role.is_some_and(|role| role.items().first().and_then(Reply::text).as_deref() == Some("master"))
}

/// Whether `replica` is linked with its primary.
pub(crate) async fn is_linked(replica: &RedisServer) -> bool {
    let info = told(replica).await.unwrap_or_default();
    info_field(&info, "master_link_status") == Some("up")
}

/// Whether every one of the `replicas` has what `primary` has.
pub(crate) async fn is_replicated(primary: &RedisServer, replicas: &[&RedisServer]) -> bool {
    let Some(sent) = offset(primary, "master_repl_offset").await else { return false };
    for replica in replicas {
        let is_behind = offset(replica, "slave_repl_offset").await.is_none_or(|seen| seen < sent);
        if is_behind || !is_linked(replica).await {
            return false;
        }
    }
    true
}

/// Ends the links of `primary` to its `replicas`, which get no other: all are up, and what is written from now on reaches the
/// primary alone.
///
/// A replica that is stopped (SIGSTOP) would not do: the system takes in what is sent to it.
pub(crate) async fn forbid(primary: &RedisServer, replicas: &[&RedisServer]) {
    for replica in replicas {
        let answer = replica.call(&["CONFIG", "SET", "masterauth", "not the password"]).await;
        assert_eq!(answer, Reply::Status("OK".to_owned()));
    }
    primary.call(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    for replica in replicas {
        eventually(SOON, "the replica has lost its link", async || !is_linked(replica).await).await;
    }
}

async fn offset(server: &RedisServer, field: &str) -> Option<u64> {
    info_field(&told(server).await?, field)?.parse().ok()
}

async fn told(server: &RedisServer) -> Option<String> {
    server.ask(&["INFO", "replication"]).await?.text()
}
