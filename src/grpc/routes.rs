//! Dispatch of RPCs: handwritten code serves Watch, List, ByIndex and Get, the generated services serve everything else.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use http::{HeaderValue, Request, Response, header};
use http_body_util::BodyExt;
use tonic::{Status, service::RoutesBuilder};
use tower::{Layer, ServiceExt};

use super::{
    call::{Call, message},
    generated::Generated,
    get,
    layer::{Answer, CallLayer, CallRequest, Calls, refused},
    list,
    service::Service,
    status::Refusal,
    watch,
};
use crate::{
    proto::pb::{admin_service_server::AdminServiceServer, informer_service_server::InformerServiceServer},
    transport::Supply,
};

/// All services of the server, inside the layer around every call.
pub type Routes = Calls<Methods>;

/// All services of the server.
#[derive(Debug, Clone)]
pub struct Methods {
    service: Service,
    generated: tonic::service::Routes,
}

/// RPCs that handwritten code serves.
#[derive(Debug, Clone, Copy)]
enum Own {
    Watch,
    List,
    ByIndex,
    Get,
}

const WATCH_PATH: &str = "/informerd.v1.InformerService/Watch";
const LIST_PATH: &str = "/informerd.v1.InformerService/List";
const GET_PATH: &str = "/informerd.v1.InformerService/Get";
const BY_INDEX_PATH: &str = "/informerd.v1.InformerService/ByIndex";

// === impl Routes ===

impl Routes {
    /// Creates the routes of `InformerService` and `AdminService`.
    pub fn new(service: Service) -> Self {
        Self::beside(service, RoutesBuilder::default())
    }

    /// Creates the routes of `InformerService`, `AdminService` and other services.
    pub fn beside(service: Service, mut others: RoutesBuilder) -> Self {
        let informers =
            InformerServiceServer::new(service.clone()).max_decoding_message_size(service.config().request_bytes);
        others.add_service(AdminServiceServer::new(service.clone())).add_service(informers);
        let generated = others.routes().prepare();
        CallLayer(service.clone()).layer(Methods { service, generated })
    }

    /// Returns true if a request opens a Watch: a stream that is cheap to poll and is woken together with many others.
    pub fn is_watch<B>(request: &Request<B>) -> bool {
        request.uri().path() == WATCH_PATH
    }
}

// === impl Methods ===

impl tower::Service<CallRequest> for Methods {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answer>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: CallRequest) -> Self::Future {
        let service = self.service.clone();
        let own = match request.uri().path() {
            WATCH_PATH => Own::Watch,
            LIST_PATH => Own::List,
            BY_INDEX_PATH => Own::ByIndex,
            GET_PATH => Own::Get,
            _ => return Box::pin(generated(service, self.generated.clone(), request)),
        };
        Box::pin(async move {
            Ok(answered(&service, own, request).await.map_or_else(
                |refusal| refused(service.metrics().refuse(&refusal)),
                |answer| {
                    let mut response = Response::new(Some(answer));
                    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
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
    request: CallRequest,
) -> Result<Box<dyn Supply<Error = Status>>, Refusal> {
    let (parts, body) = request.into_parts();
    let call = Call::new(&parts.headers, &parts.extensions);
    Ok(match own {
        Own::Watch => Box::new(watch::open(service, message(body).await?, call).await?),
        Own::List => Box::new(list::list(service, message(body).await?, call).await?),
        Own::ByIndex => Box::new(list::by_index(service, message(body).await?, call).await?),
        Own::Get => Box::new(get::get(service, message(body).await?, call).await?),
    })
}

/// Answers an RPC of the generated services.
async fn generated(
    service: Service,
    generated: tonic::service::Routes,
    request: CallRequest,
) -> Result<Response<Answer>, Infallible> {
    let failure = Arc::new(OnceLock::new());
    let failed = Arc::clone(&failure);
    let refused = move |refusal: Refusal| failed.get_or_init(|| service.metrics().refuse(&refusal)).clone();
    let request = request.map(|messages| tonic::body::Body::new(messages.map_err(refused)));
    let response = generated.oneshot(request).await?;
    let size = response.extensions().get().copied();
    Ok(response.map(|body| -> Answer { Some(Box::new(Generated::new(body, size, failure))) }))
}
