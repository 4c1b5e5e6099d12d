//! Publishes messages between managers: questions about holders and waiters, and the answers. Grants do not come this way: the script
//! publishes them, and `driver.rs` reads them.

use std::sync::Arc;

use super::{Servers, commands::Commands, connector::Connector, names};
use crate::{
    backend::{EVERYONE, Replied},
    error::ErrorKind,
};

/// Publishes a message. Returns how many managers it has reached, if that is known.
pub(super) async fn publish(servers: Servers, channel: Arc<str>, message: String) -> Replied<Option<usize>> {
    match servers {
        Servers::Primary(connector) => {
            let channel = names::of_database(&channel, connector.settings.access.redis.db());
            at_node(&connector, &channel, &message).await.map(Some)
        }
        Servers::Cluster(cluster) => {
            let is_counted = *channel == *EVERYONE;
            cluster.publish(&names::of_database(&channel, 0), &message, is_counted).await
        }
    }
}

/// Publishes a message at one node. Returns how many subscribers of this node it has reached. If the user has no right to publish, a warning says so once.
pub(super) async fn at_node(node: &Connector, channel: &str, message: &str) -> Replied<usize> {
    let published = node.query(&Commands::one(["PUBLISH", channel, message])).await;
    if published.as_ref().is_err_and(|error| matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unsupported)) {
        node.advice.no_publish(&node.address());
    }
    published
}

/// Counts the subscribers of a channel at one node.
pub(super) async fn subscribers(node: &Connector, channel: &str) -> Replied<usize> {
    let (_, number): (String, usize) = node.query(&Commands::one(["PUBSUB", "NUMSUB", channel])).await?;
    Ok(number)
}
