//! A stand-in for TLS if the feature is off: settings refuse TLS, so none of this is called.

use std::io;

use redis::RedisError;
use tokio::net::TcpStream;

use super::stream::{Resolver, Stream};
use crate::backend::{BackendError, options::ConnectOptions};

/// How connections are encrypted.
#[derive(Clone)]
pub(super) struct Tls;

impl Tls {
    pub(super) fn new(_options: &ConnectOptions) -> Self {
        Self
    }

    pub(super) async fn encrypt(
        &self,
        _stream: TcpStream,
        _host: &str,
        _resolver: &Resolver,
    ) -> io::Result<Box<dyn Stream>> {
        std::future::ready(Err(io::Error::other("the feature `tls` of lock-core is off"))).await
    }
}

pub(super) fn failure(_error: &io::Error, _address: &str, _host: &str) -> Option<BackendError> {
    None
}

pub(super) fn failure_at_hello(_error: &RedisError, _address: &str, _host: &str) -> Option<BackendError> {
    None
}
