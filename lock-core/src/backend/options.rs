//! The builder's options for connections: those that no URL has, and those that are the same for all servers.

use super::timeouts::Timeouts;

/// The options of every connection that a manager makes.
#[derive(Clone, Default)]
pub(crate) struct ConnectOptions {
    /// The name that a connection shows in the server's `CLIENT LIST`.
    pub(crate) client_name: String,
    pub(crate) timeouts: Timeouts,
    /// The user, instead of the URL's.
    pub(crate) username: Option<String>,
    /// The password, instead of the URL's.
    pub(crate) password: Option<String>,
    /// The user of the sentinels, instead of the URL's.
    pub(crate) sentinel_username: Option<String>,
    /// The password of the sentinels, instead of the URL's.
    pub(crate) sentinel_password: Option<String>,
    /// The database, if the URL names none.
    pub(crate) database: Option<u32>,
    /// How connections are encrypted, instead of with the platform's certificates.
    pub(crate) tls: Option<std::sync::Arc<TlsConfig>>,
    /// The provider of user and password for each connection.
    #[cfg(feature = "redis")]
    pub(crate) credentials: Option<super::Provider>,
}

/// The configuration of rustls; without the feature there is none.
#[cfg(feature = "tls-no-provider")]
pub(crate) type TlsConfig = rustls::ClientConfig;
#[cfg(not(feature = "tls-no-provider"))]
pub(crate) type TlsConfig = std::convert::Infallible;

impl ConnectOptions {
    /// Makes options that leave everything else to the URL.
    pub(crate) fn new(client_name: impl Into<String>, timeouts: Timeouts) -> Self {
        Self { client_name: client_name.into(), timeouts, ..Self::default() }
    }

    /// Returns the options for connections to sentinels, which have their own users and no databases.
    #[cfg(feature = "redis")]
    pub(crate) fn of_sentinels(&self) -> Self {
        Self {
            username: self.sentinel_username.clone(),
            password: self.sentinel_password.clone(),
            database: None,
            credentials: None,
            ..self.clone()
        }
    }

    /// Returns the method of the builder that set what only sentinels can use.
    pub(crate) fn needs_sentinels(&self) -> Option<&'static str> {
        let set = [
            (self.sentinel_username.is_some(), "sentinel_username"),
            (self.sentinel_password.is_some(), "sentinel_password"),
        ];
        set.into_iter().find_map(|(is_set, method)| is_set.then_some(method))
    }

    /// Returns the method of the builder that set what only a connection of the manager's own can use.
    pub(crate) fn needs_a_server(&self) -> Option<&'static str> {
        if self.tls.is_some() {
            return Some("tls");
        }
        #[cfg(feature = "redis")]
        if self.credentials.is_some() {
            return Some("credentials");
        }
        let set = [
            (self.username.is_some(), "username"),
            (self.password.is_some(), "password"),
            (self.database.is_some(), "database"),
        ];
        set.into_iter().find_map(|(is_set, method)| is_set.then_some(method)).or_else(|| self.needs_sentinels())
    }
}

shows!(ConnectOptions);
