use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use lock_core::{Acquire, Protected};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::protocol::{Protocol, Refusal};

pin_project! {
    /// The future of a response of [`LockService`](crate::LockService): acquires the lease, calls the service, and
    /// releases the lease before it hands out the response.
    ///
    /// # Cancel safety
    /// Dropping it drops the work of the service and releases the lease in the background. Nothing is left behind.
    #[must_use = "a future does nothing unless it is awaited"]
    pub struct ResponseFuture<S, Req, P>
    where
        S: Service<Req>,
    {
        #[pin]
        state: State<S, Req>,
        protocol: P,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, Req>
    where
        S: Service<Req>,
    {
        Acquiring {
            #[pin]
            acquire: Acquire,
            // Whether the request does not wait.
            tries_once: bool,
            // The instance that was made ready, and what to call it with.
            call: Option<(S, Req)>,
        },
        Working {
            #[pin]
            work: Protected<S::Future>,
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

impl<S: Service<Req>, Req, P> ResponseFuture<S, Req, P> {
    pub(crate) fn acquiring(acquire: Acquire, tries_once: bool, ready: S, request: Req, protocol: P) -> Self {
        Self { state: State::Acquiring { acquire, tries_once, call: Some((ready, request)) }, protocol }
    }

    pub(crate) fn unlocked(work: S::Future, protocol: P) -> Self {
        Self { state: State::Unlocked { work }, protocol }
    }

    pub(crate) fn refusing(refusal: Refusal, protocol: P) -> Self {
        Self { state: State::Refusing { refusal: Some(refusal) }, protocol }
    }
}

impl<S, Req, P> Future for ResponseFuture<S, Req, P>
where
    S: Service<Req>,
    P: Protocol<Req, S::Response, S::Error>,
{
    type Output = Result<P::Response, P::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let protocol = this.protocol;
        let outcome = loop {
            match this.state.as_mut().project() {
                StateProj::Acquiring { acquire, tries_once, call } => match ready!(acquire.poll(cx)) {
                    Ok(guard) => {
                        let (mut service, mut request) = call.take().expect("a lease is acquired once");
                        protocol.attach(&mut request, guard.lease());
                        // The guard is a local until the work is there: a panic of `call` releases it.
                        let work = guard.protect(service.call(request));
                        this.state.set(State::Working { work });
                    }
                    Err(error) => {
                        let refusal = Refusal::NotAcquired { error, tried_once: *tries_once };
                        this.state.set(State::Refusing { refusal: Some(refusal) });
                    }
                },
                StateProj::Working { work } => match ready!(work.poll(cx)) {
                    Ok(outcome) => break outcome,
                    Err(error) => this.state.set(State::Refusing { refusal: Some(Refusal::Lost(error)) }),
                },
                StateProj::Unlocked { work } => break ready!(work.poll(cx)),
                StateProj::Refusing { refusal } => {
                    let refusal = refusal.take().expect("a request is refused once");
                    this.state.set(State::Finished);
                    return Poll::Ready(protocol.refuse(refusal));
                }
                StateProj::Finished => panic!("`ResponseFuture` polled after completion"),
            }
        };
        this.state.set(State::Finished);
        Poll::Ready(match outcome {
            Ok(response) => Ok(protocol.done(response)),
            Err(error) => Err(protocol.fail(error)),
        })
    }
}

impl<S: Service<Req>, Req, P> fmt::Debug for ResponseFuture<S, Req, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
