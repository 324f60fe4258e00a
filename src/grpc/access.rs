//! Access of a call to a resource: its rights are checked before anything else of its request, and before the resource is looked
//! up. So a caller without rights cannot tell a resource that exists from one that does not.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use http::HeaderMap;
use tokio::sync::watch;
use tonic::Status;

use super::{
    authenticate::token,
    call::{Call, Caller},
    grant::Grant,
    resource::ServedResource,
    resource_end::ResourceEnd,
    service::Service,
    status::ApiError,
};
use crate::{
    auth::{AccessError, Attributes, Authorizer, Credentials, Format, Identity, Operation, Scope},
    model::{Namespaces, excerpt},
    proto::{ObjectFormat, PayloadFormat, pb},
    transport::Peer,
};

/// Access of a call to a resource.
#[derive(Debug)]
pub(super) struct Access<'a> {
    pub(super) resource: Arc<ServedResource>,
    /// Form of the objects.
    pub(super) format: ObjectFormat,
    /// Namespaces that the call is limited to, because its caller may read no others.
    pub(super) namespaces: Option<Namespaces>,
    pub(super) service: &'a Service,
    /// Rights that were checked; none where nobody is authorized.
    grant: Option<Grant>,
    /// Changes of rights since they were checked.
    changes: Option<watch::Receiver<()>>,
}

/// Request of a call, as far as rights depend on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) operation: Operation,
    pub(super) resource: &'a str,
    /// Namespace; none for all.
    pub(super) namespace: Option<&'a str>,
    /// Name of one object; empty for all.
    pub(super) name: &'a str,
    /// Format of the objects, as in the request.
    pub(super) format: i32,
    /// Part of each body.
    pub(super) view: Option<&'a pb::View>,
}

// === impl Wanted ===

impl<'a> Wanted<'a> {
    /// Returns the request of objects of a namespace, where the empty text stands for all.
    pub(super) fn objects(operation: Operation, resource: &'a str, namespace: &'a str, format: i32) -> Self {
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
        Self { operation, resource, namespace, name: "", format, view: None }
    }

    fn attributes(&self, format: PayloadFormat, is_secret: bool) -> Attributes {
        // Rights are to whole bodies, which include any part that a request describes, or to a view by its name.
        let view = self.view.filter(|view| !view.name.is_empty() && format != PayloadFormat::Metadata);
        Attributes {
            namespace: self.namespace.map(str::to_owned),
            name: Some(self.name).filter(|name| !name.is_empty()).map(str::to_owned),
            format: format_of(format),
            view: view.map(|view| view.name.clone()),
            is_secret,
            ..Attributes::new(self.operation, self.resource)
        }
    }
}

// === impl Access ===

impl Access<'_> {
    /// Checks that the call may depend on the bodies of objects, for this part of its request. It may limit the namespaces further.
    ///
    /// # Errors
    ///
    /// If the caller may read metadata or views only, or nobody may read whole bodies.
    pub(super) async fn require_bodies(&mut self, part: &'static str) -> Result<(), ApiError> {
        let resource = &self.resource;
        match &mut self.grant {
            None if resource.is_secret => return Err(metadata_only(&resource.name, part)),
            Some(grant) if !grant.attributes.selects_content => {
                grant.attributes.selects_content = true;
                self.namespaces = self.service.authorize(&grant.caller.identity, &grant.attributes).await?;
            }
            _ => {}
        }
        resource.views.check_selection(&resource.name, part)
    }

    /// Returns the rights that were checked, to check them again while a watch is open.
    pub(super) fn take_grant(&mut self) -> Option<Arc<Grant>> {
        self.grant.take().map(Arc::new)
    }

    /// Returns true if rights may have changed since they were checked.
    pub(super) fn is_outdated(&self) -> bool {
        self.changes.as_ref().is_some_and(|changes| changes.has_changed().unwrap_or(true))
    }

    /// Checks that the call is not limited to some namespaces: a part of what it requests would be taken for the whole.
    ///
    /// # Errors
    ///
    /// If it is.
    pub(super) fn check_whole(&self) -> Result<(), ApiError> {
        if self.namespaces.is_none() {
            return Ok(());
        }
        let message = "you may read some namespaces only: name one of them".to_owned();
        Err(ApiError::AccessDenied { message })
    }

    /// Checks that the caller may read another object of the resource, in the same form.
    ///
    /// # Errors
    ///
    /// If it may not, the same whether the object exists or not.
    pub(super) async fn require_object(&self, namespace: &str, name: &str) -> Result<(), ApiError> {
        let Some(Grant { caller, attributes }) = &self.grant else { return Ok(()) };
        let (namespace, name) = (Some(namespace.to_owned()), Some(name.to_owned()));
        let attributes = Attributes { operation: Operation::Get, namespace, name, ..attributes.clone() };
        self.service.authorize(&caller.identity, &attributes).await.map(drop)
    }

    /// Returns true if the call returns bodies, whole or in part, or may depend on them, for what was checked.
    pub(super) fn has_bodies(&self) -> bool {
        let is_granted =
            |grant: &Grant| grant.attributes.selects_content || grant.attributes.format != Format::Metadata;
        self.grant.as_ref().map_or(!self.resource.is_secret, is_granted)
    }
}

// === impl Service ===

impl Service {
    /// Checks the rights of a call, and returns its access to the resource.
    ///
    /// # Errors
    ///
    /// If the caller lacks a right, the same whether the resource exists or not: only a caller with rights learns that there is no
    /// such resource.
    pub(super) async fn access(&self, call: &Call, wanted: Wanted<'_>) -> Result<Access<'_>, ApiError> {
        if let Some(audited) = &call.audited {
            audited.requests(wanted.resource, wanted.namespace, wanted.format);
        }
        let parsed = PayloadFormat::from_proto(wanted.format);
        let is_unspecified = wanted.format == i32::from(pb::PayloadFormat::Unspecified);
        if !self.authorizes() {
            let resource = self.resource(wanted.resource)?;
            let is_metadata = is_unspecified && resource.is_secret && wanted.view.is_none();
            let format = if is_metadata { Some(PayloadFormat::Metadata) } else { parsed };
            let format = format.ok_or_else(|| unknown_format(wanted.format))?;
            if resource.is_secret && format != PayloadFormat::Metadata {
                return Err(metadata_only(&resource.name, "format STRUCT or RAW"));
            }
            let format = resource.views.format(&resource.name, format, wanted.view)?;
            let format = ObjectFormat { compression: call.compression, ..format };
            return Ok(Access { resource, format, namespaces: None, service: self, grant: None, changes: None });
        }
        let changes = self.config().access.authorizer.as_ref().map(Authorizer::changes);
        let found = self.find(wanted.resource);
        let is_secret = found.as_ref().is_some_and(|resource| resource.is_secret);
        let mut attributes = wanted.attributes(parsed.unwrap_or(PayloadFormat::Metadata), is_secret);
        let Some(identity) = call.identity.clone() else { return Err(denied(None, &attributes)) };
        let mut format = parsed;
        let mut answer = self.authorize(&identity, &attributes).await;
        if is_unspecified && wanted.view.is_none() && matches!(answer, Err(ApiError::AccessDenied { .. })) {
            // Whoever may read metadata only need not know the formats.
            attributes.format = Format::Metadata;
            format = Some(PayloadFormat::Metadata);
            answer = match self.authorize(&identity, &attributes).await {
                Err(ApiError::AccessDenied { .. }) => answer,
                answer => answer,
            };
        }
        let namespaces = answer?;
        let resource = self.resource(wanted.resource)?;
        if found.is_none_or(|found| found.calls.id() != resource.calls.id()) {
            // The rights are those to another resource, which had this name until now.
            return Err(ApiError::ResourceEnded { resource: resource.name.clone(), end: ResourceEnd::Replaced });
        }
        let format = format.ok_or_else(|| unknown_format(wanted.format))?;
        let format = resource.views.format(&resource.name, format, wanted.view)?;
        let format = ObjectFormat { compression: call.compression, ..format };
        let grant = call.authenticated().map(|caller| Grant { caller, attributes });
        Ok(Access { resource, format, namespaces, service: self, grant, changes })
    }

    /// Returns the namespaces to which a call is limited, or none if it is not.
    pub(super) async fn authorize(
        &self,
        identity: &Identity,
        attributes: &Attributes,
    ) -> Result<Option<Namespaces>, ApiError> {
        self.decide(identity, attributes, None, false).await
    }

    /// Returns the same for an open watch. One that is limited to some namespaces keeps those of them that the caller may read, also
    /// one whose last object has been deleted, and all of them when there are too many to find others.
    pub(super) async fn authorize_again(
        &self,
        identity: &Identity,
        attributes: &Attributes,
        current: Option<&Namespaces>,
    ) -> Result<Option<Namespaces>, ApiError> {
        self.decide(identity, attributes, current, true).await
    }

    async fn decide(
        &self,
        identity: &Identity,
        attributes: &Attributes,
        current: Option<&Namespaces>,
        is_stream: bool,
    ) -> Result<Option<Namespaces>, ApiError> {
        let Some(authorizer) = self.config().access.authorizer.as_ref() else { return Ok(None) };
        let present = || self.namespaces_of(&attributes.resource);
        let mut scope = authorizer.decide(identity, attributes, &present, is_stream).await;
        if let Some(current) = current
            && matches!(scope, Ok(Scope::Only(_)) | Err(AccessError::Denied | AccessError::TooManyNamespaces { .. }))
        {
            let found = match scope {
                Ok(Scope::Only(found)) => found,
                _ => Namespaces::default(),
            };
            scope = keep(authorizer, identity, attributes, current, &found).await;
        }
        match scope {
            Ok(Scope::All) => Ok(None),
            Ok(Scope::Only(namespaces)) => Ok(Some(namespaces)),
            Err(AccessError::Denied) => Err(denied(Some(identity), attributes)),
            Err(AccessError::Unavailable { problem }) => Err(ApiError::AuthorizerUnavailable { problem }),
            Err(AccessError::TooManyNamespaces { limit }) => Err(namespace_required(limit)),
        }
    }

    /// Returns the namespaces that a resource has objects in; none if there is no such resource.
    pub(super) fn namespaces_of(&self, resource: &str) -> Vec<String> {
        let snapshot = self.find(resource).and_then(|resource| resource.informer.snapshot());
        snapshot.map(|snapshot| snapshot.namespaces()).unwrap_or_default()
    }

    /// Returns each resource that a call may see, with the namespaces of the objects that it may list: none if all.
    pub(super) async fn seen(&self, call: &Call) -> Result<Vec<(Arc<ServedResource>, Option<Namespaces>)>, ApiError> {
        let mut seen = Vec::new();
        for resource in self.resources() {
            if !self.authorizes() {
                seen.push((resource, None));
                continue;
            }
            let Some(identity) = &call.identity else { continue };
            let name = resource.name.clone();
            let may = async |operation| self.authorize(identity, &Attributes::new(operation, &*name)).await;
            match may(Operation::List).await {
                Err(ApiError::AccessDenied { .. }) => {}
                answer => {
                    seen.push((resource, answer?));
                    continue;
                }
            }
            // Whoever may only get or watch learns that the resource exists, and counts nothing of it.
            match may(Operation::See).await {
                Ok(_) => seen.push((resource, Some(Namespaces::default()))),
                Err(ApiError::AccessDenied { .. }) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(seen)
    }

    /// Returns the names of the resources whose watches the caller may inspect: this one, or, without a name, all of those.
    ///
    /// # Errors
    ///
    /// If the caller may inspect none.
    pub(super) async fn inspected(
        &self,
        call: &Call,
        operation: Operation,
        resource: &str,
    ) -> Result<BTreeSet<String>, ApiError> {
        if !resource.is_empty() {
            self.inspect(call.identity.as_ref(), operation, resource).await?;
            return Ok([self.resource(resource)?.name.clone()].into());
        }
        let mut inspected = BTreeSet::new();
        for resource in self.resources() {
            match self.inspect(call.identity.as_ref(), operation, &resource.name).await {
                Ok(()) => {
                    inspected.insert(resource.name.clone());
                }
                Err(ApiError::AccessDenied { .. }) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        if inspected.is_empty() {
            // Not that of one of them: it has the name of a resource.
            return Err(denied(call.identity.as_ref(), &Attributes::new(operation, "*")));
        }
        Ok(inspected)
    }

    /// Checks that a caller may inspect every resource; without any, that it may inspect whichever there are.
    pub(super) async fn inspect_all(&self, identity: Option<&Identity>) -> Result<(), ApiError> {
        let mut checked = BTreeSet::new();
        // A reload may add one while others are reviewed.
        while let Some(resource) = self.resources().find(|resource| !checked.contains(&resource.calls.id())) {
            self.inspect(identity, Operation::Inspect, &resource.name).await?;
            checked.insert(resource.calls.id());
        }
        if checked.is_empty() { self.inspect(identity, Operation::Inspect, "*").await } else { Ok(()) }
    }

    /// Checks that the sender of these headers, at this address, may see what operators see of all resources: their metrics.
    ///
    /// # Errors
    ///
    /// The status that a call would have.
    pub async fn check_operator(&self, headers: &HeaderMap, address: SocketAddr) -> Result<(), Status> {
        if !self.authorizes() {
            return Ok(());
        }
        let identity = match &self.config().authentication {
            Some(authentication) => {
                let credentials = token(headers)?.map(Credentials::Token);
                let caller = Caller::new(Some(Peer::Tcp(address)), None);
                let (identity, _) = self.identity(authentication, credentials.as_ref(), headers, caller).await?;
                Some(identity)
            }
            None => None,
        };
        Ok(self.inspect_all(identity.as_ref()).await?)
    }

    /// Checks that a caller may inspect a resource in all namespaces: what is inspected has no namespaces.
    async fn inspect(&self, identity: Option<&Identity>, operation: Operation, resource: &str) -> Result<(), ApiError> {
        if !self.authorizes() {
            return Ok(());
        }
        let attributes = Attributes::new(operation, resource);
        let refusal = || denied(identity, &attributes);
        let namespaces = self.authorize(identity.ok_or_else(refusal)?, &attributes).await?;
        namespaces.map_or(Ok(()), |_| Err(refusal()))
    }

    /// Returns true if callers need rights.
    pub fn authorizes(&self) -> bool {
        self.config().access.authorizer.is_some()
    }
}

/// Adds to the namespaces that were found those of an open watch that its caller may still read. Each is decided by itself: an
/// authority that decides about all namespaces may consider only those with objects.
async fn keep(
    authorizer: &Authorizer,
    identity: &Identity,
    attributes: &Attributes,
    current: &Namespaces,
    found: &Namespaces,
) -> Result<Scope, AccessError> {
    let mut kept = Vec::new();
    for namespace in current.iter().filter(|namespace| !found.contains(namespace)) {
        let of_one = Attributes { namespace: Some(namespace.to_owned()), ..attributes.clone() };
        match authorizer.decide(identity, &of_one, &Vec::new, true).await {
            Ok(Scope::All) => kept.push(namespace),
            // The upstream of a relay decides about the namespace without a name as about all: those that it grants may be others.
            Ok(Scope::Only(granted)) if granted.contains(namespace) => kept.push(namespace),
            Ok(Scope::Only(_)) | Err(AccessError::Denied) => {}
            Err(error) => return Err(error),
        }
    }
    let namespaces: Namespaces = found.iter().chain(kept).collect();
    if namespaces.iter().len() == 0 { Err(AccessError::Denied) } else { Ok(Scope::Only(namespaces)) }
}

fn format_of(format: PayloadFormat) -> Format {
    match format {
        PayloadFormat::Metadata => Format::Metadata,
        PayloadFormat::Struct => Format::Struct,
        PayloadFormat::Raw => Format::Raw,
    }
}

fn unknown_format(format: i32) -> ApiError {
    ApiError::Invalid {
        reason: "PAYLOAD_FORMAT_INVALID",
        field: "format",
        message: format!("unsupported value {format}; supported: STRUCT (1), RAW (2), METADATA (3)"),
    }
}

/// Creates the error of a caller who lacks a right. It depends on the request alone, and not on what exists.
fn denied(identity: Option<&Identity>, attributes: &Attributes) -> ApiError {
    let Attributes { operation, resource, namespace, format, view, selects_content, .. } = attributes;
    let user = identity.map_or_else(|| "a caller without an identity".to_owned(), |of| format!("{:?}", of.user()));
    let verb = match operation {
        Operation::Get => "get or list",
        Operation::List => "list",
        Operation::Watch => "list and watch",
        Operation::Inspect => "inspect (verb admin)",
        Operation::Disconnect => "end watches of (verb disconnect)",
        Operation::See => "see",
    };
    let place = match namespace.as_deref() {
        None => String::new(),
        Some("") => " outside of namespaces".to_owned(),
        Some(namespace) => format!(" in namespace {:?}", excerpt(namespace)),
    };
    let form = match (format, view) {
        (Format::Metadata, _) if !*selects_content => String::new(),
        _ if *selects_content => ", selected by other than namespace, name and labels".to_owned(),
        (_, Some(view)) => format!(" in the view {:?}; METADATA may be allowed", excerpt(view)),
        (Format::Raw, None) => " as RAW; METADATA or a view by its name may be allowed".to_owned(),
        (_, None) => " as STRUCT; METADATA or a view by its name may be allowed".to_owned(),
    };
    let resource = excerpt(resource);
    ApiError::AccessDenied {
        message: format!("{user} may not {verb} {resource:?}{place}{form}: ask the server's operator for the right"),
    }
}

/// Creates the error of a caller who may read some namespaces of too many to find out which.
fn namespace_required(limit: usize) -> ApiError {
    ApiError::AccessDenied {
        message: format!(
            "namespace: missing; you may not read all namespaces, and the resource has objects in more than {limit} of them: \
             name one"
        ),
    }
}

/// Creates the error of a request that needs more than a resource of Secrets serves where nobody is authorized.
fn metadata_only(resource: &str, part: &str) -> ApiError {
    ApiError::AccessDenied {
        message: format!(
            "resource {resource:?} serves METADATA only, and a {part} needs more: request METADATA, by namespace, name and labels, \
             or add an authorization rule with the format STRUCT or RAW of this resource"
        ),
    }
}
