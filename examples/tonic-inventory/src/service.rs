//! The server's side: what the service does, and which lock each call has.

use std::pin::Pin;
use std::time::Duration;

use futures_util::stream::{Stream, StreamExt as _};
use lock_core::{Lease, LeaseOptions, LockManager};
use lock_tower::{Grpc, LockLayer};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::sleep;
use tonic::transport::{self, Server, server::TcpIncoming};
use tonic::{Request, Response, Status, Streaming, body::Body};

use crate::proto::inventory_server::{Inventory, InventoryServer};
use crate::proto::{Delivery, Left, RestockReply, SellReply, SellRequest, WatchRequest};
use crate::stock::Stock;

/// Serves the shop until `stop` is over, and then until the calls in flight have ended.
pub(crate) async fn serve(
    listener: TcpListener,
    stock: Stock,
    manager: LockManager,
    stop: impl Future<Output = ()>,
) -> Result<(), transport::Error> {
    // Around everything that is added below. Watching passes without a lock: it changes nothing, and would keep everybody
    // else out.
    let per_goods = LockLayer::grpc(manager.clone(), key_of).except(["/inventory.Inventory/Watch"]).name("inventory");
    let per_goods = per_goods.options(LeaseOptions::new().ttl(TTL).wait(WAIT).max_hold(MAX_HOLD));
    let closing = watch::Sender::new(false);
    let service = InventoryServer::new(Shop { stock, closing: closing.clone() });
    let incoming = TcpIncoming::from(listener);
    Server::builder()
        .layer(per_goods)
        .add_service(service)
        .serve_with_incoming_shutdown(incoming, async move {
            stop.await;
            // Calls that wait for a key fail now, so that the server waits only for those that hold one.
            manager.stop_waiting();
            // A watcher's call would go on for ever, and the server with it.
            closing.send_replace(true);
        })
        .await
}

/// Finds the key of a call. It has the head only, with the metadata as headers: the message is not there yet.
/// A call that names no goods is refused with INVALID_ARGUMENT.
fn key_of(call: &http::Request<Body>) -> Result<String, &'static str> {
    let goods = call.headers().get("goods-id").and_then(|goods| goods.to_str().ok());
    let goods = goods.and_then(|goods| goods.parse().ok()).ok_or("the metadata goods-id should be a number")?;
    Ok(key(goods))
}

fn key(goods: u64) -> String {
    format!("goods:{goods}")
}

/// The state of the service.
#[derive(Debug)]
struct Shop {
    stock: Stock,
    /// Whether the server is about to end.
    closing: watch::Sender<bool>,
}

#[tonic::async_trait]
impl Inventory for Shop {
    async fn sell(&self, request: Request<SellRequest>) -> Result<Response<SellReply>, Status> {
        let lease = Grpc::lease(&request)?;
        let SellRequest { goods, quantity } = request.into_inner();
        covers(&lease, goods)?;
        let claim = self.stock.claim_and_read(goods, lease.fencing_token())?;
        sleep(THINKING).await;
        let left = claim.left.checked_sub(quantity).ok_or_else(|| Status::failed_precondition("sold out"))?;
        self.stock.write(claim, left)?;
        Ok(Response::new(SellReply { left, fencing_token: lease.fencing_token().get() }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<Left, Status>> + Send>>;

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let mut closing = self.closing.subscribe();
        let closing = async move { closing.wait_for(|closing| *closing).await.is_ok() };
        let left = self.stock.watch(request.into_inner().goods).take_until(Box::pin(closing));
        Ok(Response::new(Box::pin(left.map(|left| Ok(Left { left })))))
    }

    /// The lease is held until this returns, and renewed for as long as the lorry is being unloaded, up to `MAX_HOLD`.
    /// When that has passed, or the lease is lost, this is dropped at an `await`, and the client gets UNKNOWN.
    async fn restock(&self, request: Request<Streaming<Delivery>>) -> Result<Response<RestockReply>, Status> {
        let lease = Grpc::lease(&request)?;
        let mut deliveries = request.into_inner();
        let mut reply = RestockReply::default();
        while let Some(Delivery { goods, quantity }) = deliveries.message().await? {
            covers(&lease, goods)?;
            let claim = self.stock.claim_and_read(goods, lease.fencing_token())?;
            sleep(THINKING).await;
            reply.left = claim.left.saturating_add(quantity);
            reply.delivered = reply.delivered.saturating_add(quantity);
            self.stock.write(claim, reply.left)?;
        }
        Ok(Response::new(reply))
    }
}

/// Refuses a message about other goods than the metadata, and so the lock, is about. Without it a careless client
/// would change goods that somebody else has locked.
fn covers(lease: &Lease, goods: u64) -> Result<(), Status> {
    if lease.key() == key(goods) {
        Ok(())
    } else {
        Err(Status::invalid_argument("the message is about other goods than the metadata goods-id"))
    }
}

/// For how long an instance that died keeps others out.
const TTL: Duration = Duration::from_secs(3);

/// How long a call waits while others have the goods.
const WAIT: Duration = Duration::from_millis(1500);

/// How long a lorry may take: a client that falls silent and stays connected would keep the goods for ever.
const MAX_HOLD: Duration = Duration::from_secs(60);

/// The time between reading the stock and writing it.
const THINKING: Duration = Duration::from_millis(5);
