//! How refusals leave as messages.

use std::{error::Error, fmt, sync::Arc};

use bytes::Bytes;
use http::Response;
use http_body::Body;
use lock_core::{__log::Floods, answer::Case};

use crate::{body::ResponseBody, refusal::Refusal};

/// The user's function that replaces the answer to a refusal, if there is one.
pub(crate) struct Replace<A>(Option<Replacing<A>>);

type Replacing<A> = Arc<dyn Fn(&Refusal, A) -> A + Send + Sync>;

impl<A> Replace<A> {
    pub(crate) fn with(replace: impl Fn(&Refusal, A) -> A + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(replace)))
    }

    pub(crate) fn give(&self, refusal: &Refusal, answer: A) -> A {
        match &self.0 {
            Some(replace) => replace(refusal, answer),
            None => answer,
        }
    }
}

impl<A> Clone for Replace<A> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<A> Default for Replace<A> {
    fn default() -> Self {
        Self(None)
    }
}

impl<A> fmt::Debug for Replace<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "replaced" } else { "as it is" })
    }
}

impl Refusal {
    /// Sends an answer out, with the error of the lock in its extensions.
    pub(crate) fn respond<B: Body>(self, mut response: Response<Bytes>) -> Response<ResponseBody<B>> {
        if let Self::NotAcquired(error) | Self::Lost(error) = self {
            response.extensions_mut().insert(error);
        }
        response.map(ResponseBody::refusal)
    }

    /// Logs the refusal: at most one line a second for each case that an operator has to act on. Otherwise an outage would write
    /// a line for every request.
    ///
    /// An answer of gRPC has its own code, and always the status 200.
    pub(crate) fn log(&self, status_code: Option<u16>, grpc_code: Option<&dyn fmt::Debug>, floods: &Floods) {
        let (error, what) = match self {
            Self::Key(error) => (error.as_ref() as &(dyn Error + 'static), "a request has no usable key"),
            Self::Misconfigured(error) => (error as _, "every request is refused"),
            Self::NotAcquired(error) => (error as _, "a request did not get its lock"),
            Self::Overloaded(error) => (error as _, "a request did not get its lock"),
            Self::OutOfTime(error) => (error as _, "a request did not get its lock"),
            Self::Lost(error) => (error as _, "a request lost its lock while it was being served"),
        };
        let grpc_code = grpc_code.map(tracing::field::debug);
        let case = self.case();
        let Some(others) = floods.line(case) else {
            tracing::debug!(status_code, grpc_code, error, "{what}");
            return;
        };
        let others = (others > 0).then_some(others);
        if case == Case::Misconfigured {
            tracing::error!(status_code, grpc_code, error, others, "{what}");
        } else {
            tracing::warn!(status_code, grpc_code, error, others, "{what}");
        }
    }
}
