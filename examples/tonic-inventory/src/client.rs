//! The client's side: a lock around the channel, and how a call names its goods and its buyer.

use lock_core::LockManager;
use lock_tower::key::{Header, Optional, Scoped, header, scoped};
use lock_tower::{Grpc, LockLayer, LockService};
use tonic::Request;
use tonic::transport::{Channel, Endpoint, Error};
use tower::ServiceBuilder;

use crate::proto::inventory_client::InventoryClient;

/// A client behind a lock of its own.
pub(crate) type Client = InventoryClient<LockService<Channel, PerBuyer, Grpc>>;

/// A key of the metadata `buyer-id`; calls without it have no lock.
type PerBuyer = Scoped<Optional<Header>>;

/// Connects to the server, with a connection of its own.
///
/// A buyer buys one thing at a time, in however many windows and on however many machines: a second call is refused
/// before anything is sent. The key must be another than the server's: a client that held the goods while it called
/// would have the server wait for what only the client can give back.
pub(crate) async fn connect(url: &str, manager: &LockManager) -> Result<Client, Error> {
    let channel = Endpoint::from_shared(url.to_owned())?.connect().await?;
    let per_buyer = scoped("buyers", header::<String>("buyer-id").optional());
    let one_at_a_time = LockLayer::grpc(manager.clone(), per_buyer).name("buyer").try_only();
    Ok(InventoryClient::new(ServiceBuilder::new().layer(one_at_a_time).service(channel)))
}

/// Makes a call about some goods: their number goes into the metadata, where the server's layer can see it.
pub(crate) fn about<T>(goods: u64, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("goods-id", goods.into());
    request
}

/// Makes a call of a buyer about some goods.
pub(crate) fn bought_by<T>(buyer: u64, mut request: Request<T>) -> Request<T> {
    request.metadata_mut().insert("buyer-id", buyer.into());
    request
}
