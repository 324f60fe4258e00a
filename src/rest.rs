//! API of Kubernetes, read-only, for unchanged clients: kubectl, client-go's informers, controllers, kube-rs; and resources as JSON and
//! server-sent events, for browsers and curl.
//!
//! - [`RestService`] answers every request of the listener `kubernetes.listen`.
//! - `path` finds what a request names, `query` parses and validates its parameters, by the tables of Kubernetes.
//! - `accept` finds the form of the response.
//! - `reads` answers get, list and watch: the limits, rights, snapshots and watches are those of `grpc`.
//! - `resources` answers for any resource under its own name, at `/v1/RESOURCE`, as JSON and as server-sent events, of which `events`
//!   has the encoding.
//! - `encode` writes objects as clients of Kubernetes expect them: with `metadata.resourceVersion`, and a type where they need one.
//!   The lines of a watch are encoded once for all that receive them. `table` has the cells that kubectl prints.
//! - `discovery` lists the kinds, and `review` answers whether the caller may read one.
//! - `status` converts every error to a `Status`, and `body` is the body of a response.
//!
//! Not here: writes, subresources, schemas (OpenAPI), bodies other than JSON, and a proxy to the API server.

mod accept;
mod body;
mod discovery;
mod encode;
mod events;
mod kinds;
mod path;
mod query;
mod reads;
mod resources;
mod review;
mod status;
mod table;

use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};

use self::{
    body::RestBody,
    encode::{Encoder, Encoders, Form},
    events::{EventEncoder, EventForm},
    path::{ResourceRead, Target},
    query::Query,
    status::{Failure, Refused},
};
use crate::{
    admin::foreign_host,
    grpc::{ApiError, HttpCall, HttpMethod, Service},
    proto::Compression,
    transport::{Peer, RequestBody},
};

/// Service that answers requests of clients of Kubernetes.
#[derive(Clone)]
pub struct RestService {
    service: Service,
    encoders: Arc<Encoders<Form, Encoder>>,
    event_encoders: Arc<Encoders<EventForm, EventEncoder>>,
    /// True if the most recent state is also served while the upstream cannot confirm it, with a warning.
    warns: bool,
}

/// Answer to a request, or the error that the client gets.
type Answer = Result<Response<RestBody>, Failure>;

/// Awaits what answers a call.
///
/// # Errors
///
/// If the call must [end](HttpCall::ended) before.
async fn unless_ended<T>(
    ended: impl Future<Output = ApiError>,
    answering: impl Future<Output = Result<T, Refused>>,
) -> Result<T, Refused> {
    // Cancel-safe: the call ends if the other arm wins.
    tokio::select! {
        biased;
        answered = answering => answered,
        refusal = ended => Err(refusal.into()),
    }
}

// === impl RestService ===

impl RestService {
    /// Serves the resources of a service that take part. With `warns`, a read of the most recent state that the upstream cannot
    /// confirm is answered with a `Warning`.
    pub fn new(service: Service, warns: bool) -> Self {
        Self { service, encoders: Arc::default(), event_encoders: Arc::default(), warns }
    }

    /// Returns true if the stream of a request is polled in the task of its connection: a watch, which is cheap to poll.
    pub fn is_watch(request: &Request<RequestBody>) -> bool {
        let is_events = matches!(
            Target::of(request.uri().path()),
            Target::Resource(resource) if resource.read == ResourceRead::Watch
        );
        is_events || Query::parse(request.uri().query().unwrap_or_default()).is_ok_and(|query| query.is_watch)
    }

    async fn answer(self, request: Request<RequestBody>) -> Response<RestBody> {
        let target = Target::of(request.uri().path());
        let is_read = [Method::GET, Method::HEAD].contains(request.method());
        let answered = match &target {
            _ if self.is_foreign(&request) => Err(Failure::forbidden_host()),
            Target::Review if request.method() == Method::POST => review::answer(&self, request).await,
            _ if !is_read => Err(Failure::method_not_allowed()),
            Target::Probe => Ok(self.probe()),
            Target::Version => Ok(body::json(StatusCode::OK, &discovery::version())),
            Target::Groups { .. } | Target::GroupVersion { .. } => discovery::answer(&self, request, &target).await,
            Target::Objects(objects) => reads::answer(&self, request, objects).await,
            Target::Resource(resource) => resources::answer(&self, request, resource).await,
            Target::Review | Target::Unknown => Err(Failure::not_found()),
        };
        answered.unwrap_or_else(Failure::into_response)
    }

    /// Returns true for a page of a browser on this machine that has its own name resolve to it, where nobody is authenticated.
    fn is_foreign(&self, request: &Request<RequestBody>) -> bool {
        let is_open = self.service.config().authentication.is_none();
        let is_local = request.extensions().get().is_some_and(Peer::is_over_loopback);
        is_open && is_local && foreign_host(request.uri(), request.headers(), |_| false).is_some()
    }

    /// Answers `/readyz` and its like, without credentials.
    fn probe(&self) -> Response<RestBody> {
        let (status, text) = if self.service.is_ready() {
            (StatusCode::OK, "ok")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "not ready")
        };
        let mut response = Response::new(RestBody::full(text));
        *response.status_mut() = status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        response
    }

    /// Returns true if a response to a client with these headers may be gzip.
    fn may_compress(&self, headers: &HeaderMap) -> bool {
        let accepted = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
        let mut accepted = accepted.flat_map(|value| value.split(',')).map(|coding| coding.replace(' ', ""));
        let is_gzip = |coding: String| match coding.split_once(";q=") {
            Some((coding, weight)) => coding == "gzip" && weight.parse().is_ok_and(|weight: f32| weight > 0.0),
            None => coding == "gzip",
        };
        self.service.config().compression.contains(&Compression::Gzip) && accepted.any(is_gzip)
    }

    /// Begins a call.
    async fn begin<B>(&self, method: HttpMethod, request: &mut Request<B>) -> Result<HttpCall, Failure> {
        HttpCall::begin(&self.service, method, request).await.map_err(|refusal| Failure::of(&refusal, None))
    }
}

impl tower::Service<Request<RequestBody>> for RestService {
    type Response = Response<RestBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<RestBody>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<RequestBody>) -> Self::Future {
        let place = HttpCall::place(&self.service, &mut request);
        let is_head = request.method() == Method::HEAD;
        let answer = self.clone().answer(request);
        Box::pin(async move {
            Ok(match place {
                Ok(place) => answer.await.map(|body| if is_head { body.without_content() } else { body }.at(place)),
                Err(refusal) => Failure::of(&refusal, None).into_response().map(|_| RestBody::empty()),
            })
        })
    }
}

impl fmt::Debug for RestService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RestService").finish_non_exhaustive()
    }
}
