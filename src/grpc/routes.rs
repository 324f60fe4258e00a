//! Entry of every request: Watch, List, ByIndex and Get are answered by us, everything else by the generated services.
//!
//! Rules for all of them are applied here: requests that are none of gRPC are refused, and a call's deadline is kept, as tonic's
//! own server would.

use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Frame as BodyFrame;
use http_body_util::BodyExt;
use tokio::time::{Instant, Sleep};
use tonic::{Status, service::RoutesBuilder};
use tower::ServiceExt;

use super::{
    call::{Call, message, timeout_of},
    generated::Generated,
    get::{self, GetBody},
    list::{self, ListBody},
    request::{RequestBounds, RequestMessages},
    service::Service,
    status::{Refusal, last_words, trailers},
    watch::{self, WatchBody},
};
use crate::{
    proto::pb::{admin_service_server::AdminServiceServer, informer_service_server::InformerServiceServer},
    transport::{Chunk, LastWords, Room, StreamHandle, Supplied, Supply},
};

/// All services of the server.
#[derive(Debug, Clone)]
pub struct Routes {
    service: Service,
    generated: tonic::service::Routes,
}

/// The body of an answer.
pub struct Body {
    kind: BodyKind,
    /// When the client's own deadline is; what is sent after it would be thrown away.
    deadline: Option<Pin<Box<Sleep>>>,
}

enum BodyKind {
    Watch(Box<WatchBody>),
    List(Box<ListBody>),
    Get(Box<GetBody>),
    Generated(Generated),
    Over,
}

/// The calls that are answered here.
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
/// The only calls whose requests are streams.
const REFLECTION_PATHS: &str = "/grpc.reflection.";

// === impl Routes ===

impl Routes {
    /// `InformerService` and `AdminService`.
    pub fn new(service: Service) -> Self {
        Self::beside(service, RoutesBuilder::default())
    }

    /// Them beside others.
    pub fn beside(service: Service, mut others: RoutesBuilder) -> Self {
        let informers =
            InformerServiceServer::new(service.clone()).max_decoding_message_size(service.config().request_bytes);
        others.add_service(AdminServiceServer::new(service.clone())).add_service(informers);
        Self { service, generated: others.routes().prepare() }
    }

    /// Whether a request opens a stream that is cheap to poll and is woken with many others.
    pub fn is_watch<B>(request: &Request<B>) -> bool {
        request.uri().path() == WATCH_PATH
    }
}

impl<B> tower::Service<Request<B>> for Routes
where
    B: http_body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if let Err((status, reason)) = check_grpc(&request) {
            self.service.metrics().refused().count(reason);
            let mut response = Response::new(Body::new(BodyKind::Over, None));
            *response.status_mut() = status;
            return Box::pin(std::future::ready(Ok(response)));
        }
        let deadline = timeout_of(request.headers()).map(|timeout| Instant::now() + timeout);
        let service = self.service.clone();
        let stream = request.extensions().get::<StreamHandle>().cloned();
        let bounds = RequestBounds {
            bytes: service.config().request_bytes,
            timeout: service.config().request_timeout,
            is_stream: request.uri().path().starts_with(REFLECTION_PATHS),
        };
        let request = request.map(|body| RequestMessages::new(tonic::body::Body::new(body), bounds, stream));
        let own = match request.uri().path() {
            WATCH_PATH => Own::Watch,
            LIST_PATH => Own::List,
            BY_INDEX_PATH => Own::ByIndex,
            GET_PATH => Own::Get,
            _ => {
                let metrics = Arc::clone(service.metrics());
                let failure = Arc::new(OnceLock::new());
                let failed = Arc::clone(&failure);
                let refused = move |refusal: Refusal| {
                    refusal.bound().into_iter().for_each(|bound| metrics.refused().count(bound));
                    failed.get_or_init(|| refusal.to_status()).clone()
                };
                let request = request.map(|messages| tonic::body::Body::new(messages.map_err(refused)));
                return Box::pin(answered(deadline, failure, self.generated.clone().oneshot(request)));
            }
        };
        let (parts, body) = request.into_parts();
        let observer = service.metrics().start(own.name());
        let call = Call::new(&parts.headers, &parts.extensions, observer.clone());
        Box::pin(async move {
            let answer = async {
                let answer = async {
                    Ok(match own {
                        Own::Watch => {
                            BodyKind::Watch(Box::new(watch::open(&service, message(body).await?, call).await?))
                        }
                        Own::List => BodyKind::List(Box::new(list::list(&service, message(body).await?, call).await?)),
                        Own::Get => BodyKind::Get(Box::new(get::get(&service, message(body).await?, call).await?)),
                        Own::ByIndex => {
                            BodyKind::List(Box::new(list::by_index(&service, message(body).await?, call).await?))
                        }
                    })
                };
                observer.result(answer.await)
            };
            let kind = within(deadline, answer).await.unwrap_or_else(|| Err(deadline_exceeded()));
            Ok(kind.map_or_else(refused, |kind| {
                let mut response = Response::new(Body::new(kind, deadline));
                response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
                response
            }))
        })
    }
}

/// Checks that a request is one of gRPC, as HTTP has it.
fn check_grpc<B>(request: &Request<B>) -> Result<(), (StatusCode, &'static str)> {
    if request.method() != Method::POST {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "method"));
    }
    let given = request.headers().get(header::CONTENT_TYPE).and_then(|given| given.to_str().ok()).unwrap_or_default();
    let media_type = given.split(';').next().unwrap_or_default().trim();
    if ["application/grpc", "application/grpc+proto"].iter().any(|known| media_type.eq_ignore_ascii_case(known)) {
        return Ok(());
    }
    Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_type"))
}

/// An answer of the generated services.
async fn answered(
    deadline: Option<Instant>,
    failure: Arc<OnceLock<Status>>,
    answer: impl Future<Output = Result<Response<tonic::body::Body>, Infallible>>,
) -> Result<Response<Body>, Infallible> {
    let Some(answer) = within(deadline, answer).await else { return Ok(refused(deadline_exceeded())) };
    answer.map(|response| {
        let size = response.extensions().get().copied();
        response.map(|body| Body::new(BodyKind::Generated(Generated::new(body, size, failure)), deadline))
    })
}

/// What comes of a future before the deadline.
async fn within<T>(deadline: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline, future).await.ok(),
        None => Some(future.await),
    }
}

fn refused(status: Status) -> Response<Body> {
    status.into_http().map(|body| Body::new(BodyKind::Generated(Generated::new(body, None, Arc::default())), None))
}

fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("the deadline of the call has passed")
}

// === impl Own ===

impl Own {
    fn name(self) -> &'static str {
        match self {
            Self::Watch => "Watch",
            Self::List => "List",
            Self::ByIndex => "ByIndex",
            Self::Get => "Get",
        }
    }
}

// === impl Body ===

impl Body {
    fn new(kind: BodyKind, deadline: Option<Instant>) -> Self {
        let deadline = deadline.map(|deadline| Box::pin(tokio::time::sleep_until(deadline)));
        Self { kind, deadline }
    }
}

impl Supply for Body {
    fn poll_supply(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<Option<Result<Supplied, Status>>> {
        let polled = match &mut self.kind {
            BodyKind::Watch(body) => body.poll_supply(cx, room),
            BodyKind::List(body) => body.poll_supply(cx, room),
            BodyKind::Get(body) => body.poll_supply(cx, room),
            BodyKind::Generated(body) => body.poll_supply(cx, room),
            BodyKind::Over => return Poll::Ready(None),
        };
        let has_nothing = matches!(polled, Poll::Pending | Poll::Ready(Some(Ok(Supplied::TooLarge(_)))));
        if has_nothing
            && let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            self.kind = BodyKind::Over;
            let trailers = BodyFrame::trailers(trailers(&deadline_exceeded()));
            return Poll::Ready(Some(Ok(Supplied::Frame(trailers))));
        }
        polled
    }

    fn made(&self) -> usize {
        match &self.kind {
            BodyKind::Watch(body) => body.made(),
            BodyKind::List(body) => body.made(),
            BodyKind::Get(body) => body.made(),
            BodyKind::Generated(body) => body.made(),
            BodyKind::Over => 0,
        }
    }

    fn exhausted(&mut self, room: usize, limit: usize) -> LastWords {
        match &mut self.kind {
            BodyKind::Watch(body) => body.exhausted(room, limit),
            BodyKind::List(body) => body.exhausted(room, limit),
            BodyKind::Get(body) => body.exhausted(room, limit),
            BodyKind::Generated(_) | BodyKind::Over => last_words(limit),
        }
    }
}

impl http_body::Body for Body {
    type Data = Chunk;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<BodyFrame<Chunk>, Status>>> {
        self.get_mut().poll_any(cx)
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyKind::Watch(body) => body.is_end_stream(),
            BodyKind::List(body) => body.is_end_stream(),
            BodyKind::Get(body) => body.is_end_stream(),
            BodyKind::Generated(body) => body.is_end_stream(),
            BodyKind::Over => true,
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.kind {
            BodyKind::Watch(_) => "Watch",
            BodyKind::List(_) => "List",
            BodyKind::Get(_) => "Get",
            BodyKind::Generated(_) => "Generated",
            BodyKind::Over => "Over",
        };
        f.debug_struct("Body").field("kind", &kind).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::StreamBody;
    use tokio_stream::StreamExt;
    use tonic::Code;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_at_its_deadline() {
        let began = Instant::now();
        let data = tokio_stream::iter(["one", "two"]).throttle(Duration::from_secs(1)).chain(tokio_stream::pending());
        let data = data.map(|text| Ok::<_, Status>(BodyFrame::data(Bytes::from_static(text.as_bytes()))));
        let body = tonic::body::Body::new(StreamBody::new(data));
        let body = Body::new(
            BodyKind::Generated(Generated::new(body, None, Arc::default())),
            Some(began + Duration::from_secs(5)),
        );
        let collected = body.collect().await.unwrap();
        let status = Status::from_header_map(collected.trailers().unwrap()).unwrap();
        assert_eq!((status.code(), began.elapsed().as_secs()), (Code::DeadlineExceeded, 5));
        assert_eq!(collected.to_bytes(), "onetwo");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_refused_at_its_deadline() {
        assert_eq!(within(Some(Instant::now() + Duration::from_secs(1)), std::future::pending::<()>()).await, None);
        assert_eq!(within(Some(Instant::now()), std::future::ready(1)).await, Some(1));
        assert_eq!(within(None, std::future::ready(1)).await, Some(1));
        let refused = refused(deadline_exceeded());
        assert_eq!(Status::from_header_map(refused.headers()).unwrap().code(), Code::DeadlineExceeded);
        assert!(refused.into_body().collect().await.unwrap().to_bytes().is_empty());
    }
}
