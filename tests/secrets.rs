//! Tokens and passwords appear in no line of the log, whatever its level, and in no `Debug`.

use std::{fmt::Debug, pin::Pin, sync::Arc, time::Duration};

use futures_util::stream::{self, Stream};
use lock_core::{
    Handover, LeaseOptions, LockManager, Replicas,
    backend::{RedisBackend, TOKEN_MARK},
    permits,
    redis::{BasicAuth, RedisResult, StreamingCredentialsProvider},
};
use lock_tests::{Cluster, LONG, RedisServer, Reply, SOON, Sentinels, eventually, ms, within};
use tokio::sync::watch;

use crate::{log::Log, patient};

/// What all passwords of these tests contain, and nothing else does.
const PASSWORD: &str = "hush";

/// What was logged and what `Debug` shows, in which no secret may stand.
struct Shown {
    log: Log,
    debug: String,
    /// The digits of tokens, which might be shown without their mark.
    digits: Vec<String>,
}

impl Shown {
    fn new(log: Log) -> Self {
        Self { log, debug: String::new(), digits: Vec::new() }
    }

    fn note(&mut self, value: &dyn Debug) {
        self.debug.push_str(&format!("{value:?}\n{value:#?}\n"));
    }

    /// Records the tokens that a server has at its keys, and in its queues.
    async fn note_tokens(&mut self, server: &RedisServer) {
        let mut texts = Vec::new();
        for key in server.keys("*").await {
            for command in [&["GET", &key][..], &["HGETALL", &key], &["ZRANGE", &key, "0", "-1"]] {
                let reply = server.call(command).await;
                texts.extend(reply.text());
                texts.extend(reply.items().iter().filter_map(Reply::text));
            }
        }
        for text in texts {
            self.digits.extend(text.split(TOKEN_MARK).skip(1).map(|rest| rest.chars().take(32).collect::<String>()));
        }
        self.digits.retain(|digits| digits.len() == 32 && digits.chars().all(|digit| digit.is_ascii_hexdigit()));
    }

    #[track_caller]
    fn holds_no_secret(&self) {
        let text = self.log.text();
        assert!(text.contains(" DEBUG ") && text.contains(" TRACE "), "lines of each level are looked at: {text}");
        let secrets = [PASSWORD, TOKEN_MARK].into_iter().chain(self.digits.iter().map(String::as_str));
        for secret in secrets {
            for shown in [&text, &self.debug] {
                let lines: Vec<_> = shown.lines().filter(|line| line.contains(secret)).collect();
                assert!(lines.is_empty(), "{secret} is shown: {lines:#?}");
            }
        }
    }
}

/// A line of each level, so that a test in which nothing is looked at fails.
fn log_at_each_level() {
    tracing::trace!("a line at trace");
    tracing::debug!("a line at debug");
}

/// Makes a user of a server whose password is `hush-` and something, or gives another password to the user.
async fn sign_up(server: &RedisServer, user: &str, password: &str, rules: &[&str]) {
    let all = ["ACL", "SETUSER", user, "reset", "on", &format!(">{PASSWORD}-{password}"), "~*", "&*", "+@all"];
    assert_eq!(server.call(&[&all, rules].concat()).await, Reply::Status("OK".to_owned()));
}

/// Acquires a key, waits for it in another manager, and loses the connections in between.
async fn works(server: &RedisServer, manager: &LockManager, shown: &mut Shown) {
    let held = manager.lock("held").ttl(LONG).await.expect("free");
    server.kill_clients().await;
    eventually(SOON, "it reconnects", async || manager.lock("k").await.is_ok()).await;
    shown.note_tokens(server).await;
    for value in [manager as &dyn Debug, &held, &held.lease(), &manager.health(), &manager.lock("k")] {
        shown.note(value);
    }
    held.release().await.expect("held");
}

#[tokio::test]
async fn passwords_of_urls_and_builders_are_neither_logged_nor_shown() {
    let (log, _default) = Log::of_all_levels();
    log_at_each_level();
    let mut shown = Shown::new(log);
    let server = RedisServer::start().await;
    sign_up(&server, "shop", "right", &[]).await;
    sign_up(&server, "mute", "right", &["-publish", "-subscribe", "-info"]).await;
    let address = server.address();
    for url in [
        format!("redis://shop:{PASSWORD}-right@{address}"),
        format!("redis://shop:{PASSWORD}%2Dright@{address}/1?protocol=resp2"),
        format!("redis://mute:{PASSWORD}-right@{address}"),
    ] {
        let manager = patient::connect(&url).await.expect("connects");
        works(&server, &manager, &mut shown).await;
        shown.note(&LockManager::builder().url(&url));
        shown.note(&RedisBackend::from_url(&url, "shop", LONG).expect("a sound URL"));
    }
    let builder = || patient::builder().url(format!("redis://{address}")).username("shop");
    let manager = builder().password(format!("{PASSWORD}-right")).connect().await.expect("connects");
    works(&server, &manager, &mut shown).await;
    shown.note(&builder().password(format!("{PASSWORD}-right")).sentinel_password(format!("{PASSWORD}-sentinel")));

    // Those that are refused, by the server or before.
    shown.note(&builder().password(format!("{PASSWORD}-wrong")).connect().await.expect_err("wrong"));
    for url in [
        format!("redis://shop:{PASSWORD}-wrong@{address}"),
        format!("redis://nobody:{PASSWORD}-wrong@{address}"),
        format!("redis://shop:{PASSWORD}-wrong@{address}:7"),
        format!("redis://shop:{PASSWORD}-wrong@@{address}"),
        format!("redis+sentinel://shop:{PASSWORD}-wrong@{address}"),
        format!("redis+cluster://shop:{PASSWORD}-wrong@{address}"),
        format!("redi://shop:{PASSWORD}-wrong@{address}"),
    ] {
        let error = LockManager::builder().url(&url).connect().await.expect_err("wrong");
        shown.debug.push_str(&format!("{error}\n"));
        shown.note(&error);
    }
    let quorum = [1, 2, 3].map(|_| format!("redis://shop:{PASSWORD}-wrong@{address}"));
    shown.note(&LockManager::builder().quorum(quorum).connect().await.expect_err("wrong"));
    shown.holds_no_secret();
}

#[tokio::test]
async fn passwords_for_sentinels_and_clusters_are_neither_logged_nor_shown() {
    let (log, _default) = Log::of_all_levels();
    log_at_each_level();
    let mut shown = Shown::new(log);
    let (servers, watchers) = (format!("{PASSWORD}-servers"), format!("{PASSWORD}-sentinels"));
    let sentinels = Sentinels::builder().replicas(1).password(&servers).sentinel_password(&watchers).start().await;
    let builder = || patient::builder().url(sentinels.url()).sentinel_password(&watchers);
    let manager = builder().connect().await.expect("connects");
    works(&sentinels.servers()[0], &manager, &mut shown).await;
    shown.note(&builder());
    shown.note(&LockManager::builder().url(sentinels.url()).connect().await.expect_err("a password is missing"));

    let cluster = Cluster::builder().replicas(0).password(&format!("{PASSWORD}-nodes")).start().await;
    let manager = patient::connect(cluster.url()).await.expect("connects");
    works(cluster.node(0), &manager, &mut shown).await;
    let wrong = cluster.url().replace("nodes", "wrong");
    shown.note(&LockManager::connect(wrong).await.expect_err("wrong"));
    shown.holds_no_secret();
}

/// A provider that says what the test wants.
#[derive(Clone)]
struct Vault(Arc<watch::Sender<&'static str>>);

impl StreamingCredentialsProvider for Vault {
    fn subscribe(&self) -> Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send + 'static>> {
        let mut says = self.0.subscribe();
        says.mark_changed();
        Box::pin(stream::unfold(says, |mut says| async move {
            says.changed().await.ok()?;
            let password = format!("{PASSWORD}-{}", *says.borrow_and_update());
            Some((Ok(BasicAuth::new("shop".to_owned(), password)), says))
        }))
    }
}

#[tokio::test]
async fn passwords_of_a_provider_are_neither_logged_nor_shown() {
    let (log, _default) = Log::of_all_levels();
    log_at_each_level();
    let mut shown = Shown::new(log);
    let server = RedisServer::start().await;
    sign_up(&server, "shop", "first", &[]).await;
    for protocol in ["", "?protocol=resp2"] {
        sign_up(&server, "shop", "first", &[]).await;
        server.call(&["CONFIG", "RESETSTAT"]).await;
        let vault = Vault(Arc::new(watch::Sender::new("first")));
        let builder = || {
            let url = format!("redis://{}{protocol}", server.address());
            patient::builder().url(url).client_name("ours").credentials(vault.clone())
        };
        let manager = builder().connect().await.expect("connects");
        works(&server, &manager, &mut shown).await;
        shown.note(&builder());
        // Another password over the same connection, one that is wrong, and one with which no connection is made.
        sign_up(&server, "shop", "second", &[]).await;
        let before = server.calls_of("auth").await;
        vault.0.send_replace("second");
        eventually(SOON, "it is signed in again", async || server.calls_of("auth").await > before).await;
        vault.0.send_replace("wrong");
        eventually(SOON, "it is refused", async || server.errors_of("WRONGPASS").await >= 1).await;
        shown.note(&manager.health());
        server.kill_clients().await;
        eventually(SOON, "the next connection is refused", async || manager.lock("k").await.is_err()).await;
        shown.note(&manager.lock("k").await.expect_err("refused"));
        shown.note(&builder().connect().await.expect_err("refused"));
    }
    shown.holds_no_secret();
}

/// Ids that might confuse what writes a line.
const IDS: [&str; 7] = ["7", "a:b", "a%3Ab", "{id}", "\u{1f980}", "a b\r\n", "lock-core:calls:7"];

#[tokio::test]
async fn tokens_are_neither_logged_nor_shown_whatever_becomes_of_them() {
    let (log, _default) = Log::of_all_levels();
    log_at_each_level();
    let mut shown = Shown::new(log);
    let server = RedisServer::start().await;
    let connect = async |name: &str| {
        let builder = patient::builder().url(server.url()).client_name(name).defaults(LeaseOptions::new().ttl(LONG));
        builder.connect().await.expect("connects")
    };
    let (one, two) = (connect("one").await, connect("two").await);

    for id in IDS {
        let mut held = one.lock(id).renew_every(ms(20)).await.expect("free");
        shown.note_tokens(&server).await;
        let waits = tokio::spawn(two.lock(id).wait(LONG).acquire());
        eventually(SOON, "it has a place", async || !server.keys("*queue*").await.is_empty()).await;
        shown.note_tokens(&server).await;
        held.extend(LONG).await.expect("held");
        shown.note(&held);
        shown.note(&two.lock(id).wait(Duration::ZERO).await.expect_err("busy"));
        shown.note(&one.inspect(id).await.expect("is answered"));
        held.release().await.expect("held");
        let granted = waits.await.expect("no panic").expect("it is granted the key");
        shown.note_tokens(&server).await;
        drop(granted);
        eventually(SOON, "it is released", async || server.call(&["EXISTS", id]).await.integer() == Some(0)).await;
    }

    // From one process to another, by the text; then the text is of no more use.
    let handover = one.lock("handed").await.expect("free").hand_over().expect("held");
    shown.note_tokens(&server).await;
    shown.note(&handover);
    let text = handover.reveal();
    let taken = two.take_up(text.parse::<Handover>().expect("it was revealed")).await.expect("the first to come");
    shown.note_tokens(&server).await;
    shown.note(&taken);
    shown.note(&one.take_up(handover).await.expect_err("it was taken up"));
    shown.note(&text.replace(':', "").parse::<Handover>().expect_err("malformed"));
    taken.release().await.expect("held");

    // Other modes, several keys, and losses.
    let shared = [one.lock("shared").shared().await.expect("free"), two.lock("shared").shared().await.expect("shared")];
    let permit = one.lock_all([permits("permits", 3).take(2)]).await.expect("free");
    let several = one.lock_all(["several:1", "several:2"]).await.expect("free");
    shown.note_tokens(&server).await;
    shown.note(&(&shared, &permit, &several));
    let lost = one.lock("lost").renew_every(ms(20)).await.expect("free");
    server.call(&["SET", "lost", "foreign"]).await;
    shown.note(&within(SOON, lost.ended()).await);
    shown.note(&lost.release().await.expect_err("it was lost"));
    assert!(two.force_release("several:1").await.expect("is answered"));
    let unsure = one.lock("unsure").durability(Replicas::new(1, ms(10))).await;
    shown.note(&unsure.expect_err("there are no replicas"));
    server.call(&["SET", RedisServer::COUNTER, "7"]).await;
    shown.note(&one.lock("uncounted").await.expect_err("there is no number for it"));
    drop((shared, permit, several));
    for manager in [&one, &two] {
        shown.note(manager);
        shown.note(&manager.list("").await.expect("is answered"));
        manager.shutdown(LONG).await;
    }
    assert!(shown.digits.len() > 20, "{} tokens were seen", shown.digits.len());
    shown.holds_no_secret();
}
