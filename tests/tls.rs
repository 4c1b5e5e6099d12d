//! `rediss://`, on a redis-server that speaks TLS.

use std::{fs, time::Duration};

use lock_core::{ErrorKind, LockManager};
use lock_tests::{Process, RedisServer, free_port};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio::time::Instant;

/// A server that listens in plain on its port and in TLS on another, with a certificate of its own.
struct TlsServer {
    server: RedisServer,
    folder: tempfile::TempDir,
    tls_port: u16,
}

impl TlsServer {
    async fn start() -> Self {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate can be made");
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = |name: &str| folder.path().join(name).display().to_string();
        fs::write(path("certificate.pem"), cert.pem()).expect("a file can be written");
        fs::write(path("key.pem"), signing_key.serialize_pem()).expect("a file can be written");
        let tls_port = free_port();
        let server = RedisServer::builder()
            .option("--tls-port", &tls_port.to_string())
            .option("--tls-cert-file", &path("certificate.pem"))
            .option("--tls-key-file", &path("key.pem"))
            .option("--tls-ca-cert-file", &path("certificate.pem"))
            .option("--tls-auth-clients", "no")
            .start()
            .await;
        Self { server, folder, tls_port }
    }

    fn url(&self) -> String {
        format!("rediss://127.0.0.1:{}", self.tls_port)
    }

    fn certificate(&self) -> String {
        self.folder.path().join("certificate.pem").display().to_string()
    }
}

#[tokio::test]
async fn a_server_whose_certificate_the_platform_trusts_is_used() {
    let server = TlsServer::start().await;
    // The platform's certificates are those of this file, for a process of its own.
    let trusted = format!("SSL_CERT_FILE={}", server.certificate());
    let url = server.url();
    let arguments = [&trusted, env!("CARGO_BIN_EXE_lock-role"), "hold", &url, "goods:1", "3000", "0"];
    let mut holder = Process::start("env", arguments);
    holder.expect("held", Duration::from_secs(20)).await;
    assert!(!server.server.call(&["GET", "goods:1"]).await.is_nil());
    holder.send("release").await;
    holder.expect("released", Duration::from_secs(20)).await;
}

#[tokio::test]
async fn bad_input_30_a_certificate_that_is_not_trusted_and_plain_to_a_tls_port_end_within_the_limit() {
    let server = TlsServer::start().await;
    for (url, words) in [(server.url(), "could not be reached"), (server.url().replace("rediss", "redis"), "127.0.0.1")]
    {
        let before = Instant::now();
        let builder = LockManager::builder().url(&url).command_timeout(Duration::from_millis(500));
        let error = builder.connect().await.expect_err("no connection").cause().expect("the URL is sound").clone();
        assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(before.elapsed() < Duration::from_millis(1_500), "{:?}", before.elapsed());
    }
}

/// Which provider a process uses is its own decision, and can be made only once.
#[tokio::test]
async fn no_provider_of_cryptography_is_installed_behind_the_users_back() {
    let server = TlsServer::start().await;
    let builder = LockManager::builder().url(server.url()).command_timeout(Duration::from_millis(500));
    builder.connect().await.expect_err("the certificate is not trusted");
    assert!(rustls::crypto::CryptoProvider::get_default().is_none());
}
