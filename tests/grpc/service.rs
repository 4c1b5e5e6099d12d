//! The service that the tests call, and what they see of its inside.

use std::{
    error::Error,
    future::pending,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use futures_util::stream::{self, Stream};
use lock_core::Lease;
use tokio::net::TcpListener;
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    service::Routes,
    transport::{Channel, Endpoint, Server, server::TcpIncoming},
};
use tower::{Layer, Service};

use crate::grpc::proto::{
    End, Order, Reply,
    calls_client::CallsClient,
    calls_server::{Calls, CallsServer},
};

/// Serves the calls behind a layer until the test ends, and says where.
pub(crate) async fn serve<L, B>(layer: L, floor: &Floor) -> SocketAddr
where
    L: Layer<Routes> + Clone + Send + 'static,
    L::Service: Service<http::Request<Body>, Response = http::Response<B>, Future: Send> + Clone + Send + 'static,
    <L::Service as Service<http::Request<Body>>>::Error: Into<Box<dyn Error + Send + Sync>> + Send,
    B: http_body::Body<Data = bytes::Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = CallsServer::new(floor.clone());
    let server = Server::builder().layer(layer).add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    address
}

/// Connects to a server, with a connection of its own.
pub(crate) async fn channel(address: impl std::fmt::Display) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

/// Serves the calls behind a layer, and connects to them.
pub(crate) async fn client<L, B>(layer: L, floor: &Floor) -> CallsClient<Channel>
where
    L: Layer<Routes> + Clone + Send + 'static,
    L::Service: Service<http::Request<Body>, Response = http::Response<B>, Future: Send> + Clone + Send + 'static,
    <L::Service as Service<http::Request<Body>>>::Error: Into<Box<dyn Error + Send + Sync>> + Send,
    B: http_body::Body<Data = bytes::Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    CallsClient::new(channel(serve(layer, floor).await).await)
}

/// Makes a call with a key in its metadata.
pub(crate) fn with_key<T>(key: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("key", key.parse().unwrap());
    request
}

/// Counts who is at work. The work of a method that streams is over when its stream has ended or was dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Floor(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    begun: AtomicUsize,
    inside: AtomicUsize,
    most: AtomicUsize,
    orders: AtomicUsize,
}

impl Floor {
    pub(crate) fn begun(&self) -> usize {
        self.0.begun.load(SeqCst)
    }

    pub(crate) fn inside(&self) -> usize {
        self.0.inside.load(SeqCst)
    }

    pub(crate) fn most(&self) -> usize {
        self.0.most.load(SeqCst)
    }

    /// How many orders of streams have arrived.
    pub(crate) fn orders(&self) -> usize {
        self.0.orders.load(SeqCst)
    }

    fn enter(&self) -> Inside {
        self.0.begun.fetch_add(1, SeqCst);
        let inside = self.0.inside.fetch_add(1, SeqCst) + 1;
        self.0.most.fetch_max(inside, SeqCst);
        Inside(self.clone())
    }
}

struct Inside(Floor);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.0.inside.fetch_sub(1, SeqCst);
    }
}

type Replies = Pin<Box<dyn Stream<Item = Result<Reply, Status>> + Send>>;

#[tonic::async_trait]
impl Calls for Floor {
    async fn ask(&self, request: Request<Order>) -> Result<Response<Reply>, Status> {
        let _inside = self.enter();
        let lease = lease(&request);
        let grpc_timeout = request.metadata().get("grpc-timeout").map(|timeout| timeout.to_str().unwrap().to_owned());
        let grpc_timeout = grpc_timeout.unwrap_or_default();
        // Others have the chance to come in between.
        tokio::task::yield_now().await;
        match request.into_inner().end() {
            End::Answer => Ok(Response::new(Reply { grpc_timeout, ..reply(lease.as_ref(), 1) })),
            End::Hang => pending().await,
            End::Fail => Err(failure()),
        }
    }

    type DownloadStream = Replies;

    async fn download(&self, request: Request<Order>) -> Result<Response<Replies>, Status> {
        let lease = lease(&request);
        let order = request.into_inner();
        let begin = (self.enter(), 0);
        let replies = stream::unfold(begin, move |(inside, sent)| {
            let lease = lease.clone();
            async move {
                let next = if sent < order.replies {
                    Some(Ok(reply(lease.as_ref(), sent + 1)))
                } else {
                    match order.end() {
                        End::Answer => None,
                        End::Hang => pending().await,
                        End::Fail => Some(Err(failure())),
                    }
                };
                next.map(|next| (next, (inside, sent + 1)))
            }
        });
        Ok(Response::new(Box::pin(replies)))
    }

    async fn upload(&self, request: Request<Streaming<Order>>) -> Result<Response<Reply>, Status> {
        let _inside = self.enter();
        let lease = lease(&request);
        let mut orders = request.into_inner();
        let mut number = 0;
        while orders.message().await?.is_some() {
            self.0.orders.fetch_add(1, SeqCst);
            number += 1;
        }
        Ok(Response::new(reply(lease.as_ref(), number)))
    }

    type TalkStream = Replies;

    async fn talk(&self, request: Request<Streaming<Order>>) -> Result<Response<Replies>, Status> {
        let lease = lease(&request);
        let begin = (self.enter(), request.into_inner(), 0);
        let replies = stream::unfold(begin, move |(inside, mut orders, number)| {
            let lease = lease.clone();
            async move {
                let order = orders.message().await.transpose()?;
                let next = order.map(|_| reply(lease.as_ref(), number + 1));
                Some((next, (inside, orders, number + 1)))
            }
        });
        Ok(Response::new(Box::pin(replies)))
    }
}

fn lease<T>(request: &Request<T>) -> Option<Lease> {
    request.extensions().get().cloned()
}

fn reply(lease: Option<&Lease>, number: u32) -> Reply {
    let Some(lease) = lease else { return Reply { number, ..Reply::default() } };
    Reply {
        key: lease.key().to_owned(),
        fencing_token: lease.fencing_token().get(),
        remaining_ms: lease.remaining().as_millis().try_into().unwrap(),
        number,
        ..Reply::default()
    }
}

fn failure() -> Status {
    let mut status = Status::data_loss("a page is missing");
    status.metadata_mut().insert("page", "3".parse().unwrap());
    status
}
