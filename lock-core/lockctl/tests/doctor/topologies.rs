//! Replicas, sentinels, a cluster, a quorum.

use super::{Report, healthy, set};
use crate::{
    fake::{Fake, Says},
    support::{Server, eventually, free_port},
};

#[test]
fn replicas_are_looked_at_from_both_sides() {
    // A replica that has to copy all data waits for this long.
    let (primary, replica) = (Server::start_with("repl-diskless-sync-delay 600"), Server::start());
    let port = primary.address().rsplit(':').next().expect("a port");
    let _: String = replica.call(&["REPLICAOF", "127.0.0.1", port]);
    let info = || primary.call::<String>(&["INFO", "replication"]);
    eventually("the replica is connected", || info().contains("state=wait_bgsave"));
    Report::of(&primary.url, &[]).says("replicas", "amber", "is not in sync yet (wait_bgsave)");
    let report = Report::of(&replica.url, &["--command-timeout=5s"]);
    report.says("role", "red", "the server is a replica: it takes no locks");
    report.says("connection", "red", "replica");
    set(&primary, "repl-diskless-sync-delay", "0");
    eventually("the replica is in sync", || info().contains("state=online") && info().contains(",lag=0"));
    let report = Report::of(&primary.url, &[]);
    report.says("replicas", "green", "1 in sync");
    report.says(
        "min-replicas",
        "amber",
        "a primary that is cut off grants leases that a failover forgets; add a second replica",
    );
    set(&primary, "min-replicas-to-write", "1");
    Report::of(&primary.url, &[]).says("min-replicas", "amber", "the loss of one stops all locks");
}

#[test]
fn sentinels_are_asked_for_the_primary_and_what_may_replace_it() {
    let (primary, replica) = (Server::start(), Server::start());
    let port = |server: &Server| server.address().rsplit(':').next().expect("a port").to_owned();
    let _: String = replica.call(&["REPLICAOF", "127.0.0.1", &port(&primary)]);
    set(&primary, "repl-diskless-sync-delay", "0");
    set(&replica, "maxmemory-policy", "allkeys-lru");
    set(&replica, "maxmemory", "1gb");
    let sentinel = Server::sentinel(&format!("sentinel monitor shop 127.0.0.1 {} 1", port(&primary)));
    eventually("the replica is in sync", || {
        replica.call::<String>(&["INFO", "replication"]).contains("master_link_status:up")
            && primary.call::<String>(&["INFO", "replication"]).contains("state=online")
    });
    eventually("the sentinel knows the replica", || {
        let replicas: Vec<redis::Value> = sentinel.call(&["SENTINEL", "REPLICAS", "shop"]);
        !replicas.is_empty()
    });
    let report = Report::of(&format!("redis+sentinel://{}/shop", sentinel.address()), &[]);
    report.says("connection", "green", primary.address());
    report.says("sentinels", "amber", "only 1: when the machine of one is lost, there is no failover");
    report.says("failover", "green", "takes up to 33s, as down-after-milliseconds says; leases of 1m survive it");
    report.says("eviction", "red", "allkeys-lru");
    let evicting = report.json["checks"].as_array().expect("an array").iter().find(|row| row["level"] == "red");
    assert_eq!(evicting.map(|row| row["server"].as_str()), Some(Some(replica.address())), "{}", report.json);
    report.says("role", "green", "a replica, whose link to the primary is up");
    let short = Report::of(&format!("redis+sentinel://{}/shop", sentinel.address()), &["--ttl=31s"]);
    short.says(
        "failover",
        "amber",
        "leases of 31s do not survive it; lower down-after-milliseconds, or raise the ttl to 51s",
    );
    let asked = |addresses: &[&str]| Report::of(&format!("redis+sentinel://{}/shop", addresses.join(",")), &[]);
    let monitor = |server: &Server, quorum: u32| {
        Server::sentinel(&format!("sentinel monitor shop 127.0.0.1 {} {quorum}", port(server)))
    };
    let (second, stranger) = (monitor(&primary, 1), Server::start());
    let third = monitor(&stranger, 1);
    let report = asked(&[sentinel.address(), second.address(), third.address()]);
    report.says(
        "sentinels",
        "amber",
        &format!("not all name the same primary: {} ({})", third.address(), stranger.address()),
    );
    asked(&[sentinel.address(), second.address(), "127.0.0.1:1"]).says(
        "sentinels",
        "amber",
        "2 of 3 answer; 127.0.0.1:1: ",
    );
    // Two of one sentinel have to agree. At the stranger it would meet the third one.
    let alone = Server::start();
    asked(&[monitor(&alone, 2).address()]).says("sentinels", "red", "says that no failover is possible: ");
    let _: String = replica.call(&["REPLICAOF", "127.0.0.1", "1"]);
    asked(&[sentinel.address()]).says("role", "amber", "a replica, whose link to the primary is down");
    // Of three that are named, two do not answer.
    let urls = format!("redis+sentinel://{},127.0.0.1:1,127.0.0.1:2/shop", sentinel.address());
    Report::of(&urls, &[]).says("sentinels", "red", "1 of 3 answer; 127.0.0.1:1: Connection refused");
}

#[test]
fn nodes_of_a_cluster_are_found_and_slots_without_one_are_red() {
    let node = Server::start_with("cluster-enabled yes\ncluster-node-timeout 1500");
    let slots: Vec<_> = (0..16_384).map(|slot| slot.to_string()).collect();
    let slots = slots.iter().map(String::as_str);
    let _: String = node.call(&["CLUSTER", "ADDSLOTS"].into_iter().chain(slots).collect::<Vec<_>>());
    let state = || node.call::<String>(&["CLUSTER", "INFO"]);
    eventually("the cluster is up", || state().contains("cluster_state:ok"));
    let url = node.url.replace("redis://", "redis+cluster://");
    let report = Report::of(&url, &[]);
    report.says("connection", "green", node.address());
    report.says("cluster", "green", "all slots have a node; 1 primaries");
    report.says("failover", "green", "takes up to 4s 500ms, as cluster-node-timeout says");
    report.says("replicas", "amber", "none: no server can take over");
    report.says("rights", "green", "");
    Report::of(&node.url, &[]).says("role", "red", "write redis+cluster://");
    let _: String = node.call(&[
        "ACL",
        "SETUSER",
        "shop",
        "on",
        ">password",
        "allkeys",
        "allchannels",
        "+@all",
        "-spublish",
        "-asking",
    ]);
    let limited = Report::of(&url.replace("redis+cluster://", "redis+cluster://shop:password@"), &[]);
    limited.says("rights", "red", "lacks +asking: the nodes of the cluster are not found, or keys that move fail");
    limited.says("rights", "amber", "lacks +spublish: waiters poll");
    let _: String = node.call(&["CLUSTER", "DELSLOTS", "7"]);
    Report::of(&url, &[]).says("cluster", "red", "cluster_state is fail, and 16383 of 16384 slots have a node");
    set(&node, "cluster-require-full-coverage", "no");
    eventually("the cluster is up without a slot", || state().contains("cluster_state:ok"));
    Report::of(&url, &[]).says("cluster", "red", "cluster_state is ok, and 16383 of 16384 slots have a node");
    let cluster = "cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_slots_pfail:9\r\n";
    let fake = Fake::start(Says { cluster, ..Says::default() });
    let report = Report::of(&fake.url.replace("redis://", "redis+cluster://"), &["--command-timeout=8s"]);
    report.says("cluster", "amber", "the nodes of 9 slots do not answer");
}

#[test]
fn servers_of_a_quorum_are_counted() {
    let servers = [healthy(), healthy(), healthy()];
    let urls: Vec<_> = servers.iter().map(|server| &*server.url).collect();
    let report = Report::of("redis://127.0.0.1:1", &urls);
    assert_eq!((report.sick(), report.code), (Vec::new(), Some(0)), "{}", report.json);
    report.says("quorum", "green", "3 of 3 servers answer; locks go on while 1 of them are down");
    set(&servers[1], "maxmemory", "1gb");
    set(&servers[1], "maxmemory-policy", "volatile-ttl");
    let report = Report::of("", &urls);
    assert_eq!((report.sick(), report.code), (vec!["eviction"], Some(78)));
    let done = servers[0].done(&[&["doctor"], &*urls].concat());
    let shown: Vec<_> = done.out.lines().filter(|line| line.contains(" eviction ")).collect();
    assert!(
        shown[0].starts_with("✗ red    eviction") && shown[0].contains(&format!("{}: ", servers[1].address())),
        "{done:?}"
    );
    let (first, last) = (servers[0].address(), servers[2].address());
    assert!(shown[1].contains(&format!("{first}, {last}: maxmemory-policy is noeviction")), "{done:?}");
    let down = format!("redis://127.0.0.1:{}", free_port());
    let report = Report::of("", &[urls[0], urls[2], &down]);
    report.says("quorum", "amber", "2 of 3 servers answer");
    report.says("connection", "amber", "does not answer this machine: Connection refused");
    let twice = urls[0].replace("127.0.0.1", "localhost");
    Report::of("", &[urls[0], urls[2], &twice]).says("quorum", "red", "only 2 are different ones");
}
