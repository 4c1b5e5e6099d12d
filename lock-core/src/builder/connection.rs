//! Which server the manager connects to, as which user, how the connection is encrypted, and how long that may take.

use std::time::Duration;

use super::LockManagerBuilder;
#[cfg(feature = "redis")]
use crate::backend::url::Source;

impl LockManagerBuilder {
    /// Sets the backend to the server of a client that the service has already.
    ///
    /// Address, TLS, user, password, database, the name of the library, TCP keepalive and `TCP_USER_TIMEOUT` are those
    /// of the client. The connection itself is the manager's own, and is not shared with the client. Other users of a
    /// connection delay its answers: a `BLPOP` or a `WAIT` blocks it, and a reply of 100 MB has to pass before the next
    /// one. A renewal that waits behind them comes too late, and the lease is lost. Besides, the lock relies on the order
    /// of its requests on one connection, subscribes to a channel of its own there, and closes the connection when it
    /// falls silent.
    ///
    /// The certificates that a client trusts cannot be read from it. A client with certificates of its own, or one that takes any
    /// certificate (`insecure`), needs a configuration in `tls`. A client whose TLS is that of the
    /// `native-tls` crate is connected to by rustls.
    ///
    /// The protocol is RESP3, or RESP2 if the server refuses that; RESP2 in a client does not count, as it is the default
    /// there. For a proxy that needs RESP2 use a [`url`](Self::url) with `?protocol=resp2`. `TCP_NODELAY` is always on,
    /// and the linger time is not used.
    ///
    /// The client is of the `redis` crate 1.x, which is also [`lock_core::redis`](crate::redis). A service that sends commands
    /// of its own depends on the crate itself, with the features for that (`tokio-comp`): this library uses none of them. For a pool or a `ConnectionManager`, give the client
    /// that they were made from, or the [`connection_info`](Self::connection_info).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_core::{LockManager, redis};
    ///
    /// let client = redis::Client::open("redis://user:password@127.0.0.1/3")?;
    /// let manager = LockManager::builder().client(&client).build()?;
    /// # let _ = manager; Ok(()) }
    /// ```
    #[cfg(feature = "redis")]
    pub fn client(self, client: &redis::Client) -> Self {
        self.connection_info(client.get_connection_info().clone())
    }

    /// Sets the backend to the server of a [`ConnectionInfo`](redis::ConnectionInfo) of the `redis` crate; see
    /// [`client`](Self::client) for what counts of it.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_core::{LockManager, redis::IntoConnectionInfo};
    ///
    /// let info = ("127.0.0.1", 6379).into_connection_info()?;
    /// let manager = LockManager::builder().connection_info(info).build()?;
    /// # let _ = manager; Ok(()) }
    /// ```
    #[cfg(feature = "redis")]
    pub fn connection_info(mut self, info: redis::ConnectionInfo) -> Self {
        self.sources.push(Source::Client(Box::new(info)));
        self
    }
}

sets! { LockManagerBuilder =>
    /// Sets the user, instead of the one in the URL. Default: that of the URL, and else the server's default user.
    ///
    /// A user needs a [`password`](Self::password). `memory://` ignores both.
    pub username(username: impl Into<String>) => connect.username = Some(username.into());

    /// Sets the password, instead of the one in the URL. Default: that of the URL.
    ///
    /// The password is written as it is, without percent-encoding. It is not shown in `Debug`, errors or logs.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), lock_core::BuildError> {
    /// # #[cfg(feature = "redis")] {
    /// use lock_core::LockManager;
    ///
    /// # let secret = "p@ss/word";
    /// let builder = LockManager::builder().url("redis://127.0.0.1").username("shop").password(secret).database(3);
    /// assert!(!format!("{builder:?}").contains(secret));
    /// let manager = builder.build()?;
    /// # let _ = manager; }
    /// # Ok(()) }
    /// ```
    pub password(password: impl Into<String>) => connect.password = Some(password.into());

    /// Sets the user of the sentinels, which is not that of the servers. Default: the `sentinel_user` of the URL, and else
    /// their default user.
    ///
    /// It needs a [`sentinel_password`](Self::sentinel_password), and replaces a `sentinel_user` of the URL. Servers without
    /// sentinels are refused. `memory://` ignores it.
    pub sentinel_username(username: impl Into<String>) => connect.sentinel_username = Some(username.into());

    /// Sets the password of the sentinels, which is not that of the servers. Default: the `sentinel_pass` of the URL.
    ///
    /// The password is written as it is, without percent-encoding. It is not shown in `Debug`, errors or logs. It replaces a
    /// `sentinel_pass` of the URL. Servers without sentinels are refused. `memory://` ignores it.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), lock_core::BuildError> {
    /// # #[cfg(feature = "redis")] {
    /// use lock_core::LockManager;
    ///
    /// # let (secret, other_secret) = ("p@ss/word", "w@rd");
    /// let builder = LockManager::builder().url("redis+sentinel://10.0.0.1,10.0.0.2,10.0.0.3/shop").password(secret);
    /// let manager = builder.sentinel_password(other_secret).build()?;
    /// # let _ = manager; }
    /// # Ok(()) }
    /// ```
    pub sentinel_password(password: impl Into<String>) => connect.sentinel_password = Some(password.into());

    /// Sets the number of the database. Default: that of the URL, and else 0.
    ///
    /// A URL that names another database is refused. `memory://` has no databases, and ignores the number.
    pub database(database: u32) => connect.database = Some(database);

    /// Sets how connections are encrypted: roots, certificate of the client, versions, and provider of cryptography.
    /// Default: the roots of the platform, without a certificate of the client, and the provider that the application
    /// has installed, or else `ring` (feature `tls`).
    ///
    /// The configuration is used as it is, and nothing is installed for the process. It counts for `rediss://` and
    /// `valkeys://` URLs and for clients with TLS; other servers are refused.
    ///
    /// The feature `tls` brings `ring`, and rustls can no longer choose a provider by itself if `aws-lc-rs` is there too.
    /// A service that uses `aws-lc-rs` takes the feature `tls-no-provider` instead, without `ring`.
    ///
    /// # Examples
    ///
    /// An authority of one's own, and a certificate of the client, from PEM files:
    ///
    /// ```no_run
    /// # #[cfg(feature = "tls")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_core::{
    ///     LockManager,
    ///     rustls::{
    ///         ClientConfig, RootCertStore,
    ///         crypto::ring,
    ///         pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    ///     },
    /// };
    /// use std::sync::Arc;
    ///
    /// let mut roots = RootCertStore::empty();
    /// roots.add(CertificateDer::from_pem_file("/etc/redis/ca.pem")?)?;
    /// let certificates = CertificateDer::pem_file_iter("/etc/redis/client.pem")?.collect::<Result<Vec<_>, _>>()?;
    /// let key = PrivateKeyDer::from_pem_file("/etc/redis/client-key.pem")?;
    ///
    /// let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
    ///     .with_safe_default_protocol_versions()?
    ///     .with_root_certificates(roots)
    ///     .with_client_auth_cert(certificates, key)?;
    /// let manager = LockManager::builder().url("rediss://redis.example.com").tls(config).build()?;
    /// # let _ = manager; Ok(()) }
    /// # #[cfg(not(feature = "tls"))] fn main() {}
    /// ```
    #[cfg(feature = "tls-no-provider")]
    pub tls(config: impl Into<std::sync::Arc<rustls::ClientConfig>>) => connect.tls = Some(config.into());

    /// Sets a provider of user and password, for passwords that change: tokens of Entra ID or IAM, or a secret that is
    /// rotated. Default: user and password of URL and builder. There must not be both.
    ///
    /// The provider is asked for each connection, and has as long for its first credentials as
    /// [`connect_timeout`](Self::connect_timeout) says. The connection is signed in again with each login that
    /// follows, at most once a second; leases go on meanwhile. If the server refuses them, the connection stays until the server
    /// closes it; the next connection asks the provider again. While a provider fails or does not answer there is no
    /// connection, and requests fail with [`ErrorKind::Backend`](crate::ErrorKind::Backend). Credentials that the server
    /// refuses for a new connection are an error of kind [`ErrorKind::Denied`](crate::ErrorKind::Denied). In both cases
    /// the provider is asked again, after a pause.
    ///
    /// The provider runs in the task of the engine, and must not block. `memory://` ignores it.
    ///
    /// The `redis` crate has a provider for Entra ID (its feature `entra-id`); an own one implements
    /// [`StreamingCredentialsProvider`](redis::StreamingCredentialsProvider).
    ///
    /// # Examples
    ///
    /// A token that is read from a file again every ten minutes:
    ///
    /// ```
    /// # fn main() -> Result<(), lock_core::BuildError> {
    /// use futures_util::{Stream, stream};
    /// use lock_core::{
    ///     LockManager,
    ///     redis::{BasicAuth, RedisResult, StreamingCredentialsProvider},
    /// };
    /// use std::{pin::Pin, time::Duration};
    ///
    /// struct TokenFile;
    ///
    /// impl StreamingCredentialsProvider for TokenFile {
    ///     fn subscribe(&self) -> Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send + 'static>> {
    ///         Box::pin(stream::unfold(true, |is_first| async move {
    ///             if !is_first {
    ///                 tokio::time::sleep(Duration::from_secs(600)).await;
    ///             }
    ///             // A file of this size is read at once.
    ///             let token = std::fs::read_to_string("/run/secrets/redis-token");
    ///             let login = token.map(|token| BasicAuth::new("shop".to_owned(), token.trim().to_owned()));
    ///             Some((login.map_err(Into::into), false))
    ///         }))
    ///     }
    /// }
    ///
    /// let manager = LockManager::builder().url("redis://127.0.0.1").credentials(TokenFile).build()?;
    /// # let _ = manager; Ok(()) }
    /// ```
    #[cfg(feature = "credentials")]
    pub credentials(provider: impl redis::StreamingCredentialsProvider + 'static) => connect.credentials = Some(crate::backend::Provider::of(provider));

    /// Sets how long one request to the backend may take, reconnecting included, before it fails with
    /// [`ErrorKind::Backend`](crate::ErrorKind::Backend). Above zero, at most an hour. Default: 1 s. In-memory backends
    /// answer at once.
    ///
    /// Choose less than the ttl: the time of an acquire is part of its lease. A shorter ttl is warned of, once for
    /// each manager.
    ///
    /// A restart of the server that is shorter than this goes unnoticed. After a longer outage the server is known to be
    /// down, and requests fail at once until it is back.
    pub command_timeout(command_timeout: Duration) => connect.timeouts.command = command_timeout;

    /// Sets how long one attempt to connect may take: the lookup of the name, TCP, TLS, and the handshake of one round
    /// trip (or two, if the server does not know RESP3). Above zero, at most an hour. Default: 5 s.
    ///
    /// No step but the lookup may take longer than [`command_timeout`](Self::command_timeout), or twice that for TLS,
    /// since a server that is slower could not answer a request either.
    pub connect_timeout(connect_timeout: Duration) => connect.timeouts.connect = connect_timeout;

    /// Sets the name of the service, which [`inspect`](crate::LockManager::inspect) and the server's `CLIENT LIST` show: printable
    /// ASCII without spaces. Default: `lock-core`.
    pub client_name(client_name: impl Into<String>) => connect.client_name = client_name.into();
}
