//! Credentials that change: a provider is asked for those of each connection, and for those that follow.

use std::{error::Error as _, future::pending, panic::AssertUnwindSafe, sync::atomic::Ordering, time::Duration};

use futures_util::{FutureExt, stream::StreamExt};
use tokio::time::{Instant, sleep, timeout};

use super::{
    commands::Commands,
    connection::Connection,
    connector::{Connector, Unanswered},
    failure,
    handshake::Failure,
    provider::{Login, Logins, Provider},
};
use crate::caught::{self, OnDrop};

impl Connector {
    /// Asks the provider, if there is one, for the credentials of a new connection. Also returns those that follow.
    pub(super) async fn log_in(&self) -> Result<Option<(Login, Logins)>, Failure> {
        let Some(Provider(subscribe)) = &self.settings.access.credentials else { return Ok(None) };
        let limit = self.settings.access.connect_limit;
        let first = async {
            self.asks_provider.store(true, Ordering::Relaxed);
            let _asked = OnDrop(|| self.asks_provider.store(false, Ordering::Relaxed));
            let mut logins = subscribe();
            (logins.next().await, logins)
        };
        // The provider is code of the application, and its panic would end the driver of the connection.
        let error = match timeout(limit, AssertUnwindSafe(first).catch_unwind()).await {
            Ok(Ok((Some(Ok(login)), logins))) => return Ok(Some((login, logins))),
            Ok(Ok((Some(Err(error)), _))) => failure::of_provider(&error, &self.address()),
            Ok(Ok((None, _))) => failure::no_credentials("ended without giving any", &self.address()),
            Ok(Err(_)) => {
                caught::panicked("provider of credentials");
                failure::no_credentials("panicked", &self.address())
            }
            Err(_) => failure::no_credentials(&format!("gave none within {limit:?}"), &self.address()),
        };
        // There is no hurry to ask again: the provider's source has to be repaired first.
        Err(Failure { error, refused: true })
    }

    /// Returns whether the provider of credentials is being asked, so that the server cannot be asked yet.
    pub(super) fn asks_for_credentials(&self) -> bool {
        self.asks_provider.load(Ordering::Relaxed)
    }

    /// Signs in over the connection with each of the credentials that follow, for as long as it is polled.
    pub(super) async fn stay_logged_in(&self, connection: Connection, logins: Option<Logins>) {
        let Some(mut logins) = logins else { return pending().await };
        let mut has_failed = false;
        while let Some(login) = AssertUnwindSafe(logins.next()).catch_unwind().await.unwrap_or_else(|_| {
            // As if the stream had ended: the connection stays open until the server closes it.
            caught::panicked("provider of credentials");
            None
        }) {
            let error = match login {
                Ok(login) => match self.log_in_again(&connection, login).await {
                    Ok(()) => None,
                    Err(Unanswered::Refused(error)) => Some(failure::of_login(error, &self.address())),
                    // The connection is replaced, and the next one gets fresh credentials.
                    Err(_) => break,
                },
                Err(error) => Some(failure::of_provider(&error, &self.address())),
            };
            if let Some(error) = &error {
                self.status.note(error);
                // Once, until it works again: a provider may repeat what is wrong without end.
                if !has_failed {
                    log!(warn, address = &*self.address(), %error, cause = error.source(),
                        "could not renew the credentials; the connection stays open until the server closes it");
                }
            }
            has_failed = error.is_some();
            sleep(BETWEEN_LOGINS).await;
        }
        pending().await
    }

    async fn log_in_again(&self, connection: &Connection, login: Login) -> Result<(), Unanswered> {
        let command = Commands::one(["AUTH", &login.username, &login.password]);
        let limit = Instant::now() + self.limit();
        let answer = self.reply_unless(pending(), &mut connection.clone().send(&command, limit)).await;
        answer.map(drop)
    }
}

/// The least time from one login over a connection to the next, so that a provider which always has another login does not keep
/// the engine busy.
const BETWEEN_LOGINS: Duration = Duration::from_secs(1);
