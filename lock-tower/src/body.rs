use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use lock_core::__log::Flood;
use pin_project_lite::pin_project;

use crate::{error::BoxError, shared::warn, until::BodyLease};

pin_project! {
    /// The body of an HTTP response that came through a [`LockService`](crate::LockService): that of the service, or
    /// the text of a refusal.
    ///
    /// The service's body goes through as it is, with its length, its trailers and its errors (boxed). With
    /// [`until_body_end`](crate::LockLayer::until_body_end) it keeps the lease, which is released before the last frame
    /// goes out, or when the body is dropped.
    pub struct ResponseBody<B: Body> {
        #[pin]
        inner: Inner<B>,
    }
}

pin_project! {
    #[project = InnerProj]
    enum Inner<B: Body> {
        Service {
            #[pin]
            body: B,
        },
        Held {
            #[pin]
            body: B,
            // None when it was released or lost; then nothing more comes.
            hold: Option<BodyLease>,
            on_loss: OnLoss,
            // The last frame, which waits for the release.
            last: Last<B::Data>,
        },
        // A refusal, or an answer that was kept.
        Buffered {
            buffered: Buffered<B>,
        },
    }
}

/// A body that was read before it is sent, or made by the layer. Its parts go out in their order, and each is `None` after that.
#[derive(Debug)]
pub(crate) struct Buffered<B> {
    pub(crate) data: Option<Bytes>,
    /// What was not read.
    pub(crate) rest: Option<Pin<Box<B>>>,
    /// The trailers, or the error that ended it.
    pub(crate) end: Option<Result<HeaderMap, BoxError>>,
}

/// How a body says that its lease was lost.
pub(crate) type OnLoss = fn(lock_core::Error) -> Result<HeaderMap, BoxError>;

enum Last<D> {
    NotYet,
    Frame(Frame<D>),
    None,
}

impl<B: Body> ResponseBody<B> {
    pub(crate) fn service(body: B) -> Self {
        Self { inner: Inner::Service { body } }
    }

    pub(crate) fn refusal(text: Bytes) -> Self {
        Self::buffered(text, None, None)
    }

    pub(crate) fn buffered(data: Bytes, rest: Option<Pin<Box<B>>>, end: Option<Result<HeaderMap, BoxError>>) -> Self {
        let data = (!data.is_empty()).then_some(data);
        Self { inner: Inner::Buffered { buffered: Buffered { data, rest, end } } }
    }

    /// Keeps the lease in a body of the service, unless that has nothing to come.
    pub(crate) fn hold(self, hold: BodyLease, on_loss: OnLoss) -> Self {
        match self.inner {
            Inner::Service { body } if !body.is_end_stream() => {
                Self { inner: Inner::Held { body, hold: Some(hold), on_loss, last: Last::NotYet } }
            }
            inner => {
                hold.release();
                Self { inner }
            }
        }
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body<Error: Into<BoxError>>,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, BoxError>>> {
        match self.project().inner.project() {
            InnerProj::Service { body } => body.poll_frame(cx).map_err(Into::into),
            InnerProj::Held { mut body, hold, on_loss, last } => {
                let Some(lease) = hold else { return Poll::Ready(None) };
                let lost = if matches!(last, Last::NotYet) {
                    if let Poll::Ready(lost) = lease.poll_lost(cx) {
                        Err(lost)
                    } else {
                        let frame = match ready!(body.as_mut().poll_frame(cx)).transpose() {
                            Ok(frame) => frame,
                            Err(error) => {
                                *hold = None;
                                return Poll::Ready(Some(Err(error.into())));
                            }
                        };
                        match frame {
                            Some(frame) if !frame.is_trailers() && !body.is_end_stream() => {
                                return Poll::Ready(Some(Ok(frame)));
                            }
                            Some(frame) => *last = Last::Frame(frame),
                            None => *last = Last::None,
                        }
                        ready!(lease.poll_release(cx))
                    }
                } else {
                    ready!(lease.poll_release(cx))
                };
                *hold = None;
                Poll::Ready(match (lost, std::mem::replace(last, Last::None)) {
                    (Ok(()), Last::Frame(frame)) => Some(Ok(frame)),
                    (Ok(()), _) => None,
                    (Err(error), _) => {
                        // When the backend fails, many lose theirs at once.
                        static TOLD: Flood = Flood::new();
                        warn(&TOLD, &error, "", "a response lost its lock before its end");
                        Some(on_loss(error).map(Frame::trailers))
                    }
                })
            }
            InnerProj::Buffered { buffered: Buffered { data, rest, end } } => {
                if let Some(data) = data.take() {
                    return Poll::Ready(Some(Ok(Frame::data(data.into()))));
                }
                if let Some(body) = rest {
                    match ready!(body.as_mut().poll_frame(cx)) {
                        Some(frame) => return Poll::Ready(Some(frame.map_err(Into::into))),
                        None => *rest = None,
                    }
                }
                Poll::Ready(end.take().map(|end| end.map(Frame::trailers)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Service { body } => body.is_end_stream(),
            Inner::Held { hold, .. } => hold.is_none(),
            Inner::Buffered { buffered: Buffered { data, rest, end } } => {
                data.is_none() && rest.as_ref().is_none_or(|rest| rest.is_end_stream()) && end.is_none()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Service { body } | Inner::Held { body, last: Last::NotYet, .. } => body.size_hint(),
            Inner::Held { last: Last::Frame(frame), .. } => {
                SizeHint::with_exact(frame.data_ref().map_or(0, |data| data.remaining() as u64))
            }
            Inner::Held { last: Last::None, .. } => SizeHint::with_exact(0),
            // HTTP/1 sends no trailers behind a length.
            Inner::Buffered { buffered: Buffered { rest: Some(_), .. } | Buffered { end: Some(_), .. } } => {
                SizeHint::default()
            }
            Inner::Buffered { buffered: Buffered { data, .. } } => {
                SizeHint::with_exact(data.as_ref().map_or(0, |data| data.len() as u64))
            }
        }
    }
}

impl<B: Body + Default> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::service(B::default())
    }
}

impl<B: Body + fmt::Debug> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ResponseBody");
        match &self.inner {
            Inner::Service { body } => shown.field("service", body),
            Inner::Held { body, hold, .. } => shown.field("service", body).field("hold", hold),
            Inner::Buffered { buffered } => shown.field("buffered", buffered),
        };
        shown.finish_non_exhaustive()
    }
}
