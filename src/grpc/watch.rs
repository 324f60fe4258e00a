//! Watch: outside the generated trait, because its frames are encoded once for all watchers, and a stock codec would encode
//! (or copy) them for each.
//!
//! [`Routes`] sends Watch here and everything else to the generated server. A call is opened (`open.rs`: the request is read,
//! checked and joined), then its body (`body.rs`) is polled by the connection: initial events from the snapshot, then frames
//! from the cursor, with bookmarks in between. There is no task and no queue of its own: HTTP/2's flow control is what slows
//! a cursor down.

mod body;
mod initial_events;
mod open;

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use http::{HeaderValue, Request, Response, header};
use tonic::{body::Body, server::NamedService};
use tower::Service as TowerService;

pub(super) use open::{Caller, open_with, peer};

use super::Service;
use crate::proto::pb::informer_service_server::{InformerServiceServer, SERVICE_NAME};

/// All RPCs of `InformerService`.
#[derive(Debug, Clone)]
pub struct Routes {
    service: Service,
    generated: InformerServiceServer<Service>,
}

const WATCH_PATH: &str = "/informerd.v1.InformerService/Watch";

// === impl Routes ===

impl Routes {
    /// The RPCs of a service.
    pub fn new(service: Service) -> Self {
        let generated =
            InformerServiceServer::new(service.clone()).max_decoding_message_size(service.config().request_bytes);
        Self { service, generated }
    }
}

impl NamedService for Routes {
    const NAME: &'static str = SERVICE_NAME;
}

impl TowerService<Request<Body>> for Routes {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if request.uri().path() != WATCH_PATH {
            return self.generated.call(request);
        }
        let service = self.service.clone();
        Box::pin(async move {
            let observer = service.metrics().start("Watch");
            let opened = open::open(&service, request, observer.clone()).await;
            Ok(match observer.result(opened) {
                Ok(body) => {
                    let mut response = Response::new(Body::new(body));
                    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
                    response
                }
                Err(status) => status.into_http(),
            })
        })
    }
}
