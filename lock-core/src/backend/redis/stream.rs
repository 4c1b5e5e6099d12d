//! How the bytes travel: TCP, TLS over it, or a socket in the file system.

use std::{
    fmt, io, mem,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::select_ok;
use redis::io::tcp::{
    TcpSettings,
    socket2::{SockRef, TcpKeepalive},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::Semaphore,
    task::spawn_blocking,
};

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl fmt::Display for Address {
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

/// Looks names up on the runtime's threads for blocking work, a few at a time.
///
/// The system's resolver cannot be interrupted, and keeps its thread for up to half a minute when no name server
/// answers. So a lookup counts until the resolver has returned, even if no attempt waits for it; otherwise the
/// attempts to connect would fill all of the runtime's threads, and stop the application's file access.
pub(super) struct Resolver {
    free: Arc<Semaphore>,
    replicas: Mutex<Replicas>,
}

/// Which addresses of a name lead to replicas.
#[derive(Default)]
struct Replicas {
    /// Those that the next stream does not lead to if there are others.
    avoided: Vec<SocketAddr>,
    /// What is avoided if the latest stream has led to a replica, too.
    reached: Vec<SocketAddr>,
}

impl Resolver {
    pub(super) fn new(most: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(most)), replicas: Mutex::default() }
    }

    /// Connects to whichever of the addresses answers first. Those that led to a replica the last time come last.
    pub(super) async fn tcp(&self, addresses: Vec<SocketAddr>, settings: &TcpSettings) -> io::Result<TcpStream> {
        // Once: if the others cannot be reached, one of these may be the primary by then.
        let mut avoided = mem::take(&mut self.replicas().avoided);
        let (others, replicas): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|other| !avoided.contains(other));
        if others.is_empty() {
            avoided.clear();
        }
        let stream = tcp(if others.is_empty() { replicas } else { others }, settings).await?;
        avoided.extend(stream.peer_addr());
        self.replicas().reached = avoided;
        Ok(stream)
    }

    /// Records that the latest stream leads to a replica.
    pub(super) fn note_replica(&self) {
        let mut replicas = self.replicas();
        replicas.avoided = mem::take(&mut replicas.reached);
    }

    fn replicas(&self) -> MutexGuard<'_, Replicas> {
        self.replicas.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Looks something up that blocks.
    pub(super) async fn look_up<T: Send + 'static>(
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
async fn tcp(addresses: Vec<SocketAddr>, settings: &TcpSettings) -> io::Result<TcpStream> {
    let (stream, _) = select_ok(addresses.into_iter().map(|address| Box::pin(TcpStream::connect(address)))).await?;
    stream.set_nodelay(settings.nodelay())?;
    set_timeouts(&stream, settings)?;
    Ok(stream)
}

/// Completes what a client says of TCP by our defaults. `limit` is that of a command.
///
/// Silence is noticed by the heartbeat and by the limits of commands, and these come first; but both need a runtime that
/// runs, and end with the use of the connection. The system's own timeouts bound what comes after:
///
/// * What was sent over a connection that was given up stays with the system, which sends it again for a quarter of an
///   hour. When the network is whole again, requests of long ago would be executed. TCP_USER_TIMEOUT bounds that age. It
///   is not shorter than the limit of a command: no command that is still waited for is ended by it.
/// * While the process stands still (SIGSTOP, a debugger, blocked threads), it sends no heartbeat, and a firewall or a NAT would
///   drop the connection. The system sends keepalive all the same.
pub(super) fn tcp_settings(given: &TcpSettings, limit: Duration) -> TcpSettings {
    let usual = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY);
    let keepalive = given.keepalive().cloned().unwrap_or(usual);
    // Small requests are waited for. A socket that lingers would hold up renewals while it is closed.
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(given.user_timeout().unwrap_or_else(|| limit.max(LEAST_USER_TIMEOUT)));
    #[cfg(not(any(target_os = "android", target_os = "fuchsia", target_os = "linux")))]
    let _ = limit;
    settings
}

fn set_timeouts(stream: &TcpStream, settings: &TcpSettings) -> io::Result<()> {
    let socket = SockRef::from(stream);
    if let Some(keepalive) = settings.keepalive() {
        socket.set_tcp_keepalive(keepalive)?;
    }
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    socket.set_tcp_user_timeout(settings.user_timeout())?;
    Ok(())
}

/// After how long a silence the system asks whether the other end is there.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(15);
/// How often it asks then.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
/// The shortest time that sent bytes may stay without an acknowledgement.
#[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
const LEAST_USER_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    };

    use tokio::net::TcpListener;

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

    #[tokio::test]
    async fn an_address_that_led_to_a_replica_is_avoided_once_if_there_are_others() {
        let listeners = [(); 3].map(|()| std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free"));
        let mut addresses = listeners.each_ref().map(|listener| listener.local_addr().expect("it is bound")).to_vec();
        let resolver = Resolver::new(0);
        let settings = TcpSettings::default();
        let reached = async |addresses: &[SocketAddr]| {
            resolver.tcp(addresses.to_vec(), &settings).await.and_then(|stream| stream.peer_addr())
        };
        for _ in 0..2 {
            let mut all = Vec::new();
            for _ in 0..3 {
                all.push(reached(&addresses).await.expect("it listens"));
                resolver.note_replica();
            }
            all.sort_unstable();
            addresses.sort_unstable();
            assert_eq!(all, addresses, "each of them once");
        }
        let only = [reached(&addresses[..1]).await.expect("it listens"), SocketAddr::from(([127, 0, 0, 1], 1))];
        resolver.note_replica();
        reached(&only).await.expect_err("nothing listens at the other one");
        assert_eq!(reached(&only).await.expect("it listens"), only[0], "it may be the primary by now");
    }

    /// A connection to a listener of this process, with the options of a client.
    async fn connected(given: &TcpSettings, limit: Duration) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        tcp(vec![address], &tcp_settings(given, limit)).await.expect("it listens")
    }

    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn a_socket_has_timeouts_of_its_own_that_end_no_command_that_is_waited_for() {
        let stream = connected(&TcpSettings::default(), Duration::from_secs(1)).await;
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().expect("it can be read") && stream.nodelay().expect("it can be read"));
        assert_eq!(socket.tcp_keepalive_time().expect("it can be read"), KEEPALIVE_AFTER);
        assert_eq!(socket.tcp_keepalive_interval().expect("it can be read"), KEEPALIVE_EVERY);
        assert_eq!(socket.tcp_user_timeout().expect("it can be read"), Some(LEAST_USER_TIMEOUT));
        let minute = Duration::from_secs(60);
        let patient = connected(&TcpSettings::default(), minute).await;
        assert_eq!(SockRef::from(&patient).tcp_user_timeout().expect("it can be read"), Some(minute));
    }

    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn the_timeouts_of_a_client_are_kept_and_its_linger_is_not() {
        let second = Duration::from_secs(1);
        let given = TcpSettings::default()
            .set_keepalive(TcpKeepalive::new().with_time(40 * second).with_interval(7 * second))
            .set_user_timeout(3 * second)
            .set_linger_time(second);
        let stream = connected(&given, second).await;
        let socket = SockRef::from(&stream);
        assert_eq!(socket.tcp_keepalive_time().expect("it can be read"), 40 * second);
        assert_eq!(socket.tcp_keepalive_interval().expect("it can be read"), 7 * second);
        assert_eq!(socket.tcp_user_timeout().expect("it can be read"), Some(3 * second));
        assert_eq!(socket.linger().expect("it can be read"), None);
    }
}
