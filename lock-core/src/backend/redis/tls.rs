//! TLS: with the certificates of the platform, or with the configuration of the builder.

use std::{error::Error as _, io, sync::Arc};

use redis::RedisError;
use rustls::{ClientConfig, RootCertStore, crypto::CryptoProvider};
use tokio::net::TcpStream;

use super::{
    failure::is_broken,
    stream::{Resolver, Stream},
};
use crate::backend::{BackendError, options::ConnectOptions};

/// How connections are encrypted.
#[derive(Clone)]
pub(super) struct Tls {
    /// The configuration that the builder was given.
    config: Option<Arc<ClientConfig>>,
}

impl Tls {
    pub(super) fn new(options: &ConnectOptions) -> Self {
        Self { config: options.tls.clone() }
    }

    /// Begins TLS. Without a configuration it trusts what the platform trusts at this moment.
    pub(super) async fn encrypt(
        &self,
        stream: TcpStream,
        host: &str,
        resolver: &Resolver,
    ) -> io::Result<Box<dyn Stream>> {
        let config = match &self.config {
            Some(config) => Arc::clone(config),
            // Files of a system that hangs must not keep the engine's task.
            None => Arc::new(resolver.look_up(platform).await?),
        };
        let name = rustls::pki_types::ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(Box::new(tokio_rustls::TlsConnector::from(config).connect(name, stream).await?))
    }
}

/// Makes the configuration that trusts the certificates of the platform.
fn platform() -> io::Result<ClientConfig> {
    let mut found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // One file that cannot be used must not end the trust in all others.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let none = || io::Error::other("this machine has no certificates of issuers");
        return Err(found.errors.pop().map_or_else(none, io::Error::other));
    }
    let config = ClientConfig::builder_with_provider(provider()?)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

/// Returns the provider that the application has installed, if any; none is installed here, since that is for the
/// application to do, and can be done only once in a process.
fn provider() -> io::Result<Arc<CryptoProvider>> {
    if let Some(installed) = CryptoProvider::get_default() {
        return Ok(Arc::clone(installed));
    }
    #[cfg(feature = "tls")]
    return Ok(Arc::new(rustls::crypto::ring::default_provider()));
    #[cfg(not(feature = "tls"))]
    Err(io::Error::other(rustls::Error::General("no provider of rustls is installed".to_owned())))
}

/// Reads an error of TLS, if it is one, and says what was found at the server and what to do. `host` is the name that
/// the certificate must have.
pub(super) fn failure(error: &io::Error, address: &str, host: &str) -> Option<BackendError> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    let message = match error {
        rustls::Error::InvalidCertificate(_) => format!(
            "{address} has a certificate that is not accepted ({error}); check its issuer and its dates, that it names {host}, \
             this machine's clock, and the roots given to `LockManager::builder().tls(..)`"
        ),
        rustls::Error::AlertReceived(_) | rustls::Error::PeerIncompatible(_) => format!(
            "{address} and this client do not agree on TLS ({error}); check the certificate of this client, the versions and the ciphers that are \
             given to `LockManager::builder().tls(..)`"
        ),
        rustls::Error::InvalidMessage(_) => {
            format!("{address} does not speak TLS; check the port, or write redis:// instead of rediss://")
        }
        rustls::Error::General(what) => {
            format!(
                "no TLS with {address}: {what}; install one, or give a configuration to `LockManager::builder().tls(..)`"
            )
        }
        _ => return None,
    };
    Some(BackendError::unavailable(message).did_not_happen())
}

/// Reads an error of the first command over TLS: only then does a server report that it requires a certificate of the client.
pub(super) fn failure_at_hello(error: &RedisError, address: &str, host: &str) -> Option<BackendError> {
    if !is_broken(error) {
        return None;
    }
    let mut source = error.source()?;
    // The crate shares its causes.
    if let Some(shared) = source.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>() {
        source = &**shared;
    }
    let error = source.downcast_ref::<io::Error>()?;
    failure(error, address, host).or_else(|| {
        // The server's own message is lost if it closes the connection before it has read everything that was sent.
        let message = format!(
            "{address} closed the connection before its first answer; check that it runs, and whether it wants a \
             certificate of this client (`LockManager::builder().tls(..)`)"
        );
        Some(BackendError::unavailable(message).with_source(io::Error::from(error.kind())))
    })
}
