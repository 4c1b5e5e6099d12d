//! Credentials of a provider, on a real redis-server whose passwords change.
#![expect(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::{
    error::Error as _,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::stream::{self, Stream, StreamExt};
use lock_core::{
    BuildError, ErrorKind, LockManager, LockManagerBuilder,
    redis::{BasicAuth, ErrorKind as RedisErrorKind, RedisResult, StreamingCredentialsProvider},
};
use lock_tests::{LONG, RedisServer, SOON, eventually, eventually_some, ms, server::Client, within};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use crate::patient;

/// From one question to a provider that failed to the next, at least: half of the longest pause after a refusal.
const PAUSE: Duration = ms(375);

/// What a provider answers.
#[derive(Clone)]
enum Says {
    /// A user and a password.
    Login(&'static str, &'static str),
    /// The same, after a while.
    Late(Duration, &'static str, &'static str),
    Fails,
    Nothing,
    Ends,
    Panics,
}

/// A provider that says what the test wants, and counts how often it was asked for a new connection.
#[derive(Clone)]
struct Vault {
    says: Arc<watch::Sender<Says>>,
    asked: Arc<AtomicUsize>,
}

impl Vault {
    fn new(says: Says) -> Self {
        Self { says: Arc::new(watch::Sender::new(says)), asked: Arc::default() }
    }

    fn say(&self, says: Says) {
        self.says.send_replace(says);
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn builder(&self, server: &RedisServer) -> LockManagerBuilder {
        let url = format!("redis://{}", server.address());
        LockManager::builder().url(url).client_name("ours").command_timeout(ms(8_000)).credentials(self.clone())
    }
}

impl StreamingCredentialsProvider for Vault {
    fn subscribe(&self) -> Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send + 'static>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut says = self.says.subscribe();
        says.mark_changed();
        let answers = stream::unfold(says, |mut says| async move {
            let login = |user: &str, password: &str| Ok(BasicAuth::new(user.to_owned(), password.to_owned()));
            loop {
                says.changed().await.ok()?;
                let answer = says.borrow_and_update().clone();
                let answer = match answer {
                    Says::Login(user, password) => login(user, password),
                    Says::Late(delay, user, password) => {
                        sleep(delay).await;
                        login(user, password)
                    }
                    Says::Fails => Err((RedisErrorKind::Io, "the vault is sealed").into()),
                    Says::Nothing => continue,
                    Says::Ends => return None,
                    Says::Panics => panic!("a bug of the provider's"),
                };
                return Some((answer, says));
            }
        });
        Box::pin(answers)
    }
}

/// A server with a user whose password is `secret-1`.
async fn server() -> RedisServer {
    let server = RedisServer::start().await;
    password(&server, "shop", "secret-1").await;
    server
}

/// Gives a user of the server one password, the only one.
async fn password(server: &RedisServer, user: &str, password: &str) {
    let rules = ["ACL", "SETUSER", user, "on", "resetpass", &format!(">{password}"), "~*", "&*", "+@all"];
    assert_eq!(server.call(&rules).await.text().as_deref(), Some("OK"));
}

/// The one connection of the manager.
async fn connection(server: &RedisServer) -> Client {
    // While it is replaced there are two, or none.
    eventually_some(SOON, "it has one connection", async || {
        let clients = server.client_list().await.into_iter().filter(|client| client.name() == "ours");
        let [client] = clients.collect::<Vec<_>>().try_into().ok()?;
        Some(client)
    })
    .await
}

/// The error of connecting, without a secret in it.
async fn refusal(builder: LockManagerBuilder) -> BuildError {
    let error = builder.connect().await.expect_err("no connection");
    let source = error.source().map(ToString::to_string);
    assert!(!format!("{error} {error:?} {source:?}").contains("secret"), "no password in an error");
    error
}

/// Asks for a lock over and over for a time, and until the provider was asked twice more; every request must fail so. Returns how
/// often the provider was asked meanwhile, and how long that took, measured around all that is counted.
async fn fails(manager: &LockManager, vault: &Vault, kind: ErrorKind, time: Duration) -> (usize, Duration) {
    let (start, before) = (Instant::now(), vault.asked());
    while start.elapsed() < time || vault.asked() < before + 2 {
        assert!(start.elapsed() < time + SOON, "the provider is not asked again");
        let error = manager.lock("k").await.expect_err("there are no credentials");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains("provider") && !error.to_string().contains("secret"), "{error}");
        sleep(ms(5)).await;
    }
    let asked = vault.asked() - before;
    (asked, start.elapsed())
}

/// The most that a provider may be asked in a time: once at the beginning, and then after pauses of this length at least.
fn most(pause: Duration, time: Duration) -> usize {
    2 + (time.as_millis() / pause.as_millis()) as usize
}

/// A manager goes on over one connection while user and password change.
async fn credentials_follow_one_another(server: &RedisServer, builder: LockManagerBuilder, vault: &Vault) {
    let manager = builder.connect().await.unwrap();
    let guard = manager.lock("held").ttl(LONG).renew_every(ms(100)).await.unwrap();
    let renewed = async |after: &str| {
        let before = guard.deadline();
        eventually(SOON, format!("the lease is renewed after {after}"), async || guard.deadline() > before).await;
    };
    // An attempt to connect that was not answered soon is followed by another, which asks, too.
    let (first, asked) = (connection(server).await, vault.asked());
    assert_eq!(first.field("user"), "shop");

    password(server, "other", "secret-2").await;
    vault.say(Says::Login("other", "secret-2"));
    eventually(SOON, "it is signed in again", async || connection(server).await.field("user") == "other").await;
    assert_eq!(connection(server).await.field("id"), first.field("id"), "over the same connection");
    assert_eq!(vault.asked(), asked);
    renewed("the new login").await;

    // The next connection gets what is right then.
    password(server, "other", "secret-3").await;
    vault.say(Says::Login("other", "secret-3"));
    assert!(server.kill_clients().await >= 1);
    eventually(SOON, "it is connected anew", async || manager.lock("k").await.is_ok()).await;
    let second = connection(server).await;
    assert!(second.field("id") != first.field("id") && second.field("user") == "other", "{second:?}");
    renewed("the new connection").await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_connection_is_signed_in_again_without_a_pause_for_its_leases() {
    let (server, vault) = (server().await, Vault::new(Says::Login("shop", "secret-1")));
    credentials_follow_one_another(&server, vault.builder(&server), &vault).await;
}

#[tokio::test]
async fn a_connection_is_signed_in_again_over_resp2() {
    let (server, vault) = (server().await, Vault::new(Says::Login("shop", "secret-1")));
    let url = format!("redis://{}?protocol=resp2", server.address());
    let builder = patient::builder().url(url).client_name("ours").credentials(vault.clone());
    credentials_follow_one_another(&server, builder, &vault).await;
}

#[tokio::test]
async fn waiters_are_called_after_their_connection_was_signed_in_again() {
    let (server, vault) = (server().await, Vault::new(Says::Login("shop", "secret-1")));
    let (ours, theirs) = (vault.builder(&server).connect().await.unwrap(), vault.builder(&server).client_name("other"));
    password(&server, "other", "secret-2").await;
    vault.say(Says::Login("other", "secret-2"));
    eventually(SOON, "it is signed in again", async || connection(&server).await.field("user") == "other").await;
    let held = theirs.connect().await.unwrap().lock("k").ttl(LONG).await.unwrap();
    let waits = tokio::spawn(async move { ours.lock("k").wait(SOON).await.map(drop) });
    eventually(SOON, "it has a place", async || server.keys("*queue:k").await.len() == 1).await;
    held.release().await.unwrap();
    waits.await.unwrap().unwrap();
}

#[tokio::test]
async fn credentials_that_are_refused_later_cost_no_connection_and_the_next_one_asks_anew() {
    let (server, vault) = (server().await, Vault::new(Says::Login("shop", "secret-1")));
    let manager = vault.builder(&server).connect().await.unwrap();
    let first = connection(&server).await;
    let fault =
        || manager.health().nodes()[0].last_error().map_or_else(String::new, |fault| fault.message().to_owned());
    assert_eq!(fault(), "");
    for (says, words) in
        [(Says::Login("shop", "secret-wrong"), "refused the credentials of the provider"), (Says::Fails, "failed")]
    {
        vault.say(says);
        eventually(SOON, words, async || fault().contains(words)).await;
        assert!(!fault().contains("secret"), "{}", fault());
        manager.lock("k").await.unwrap().release().await.unwrap();
        assert_eq!(connection(&server).await.field("id"), first.field("id"), "the connection stays");
    }

    vault.say(Says::Login("shop", "secret-wrong"));
    server.kill_clients().await;
    eventually(SOON, "the server refuses the next connection", async || {
        manager.lock("k").await.is_err_and(|error| error.kind() == ErrorKind::Denied)
    })
    .await;
    let (asked, time) = fails(&manager, &vault, ErrorKind::Denied, ms(1_500)).await;
    assert!(asked <= most(PAUSE, time), "asked {asked} times more in {time:?}");
    vault.say(Says::Login("shop", "secret-1"));
    eventually(SOON, "it asks anew", async || manager.lock("k").await.is_ok()).await;
}

#[tokio::test]
async fn bad_input_87_expired_credentials_are_denied_at_once_and_not_shown() {
    let (server, vault) = (server().await, Vault::new(Says::Login("shop", "secret-expired")));
    // Answered long before the limit.
    let error = within(SOON, refusal(vault.builder(&server).command_timeout(LONG))).await;
    let error = error.cause().unwrap();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains(&server.address()), "{error}");
    assert!(error.to_string().contains("check that they have not expired"), "{error}");
}

#[tokio::test]
async fn bad_input_88_a_provider_that_fails_or_ends_is_told_and_asked_again_after_a_pause() {
    let server = server().await;
    for (says, words, cause) in [(Says::Fails, "failed", Some("sealed")), (Says::Ends, "ended without", None)] {
        let vault = Vault::new(says);
        let error = refusal(vault.builder(&server)).await;
        let error = error.cause().unwrap();
        assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
        assert!(error.to_string().contains(words) && error.to_string().contains(&server.address()), "{error}");
        assert_eq!(error.source().map(|source| source.to_string().contains("sealed")), cause.map(|_| true));

        let vault = Vault::new(vault.says.borrow().clone());
        let manager = vault.builder(&server).build().unwrap();
        let (asked, time) = fails(&manager, &vault, ErrorKind::Backend, ms(1_500)).await;
        assert!(asked <= most(PAUSE, time), "asked {asked} times in {time:?}");
        vault.say(Says::Login("shop", "secret-1"));
        eventually(SOON, "it asks again", async || manager.lock("k").await.is_ok()).await;
    }
}

#[tokio::test]
async fn bad_input_89_a_provider_that_hangs_is_named_within_the_limit_and_not_asked_over_and_over() {
    let (server, vault) = (server().await, Vault::new(Says::Nothing));
    let before = Instant::now();
    let error = within(SOON, refusal(vault.builder(&server).connect_timeout(ms(800)))).await;
    assert!(before.elapsed() >= ms(700), "{:?}", before.elapsed());
    let error = error.cause().unwrap();
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    assert!(error.to_string().contains("the provider of credentials for"), "{error}");

    let vault = Vault::new(Says::Nothing);
    let manager = vault.builder(&server).connect_timeout(ms(800)).build().unwrap();
    let (asked, time) = fails(&manager, &vault, ErrorKind::Backend, ms(2_500)).await;
    assert!(asked <= most(ms(800), time), "asked {asked} times in {time:?}");
    vault.say(Says::Login("shop", "secret-1"));
    eventually(SOON, "it is answered", async || manager.lock("k").await.is_ok()).await;
}

#[tokio::test]
async fn a_provider_that_panics_ends_no_lease_and_is_asked_again() {
    let (server, vault) = (server().await, Vault::new(Says::Login("shop", "secret-1")));
    let manager = vault.builder(&server).connect().await.unwrap();
    let held = manager.lock("held").ttl(LONG).await.unwrap();
    // Once over the connection, and each time that a new one needs credentials.
    vault.say(Says::Panics);
    let before = vault.asked();
    server.call(&["CLIENT", "KILL", "USER", "shop"]).await;
    eventually(SOON, "it is asked again", async || vault.asked() >= before + 2).await;
    let error = manager.lock("k").await.expect_err("there are no credentials");
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    vault.say(Says::Login("shop", "secret-1"));
    eventually(SOON, "it is answered", async || manager.lock("k").await.is_ok()).await;
    assert!(held.is_held());
    held.release().await.expect("it was held all the time");
}

#[tokio::test]
async fn a_provider_may_take_longer_than_a_command() {
    let (server, vault) = (server().await, Vault::new(Says::Late(ms(6_000), "shop", "secret-1")));
    let manager = vault.builder(&server).command_timeout(ms(5_000)).connect_timeout(SOON).connect().await.unwrap();
    manager.lock("k").await.unwrap().release().await.unwrap();
}

/// Has another login at any moment.
struct Endless;

impl StreamingCredentialsProvider for Endless {
    fn subscribe(&self) -> Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send + 'static>> {
        stream::repeat_with(|| Ok(BasicAuth::new("shop".to_owned(), "secret-1".to_owned()))).boxed()
    }
}

#[tokio::test]
async fn a_provider_without_an_end_signs_in_at_most_once_a_second() {
    let server = server().await;
    let url = format!("redis://{}", server.address());
    let manager = patient::builder().url(url).client_name("ours").credentials(Endless).connect().await.unwrap();
    let logins = async || server.calls_of("auth").await;
    let (start, before) = (Instant::now(), logins().await);
    while start.elapsed() < ms(2_500) {
        manager.lock("k").await.unwrap().release().await.unwrap();
    }
    eventually(SOON, "it signs in again", async || logins().await > before).await;
    let times = logins().await - before;
    // The time is measured around all that is counted.
    assert!(times <= 2 + start.elapsed().as_secs(), "signed in {times} times in {:?}", start.elapsed());
}
