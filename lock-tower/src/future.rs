use std::{
    fmt,
    panic::Location,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use lock_core::{Error, ErrorKind};
use pin_project_lite::pin_project;
use tokio::{
    runtime,
    time::{Instant, Sleep},
};
use tower_service::Service;

use crate::{
    acquiring::{Acquiring, Guard},
    admission::Place,
    metrics,
    misconfigured::Misconfigured,
    protocol::Protocol,
    refusal::{OutOfTime, Refusal},
    shared::{Shared, shown},
    until::{BodyLease, Until, UntilResponse},
};

pin_project! {
    /// The future of a response of [`LockService`](crate::LockService): acquires the lease, calls the service, and
    /// releases the lease before it hands out the response.
    ///
    /// # Cancel safety
    /// Dropping it drops the work of the service and releases the lease in the background. Nothing is left behind.
    #[must_use = "a future does nothing unless it is awaited"]
    pub struct ResponseFuture<S, Req, P, U = UntilResponse>
    where
        S: Service<Req>,
        U: Until<S::Future>,
    {
        #[pin]
        state: State<S, Req, U>,
        protocol: P,
        // The layer's name in the log.
        name: &'static str,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, Req, U>
    where
        S: Service<Req>,
        U: Until<S::Future>,
    {
        Acquiring {
            #[pin]
            acquire: Acquiring,
            asked: Asked,
            // Ends the wait when the caller has given up; boxed as hardly any request has one.
            deadline: Option<Pin<Box<Sleep>>>,
            // The instance that was made ready, and what to call it with.
            call: Option<(S, Req)>,
        },
        Working {
            #[pin]
            work: U::Work,
        },
        Unlocked {
            #[pin]
            work: S::Future,
        },
        Refusing {
            refusal: Option<Refusal>,
        },
        Finished,
    }
}

/// The settings and the place of a request that is acquiring.
pub(crate) struct Asked {
    /// Where to count a request that goes through as the backend does not answer, if it may.
    pub(crate) lets_through: Option<Arc<Shared>>,
    /// Its place among the requests that wait, if they are counted.
    pub(crate) place: Option<Place>,
    /// Where its layer was made.
    pub(crate) made_at: &'static Location<'static>,
}

impl<S, Req, P, U> ResponseFuture<S, Req, P, U>
where
    S: Service<Req>,
    U: Until<S::Future>,
{
    pub(crate) fn acquiring(
        acquire: Acquiring,
        asked: Asked,
        ready: S,
        request: Req,
        protocol: P,
        name: &'static str,
    ) -> Self
    where
        P: Protocol<Req, S::Response, S::Error>,
    {
        // Outside a runtime there is no timer, and no lease either.
        let time_left = protocol.time_left(&request).filter(|_| runtime::Handle::try_current().is_ok());
        let deadline = time_left.map(|left| Box::pin(tokio::time::sleep(left)));
        Self { state: State::Acquiring { acquire, asked, deadline, call: Some((ready, request)) }, protocol, name }
    }

    pub(crate) fn unlocked(work: S::Future, protocol: P, name: &'static str) -> Self {
        Self { state: State::Unlocked { work }, protocol, name }
    }

    pub(crate) fn refusing(refusal: Refusal, protocol: P, name: &'static str) -> Self {
        Self { state: State::Refusing { refusal: Some(refusal) }, protocol, name }
    }
}

impl<S, Req, P, U> Future for ResponseFuture<S, Req, P, U>
where
    S: Service<Req>,
    P: Protocol<Req, S::Response, S::Error>,
    U: Until<S::Future>,
{
    type Output = Result<P::Response, P::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let (protocol, name) = (this.protocol, *this.name);
        let (outcome, hold) = loop {
            match this.state.as_mut().project() {
                StateProj::Acquiring { acquire, asked, deadline, call } => {
                    if U::SPAWNS
                        && let Some(error) = Misconfigured::outside_runtime(name, asked.made_at)
                    {
                        this.state.set(State::Refusing { refusal: Some(Refusal::Misconfigured(error)) });
                        continue;
                    }
                    let next = match acquire.poll(cx) {
                        Poll::Ready(acquired) => {
                            // The request no longer waits. Its place is given up before the service is called, since the service may
                            // be this layer again, whose limit must not count both requests.
                            asked.place = None;
                            let call = call.take().expect("a lease is acquired once");
                            asked.acquired(acquired, call, deadline.as_deref(), protocol, name)
                        }
                        Poll::Pending => {
                            let Some(deadline) = deadline else { return Poll::Pending };
                            ready!(deadline.as_mut().poll(cx));
                            State::Refusing { refusal: Some(Refusal::OutOfTime(OutOfTime(()))) }
                        }
                    };
                    this.state.set(next);
                }
                StateProj::Working { work } => match ready!(work.poll(cx)) {
                    Ok(done) => break done,
                    Err(error) => this.state.set(State::Refusing { refusal: Some(Refusal::Lost(error)) }),
                },
                StateProj::Unlocked { work } => break (ready!(work.poll(cx)), None),
                StateProj::Refusing { refusal } => {
                    let refusal = refusal.take().expect("a request is refused once");
                    this.state.set(State::Finished);
                    return Poll::Ready(refuse(protocol, name, refusal));
                }
                StateProj::Finished => panic!("`ResponseFuture` polled after completion"),
            }
        };
        this.state.set(State::Finished);
        Poll::Ready(match (outcome, hold) {
            (Ok(response), Some(hold)) => Ok(protocol.hold(protocol.done(response), hold)),
            (Ok(response), None) => Ok(protocol.done(response)),
            (Err(error), hold) => {
                // Not dropped: with `at_least` the key stays busy, whatever was answered.
                hold.into_iter().for_each(BodyLease::release);
                Err(protocol.fail(error))
            }
        })
    }
}

impl Asked {
    /// Calls the service, under the lease or because the request may go through without one, or refuses the request.
    fn acquired<S, Req, P, U>(
        &self,
        acquired: Result<Guard, Error>,
        (mut service, mut request): (S, Req),
        deadline: Option<&Sleep>,
        protocol: &P,
        name: &'static str,
    ) -> State<S, Req, U>
    where
        S: Service<Req>,
        P: Protocol<Req, S::Response, S::Error>,
        U: Until<S::Future>,
    {
        let guard = match (acquired, &self.lets_through) {
            (Ok(guard), _) => Some(guard),
            (Err(error), Some(shared)) if error.kind() == ErrorKind::Backend => {
                shared.let_through(&error, name);
                metrics::let_through(name);
                None
            }
            (Err(error), _) => return State::Refusing { refusal: Some(Refusal::NotAcquired(error)) },
        };
        tell_waited(protocol, &mut request, deadline);
        let Some(guard) = guard else {
            protocol.pass(&mut request);
            return State::Unlocked { work: service.call(request) };
        };
        guard.attach(protocol, &mut request);
        // The guard is a local until the work is there: a panic of `call` releases it.
        let work = service.call(request);
        State::Working { work: U::work(guard, work) }
    }
}

/// Counts a refusal, and answers it in the protocol of the layer.
pub(crate) fn refuse<Req, Res, Err, P>(
    protocol: &P,
    name: &'static str,
    refusal: Refusal,
) -> Result<P::Response, P::Error>
where
    P: Protocol<Req, Res, Err>,
{
    metrics::refused(name, &refusal);
    // The span gives the protocol's log line the name of the layer.
    let span = tracing::error_span!("lock.refuse", lock = shown(name));
    span.in_scope(|| protocol.refuse(refusal))
}

/// Writes into a request whose caller has a time limit how long the request waited for its lease.
fn tell_waited<Req, Res, Err>(protocol: &impl Protocol<Req, Res, Err>, request: &mut Req, deadline: Option<&Sleep>) {
    let (Some(deadline), Some(at_first)) = (deadline, protocol.time_left(request)) else { return };
    let left = deadline.deadline().saturating_duration_since(Instant::now());
    protocol.waited(request, at_first.saturating_sub(left));
}

impl<S, Req, P, U> fmt::Debug for ResponseFuture<S, Req, P, U>
where
    S: Service<Req>,
    U: Until<S::Future>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
