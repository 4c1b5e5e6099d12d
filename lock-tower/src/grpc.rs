use std::time::Duration;

use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Body;
use lock_core::answer::Answer;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::{
    BoxError,
    failure::Replace,
    messages::of_messages,
    mode::Hold,
    protocol::{HoldsBodies, Protocol},
    refusal::Refusal,
};

/// gRPC requests, of tonic: a refusal is a response with a status code, and the service's errors stay what they are.
///
/// The layer stands in `tonic::transport::Server::builder().layer(..)`, around one service, or around a `Channel` on the
/// client's side. The [`Lease`](lock_core::Lease) is in the extensions of the request: `request.extensions().get::<Lease>()` in a
/// method of the service.
///
/// | code | reason | when |
/// | --- | --- | --- |
/// | `INVALID_ARGUMENT` | `LOCK_KEY` | the key is empty or too long, or its extractor refused the request |
/// | `ABORTED`, `RetryInfo` | `LOCK_BUSY` | the key is busy, and stayed so if the layer waits; see [`busy_code`](Self::busy_code) |
/// | `RESOURCE_EXHAUSTED`, `RetryInfo` | `LOCK_OVERLOADED` | too many requests wait |
/// | `UNAVAILABLE`, `RetryInfo` | `LOCK_UNAVAILABLE` | the backend did not answer; the manager was shut down |
/// | `DEADLINE_EXCEEDED` | `LOCK_OUT_OF_TIME` | the caller's own `grpc-timeout` was nearly over before the lease was acquired |
/// | `ABORTED` | `LOCK_LOST` | the lease was lost while the service worked: part of the work may have been done |
/// | `INTERNAL` | `LOCK_MISCONFIGURED` | what [`Http`](crate::Http) answers with 500 |
///
/// The details of a status hold a `google.rpc.ErrorInfo` with the reason (domain `lock-core`) and, if nothing was done and
/// the same call may be sent again, a `google.rpc.RetryInfo`. The message says what happened without the key, which is in
/// the log. A busy key is not `UNAVAILABLE`, for the reason that [`Http`](crate::Http) gives: it is not an outage.
///
/// The caller's `grpc-timeout` caps the wait: it ends a twentieth of that time earlier, at most 50 ms, so that the
/// answer is there in time. What the wait took is taken off the `grpc-timeout` that goes on to the service.
///
/// The lease is released when the method has returned: after the last message of an upload, and *before* the first one
/// of a download. What a method streams after that, in calls of both ways too, is under the lock with
/// [`until_body_end`](crate::LockLayer::until_body_end) alone. A call is broken off when its client drops it; of a call
/// of both ways the client has to drop both halves, as to HTTP/2 it is there while it can send.
///
/// **A client that stalls in the middle of its upload keeps the key**, because a method reads its messages under the lock,
/// and the lease is renewed while the method waits. A `grpc-timeout` is the client's own choice, so set
/// [`max_hold`](crate::LockLayer::max_hold): it drops the method and frees the key on time. It has no default, as only the
/// service knows how long its work may take.
///
/// On the client's side, lock other keys than the server does: a client would hold what its own call waits for.
///
/// # Examples
///
/// ```
/// use lock_core::{Lease, LockManager};
/// use lock_tower::{LockLayer, key::{header, scoped}};
/// use std::time::Duration;
/// use tonic::{Request, Response, Status, transport::Server};
///
/// /// A method of a service.
/// async fn charge(request: Request<u64>) -> Result<Response<u64>, Status> {
///     let lease = request.extensions().get::<Lease>().ok_or_else(|| Status::internal("there is no lock"))?;
///     Ok(Response::new(lease.fencing_token().get()))
/// }
///
/// // The metadata of a call are headers.
/// let per_account = LockLayer::grpc(LockManager::in_memory(), scoped("account", header("x-account")))
///     .wait(Duration::from_secs(2))
///     .max_hold(Duration::from_secs(60));
/// let server = Server::builder().layer(per_account); // and .add_service(..)
/// # let _ = (server, charge);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Grpc {
    busy: Busy,
    answer: Replace<Status>,
}

/// The code of a busy key.
#[derive(Clone, Copy, Debug)]
struct Busy(Code);

impl Default for Busy {
    fn default() -> Self {
        Self(Code::Aborted)
    }
}

impl Grpc {
    /// Answers a busy key with this code. Default: `ABORTED`. See
    /// [`LockLayer::busy_code`](crate::LockLayer::busy_code), which refuses `OK`.
    #[must_use]
    pub fn busy_code(mut self, code: Code) -> Self {
        self.busy = Busy(code);
        self
    }

    /// Replaces the answers to requests that the lock refuses: the function gets the reason and the status that would
    /// go out, and returns the one that does.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::{LockLayer, key::{header, scoped}};
    /// use tonic::Status;
    ///
    /// let per_account = scoped("account", header("x-account"));
    /// let layer = LockLayer::grpc(LockManager::in_memory(), per_account).answer(|refusal, status| {
    ///     if refusal.is_busy() { Status::already_exists("this account is being charged") } else { status }
    /// });
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn answer<F>(mut self, answer: F) -> Self
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
        if refusal.is_busy() && status.code() != self.busy.0 {
            // The code is in the details as well.
            let details = status.get_error_details();
            status = Status::with_error_details(self.busy.0, status.message().to_owned(), details);
        }
        refusal.log(200);
        let status = self.answer.give(&refusal, status);
        Ok(refusal.respond(status.into_http()))
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

    fn hold(&self, response: Self::Response, hold: Hold) -> Self::Response {
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
