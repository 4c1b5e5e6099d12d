//! How the bytes travel: TCP, TLS over it, or a socket in the file system.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::future::select_ok;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::Semaphore,
    task::spawn_blocking,
};

/// Where a server listens.
#[derive(Clone)]
pub(super) enum Place {
    Tcp {
        host: String,
        port: u16,
    },
    #[cfg_attr(not(unix), expect(dead_code, reason = "there are no such sockets here"))]
    Unix(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// An open connection, before anything is said over it.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A stream that pauses after so many reads, so that the task that polls it gets to its other work.
pub(super) struct Paced<S> {
    inner: S,
    reads: u32,
}

impl<S> Paced<S> {
    pub(super) fn new(inner: S) -> Self {
        Self { inner, reads: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.reads == READS {
            self.reads = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let read = Pin::new(&mut self.inner).poll_read(cx, buf);
        self.reads = if read.is_ready() { self.reads + 1 } else { 0 };
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// How many reads come before a pause: a small part of the work that tokio lets a task do at once.
const READS: u32 = 16;

/// Looks names up on the runtime's threads for blocking work, a few at a time.
///
/// The system's resolver cannot be interrupted, and keeps its thread for up to half a minute when no name server
/// answers. So a lookup counts until the resolver has returned, even if nobody waits for it any longer; otherwise the
/// attempts to connect would fill all of the runtime's threads, and stop the application's file access.
pub(super) struct Resolver {
    free: Arc<Semaphore>,
}

impl Resolver {
    pub(super) fn new(most: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(most)) }
    }

    pub(super) async fn addresses(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let host = host.to_owned();
        let look_up = move || Ok((host.as_str(), port).to_socket_addrs()?.collect::<Vec<_>>());
        let addresses = self.look_up(look_up).await?;
        if addresses.is_empty() { Err(io::Error::other("the name has no address")) } else { Ok(addresses) }
    }

    async fn look_up<T: Send + 'static>(
        &self,
        resolve: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let place = Arc::clone(&self.free).acquire_owned().await.map_err(io::Error::other)?;
        let resolve = move || {
            let resolved = resolve();
            drop(place);
            resolved
        };
        spawn_blocking(resolve).await.map_err(io::Error::other)?
    }
}

/// Connects to whichever of the addresses answers first.
pub(super) async fn tcp(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let (stream, _) = select_ok(addresses.into_iter().map(|address| Box::pin(TcpStream::connect(address)))).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Begins TLS, with the certificates that the platform trusts at this moment.
#[cfg(feature = "tls")]
pub(super) async fn encrypted(stream: TcpStream, host: &str) -> io::Result<Box<dyn Stream>> {
    use rustls::{ClientConfig, RootCertStore, crypto, pki_types::ServerName};

    let mut found = rustls_native_certs::load_native_certs();
    if let Some(error) = found.errors.pop() {
        return Err(io::Error::other(error));
    }
    let mut roots = RootCertStore::empty();
    for certificate in found.certs {
        roots.add(certificate).map_err(io::Error::other)?;
    }
    // The provider that the application has installed, if any; none is installed here, since that is for the
    // application to do, and can be done only once in a process.
    let provider = crypto::CryptoProvider::get_default().cloned();
    let provider = provider.unwrap_or_else(|| Arc::new(crypto::ring::default_provider()));
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    Ok(Box::new(tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await?))
}

#[cfg(not(feature = "tls"))]
pub(super) async fn encrypted(_stream: TcpStream, _host: &str) -> io::Result<Box<dyn Stream>> {
    std::future::ready(Err(io::Error::other("the feature `tls` of lock-core is off"))).await
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            atomic::{AtomicUsize, Ordering},
            mpsc,
        },
        time::Duration,
    };

    use super::*;

    #[tokio::test]
    async fn lookups_that_hang_are_bounded_although_nobody_waits_for_them_any_longer() {
        let resolver = Resolver::new(2);
        let asked = Arc::new(AtomicUsize::new(0));
        let (answer, hangs) = mpsc::channel::<()>();
        let hangs = Arc::new(std::sync::Mutex::new(hangs));
        let hang = || {
            let (asked, hangs) = (Arc::clone(&asked), Arc::clone(&hangs));
            move || {
                asked.fetch_add(1, Ordering::SeqCst);
                let _ = hangs.lock().unwrap().recv();
                Ok(())
            }
        };
        for _ in 0..6 {
            let waited = tokio::time::timeout(Duration::from_millis(20), resolver.look_up(hang())).await;
            assert!(waited.is_err(), "no name server answers");
        }
        assert!(asked.load(Ordering::SeqCst) <= 2, "{asked:?} threads hang");
        drop(answer);
        resolver.look_up(|| Ok(())).await.expect("the resolver answers again");
    }

    #[tokio::test]
    async fn addresses_are_not_looked_up() {
        let resolver = Resolver::new(0);
        for (host, port) in [("127.0.0.1", 1), ("::1", 2)] {
            let addresses = resolver.addresses(host, port).await.expect("an address");
            assert_eq!(addresses, [SocketAddr::new(host.parse().unwrap(), port)]);
        }
    }
}
