//! A connection to one server, over which questions are asked that the library does not ask.

use std::{io, time::Duration};

use redis::{AsyncConnectionConfig, Cmd, ConnectionAddr, RedisError, Value, aio::MultiplexedConnection};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};

use super::place::Access;

/// A connection. It closes on drop.
pub(super) struct Link(MultiplexedConnection);

/// Why a question has no answer.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    /// The code of the server, such as NOPERM; empty if the server did not answer.
    pub(super) code: String,
    /// The words of the server, or of the system.
    pub(super) words: String,
}

impl Refusal {
    /// Returns whether the user may not do it. Of `EXEC` the server says it in other words than of other commands.
    pub(super) fn is_denied(&self) -> bool {
        self.code == "NOPERM" || self.words.contains("has no permissions")
    }

    /// Returns whether the server does not have the command.
    pub(super) fn is_unknown(&self) -> bool {
        self.words.contains("unknown command") || self.words.contains("nknown subcommand")
    }
}

impl From<RedisError> for Refusal {
    fn from(error: RedisError) -> Self {
        let words = error.detail().map_or_else(|| error.to_string(), str::to_owned);
        Self { code: error.code().unwrap_or_default().to_owned(), words }
    }
}

impl Link {
    pub(super) async fn open(access: &Access) -> Result<Self, Refusal> {
        let opened = timeout(access.limit, open(access)).await;
        opened.unwrap_or_else(|_| Err(RedisError::from(late(access.limit)))).map_err(Refusal::from)
    }

    /// Sends a command and returns the reply.
    pub(super) async fn ask(&mut self, command: &[&str]) -> Result<Value, Refusal> {
        let mut cmd = Cmd::new();
        cmd.arg(command);
        let reply = self.0.send_packed_command(&cmd).await.and_then(Value::extract_error)?;
        Ok(reply)
    }

    /// Sends a command and returns the text of the reply.
    pub(super) async fn text(&mut self, command: &[&str]) -> Result<String, Refusal> {
        redis::from_redis_value(self.ask(command).await?).map_err(|error| RedisError::from(error).into())
    }
}

async fn open(access: &Access) -> Result<Link, RedisError> {
    match access.info.addr() {
        ConnectionAddr::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            if access.is_encrypted {
                begin(access, encrypt(stream, host).await?).await
            } else {
                begin(access, stream).await
            }
        }
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => begin(access, tokio::net::UnixStream::connect(path).await?).await,
        _ => Err(io::Error::from(io::ErrorKind::Unsupported).into()),
    }
}

/// Logs in.
async fn begin<S>(access: &Access, stream: S) -> Result<Link, RedisError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(access.limit));
    let (connection, driver) =
        MultiplexedConnection::new_with_config(access.info.redis_settings(), stream, config).await?;
    // It ends when the connection is dropped.
    drop(tokio::spawn(driver));
    Ok(Link(connection))
}

#[cfg(feature = "tls")]
async fn encrypt(stream: TcpStream, host: &str) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
    use std::sync::Arc;

    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = rustls::pki_types::ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// The library has refused such a URL before.
#[cfg(not(feature = "tls"))]
fn encrypt(_: TcpStream, _: &str) -> std::future::Ready<io::Result<TcpStream>> {
    std::future::ready(Err(io::ErrorKind::Unsupported.into()))
}

fn late(limit: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {}", humantime::format_duration(limit)))
}
