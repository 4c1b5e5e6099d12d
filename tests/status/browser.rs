//! A headless Chromium that a test drives through chromedriver, in the few words of WebDriver that are needed.

use std::{io::ErrorKind, net::TcpStream as BlockingStream, process::Command, time::Duration};

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use lock_tests::{Process, SOON, left_out, within};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;

/// A browser with one window; it is closed on drop.
pub(crate) struct Browser {
    port: u16,
    session: String,
    _driver: Process,
    _profile: TempDir,
}

impl Browser {
    /// Starts a browser, or says that the test is left out as there is none.
    pub(crate) async fn start(test: &str) -> Option<Self> {
        let found = Command::new("chromedriver").arg("--version").output();
        if matches!(&found, Err(error) if error.kind() == ErrorKind::NotFound) {
            // It may be that no package has it.
            left_out(test, "there is no chromedriver", false);
            return None;
        }
        let mut driver = Process::start("chromedriver", ["--port=0"]);
        let port = driver.expect("ChromeDriver was started successfully on port ", SOON).await;
        let port = port.trim_end_matches('.').parse().expect("a port");
        let profile = tempfile::tempdir().expect("a folder can be made");
        let user_data = format!("--user-data-dir={}", profile.path().display());
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            &user_data,
        ];
        let capabilities = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let created = within(STARTED_WITHIN, call(port, Method::POST, "/session", &capabilities)).await;
        let session = created["sessionId"].as_str().expect("a session").to_owned();
        Some(Self { port, session, _driver: driver, _profile: profile })
    }

    pub(crate) async fn open(&self, url: &str) {
        // A page that was clicked on may still be on its way: elements are waited for.
        self.post("/timeouts", json!({ "implicit": 10_000 })).await;
        self.post("/url", json!({ "url": url })).await;
    }

    /// The value of an expression of JavaScript. (The page itself has none, and could not run any.)
    pub(crate) async fn value(&self, expression: &str) -> Value {
        self.post("/execute/sync", json!({ "script": format!("return {expression}"), "args": [] })).await
    }

    /// The text of the first element that a CSS selector finds, as it is seen.
    pub(crate) async fn text(&self, selector: &str) -> String {
        let element = self.element(selector).await;
        let text = self.call(Method::GET, &format!("/element/{element}/text"), &Value::Null).await;
        text.as_str().expect("a text").to_owned()
    }

    pub(crate) async fn click(&self, selector: &str) {
        let element = self.element(selector).await;
        self.post(&format!("/element/{element}/click"), json!({})).await;
    }

    pub(crate) async fn write(&self, selector: &str, text: &str) {
        let element = self.element(selector).await;
        self.post(&format!("/element/{element}/value"), json!({ "text": text })).await;
    }

    /// Shows pages as on a screen of this size in pixels of CSS, twice as sharp.
    pub(crate) async fn screen(&self, width: u32, height: u32, is_phone: bool) {
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": if is_phone { 2 } else { 1 }, "mobile": is_phone });
        self.command("Emulation.setDeviceMetricsOverride", screen).await;
    }

    pub(crate) async fn scheme(&self, scheme: &str) {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.command("Emulation.setEmulatedMedia", features).await;
    }

    /// What the window shows, as a PNG in base64.
    pub(crate) async fn picture(&self) -> String {
        let picture = self.call(Method::GET, "/screenshot", &Value::Null).await;
        picture.as_str().expect("base64").to_owned()
    }

    /// What the browser complained about since it was asked last, such as what a policy forbade.
    pub(crate) async fn complaints(&self) -> Vec<String> {
        let log = self.post("/se/log", json!({ "type": "browser" })).await;
        let entries = log.as_array().expect("a list").iter();
        let said = entries.map(|entry| entry["message"].as_str().expect("a text").to_owned());
        // Every site is asked for its picture, and this one has none.
        said.filter(|message| !message.contains("/favicon.ico")).collect()
    }

    /// A command of Chromium's own protocol.
    async fn command(&self, name: &str, parameters: Value) {
        self.post("/goog/cdp/execute", json!({ "cmd": name, "params": parameters })).await;
    }

    async fn element(&self, selector: &str) -> String {
        let found = self.post("/element", json!({ "using": "css selector", "value": selector })).await;
        let (_, id) = found.as_object().and_then(|found| found.iter().next()).expect("an element");
        id.as_str().expect("a text").to_owned()
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        self.call(Method::POST, path, &body).await
    }

    async fn call(&self, method: Method, path: &str, body: &Value) -> Value {
        within(SOON, call(self.port, method, &format!("/session/{}{path}", self.session), body)).await
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        use std::io::{Read as _, Write as _};
        // The driver is killed, which would leave the browser behind.
        let Ok(mut stream) = BlockingStream::connect(("127.0.0.1", self.port)) else { return };
        let _ = stream.set_read_timeout(Some(SOON));
        let _ = write!(stream, "DELETE /session/{} HTTP/1.1\r\nhost: localhost\r\n\r\n", self.session);
        let _ = stream.read(&mut [0; 1]);
    }
}

/// Sends one request to the driver, and hands out the `value` of its answer.
async fn call(port: u16, method: Method, path: &str, body: &Value) -> Value {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("the driver listens");
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("a connection");
    tokio::spawn(connection);
    let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    let request = Request::builder().method(method).uri(path).header(header::HOST, "localhost");
    let response = sender.send_request(request.body(Full::new(body)).expect("a request")).await.expect("an answer");
    let is_good = response.status().is_success();
    let body = response.into_body().collect().await.expect("a whole answer").to_bytes();
    let mut answer: Value = serde_json::from_slice(&body).expect("JSON");
    assert!(is_good, "{path}: {answer:#}");
    answer["value"].take()
}

/// On a machine that does other things too.
const STARTED_WITHIN: Duration = Duration::from_secs(60);
