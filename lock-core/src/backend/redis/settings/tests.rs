use redis::{Client, ConnectionAddr, IntoConnectionInfo};

use super::*;
use crate::backend::timeouts::Timeouts;

fn options() -> ConnectOptions {
    ConnectOptions::new("shop", Timeouts { command: Duration::from_secs(1), connect: Duration::from_secs(2) })
}

/// User, password and database.
fn login(settings: &Settings) -> (Option<&str>, Option<&str>, i64) {
    let redis = &settings.access.redis;
    (redis.username(), redis.password(), redis.db())
}

fn refusal(settings: Result<Settings, BuildError>) -> String {
    let error = settings.err().expect("refused");
    assert!(!format!("{error} {error:?}").contains("secret"), "no password in an error");
    error.to_string()
}

#[test]
fn what_the_builder_says_completes_a_url_or_comes_before_it() {
    let mut options = options();
    options.username = Some("shop".to_owned());
    options.password = Some("p@ss/secret".to_owned());
    options.database = Some(3);
    let expected = (Some("shop"), Some("p@ss/secret"), 3);
    for url in ["redis://a", "redis://u:x@a/3", "redis://a/", "unix:///run/s", "unix:///run/s?db=3&user=u&pass=x"] {
        let settings = Settings::from_url(url, &options).unwrap_or_else(|error| panic!("{url}: {error}"));
        assert_eq!(login(&settings), expected, "{url}");
    }
    let client = Client::open("redis://u:x@a").expect("a sound URL");
    assert_eq!(login(&Settings::from_client(client.get_connection_info(), &options).expect("sound")), expected);
}

#[test]
fn bad_input_80_two_databases_are_refused() {
    let mut options = options();
    options.database = Some(4);
    for url in ["redis://:secret@a/3", "redis://a/0", "unix:///run/s?db=3&pass=secret", "valkey://a/3/"] {
        let refused = refusal(Settings::from_url(url, &options));
        assert!(refused.contains("and the builder database 4"), "{url}: {refused}");
    }
    let client = Client::open("redis://:secret@a/3").expect("a sound URL");
    let refused = refusal(Settings::from_client(client.get_connection_info(), &options));
    assert!(refused.contains("the client names database 3"), "{refused}");
}

#[test]
fn bad_input_81_a_user_without_a_password_is_refused() {
    let mut named = options();
    named.username = Some("shop".to_owned());
    for (url, options) in [("redis://shop@a", &options()), ("redis://a", &named), ("unix:///s?user=shop", &options())] {
        let refused = refusal(Settings::from_url(url, options));
        assert!(refused.contains("give the password too"), "{url}: {refused}");
    }
    assert!(Settings::from_url("redis://default@a", &options()).is_ok(), "that is the user without one");
}

#[test]
fn a_client_is_taken_with_its_place_user_database_and_timeouts() {
    let keepalive = redis::io::tcp::socket2::TcpKeepalive::new().with_time(Duration::from_secs(77));
    let info = "redis://u:secret@a:7/3".into_connection_info().expect("a sound URL");
    let info = info.set_tcp_settings(TcpSettings::default().set_keepalive(keepalive));
    let redis = info.redis_settings().clone().set_lib_name("shop", "7");
    let settings = Settings::from_client(&info.set_redis_settings(redis), &options()).expect("a sound client");
    assert_eq!(settings.address.to_string(), "a:7");
    assert_eq!(login(&settings), (Some("u"), Some("secret"), 3));
    assert_eq!(settings.access.redis.lib_name(), Some("shop"));
    assert!(!settings.access.resp2, "RESP2 is the default of a client, and chosen by nobody");
    assert!(format!("{:?}", settings.access.tcp).contains("77"), "{:?}", settings.access.tcp);
    assert!(settings.access.tls.is_none());

    let socket = ConnectionAddr::Unix("/run/s".into()).into_connection_info().expect("an address");
    assert_eq!(Settings::from_client(&socket, &options()).expect("a socket").address.to_string(), "/run/s");
    let nowhere = ("a", 0).into_connection_info().expect("an address");
    assert!(refusal(Settings::from_client(&nowhere, &options())).contains("the client is wrong: port 0"));
}

#[cfg(feature = "tls")]
mod with_tls {
    use rustls::{ClientConfig, RootCertStore, crypto::ring};

    use super::*;

    fn config() -> Option<Arc<ClientConfig>> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().expect("the defaults are valid");
        Some(Arc::new(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth()))
    }

    fn client(insecure: bool) -> ConnectionInfo {
        let address = ConnectionAddr::TcpTls { host: "a".to_owned(), port: 7, insecure, tls_params: None };
        address.into_connection_info().expect("an address")
    }

    #[test]
    fn bad_input_82_a_client_that_takes_any_certificate_is_refused_without_a_configuration() {
        let mut options = options();
        let refused = refusal(Settings::from_client(&client(true), &options));
        assert!(refused.contains("insecure") && refused.contains(".tls(..)"), "{refused}");
        assert!(Settings::from_client(&client(false), &options).expect("a sound client").access.tls.is_some());
        options.tls = config();
        assert!(Settings::from_client(&client(true), &options).expect("it has roots now").access.tls.is_some());
    }

    #[test]
    fn bad_input_83_a_configuration_of_tls_for_a_connection_without_is_refused() {
        let mut options = options();
        options.tls = config();
        let refused = refusal(Settings::from_url("redis://:secret@a", &options));
        assert!(refused.contains("write rediss://"), "{refused}");
        let refused = refusal(Settings::from_url("unix:///run/s?pass=secret", &options));
        assert!(refused.contains("leave `tls` out"), "{refused}");
        let plain = ("a", 7).into_connection_info().expect("an address");
        assert!(refusal(Settings::from_client(&plain, &options)).contains("without TLS"));
        for url in ["rediss://a", "valkeys://a"] {
            assert!(Settings::from_url(url, &options).expect("TLS").access.tls.is_some(), "{url}");
        }
    }
}

#[cfg(feature = "credentials")]
#[test]
fn bad_input_84_a_provider_of_credentials_beside_a_password_is_refused() {
    use futures_util::stream::{self, Stream};
    use redis::{BasicAuth, RedisResult, StreamingCredentialsProvider};

    struct Nobody;

    impl StreamingCredentialsProvider for Nobody {
        fn subscribe(&self) -> std::pin::Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send>> {
            Box::pin(stream::pending())
        }
    }

    let mut options = options();
    options.credentials = Some(Provider::of(Nobody));
    for url in ["redis://:secret@a", "redis://u@a", "unix:///run/s?user=u&pass=secret"] {
        let refused = refusal(Settings::from_url(url, &options));
        assert!(refused.contains("give only one"), "{url}: {refused}");
    }
    assert!(Settings::from_url("redis://a", &options).is_ok());
    options.password = Some("secret".to_owned());
    assert!(refusal(Settings::from_url("redis://a", &options)).contains("give only one"));
}
