//! Layer around every RPC, of handwritten and generated services alike: counts the call in the account of its peer, checks and limits
//! the request, authenticates the caller, counts the call, and ends it at its deadline. The layers of a program are inside of it, so
//! that the calls that they refuse are counted too.
//!
//! The request passes through [`Calls`], and the response is wrapped in [`Body`], which enforces the deadline and reads the
//! status code from the trailers. No handler depends on this layer.

use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use http::{Extensions, HeaderMap, HeaderName, Method, Request, Response, StatusCode, header};
use http_body::Frame as BodyFrame;
use tokio::time::{Instant, Sleep};
use tonic::{Code, Status};
use tower::{Layer, ServiceExt};
use tracing::{Instrument, Span, debug_span};

use super::{
    audited_call::AuditedCall,
    authenticate::has_expired,
    call::{Call, Impersonator, timeout_of},
    metrics::RpcObserver,
    peers::{HEALTH_PATHS, HEALTH_REQUEST_BYTES, MAX_REQUEST_BYTES, PeerCall, REFLECTION_PATHS, RequestCharge},
    request::{Messages, RequestBounds, RequestMessages},
    service::Service,
    status::{ApiError, final_frames, trailers},
    status_body::StatusBody,
};
use crate::{
    auth::{Authentication, IMPERSONATED_USER, impersonated_user, is_impersonating},
    transport::{BoundedBody, BoundedFrame, Chunk, Exceeded, FinalFrames, Peer, Room, StreamHandle},
};

/// Layer around every RPC.
#[derive(Debug)]
pub(super) struct CallLayer(pub(super) Service);

/// Services wrapped by the [layer](CallLayer).
#[derive(Debug, Clone)]
pub struct Calls<S> {
    service: Service,
    inner: S,
}

/// Body of a response.
pub struct Body {
    answer: Option<Box<dyn BoundedBody<Error = Status>>>,
    /// Deadline of the client, which ignores anything sent later.
    deadline: Option<Pin<Box<Sleep>>>,
    observer: Option<RpcObserver>,
    audited: Option<AuditedCall>,
    /// Place of the call in the account of its peer; none for a call that was refused, or that its account has ended.
    peer: Option<PeerCall>,
    is_watch: bool,
}

/// Request of a call.
pub type CallRequest = Request<RequestBody>;
/// Body of a request, which enforces the limits. A layer passes it on.
#[derive(Debug)]
pub struct RequestBody(pub(super) Messages);
/// Body of a response; none, the default, if the headers are the whole response.
#[derive(Default)]
pub struct ResponseBody(pub(super) Option<Box<dyn BoundedBody<Error = Status>>>);

/// Path of a method whose requests are streams.
pub(super) const SUBSCRIBE_PATH: &str = "/informerd.v1.InformerService/Subscribe";
pub(super) const WATCH_PATH: &str = "/informerd.v1.InformerService/Watch";
const UNTIL_PATH: &str = "/informerd.v1.InformerService/Until";

/// Headers of a status.
const STATUS_HEADERS: [&str; 3] = ["grpc-status", "grpc-message", "grpc-status-details-bin"];

impl<S> Layer<S> for CallLayer {
    type Service = Calls<S>;

    fn layer(&self, inner: S) -> Calls<S> {
        Calls { service: self.0.clone(), inner }
    }
}

// === impl Calls ===

impl<S> Calls<S> {
    pub(super) fn map_inner<T>(self, map: impl FnOnce(S) -> T) -> Calls<T> {
        Calls { service: self.service, inner: map(self.inner) }
    }
}

impl<S, B> tower::Service<Request<B>> for Calls<S>
where
    S: tower::Service<CallRequest, Response = Response<ResponseBody>, Error = Infallible, Future: Send + 'static>
        + Clone
        + Send
        + 'static,
    B: http_body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (metrics, config) = (self.service.metrics(), self.service.config());
        if let Err((status, reason)) = check_grpc(&request) {
            metrics.refused().count(reason);
            let mut response = Response::new(Body::new(None, None, None, false));
            *response.status_mut() = status;
            return Box::pin(std::future::ready(Ok(response)));
        }
        let observer = metrics.start(request.uri().path());
        let span =
            observer.as_ref().map_or_else(Span::none, |_| span_of("grpc", request.uri().path(), request.extensions()));
        #[cfg(feature = "otel")]
        super::trace_context::set_parent(&span, request.headers());
        let observer = observer.map(|observer| observer.in_span(span.clone()));
        let is_watch = request.uri().path() == WATCH_PATH;
        let peer = match self.service.inner.peers.call(request.uri().path(), request.extensions()) {
            Ok(peer) => peer,
            Err(refusal) => {
                // Headers alone, also of a Watch: a message would wait for the client's window, in no account.
                let body = Body::new(None, observer, None, false);
                return Box::pin(std::future::ready(Ok(body.of(refused(metrics.refuse(&refusal))))));
            }
        };
        let charge = self.service.inner.peers.request(request.headers(), request.extensions());
        let deadline = timeout_of(request.headers()).map(|timeout| Instant::now() + timeout);
        let path = request.uri().path();
        // The only service that needs no credentials: a probe has none, and it learns nothing but the names of resources that it
        // already has.
        let is_open = path.starts_with(HEALTH_PATHS);
        let bounds = RequestBounds {
            bytes: if is_open { HEALTH_REQUEST_BYTES } else { MAX_REQUEST_BYTES },
            timeout: config.request_timeout,
            is_stream: path.starts_with(REFLECTION_PATHS) || path == SUBSCRIBE_PATH,
            waits: [WATCH_PATH, UNTIL_PATH].contains(&path),
        };
        // It may be open for any time, and has limits of its own.
        let is_long = bounds.is_stream || bounds.waits;
        let stream = request.extensions().get::<StreamHandle>().cloned();
        let audited = self.service.denials().and_then(|log| AuditedCall::new(log, path, request.extensions()));
        let mut request = request.map(|body| {
            let messages =
                RequestMessages::new(tonic::body::Body::new(body), bounds, stream).charged_to(charge.clone());
            RequestBody(Box::new(messages.counted_in(observer.as_ref().map(RpcObserver::received))))
        });
        if let Some(audited) = &audited {
            request.extensions_mut().insert(audited.clone());
        }
        let authentication = config.authentication.clone().filter(|_| !is_open);
        let called = span.enter();
        let has_expired = !is_open && has_expired(request.extensions());
        let is_authenticated = authentication.is_some() || is_impersonating(request.headers()) || has_expired;
        // Boxed, because the futures around it hold it several times.
        let answer: Pin<Box<dyn Future<Output = _> + Send>> = if is_authenticated {
            Box::pin(authenticated(self.service.clone(), authentication, self.inner.clone(), request))
        } else {
            Box::pin(self.inner.call(request))
        };
        drop(called);
        let metrics = Arc::clone(metrics);
        Box::pin(async move {
            let answered = answered(within(deadline, answer).instrument(span), &charge).await;
            let response = match answered {
                Ok(Some(answer)) => answer?,
                Ok(None) => refused(deadline_exceeded()),
                Err(refusal) => refused(metrics.refuse(&refusal)),
            };
            if let Some(audited) = &audited {
                audited.answers(response.headers());
            }
            let body = Body::new(deadline, observer, audited, is_watch);
            let peer = if is_long { peer } else { peer.holding(charge, metrics.refused().clone()) };
            Ok(Body { peer: Some(peer), ..body }.of(response))
        })
    }
}

/// Awaits the response of a call.
///
/// # Errors
///
/// If the request must end before, because its peer holds too much: the oldest request ends, and frees what it holds.
async fn answered<T>(answer: impl Future<Output = T>, charge: &RequestCharge) -> Result<T, ApiError> {
    // Cancel-safe: the call ends if the other arm wins.
    tokio::select! {
        biased;
        answered = answer => Ok(answered),
        refusal = charge.ended() => Err(refusal),
    }
}

/// Returns the span of a call, from its request to the end of its stream, with the attributes of OpenTelemetry's conventions. A
/// watch has the reason of its end, too.
pub(super) fn span_of(system: &'static str, path: &str, extensions: &Extensions) -> Span {
    let path = path.trim_start_matches('/');
    let (service, method) = path.split_once('/').unwrap_or((path, ""));
    debug_span!(
        "call",
        otel.name = path,
        otel.kind = "server",
        rpc.system = system,
        rpc.service = service,
        rpc.method = method,
        client.address = extensions.get::<Peer>().map(tracing::field::display),
        rpc.grpc.status_code = tracing::field::Empty,
        otel.status_code = tracing::field::Empty,
        informerd.end_reason = tracing::field::Empty,
    )
}

/// Authenticates the caller of a request, and calls the inner service with its identity and its credentials.
async fn authenticated<S>(
    service: Service,
    authentication: Option<Arc<Authentication>>,
    inner: S,
    request: CallRequest,
) -> Result<Response<ResponseBody>, Infallible>
where
    S: tower::Service<CallRequest, Response = Response<ResponseBody>, Error = Infallible>,
{
    let (parts, RequestBody(mut body)) = request.into_parts();
    let mut request = Request::from_parts(parts, ());
    // Meanwhile the message arrives: what HTTP/2 held of it would be in no account.
    let received = std::future::poll_fn(|cx| match body.poll_received(cx) {
        Poll::Ready(()) | Poll::Pending => Poll::<Infallible>::Pending,
    });
    // Cancel-safe: `poll_received` keeps what has arrived in the body.
    let authenticated = tokio::select! {
        authenticated = service.authenticate(authentication.as_deref(), &mut request) => authenticated,
        never = received => match never {},
    };
    if let Err(refusal) = authenticated {
        return Ok(refused(refusal.to_status()));
    }
    let mut request = request.map(|()| RequestBody(body));
    if request.body().0.is_stream()
        && let Some(caller) = Call::new(request.headers(), request.extensions()).authenticated()
    {
        request.body_mut().0.belong_to(service.inner.open_streams.enter(caller));
    }
    let is_impersonated = request.extensions().get::<Impersonator>().is_some();
    let user = request.extensions().get().filter(|_| is_impersonated).and_then(impersonated_user);
    let mut response = inner.oneshot(request).await?;
    if let Some(user) = user {
        response.headers_mut().insert(IMPERSONATED_USER, user);
    }
    Ok(response)
}

/// Checks that a request is a gRPC request: its HTTP method and content type.
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

/// Awaits a future until the deadline; returns none if that has passed.
async fn within<T>(deadline: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline, future).await.ok(),
        None => Some(future.await),
    }
}

/// Creates a response that has only a status.
pub(super) fn refused(status: Status) -> Response<ResponseBody> {
    status.into_http()
}

/// Opens the stream of a Watch whose response is a status alone. Other responses stay as they are.
fn opened(response: Response<ResponseBody>) -> Response<ResponseBody> {
    let status = Status::from_header_map(response.headers());
    if status.is_none_or(|status| status.code() == Code::Ok) {
        return response;
    }
    let (mut parts, _) = response.into_parts();
    let mut trailers = HeaderMap::new();
    for name in STATUS_HEADERS {
        trailers.extend(parts.headers.remove(name).map(|value| (HeaderName::from_static(name), value)));
    }
    Response::from_parts(parts, ResponseBody(Some(Box::new(StatusBody::new(trailers, true)))))
}

fn deadline_exceeded() -> Status {
    ApiError::DeadlineExceeded.to_status()
}

/// Returns the status code in trailers, or in the headers of a response without a body.
fn code_of(headers: &HeaderMap) -> Option<Code> {
    headers.get("grpc-status").map(|code| Code::from_bytes(code.as_bytes()))
}

// === impl ResponseBody ===

impl fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").finish_non_exhaustive()
    }
}

// === impl Body ===

impl Body {
    fn new(
        deadline: Option<Instant>,
        observer: Option<RpcObserver>,
        audited: Option<AuditedCall>,
        is_watch: bool,
    ) -> Self {
        let deadline = deadline.map(|deadline| Box::pin(tokio::time::sleep_until(deadline)));
        Self { answer: None, deadline, observer, audited, peer: None, is_watch }
    }

    /// Returns a response with this body around its own.
    fn of(mut self, response: Response<ResponseBody>) -> Response<Self> {
        self.ends(code_of(response.headers()));
        let response = if self.is_watch { opened(response) } else { response };
        response.map(|ResponseBody(answer)| Self { answer, ..self })
    }

    /// Counts what a frame has.
    fn sends(&mut self, data: &Chunk) {
        if let Some(observer) = &mut self.observer {
            observer.sends(data);
        }
        if let Some(audited) = &self.audited {
            audited.sends_bytes(data.remaining());
        }
    }

    /// Ends the response with a status.
    fn end_with(
        &mut self,
        status: &Status,
        cx: &mut Context<'_>,
        room: Room,
    ) -> Poll<Option<Result<BoundedFrame, Status>>> {
        self.deadline = None;
        self.answer = Some(Box::new(StatusBody::new(trailers(status), self.is_watch)));
        self.poll_bounded(cx, room)
    }

    /// Records the status code of the call, if there is one.
    fn ends(&mut self, code: Option<Code>) {
        let Some(code) = code else { return };
        if let Some(observer) = &mut self.observer {
            observer.ends(code);
        }
        if let Some(audited) = &self.audited {
            audited.ends(code);
        }
    }
}

impl BoundedBody for Body {
    fn poll_bounded(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<Option<Result<BoundedFrame, Status>>> {
        let Some(answer) = &mut self.answer else { return Poll::Ready(None) };
        let polled = answer.poll_bounded(cx, room);
        match &polled {
            Poll::Ready(Some(Ok(BoundedFrame::Frame(frame)))) => {
                if let Some(data) = frame.data_ref() {
                    self.sends(data);
                }
                let code = frame.trailers_ref().and_then(code_of);
                self.ends(code);
            }
            Poll::Pending | Poll::Ready(Some(Ok(BoundedFrame::TooLarge(_)))) => {
                if let Some(deadline) = &mut self.deadline
                    && deadline.as_mut().poll(cx).is_ready()
                {
                    answer.deadline_exceeded();
                    return self.end_with(&deadline_exceeded(), cx, room);
                }
                if let Some(Poll::Ready(refusal)) = self.peer.as_ref().map(|peer| peer.poll_ended(cx)) {
                    self.peer = None;
                    return self.end_with(&refusal.to_status(), cx, room);
                }
            }
            Poll::Ready(Some(Err(status))) => self.ends(Some(status.code())),
            Poll::Ready(None) => {}
        }
        polled
    }

    fn encoded_bytes(&self) -> usize {
        self.answer.as_ref().map_or(0, |answer| answer.encoded_bytes())
    }

    fn is_paused(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.is_paused())
    }

    fn poll_discarded(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        (self.answer, self.deadline, self.observer, self.audited) = (None, None, None, None);
        self.peer.as_ref().map_or(Poll::Ready(()), |peer| peer.poll_ended(cx).map(drop))
    }

    fn exhausted(&mut self, room: usize, exceeded: Exceeded) -> FinalFrames {
        let answer = self.answer.as_mut();
        let words = answer.map_or_else(|| final_frames(exceeded), |answer| answer.exhausted(room, exceeded));
        if let Some(message) = &words.message {
            self.sends(message);
        }
        self.ends(words.trailers.as_ref().and_then(code_of));
        words
    }
}

impl http_body::Body for Body {
    type Data = Chunk;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<BodyFrame<Chunk>, Status>>> {
        self.get_mut().poll_any(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.answer.as_ref().is_none_or(http_body::Body::is_end_stream)
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("observer", &self.observer).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use http_body_util::{BodyExt, StreamBody};
    use prometheus_client::{encoding::text, registry::Registry};
    use prost::Message;
    use tokio_stream::StreamExt;
    use tonic_types::StatusExt as _;

    use super::*;
    use crate::{
        grpc::{RpcMetrics, frame::PREFIX_BYTES, generated::Generated},
        proto::pb,
    };

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_at_its_deadline() {
        let began = Instant::now();
        let data = tokio_stream::iter(["one", "two"]).throttle(Duration::from_secs(1)).chain(tokio_stream::pending());
        let data = data.map(|text| Ok::<_, Status>(BodyFrame::data(Bytes::from_static(text.as_bytes()))));
        let body = tonic::body::Body::new(StreamBody::new(data));
        let answer = Box::new(Generated::new(body, None, Arc::default(), tokio::sync::oneshot::channel().0));
        let metrics = Arc::new(RpcMetrics::default());
        let observer = metrics.start("/informerd.v1.InformerService/Watch");
        let body = Body::new(Some(began + Duration::from_secs(5)), observer, None, true);
        let body = Body { answer: Some(answer), ..body };
        let collected = body.collect().await.unwrap();
        let status = Status::from_header_map(collected.trailers().unwrap()).unwrap();
        assert_eq!((status.code(), began.elapsed().as_secs()), (Code::DeadlineExceeded, 5));
        let mut bytes = collected.to_bytes();
        assert_eq!(bytes.split_to(6), "onetwo");
        let message = pb::WatchResponse::decode(&bytes[PREFIX_BYTES..]).unwrap();
        assert_eq!(
            message.error.map(|error| error.code),
            Some(Code::DeadlineExceeded.into()),
            "the status as a message"
        );
        let (mut registry, mut counted) = (Registry::default(), String::new());
        metrics.register(&mut registry);
        text::encode(&mut counted, &registry).unwrap();
        assert!(counted.contains(r#"grpc_type="server_stream",grpc_code="DeadlineExceeded"} 1"#), "{counted}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_refused_at_its_deadline() {
        assert_eq!(within(Some(Instant::now() + Duration::from_secs(1)), std::future::pending::<()>()).await, None);
        assert_eq!(within(Some(Instant::now()), std::future::ready(1)).await, Some(1));
        assert_eq!(within(None, std::future::ready(1)).await, Some(1));
        let refused = refused(deadline_exceeded());
        let status = Status::from_header_map(refused.headers()).unwrap();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert_eq!(status.get_details_error_info().unwrap().reason, "DEADLINE_EXCEEDED");
        assert!(refused.into_body().0.is_none());
    }
}
