//! Dispatch of RPCs: handwritten code serves Watch, Subscribe, List, ByIndex, Get and Changes, the generated services serve everything else.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use futures_util::StreamExt;
use http::{HeaderValue, Request, Response, header};
use http_body_util::{BodyExt, BodyStream, StreamBody};
use tokio::sync::oneshot;
use tonic::{Status, body::Body, server::NamedService};
use tower::{BoxError, Layer, ServiceExt, service_fn, util::BoxCloneSyncService};

use super::{
    call::{Call, message},
    checked_request::{CheckedRequest, Method},
    compression::accepted,
    generated::Generated,
    get,
    layer::{CallLayer, CallRequest, Calls, RequestBody, ResponseBody, SUBSCRIBE_PATH, WATCH_PATH, refused},
    list, past,
    peers::MAX_REQUEST_BYTES,
    request::Messages,
    service::Service,
    status::ApiError,
    subscribe, watch,
};
use crate::{
    proto::pb::{admin_service_server::AdminServiceServer, informer_service_server::InformerServiceServer},
    transport::BoundedBody,
};

/// All services of the server, inside the layers of the program, inside the layer around every call.
pub type Routes = Calls<CallService>;

/// Service that a layer of a program wraps: every call, whatever its service.
pub type CallService = BoxCloneSyncService<CallRequest, Response<ResponseBody>, Infallible>;

/// All services of the server.
#[derive(Debug, Clone)]
struct Methods {
    service: Service,
    generated: Arc<GeneratedServices>,
}

/// Generated services by their names in paths.
#[derive(Debug, Clone, Default)]
pub struct GeneratedServices(BTreeMap<&'static str, GeneratedService>);

type GeneratedService = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

/// RPCs that handwritten code serves.
#[derive(Debug, Clone, Copy)]
enum Own {
    Watch,
    Subscribe,
    List,
    ByIndex,
    Get,
    Changes,
}

const LIST_PATH: &str = "/informerd.v1.InformerService/List";
const GET_PATH: &str = "/informerd.v1.InformerService/Get";
const BY_INDEX_PATH: &str = "/informerd.v1.InformerService/ByIndex";
const CHANGES_PATH: &str = "/informerd.v1.InformerService/Changes";

// === impl Routes ===

impl Routes {
    /// Creates the routes of `InformerService` and `AdminService`.
    pub fn new(service: Service) -> Self {
        Self::beside(service, GeneratedServices::default())
    }

    /// Creates the routes of `InformerService`, `AdminService` and other services.
    pub fn beside(service: Service, others: GeneratedServices) -> Self {
        let informers = InformerServiceServer::new(service.clone()).max_decoding_message_size(MAX_REQUEST_BYTES);
        let generated = Arc::new(others.with(AdminServiceServer::new(service.clone())).with(informers));
        CallLayer(service.clone()).layer(CallService::new(Methods { service, generated }))
    }

    /// Wraps the services in a layer of the program. An error of the layer becomes the status of the call.
    #[must_use]
    pub fn layered<L>(self, layer: L) -> Self
    where
        L: Layer<CallService>,
        L::Service: tower::Service<CallRequest, Response = Response<ResponseBody>, Error: Into<BoxError>, Future: Send>,
        L::Service: Clone + Send + Sync + 'static,
    {
        self.map_inner(|inner| {
            let layered = layer.layer(inner);
            CallService::new(service_fn(move |request: CallRequest| {
                let answer = layered.clone().oneshot(request);
                async move { Ok(answer.await.unwrap_or_else(|error| refused(Status::from_error(error.into())))) }
            }))
        })
    }

    /// Returns true if a request opens watches: a stream that is cheap to poll and is woken together with many others.
    pub fn is_watch<B>(request: &Request<B>) -> bool {
        matches!(request.uri().path(), WATCH_PATH | SUBSCRIBE_PATH)
    }
}

// === impl GeneratedServices ===

impl GeneratedServices {
    /// Adds a service.
    pub fn with<S>(mut self, service: S) -> Self
    where
        S: tower::Service<Request<Body>, Response = Response<Body>, Error = Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send,
    {
        self.0.insert(S::NAME, BoxCloneSyncService::new(service));
        self
    }

    /// Returns the service of a path: `/NAME/METHOD`.
    fn of(&self, path: &str) -> Option<GeneratedService> {
        let (name, _) = path.strip_prefix('/')?.split_once('/')?;
        self.0.get(name).cloned()
    }
}

// === impl Methods ===

impl tower::Service<CallRequest> for Methods {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: CallRequest) -> Self::Future {
        let service = self.service.clone();
        let (parts, RequestBody(messages)) = request.into_parts();
        let own = match parts.uri.path() {
            WATCH_PATH => Own::Watch,
            SUBSCRIBE_PATH => Own::Subscribe,
            LIST_PATH => Own::List,
            BY_INDEX_PATH => Own::ByIndex,
            GET_PATH => Own::Get,
            CHANGES_PATH => Own::Changes,
            path => {
                let Some(generated) = self.generated.of(path) else {
                    return Box::pin(async { Ok(refused(Status::unimplemented(""))) });
                };
                return Box::pin(answered_by(generated, service, Request::from_parts(parts, messages)));
            }
        };
        // Of these, other responses have the same messages: they are compressed once for all.
        let compresses = matches!(own, Own::Watch | Own::List | Own::ByIndex);
        let compression = compresses.then(|| accepted(&service.config().compression, &parts.headers)).flatten();
        // A call that waits for its message must be small: boxed, because the futures around it hold it several times.
        let call = Box::new(Call { compression, ..Call::new(&parts.headers, &parts.extensions) });
        Box::pin(async move {
            Ok(answered(&service, own, messages, call).await.map_or_else(
                |refusal| refused(service.metrics().refuse(&refusal)),
                |answer| {
                    let mut response = Response::new(ResponseBody(Some(answer)));
                    let headers = response.headers_mut();
                    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
                    if let Some(compression) = compression {
                        headers.insert("grpc-encoding", HeaderValue::from_static(compression.name()));
                    }
                    response
                },
            ))
        })
    }
}

/// Answers one of the handwritten RPCs.
async fn answered(
    service: &Service,
    own: Own,
    messages: Messages,
    call: Box<Call>,
) -> Result<Box<dyn BoundedBody<Error = Status>>, ApiError> {
    Ok(match own {
        Own::Watch => Box::new(Box::pin(watch::open(service, message(messages).await?, *call)).await?),
        Own::Subscribe => Box::new(subscribe::open(service, messages, *call)?),
        Own::List => Box::new(Box::pin(list::list(service, message(messages).await?, *call)).await?),
        Own::ByIndex => Box::new(Box::pin(list::by_index(service, message(messages).await?, *call)).await?),
        Own::Get => Box::new(Box::pin(get::get(service, message(messages).await?, *call)).await?),
        Own::Changes => Box::new(Box::pin(past::changes(service, message(messages).await?, *call)).await?),
    })
}

/// Answers an RPC of a generated service.
async fn answered_by(
    generated: GeneratedService,
    service: Service,
    mut request: Request<Messages>,
) -> Result<Response<ResponseBody>, Infallible> {
    let failure = Arc::new(OnceLock::new());
    let failed = Arc::clone(&failure);
    let refused = move |refusal: ApiError| failed.get_or_init(|| service.metrics().refuse(&refusal)).clone();
    let method = Method::of(request.uri().path());
    if method.is_some() {
        // The services would refuse it before they read the message, without a reason.
        request.headers_mut().remove("grpc-encoding");
    }
    let (parts, messages) = request.into_parts();
    let body = match method {
        Some(method) => Body::new(CheckedRequest::new(messages, method).map_err(refused)),
        None => Body::new(messages.map_err(refused)),
    };
    // A service may have a task of its own that reads its messages, and holds the stream until they end.
    let (ends, ended) = oneshot::channel();
    let body = Body::new(StreamBody::new(BodyStream::new(body).take_until(ended)));
    let response = generated.oneshot(Request::from_parts(parts, body)).await?;
    let size = response.extensions().get().copied();
    Ok(response.map(|body| ResponseBody(Some(Box::new(Generated::new(body, size, failure, ends))))))
}
