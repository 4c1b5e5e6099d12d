use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Body;
use lock_core::{
    __log::Floods,
    Lease, Leases,
    answer::{Answer, Case},
};
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::{
    error::BoxError,
    failure::Replace,
    messages::{self, of_messages},
    protocol::{HoldsBodies, Protocol},
    refusal::Refusal,
    until::BodyLease,
};

/// gRPC requests, of tonic: a refusal is a response with a status code, and the service's errors stay what they are.
///
/// Put the layer into `tonic::transport::Server::builder().layer(..)`, around one service, or around a `Channel` on the
/// client's side. A method of the service gets its [`Lease`] by [`Grpc::lease`].
///
/// Around a whole server, [`methods`](crate::LockLayer#method.methods-1) and [`except`](crate::LockLayer::except) say which calls are locked. Health checks
/// (`grpc.health.v1.Health`) and reflection (`grpc.reflection.*`) pass without a lock unless `methods` names them.
///
/// | code | reason | when |
/// | --- | --- | --- |
/// | `INVALID_ARGUMENT` | `LOCK_KEY` | the key is empty, too long or reserved, or its extractor refused the request |
/// | `ABORTED`, `RetryInfo` | `LOCK_BUSY` | the key is busy, and stayed so if the layer waits; see [`busy_code`](crate::LockLayer::busy_code) |
/// | `RESOURCE_EXHAUSTED`, `RetryInfo` | `LOCK_FULL` | all permits of the key are taken |
/// | `RESOURCE_EXHAUSTED`, `RetryInfo` | `LOCK_OVERLOADED` | too many requests wait |
/// | `UNAVAILABLE`, `RetryInfo` | `LOCK_UNAVAILABLE` | the backend did not answer; too few replicas had the lease; the manager was shut down; one of several leases was lost before the service was called |
/// | `DEADLINE_EXCEEDED` | `LOCK_OUT_OF_TIME` | the caller's own `grpc-timeout` was nearly over before the lease was acquired |
/// | `UNKNOWN` | `LOCK_LOST` | the lease was lost while the service worked: part of the work may have been done |
/// | `INTERNAL` | `LOCK_MISCONFIGURED` | what [`Http`](crate::Http) answers with 500 |
///
/// The details of a status hold a `google.rpc.ErrorInfo` with the reason (domain `lock-core`) and, if nothing was done and
/// the same call may be sent again, a `google.rpc.RetryInfo`. The message says what happened without the key, which is in
/// the log. A busy key is not `UNAVAILABLE`, for the reason that [`Http`](crate::Http) gives: it is not an outage.
///
/// The caller's `grpc-timeout` bounds the wait, which ends 5 % of that time earlier, at most 50 ms, so that the
/// answer arrives in time. The `grpc-timeout` that the service gets is shorter by the time of the wait.
///
/// The lease is released when the method has returned: after the last message of an upload, and *before* the first one
/// of a download. Messages that a method streams after that are under the lock only with
/// [`until_body_end`](crate::LockLayer::until_body_end). Dropping a call cancels it. For a bidirectional stream drop both
/// halves: HTTP/2 keeps the call open while the client can still send.
///
/// **A client that stalls in the middle of its upload keeps the key**, because a method reads its messages under the lock,
/// and the lease is renewed while the method waits. After **five minutes** the method is dropped and the key free;
/// the option [`max_hold`](crate::LockLayer::options) sets another time. A `grpc-timeout` does not bound the hold, since the client chooses it.
///
/// On the client's side, lock other keys than the server does. Otherwise a client holds the key for which its own call waits.
///
/// # Examples
///
/// ```
/// use lock_core::{LeaseOptions, LockManager};
/// use lock_tower::{Grpc, LockLayer, key::{header, scoped}};
/// use std::time::Duration;
/// use tonic::{Request, Response, Status, transport::Server};
///
/// /// A method of a service.
/// async fn charge(request: Request<u64>) -> Result<Response<u64>, Status> {
///     let lease = Grpc::lease(&request)?;
///     // Claim with the token, then read, then write if the claim still stands: see `FencingToken`.
///     Ok(Response::new(lease.fencing_token().get()))
/// }
///
/// // The metadata of a call are headers.
/// let per_account = LockLayer::grpc(LockManager::in_memory(), scoped("account", header::<String>("x-account")))
///     .except(["/bank.Accounts/Watch"])
///     .options(LeaseOptions::new().wait(Duration::from_secs(2)).max_hold(Duration::from_secs(60)));
/// let server = Server::builder().layer(per_account); // and .add_service(..)
/// # let _ = (server, charge);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Grpc {
    methods: Methods,
    busy: Option<Code>,
    answer: Replace<Status>,
    floods: Arc<Floods>,
}

/// Which calls are locked.
#[derive(Clone, Debug, Default)]
struct Methods {
    /// The names that are locked; `None` for all but health checks and reflection.
    only: Option<Arc<[&'static str]>>,
    /// The names that are never locked.
    except: Arc<[&'static str]>,
    /// The names that share their key.
    shared: Arc<[&'static str]>,
}

impl Methods {
    fn lock(&self, path: &str) -> bool {
        let path = called(path);
        if cover(&self.except, path) {
            return false;
        }
        if self.share(path) {
            return true;
        }
        match &self.only {
            Some(names) => cover(names, path),
            None => !path.starts_with("/grpc.health.v1.Health/") && !path.starts_with("/grpc.reflection."),
        }
    }

    fn share(&self, path: &str) -> bool {
        cover(&self.shared, called(path))
    }
}

/// The service and the method of a call: the end of its path. A gateway or a nested router puts a prefix before them, under which no
/// method may pass without its lock.
fn called(path: &str) -> &str {
    let method = path.rfind('/').unwrap_or(0);
    &path[path[..method].rfind('/').unwrap_or(0)..]
}

/// Whether a call is to one of some methods, as `/shop.Goods/Sell`, or to any of a service, as `shop.Goods`.
fn cover(names: &[&str], path: &str) -> bool {
    names.iter().any(|name| {
        if name.starts_with('/') {
            return path == *name;
        }
        path.strip_prefix('/').and_then(|path| path.strip_prefix(name)).is_some_and(|rest| rest.starts_with('/'))
    })
}

/// Whether a name can be that of a method or of a service.
fn is_name(name: &str) -> bool {
    let is_word = |word: &str| {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.')
    };
    match name.strip_prefix('/') {
        Some(path) => path.split_once('/').is_some_and(|(service, method)| is_word(service) && is_word(method)),
        None => is_word(name),
    }
}

impl Grpc {
    /// Returns the lease that a call is served under, for a method of the service. Of several layers, it is that of the
    /// innermost.
    ///
    /// # Errors
    /// `INTERNAL` when there is none: no layer stands around the service, or the innermost let the call through without a lock. The
    /// log says what to change. If calls may pass without a lock, ask `request.extensions().get::<Lease>()` instead.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_tower::Grpc;
    /// use tonic::{Request, Response, Status};
    ///
    /// async fn charge(request: Request<u64>) -> Result<Response<u64>, Status> {
    ///     let lease = Grpc::lease(&request)?;
    ///     Ok(Response::new(lease.fencing_token().get()))
    /// }
    /// # let _ = charge;
    /// ```
    pub fn lease<T>(request: &tonic::Request<T>) -> Result<Lease, Status> {
        request.extensions().get().cloned().ok_or_else(Self::not_locked)
    }

    /// Returns the leases of a call whose layer has [several keys](crate::key#several-keys). For the rest it is as
    /// [`lease`](Self::lease), which it includes.
    ///
    /// # Errors
    /// As [`lease`](Self::lease).
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_tower::Grpc;
    /// use tonic::{Request, Response, Status};
    ///
    /// async fn transfer(request: Request<u64>) -> Result<Response<Vec<u64>>, Status> {
    ///     let leases = Grpc::leases(&request)?;
    ///     // Each account is claimed with the token of its own key: tokens of different keys do not compare.
    ///     Ok(Response::new(leases.iter().map(|lease| lease.fencing_token().get()).collect()))
    /// }
    /// # let _ = transfer;
    /// ```
    pub fn leases<T>(request: &tonic::Request<T>) -> Result<Leases, Status> {
        messages::leases(request.extensions()).ok_or_else(Self::not_locked)
    }

    fn not_locked() -> Status {
        tracing::error!(
            "a method asked for the lease of a call that has none; put a `LockLayer` around the service that locks this \
             method, ask for `Grpc::leases` if it has several keys, or read the extensions of the request if calls may pass \
             without a lock"
        );
        Answer::new(Case::Misconfigured).into()
    }

    pub(crate) fn methods(mut self, names: impl IntoIterator<Item = &'static str>) -> Self {
        self.methods.only = Some(names.into_iter().collect());
        self
    }

    pub(crate) fn except(mut self, names: impl IntoIterator<Item = &'static str>) -> Self {
        self.methods.except = names.into_iter().collect();
        self
    }

    /// Returns the first name that cannot be that of a method or service.
    pub(crate) fn misnamed(&self) -> Option<&'static str> {
        let Methods { only, except, shared } = &self.methods;
        only.iter().chain([except, shared]).flat_map(|names| names.iter().copied()).find(|name| !is_name(name))
    }

    pub(crate) fn locks_nothing(&self) -> bool {
        self.methods.only.as_ref().is_some_and(|names| names.is_empty())
    }

    pub(crate) fn busy_code(mut self, code: Code) -> Self {
        self.busy = Some(code);
        self
    }

    pub(crate) fn shared_for(mut self, names: impl IntoIterator<Item = &'static str>) -> Self {
        self.methods.shared = names.into_iter().collect();
        self
    }

    pub(crate) fn shares_some(&self) -> bool {
        !self.methods.shared.is_empty()
    }

    pub(crate) fn answer<F>(mut self, answer: F) -> Self
    where
        F: Fn(&Refusal, Status) -> Status + Send + Sync + 'static,
    {
        self.answer = Replace::with(answer);
        self
    }
}

impl<ReqBody, ResBody: Body, Err> Protocol<Request<ReqBody>, Response<ResBody>, Err> for Grpc {
    of_messages!();

    fn refuse(&self, refusal: Refusal) -> Result<Self::Response, Err> {
        let mut status = Status::from(Answer::from(&refusal));
        if let Some(busy) = self.busy.filter(|busy| refusal.is_busy() && status.code() != *busy) {
            // The code is in the details as well.
            let details = status.get_error_details();
            status = Status::with_error_details(busy, status.message().to_owned(), details);
        }
        let status = self.answer.give(&refusal, status);
        refusal.log(None, Some(&status.code()), &self.floods);
        Ok(refusal.respond(status.into_http()))
    }

    fn applies(&self, request: &Request<ReqBody>) -> bool {
        self.methods.lock(request.uri().path())
    }

    fn shares(&self, request: &Request<ReqBody>) -> bool {
        self.methods.share(request.uri().path())
    }

    fn time_left(&self, request: &Request<ReqBody>) -> Option<Duration> {
        let left = timeout(request.headers())?;
        Some(left - (left / 20).min(Duration::from_millis(50)))
    }

    fn waited(&self, request: &mut Request<ReqBody>, waited: Duration) {
        if let Some(timeout) = timeout(request.headers()) {
            request.headers_mut().insert("grpc-timeout", in_a_header(timeout.saturating_sub(waited)));
        }
    }

    fn hold(&self, response: Self::Response, hold: BodyLease) -> Self::Response {
        response.map(|body| body.hold(hold, lost))
    }
}

impl HoldsBodies for Grpc {}

/// Ends a stream of messages whose lease was lost.
fn lost(error: lock_core::Error) -> Result<HeaderMap, BoxError> {
    let mut trailers = HeaderMap::new();
    Status::from(Answer::from(&error)).add_header(&mut trailers)?;
    Ok(trailers)
}

/// Reads `grpc-timeout`: up to eight digits and a unit.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// Writes a `grpc-timeout` in the smallest unit that eight digits allow.
fn in_a_header(timeout: Duration) -> HeaderValue {
    let seconds = u128::from(timeout.as_secs());
    let in_units = [
        (timeout.as_nanos(), 'n'),
        (timeout.as_micros(), 'u'),
        (timeout.as_millis(), 'm'),
        (seconds, 'S'),
        (seconds / 60, 'M'),
        (seconds / 3600, 'H'),
    ];
    let written = in_units.into_iter().find(|(number, _)| *number < 100_000_000);
    let (number, unit) = written.unwrap_or((99_999_999, 'H'));
    HeaderValue::try_from(format!("{number}{unit}")).expect("digits and a letter")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_named_by_path_or_service_and_exceptions_go_first() {
        let sell = "/shop.Goods/Sell";
        let locked = |grpc: &Grpc, path: &str| grpc.methods.lock(path);
        let all = Grpc::default();
        assert!(locked(&all, sell) && locked(&all, "/grpc.healthy.Shop/Check"));
        for path in ["/grpc.health.v1.Health/Check", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"] {
            assert!(!locked(&all, path), "{path}");
        }
        let named = Grpc::default().methods([sell, "shop.Orders", "grpc.health.v1.Health"]);
        for (path, is_locked) in [
            (sell, true),
            ("/shop.Goods/SellAll", false),
            ("/shop.Orders/Place", true),
            ("/shop.OrdersArchive/Place", false),
            ("/grpc.health.v1.Health/Check", true),
            ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", false),
            ("/Sell", false),
            ("Sell", false),
            ("", false),
        ] {
            assert_eq!(locked(&named, path), is_locked, "{path}");
            let behind_a_gateway = format!("/api/v1{path}");
            assert_eq!(locked(&named, &behind_a_gateway), is_locked, "{behind_a_gateway}");
            assert!(!locked(&all, "/api/grpc.health.v1.Health/Check"));
        }
        let but = named.except([sell]);
        assert!(!locked(&but, sell) && locked(&but, "/shop.Orders/Place"));
        assert!(!locked(&Grpc::default().except(["shop.Goods"]), sell));
    }

    #[test]
    fn what_cannot_be_a_name_is_found() {
        for fine in ["/shop.Goods/Sell", "/Goods/Sell_1", "shop.Goods", "Goods"] {
            assert_eq!(Grpc::default().methods(["a.B", fine]).misnamed(), None, "{fine}");
        }
        for wrong in
            ["", "/", "/shop.Goods", "shop.Goods/Sell", "/shop.Goods/Sell/", "shop.*", " Goods", "/shop.Goods/"]
        {
            assert_eq!(Grpc::default().methods(["a.B", wrong]).misnamed(), Some(wrong));
            assert_eq!(Grpc::default().except(["a.B", wrong]).misnamed(), Some(wrong));
        }
    }

    #[test]
    fn the_wait_ends_a_twentieth_before_the_caller_s_time_out_and_50_ms_at_most() {
        let left = |text| {
            let request = Request::post("/").header("grpc-timeout", text).body(()).unwrap();
            <Grpc as Protocol<_, Response<String>, ()>>::time_left(&Grpc::default(), &request)
        };
        assert_eq!(left("100m"), Some(Duration::from_millis(95)));
        assert_eq!(left("1S"), Some(Duration::from_millis(950)));
        assert_eq!(left("60S"), Some(Duration::from_millis(59_950)));
        assert_eq!(left("soon"), None);
    }

    #[test]
    fn a_time_out_is_read_in_each_unit_and_ignored_where_it_is_none() {
        let read =
            |text| timeout(&HeaderMap::from_iter([("grpc-timeout".parse().unwrap(), HeaderValue::from_static(text))]));
        assert_eq!(read("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(read("3M"), Some(Duration::from_secs(180)));
        assert_eq!(read("4S"), Some(Duration::from_secs(4)));
        assert_eq!(read("5m"), Some(Duration::from_millis(5)));
        assert_eq!(read("6u"), Some(Duration::from_micros(6)));
        assert_eq!(read("99999999n"), Some(Duration::from_nanos(99_999_999)));
        for written in
            ["0n", "99999999n", "100000u", "99999999u", "100000m", "99999999m", "100000S", "1666667M", "1666667H"]
        {
            let header = in_a_header(read(written).unwrap());
            assert_eq!(header, written);
        }
        assert_eq!(in_a_header(Duration::MAX), "99999999H");
        for wrong in ["", "S", "-1S", "+1S", "1", "123456789S", "1x", "1.5S"] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }
}
