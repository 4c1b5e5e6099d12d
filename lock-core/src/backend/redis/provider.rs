use std::sync::Arc;

#[cfg(feature = "credentials")]
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use redis::RedisResult;

/// A user and a password.
pub(super) struct Login {
    pub(super) username: String,
    pub(super) password: String,
}

/// The credentials of one connection, as they follow one another.
pub(super) type Logins = BoxStream<'static, RedisResult<Login>>;

/// The source of credentials, shared by all connections of a manager.
#[derive(Clone)]
pub(crate) struct Provider(pub(super) Arc<dyn Fn() -> Logins + Send + Sync>);

impl Provider {
    #[cfg(feature = "credentials")]
    pub(crate) fn of(provider: impl redis::StreamingCredentialsProvider + 'static) -> Self {
        let login =
            |auth: redis::BasicAuth| Login { username: auth.username().into(), password: auth.password().into() };
        Self(Arc::new(move || provider.subscribe().map(move |auth| auth.map(login)).boxed()))
    }
}

shows!(Provider);
