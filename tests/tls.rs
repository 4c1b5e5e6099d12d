//! `rediss://`, on a redis-server that speaks TLS.

use std::{fs, sync::Arc};

use futures_util::future::join_all;
use lock_core::{
    Error, ErrorKind, LockManager, LockManagerBuilder,
    redis::{ConnectionAddr, IntoConnectionInfo},
    rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::PrivateKeyDer},
};
use lock_tests::{LONG, Process, RedisServer, SOON, free_port, ms, speaks_tls, within};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CertifiedKey, DnType, IsCa, KeyPair, date_time_ymd,
    generate_simple_self_signed,
};

use crate::patient;

/// Who issues certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key can be made");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate can be made"))
    }

    /// A certificate for a name, from the first day of a year to that of another.
    fn issue(&self, name: &str, years: (i32, i32)) -> CertifiedKey<KeyPair> {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        (params.not_before, params.not_after) = (date_time_ymd(years.0, 1, 1), date_time_ymd(years.1, 1, 1));
        let signing_key = KeyPair::generate().expect("a key can be made");
        let cert = params.signed_by(&signing_key, &self.0).expect("a certificate can be made");
        CertifiedKey { cert, signing_key }
    }

    /// What trusts this authority alone, with a certificate of the client if there is one.
    fn trusted_by(&self, client: Option<&CertifiedKey<KeyPair>>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).expect("a certificate");
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().expect("the defaults are valid");
        let config = config.with_root_certificates(roots);
        let Some(CertifiedKey { cert, signing_key }) = client else { return config.with_no_client_auth() };
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).expect("a key");
        config.with_client_auth_cert(vec![cert.der().clone()], key).expect("key and certificate fit")
    }
}

/// A server that listens in plain on its port and in TLS on another.
struct TlsServer {
    server: RedisServer,
    folder: tempfile::TempDir,
    tls_port: u16,
}

impl TlsServer {
    /// With a certificate of its own, which it signed itself.
    async fn start() -> Self {
        let own = generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate can be made");
        Self::with(&own, &own.cert.pem(), "no").await
    }

    /// With a certificate of an authority. Clients need one too, unless `clients` is `no`.
    async fn with(own: &CertifiedKey<KeyPair>, authority: &str, clients: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = |name: &str| folder.path().join(name).display().to_string();
        fs::write(path("certificate.pem"), own.cert.pem()).expect("a file can be written");
        fs::write(path("key.pem"), own.signing_key.serialize_pem()).expect("a file can be written");
        fs::write(path("authority.pem"), authority).expect("a file can be written");
        let tls_port = free_port();
        let server = RedisServer::builder()
            .option("--tls-port", &tls_port.to_string())
            .option("--tls-cert-file", &path("certificate.pem"))
            .option("--tls-key-file", &path("key.pem"))
            .option("--tls-ca-cert-file", &path("authority.pem"))
            .option("--tls-auth-clients", clients)
            .start()
            .await;
        Self { server, folder, tls_port }
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.tls_port)
    }

    fn url(&self) -> String {
        format!("rediss://{}", self.address())
    }

    fn certificate(&self) -> String {
        self.folder.path().join("certificate.pem").display().to_string()
    }
}

/// Years in which the tests run.
const VALID: (i32, i32) = (2020, 2090);

/// The error of connecting, which comes at the end of the limit: a busy machine takes a while to try.
async fn cause(builder: LockManagerBuilder) -> Error {
    let error = within(SOON, builder.command_timeout(ms(15_000)).connect()).await.expect_err("no connection");
    let error = error.cause().expect("the URL is sound").clone();
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    error
}

#[tokio::test]
async fn an_authority_of_ones_own_and_a_certificate_of_the_client_are_used() {
    if !speaks_tls("an_authority_of_ones_own_and_a_certificate_of_the_client_are_used") {
        return;
    }
    let authority = Authority::new("shop");
    let server = TlsServer::with(&authority.issue("127.0.0.1", VALID), &authority.0.pem(), "yes").await;
    let config = Arc::new(authority.trusted_by(Some(&authority.issue("client", VALID))));
    for url in [server.url(), server.url().replace("rediss", "valkeys")] {
        let builder = patient::builder().url(url).tls(Arc::clone(&config));
        let manager = builder.connect().await.expect("both trust the authority");
        manager.lock("k").await.expect("the key is free").release().await.expect("held");
    }
    // A client that takes any certificate is given one that it has to trust.
    let (host, port) = ("127.0.0.1".to_owned(), server.tls_port);
    let address = ConnectionAddr::TcpTls { host, port, insecure: true, tls_params: None };
    let info = address.into_connection_info().expect("an address");
    let manager = patient::builder().connection_info(info).tls(config).connect().await.expect("trusted");
    manager.lock("k").await.expect("the key is free").release().await.expect("held");
}

#[tokio::test]
async fn bad_input_85_a_certificate_of_another_authority_or_name_or_time_is_told_as_such() {
    if !speaks_tls("bad_input_85_a_certificate_of_another_authority_or_name_or_time_is_told_as_such") {
        return;
    }
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let (mut causes, mut expected) = (Vec::new(), Vec::new());
    for (own, authority, words) in [
        (theirs.issue("127.0.0.1", VALID), &theirs, "UnknownIssuer"),
        (ours.issue("redis.example", VALID), &ours, "not valid for name \"127.0.0.1\""),
        (ours.issue("127.0.0.1", (2020, 2021)), &ours, "certificate expired"),
        (ours.issue("127.0.0.1", (2089, 2090)), &ours, "certificate not valid yet"),
    ] {
        let server = TlsServer::with(&own, &authority.0.pem(), "no").await;
        causes.push(cause(LockManager::builder().url(server.url()).tls(ours.trusted_by(None))));
        expected.push((words, server));
    }
    for (error, (words, server)) in join_all(causes).await.into_iter().zip(expected) {
        for said in [words, "check its issuer", "that it names 127.0.0.1", "this machine's clock", &server.address()] {
            assert!(error.to_string().contains(said), "{said}: {error}");
        }
    }
}

#[tokio::test]
async fn bad_input_86_a_certificate_of_the_client_that_is_missing_or_not_accepted_is_told_as_such() {
    if !speaks_tls("bad_input_86_a_certificate_of_the_client_that_is_missing_or_not_accepted_is_told_as_such") {
        return;
    }
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let server = TlsServer::with(&ours.issue("127.0.0.1", VALID), &ours.0.pem(), "yes").await;
    let clients = [None, Some(theirs.issue("client", VALID)), Some(ours.issue("client", (2020, 2021)))];
    let configs = clients.each_ref().map(|client| ours.trusted_by(client.as_ref()));
    for error in join_all(configs.map(|config| cause(LockManager::builder().url(server.url()).tls(config)))).await {
        let said = error.to_string();
        assert!(said.contains("certificate of this client") && said.contains(&server.address()), "{error}");
    }
}

#[tokio::test]
async fn a_server_whose_certificate_the_platform_trusts_is_used() {
    if !speaks_tls("a_server_whose_certificate_the_platform_trusts_is_used") {
        return;
    }
    let server = TlsServer::start().await;
    // The platform's certificates are those of this file, for a process of its own. Another one among them cannot be used.
    let file = server.folder.path().join("trusted.pem");
    let unusable = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let usable = std::fs::read_to_string(server.certificate()).expect("a certificate");
    std::fs::write(&file, format!("{unusable}{usable}")).expect("a folder of the server's own");
    let trusted = format!("SSL_CERT_FILE={}", file.display());
    let url = server.url();
    let arguments =
        [&trusted, env!("CARGO_BIN_EXE_lock-role"), "hold", &url, "goods:1", &LONG.as_millis().to_string(), "0"];
    let mut holder = Process::start("env", arguments);
    holder.expect("held", SOON).await;
    assert!(!server.server.call(&["GET", "goods:1"]).await.is_nil());
    holder.send("release").await;
    holder.expect("released", SOON).await;
}

#[tokio::test]
async fn bad_input_30_a_certificate_that_is_not_trusted_and_plain_to_a_tls_port_end_within_the_limit() {
    if !speaks_tls("bad_input_30_a_certificate_that_is_not_trusted_and_plain_to_a_tls_port_end_within_the_limit") {
        return;
    }
    let server = TlsServer::start().await;
    let (untrusted, plain, to_plain) = tokio::join!(
        cause(LockManager::builder().url(server.url())),
        cause(LockManager::builder().url(server.url().replace("rediss", "redis"))),
        cause(LockManager::builder().url(format!("rediss://{}", server.server.address()))),
    );
    assert!(untrusted.to_string().contains("UnknownIssuer"), "{untrusted}");
    assert!(plain.to_string().contains(&server.address()), "{plain}");
    assert!(to_plain.to_string().contains("that this port speaks TLS"), "{to_plain}");
}

/// Which provider a process uses is its own decision, and can be made only once.
#[tokio::test]
async fn no_provider_of_cryptography_is_installed_behind_the_users_back() {
    if !speaks_tls("no_provider_of_cryptography_is_installed_behind_the_users_back") {
        return;
    }
    let server = TlsServer::start().await;
    let builder = LockManager::builder().url(server.url()).command_timeout(ms(3_000));
    builder.connect().await.expect_err("the certificate is not trusted");
    assert!(rustls::crypto::CryptoProvider::get_default().is_none());
}
