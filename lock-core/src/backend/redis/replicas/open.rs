//! The connection over which replicas are waited for.

use std::{sync::atomic::Ordering, time::Duration};

use redis::Value;
use tokio::time::{Instant, timeout};

use super::super::{
    commands::Commands,
    connector::{Connector, DEMOTED_AGAIN, Unanswered},
    failure,
    handshake::{Connected, Failure},
    reply::misread,
    script::{self, By},
    slot::Tag,
};
use crate::{
    backend::{Answer, Operation, Replied},
    error::ErrorKind,
};

/// A connection that nothing is in flight over.
pub(super) struct Open {
    connected: Connected,
    /// The epoch of the first connection when this was made: the next one may lead to another server.
    epoch: u64,
    /// When it was used last.
    used: Instant,
    /// Whether the user was denied something over it. Credentials that are over do not come back to life.
    pub(super) is_denied: bool,
    /// Whether it leads to a replica, as one of the addresses of a name may.
    pub(super) is_demoted: bool,
    /// Whether it carries nothing more.
    pub(super) is_broken: bool,
    /// When it was made. The next one may lead to the replica, or be denied, too.
    since: Instant,
}

impl Open {
    pub(super) async fn connect(connector: &Connector) -> Replied<Self> {
        let resp2 = connector.settings.access.resp2 || connector.resp2.load(Ordering::Relaxed);
        let epoch = connector.link.newest();
        let opened = async {
            let login = connector.log_in().await?.map(|(login, _)| login);
            // It may be forbidden, and is only for those who look.
            let name = Commands::one(["CLIENT", "SETNAME", &connector.settings.access.client_name]);
            connector.open(login.as_ref(), resp2, &name).await
        };
        let opened = timeout(connector.settings.access.connect_limit, opened).await;
        let opened = opened.map_err(|_| connector.out_of_time())?.map_err(|Failure { error, .. }| error)?;
        let (connected, _) = opened.map_err(|error| failure::of(error, &connector.address()))?;
        let now = Instant::now();
        Ok(Self { connected, epoch, used: now, is_denied: false, is_demoted: false, is_broken: false, since: now })
    }

    /// Whether it can be used after a pause: it may have ended unnoticed, or lead to another server than the first connection.
    pub(super) fn is_fit(&self, connector: &Connector) -> bool {
        let is_over = (self.is_demoted || self.is_denied) && self.since.elapsed() > DEMOTED_AGAIN;
        self.used.elapsed() < IDLE && self.epoch == connector.link.newest() && !is_over
    }

    async fn call(
        &mut self,
        connector: &Connector,
        by: By,
        tag: Tag,
        batch: &[Operation],
    ) -> Result<Value, Unanswered> {
        let mut call = Commands::default();
        script::add_call(&mut call, by, tag, batch);
        self.send(connector, &call, connector.limit()).await
    }

    /// Runs one command. After anything but a reply or a refusal, the connection is of no further use.
    async fn send(&mut self, connector: &Connector, command: &Commands, within: Duration) -> Result<Value, Unanswered> {
        let Connected { wire, reader, .. } = &mut self.connected;
        let replies = timeout(within, reader.carry(wire.put(command))).await;
        self.used = Instant::now();
        let replied = match replies.map(|replies| replies?.pop().unwrap_or(Value::Nil).extract_error()) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) if failure::is_broken(&error) => {
                Err(Unanswered::Broken(failure::of(error, &connector.address())))
            }
            Ok(Err(error)) => Err(Unanswered::Refused(error)),
            Err(_) => Err(Unanswered::Silent(connector.silent())),
        };
        self.is_broken = !matches!(replied, Ok(_) | Err(Unanswered::Refused(_)));
        replied
    }

    /// Runs the script by its hash, or by its source where the server does not have it.
    pub(super) async fn evaluate(
        &mut self,
        connector: &Connector,
        tag: Tag,
        batch: &[Operation],
    ) -> Result<Answer, Unanswered> {
        let mut reply = self.call(connector, By::Hash, tag, batch).await;
        if matches!(&reply, Err(Unanswered::Refused(error)) if failure::is_no_script(error)) {
            reply = self.call(connector, By::Source, tag, batch).await;
        }
        let reply = reply?;
        self.is_demoted |= failure::tells_of_demotion(&reply);
        script::answer_to(batch, reply, &connector.address()).map_err(Unanswered::Broken)
    }

    /// Waits until `least` replicas have what was written over this connection; returns how many have.
    pub(super) async fn wait(&mut self, connector: &Connector, least: u32, most: Duration) -> Replied<u32> {
        // Zero would be without end.
        let ms = u64::try_from(most.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut command = Commands::one(["WAIT"]);
        command.number(least).number(ms);
        match self.send(connector, &command, most + connector.limit()).await {
            Ok(Value::Int(had)) => u32::try_from(had).map_err(|_| misread(&connector.address())),
            Ok(_) => Err(misread(&connector.address())),
            Err(unanswered) => {
                let error = connector.failed(unanswered);
                self.is_denied |= error.kind() == ErrorKind::Denied;
                Err(error)
            }
        }
    }
}

/// How long a connection that is not used counts as usable.
const IDLE: Duration = Duration::from_secs(10);
