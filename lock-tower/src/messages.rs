//! The common part of HTTP and gRPC.

#[cfg(any(feature = "axum", feature = "grpc"))]
use lock_core::{Lease, Leases};

/// The part of a [`Protocol`](crate::Protocol) of `Request<ReqBody>`, `Response<ResBody>` and `Err` that is the same for
/// both: the lease is in the extensions of the request, the body in one that can hold it, and errors stay what they are.
macro_rules! of_messages {
    () => {
        type Response = http::Response<crate::body::ResponseBody<ResBody>>;
        type Error = Err;

        fn attach(&self, request: &mut http::Request<ReqBody>, lease: &lock_core::Lease) {
            // What an outer layer has put there is not that of the innermost.
            request.extensions_mut().remove::<lock_core::Leases>();
            request.extensions_mut().insert(lease.clone());
        }

        fn attach_all(&self, request: &mut http::Request<ReqBody>, leases: &lock_core::Leases) {
            request.extensions_mut().remove::<lock_core::Lease>();
            request.extensions_mut().insert(leases.clone());
        }

        fn pass(&self, request: &mut http::Request<ReqBody>) {
            request.extensions_mut().remove::<lock_core::Lease>();
            request.extensions_mut().remove::<lock_core::Leases>();
        }

        fn done(&self, response: http::Response<ResBody>) -> Self::Response {
            response.map(crate::ResponseBody::service)
        }

        fn fail(&self, error: Err) -> Err {
            error
        }
    };
}

pub(crate) use of_messages;

/// The leases of a request that has one key or several.
#[cfg(any(feature = "axum", feature = "grpc"))]
pub(crate) fn leases(extensions: &http::Extensions) -> Option<Leases> {
    extensions.get().cloned().or_else(|| extensions.get::<Lease>().cloned().map(Leases::from))
}
