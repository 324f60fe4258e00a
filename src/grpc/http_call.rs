//! Call over another protocol than gRPC, by whoever the same authenticators know, with the same limits, rights, quotas and watches.
//! The module of the protocol parses requests and encodes objects.

mod listing;
mod most_recent;

use std::{sync::Arc, time::Duration};

use http::Request;
use tonic::{Code, Status};
use tracing::{Instrument, Span};

pub(crate) use self::listing::{ListEnd, ListProgress, Listing};
use super::{
    access::{Access, Wanted},
    audited_call::AuditedCall,
    authenticate::has_expired,
    call::Call,
    layer::span_of,
    metrics::RpcObserver,
    past::AtVersion,
    peers::{PeerCall, RequestCharge},
    query,
    resource::ServedResource,
    service::Service,
    status::ApiError,
    watch::{self, LineOptions},
};
use crate::{
    auth::{Attributes, Operation, is_impersonating},
    model::{Object, ResourceVersion},
    proto::{self, LineFormat, PayloadFormat, pb},
    transport::BoundedBody,
};

/// Call over another protocol. Dropping it ends the call, as one that its client cancelled unless its outcome was set.
#[derive(Debug)]
pub(crate) struct HttpCall {
    service: Service,
    call: Call,
    outcome: Outcome,
    /// Memory of the request; none for a watch, which has limits of its own.
    charge: Option<RequestCharge>,
    span: Span,
}

/// Place of the call in the metrics and the audit log, for as long as its response is sent.
#[derive(Debug)]
pub(crate) struct Outcome {
    observer: Option<RpcObserver>,
    audited: Option<AuditedCall>,
}

/// Method of a call, for metrics and the audit log: of the Kubernetes API, and of resources under their own names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HttpMethod {
    Discover,
    Get,
    List,
    Watch,
    Review,
    ResourceGet,
    ResourceList,
    ResourceWatch,
}

/// Objects that a call requests, as far as rights depend on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ObjectsWanted<'a> {
    pub(crate) resource: &'a str,
    /// Namespace; empty for all.
    pub(crate) namespace: &'a str,
    /// True if metadata is enough: a caller without the right to more receives what the right to METADATA allows.
    pub(crate) is_metadata: bool,
}

// === impl HttpMethod ===

impl HttpMethod {
    fn path(self) -> &'static str {
        match self {
            Self::Discover => "/kubernetes/Discover",
            Self::Get => "/kubernetes/Get",
            Self::List => "/kubernetes/List",
            Self::Watch => "/kubernetes/Watch",
            Self::Review => "/kubernetes/Review",
            Self::ResourceGet => "/http/Get",
            Self::ResourceList => "/http/List",
            Self::ResourceWatch => "/http/Watch",
        }
    }

    fn is_watch(self) -> bool {
        matches!(self, Self::Watch | Self::ResourceWatch)
    }
}

// === impl HttpCall ===

impl HttpCall {
    /// Counts a request in the account of its peer, before anything else is known of it. The body of the response has the place until
    /// it is sent.
    ///
    /// # Errors
    ///
    /// If a limit is reached. A response with a body would wait for the client's window in no account.
    pub(crate) fn place<B>(service: &Service, request: &mut Request<B>) -> Result<PeerCall, ApiError> {
        let peer = service.inner.peers.call("", request.extensions());
        let peer = peer.inspect_err(|refusal| drop(service.metrics().refuse(refusal)))?;
        let charge = service.inner.peers.request(request.headers(), request.extensions());
        request.extensions_mut().insert(charge.clone());
        Ok(peer.holding(charge, service.metrics().refused().clone()))
    }

    /// Begins a call, whose request has a [place](Self::place): authenticates its caller.
    ///
    /// # Errors
    ///
    /// If the caller is not authenticated, or the request must end meanwhile, because its peer holds too much.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the call.
    pub(crate) async fn begin<B>(
        service: &Service,
        method: HttpMethod,
        request: &mut Request<B>,
    ) -> Result<Self, ApiError> {
        let path = method.path();
        let span = span_of("http", path, request.extensions());
        #[cfg(feature = "otel")]
        super::trace_context::set_parent(&span, request.headers());
        let observer = service.metrics().start(path).map(|observer| observer.in_span(span.clone()));
        if let Some(observer) = &observer {
            observer.received().inc();
        }
        let begun = Self::enter(service, method, request, observer).instrument(span.clone()).await;
        let begun = begun.map(|call| Self { span, ..call });
        begun.inspect_err(|refusal| drop(service.metrics().refuse(refusal)))
    }

    async fn enter<B>(
        service: &Service,
        method: HttpMethod,
        request: &mut Request<B>,
        observer: Option<RpcObserver>,
    ) -> Result<Self, ApiError> {
        let path = method.path();
        let charge = request.extensions().get::<RequestCharge>().cloned();
        let audited = service.denials().and_then(|log| AuditedCall::new(log, path, request.extensions()));
        if let Some(audited) = &audited {
            request.extensions_mut().insert(audited.clone());
        }
        let mut outcome = Outcome { observer, audited };
        let authentication = service.config().authentication.clone();
        if authentication.is_some() || is_impersonating(request.headers()) || has_expired(request.extensions()) {
            // Cancel-safe: the call ends if the other arm wins.
            let authenticated = tokio::select! {
                authenticated = service.authenticate(authentication.as_deref(), request) => authenticated,
                refusal = ended(charge.as_ref()) => Err(refusal),
            };
            if let Err(refusal) = authenticated {
                outcome.refuses(&refusal.to_status());
                return Err(refusal);
            }
        }
        let call = Call::new(request.headers(), request.extensions());
        if let (Some(stream), Some(owner)) = (&call.stream, call.caller().origin()) {
            stream.belongs_to(owner);
        }
        let charge = charge.filter(|_| !method.is_watch());
        Ok(Self { service: service.clone(), call, outcome, charge, span: Span::none() })
    }

    /// Returns the name of the caller, if it has one.
    pub(crate) fn user(&self) -> Option<&str> {
        self.call.identity.as_ref().map(crate::auth::Identity::user)
    }

    /// Returns the span of the call, in which it is answered.
    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Returns the place of the call, to be kept until its response is sent.
    pub(crate) fn into_outcome(self) -> Outcome {
        self.outcome
    }

    /// Limits the time to wait for a version.
    pub(crate) fn waits_at_most(&mut self, wait: Duration) {
        self.call.wait = self.call.wait.min(wait);
    }

    /// Waits until the call must end before it is answered, because its peer holds too much. Never ready for a watch.
    pub(crate) fn ended(&self) -> impl Future<Output = ApiError> + Send + use<> {
        let charge = self.charge.clone();
        async move { ended(charge.as_ref()).await }
    }

    /// Counts bytes of the request's body, which are held until the end of the call.
    pub(crate) fn receives(&self, bytes: usize) {
        if let Some(charge) = &self.charge {
            charge.replace(0, bytes);
        }
    }

    /// Counts a refusal, and records it as the end of the call.
    pub(crate) fn refuse(&mut self, refusal: &ApiError) {
        self.outcome.refuses(&self.service.metrics().refuse(refusal));
    }

    /// Records the code with which the call ends.
    pub(crate) fn ends(&mut self, code: Code) {
        self.outcome.ends(code);
    }

    /// Returns the resources whose names the caller may see.
    pub(crate) async fn seen(&self) -> Result<Vec<Arc<ServedResource>>, ApiError> {
        let seen = self.service.seen(&self.call).await?;
        Ok(seen.into_iter().map(|(resource, _)| resource).collect())
    }

    /// Returns true if the caller may do this to all objects of a namespace, or of all.
    pub(crate) async fn may(&self, operation: Operation, resource: &str, namespace: &str) -> Result<bool, ApiError> {
        if !self.service.authorizes() {
            return Ok(true);
        }
        let Some(identity) = &self.call.identity else { return Ok(false) };
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty()).map(str::to_owned);
        let attributes = Attributes { namespace, ..Attributes::new(operation, resource) };
        match self.service.authorize(identity, &attributes).await {
            Ok(namespaces) => Ok(namespaces.is_none()),
            Err(ApiError::AccessDenied { .. }) => Ok(false),
            Err(refusal) => Err(refusal),
        }
    }

    /// Checks the rights to objects. Whoever may read some namespaces only has no right to all: the list would lack objects
    /// without saying so.
    async fn access(
        &self,
        operation: Operation,
        wanted: ObjectsWanted<'_>,
        name: &str,
    ) -> Result<Access<'_>, ApiError> {
        let ObjectsWanted { resource, namespace, is_metadata } = wanted;
        let of = |format: PayloadFormat| {
            let objects = Wanted::objects(operation, resource, namespace, proto::payload_format(format).into());
            // The empty text is no wildcard for one object.
            let namespace = if operation == Operation::Get { Some(namespace) } else { objects.namespace };
            Wanted { namespace, name, ..objects }
        };
        match self.service.access(&self.call, of(PayloadFormat::Raw)).await.and_then(whole) {
            Err(ApiError::AccessDenied { .. } | ApiError::ViewNotAllowed { .. }) if is_metadata => {
                self.service.access(&self.call, of(PayloadFormat::Metadata)).await.and_then(whole)
            }
            access => access,
        }
    }

    /// Checks the right to an operation, on an object or, without a name, on all.
    pub(crate) async fn check(
        &self,
        operation: Operation,
        wanted: ObjectsWanted<'_>,
        name: &str,
    ) -> Result<(), ApiError> {
        self.access(operation, wanted, name).await.map(drop)
    }

    /// Returns true if the caller may read whole objects: the one of this name, or all if it is empty.
    pub(crate) async fn may_read(
        &self,
        operation: Operation,
        wanted: ObjectsWanted<'_>,
        name: &str,
    ) -> Result<bool, ApiError> {
        match self.access(operation, wanted, name).await {
            Err(ApiError::AccessDenied { .. } | ApiError::ViewNotAllowed { .. }) => Ok(false),
            access => access.map(|_| true),
        }
    }

    /// Opens a watch whose events are lines.
    pub(crate) async fn watch(
        &self,
        wanted: ObjectsWanted<'_>,
        request: &pb::WatchRequest,
        lines: (LineFormat, LineOptions),
    ) -> Result<Box<dyn BoundedBody<Error = Status>>, ApiError> {
        let access = self.access(Operation::Watch, wanted, "").await?;
        Ok(Box::new(Box::pin(watch::open_lines(access, request, lines, self.call.clone())).await?))
    }

    /// Begins a list.
    pub(crate) async fn list(&self, wanted: ObjectsWanted<'_>, request: pb::ListRequest) -> Result<Listing, ApiError> {
        let access = self.access(Operation::List, wanted, "").await?;
        Listing::begin(access, request, self.call.clone()).await
    }

    /// Returns an object, and the part of it that the caller may read.
    pub(crate) async fn get(
        &self,
        wanted: ObjectsWanted<'_>,
        request: pb::GetRequest,
    ) -> Result<(Arc<Object>, PayloadFormat), ApiError> {
        let Access { resource, format, .. } = self.access(Operation::Get, wanted, &request.name).await?;
        let key = query::key("name", wanted.namespace, &request.name)?;
        self.service.quotas().call(&self.call)?;
        if let Some(audited) = &self.call.audited {
            audited.reads(Some(&key), None, &format);
        }
        let (version, matching) = (&request.min_resource_version, request.resource_version_match);
        let at = AtVersion::parse("resourceVersion", version, matching, request.history)?;
        let (object, ..) = self.service.read(&resource, &key, &at, &self.call).await?;
        let object = object.ok_or_else(|| ApiError::object(&resource.name, &key))?;
        if let Some(audited) = &self.call.audited {
            audited.sends(1);
        }
        Ok((object, format.payload))
    }

    /// Returns the version that the present state needs to be as recent as this call, once the upstream has confirmed it.
    ///
    /// # Errors
    ///
    /// Why the upstream has not, in one line.
    pub(crate) async fn most_recent(&self, resource: &ServedResource) -> Result<Option<ResourceVersion>, String> {
        most_recent::of(resource, self.call.wait).await
    }
}

/// Waits until the request must end, because its peer holds too much; for ever without a charge.
async fn ended(charge: Option<&RequestCharge>) -> ApiError {
    match charge {
        Some(charge) => charge.ended().await,
        None => std::future::pending().await,
    }
}

/// Returns access to all that a request is for.
fn whole(access: Access<'_>) -> Result<Access<'_>, ApiError> {
    access.check_whole()?;
    Ok(access)
}

// === impl Outcome ===

impl Outcome {
    /// Records the code with which the call ends.
    pub(crate) fn ends(&mut self, code: Code) {
        if let Some(observer) = &mut self.observer {
            observer.ends(code);
        }
        if let Some(audited) = &self.audited {
            audited.ends(code);
        }
    }

    /// Records the status with which the call is refused.
    fn refuses(&mut self, status: &Status) {
        self.ends(status.code());
        if let Some(audited) = &self.audited {
            audited.refuses(status);
        }
    }

    /// Counts messages of the response: events, or the document.
    pub(crate) fn sends_messages(&self, messages: u64) {
        if let Some(observer) = &self.observer {
            observer.sends_messages(messages);
        }
    }

    /// Counts bytes of the response.
    pub(crate) fn sends(&self, bytes: usize) {
        if let Some(audited) = &self.audited {
            audited.sends_bytes(bytes);
        }
    }
}
