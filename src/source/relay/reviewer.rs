//! The upstream as the authority over the callers of a relay: it answers a call on behalf of each.
//!
//! The questions select no objects: by the index of namespaces, under a value that no namespace has. Only Get reads one. The upstream
//! confirms each answer with the name of the user: without that, it has answered the relay and not the caller, because it is too old
//! or because a proxy has removed the headers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use http::HeaderValue;
use parking_lot::Mutex;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Response, Status, metadata::MetadataMap};

use super::{RelayConfig, upstream};
use crate::{
    auth::{
        Attributes, CallReviewer, Format, IMPERSONATED_USER, Identity, Operation, ReviewError, Scope,
        impersonated_user, impersonation_headers,
    },
    client::{Client, ClientError, Connection},
    model::{Namespaces, View},
    net::connection_files,
    proto::pb::{self, informer_service_client::InformerServiceClient},
};

/// Upstream of a relay, as the authority over the relay's callers. Clones share its connection.
#[derive(Clone)]
pub struct RelayReviewer(Arc<Inner>);

struct Inner {
    config: RelayConfig,
    /// Connection, and the task that drops it once the files that it was made from have changed.
    client: Mutex<Option<(Client, AbortOnDropHandle<()>)>>,
    /// True if the last answer was that this relay may not impersonate.
    is_denied: AtomicBool,
}

/// Call of one caller to the upstream.
struct Question<'a> {
    config: &'a RelayConfig,
    service: InformerServiceClient<Connection>,
    /// Name of the user that the upstream has to confirm.
    user: Option<HeaderValue>,
    attributes: &'a Attributes,
}

/// Reason why there is no decision.
enum Failure {
    Denied(ClientError),
    Unanswered(ClientError),
    Unconfirmed,
}

/// Time limit of an answer: shorter than that of a review, so that a connection that is dead is given up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Index that every resource has.
const INDEX: &str = "namespace";
/// Namespace of no object: a key cannot contain it.
const NO_NAMESPACE: &str = "\0";
/// Small part of a body, to which only the right to the whole is one.
const SMALL_PART: &str = "kind";
/// Selection that depends on the bodies of objects.
const BODY_SELECTOR: &str = "spec.x=x";
/// Reasons of errors that only a caller with the right receives.
const GRANTED: [&str; 2] = ["OBJECT_NOT_FOUND", "NAME_INVALID"];

// === impl RelayReviewer ===

impl RelayReviewer {
    /// Returns a reviewer that connects at the first question.
    pub fn new(config: RelayConfig) -> Self {
        Self(Arc::new(Inner { config, client: Mutex::default(), is_denied: AtomicBool::new(false) }))
    }
}

impl CallReviewer for RelayReviewer {
    fn review_call(
        &self,
        identity: &Identity,
        attributes: Attributes,
    ) -> BoxFuture<'static, Result<Option<Scope>, ReviewError>> {
        let (inner, identity) = (Arc::clone(&self.0), identity.clone());
        async move { inner.review(&identity, &attributes).await }.boxed()
    }
}

debug_fields!(RelayReviewer, this => { endpoint: this.0.config.endpoint });

// === impl Inner ===

impl Inner {
    async fn review(
        self: &Arc<Self>,
        identity: &Identity,
        attributes: &Attributes,
    ) -> Result<Option<Scope>, ReviewError> {
        let headers = impersonation_headers(identity).map_err(|error| ReviewError(error.to_string()))?;
        let service = self.client().await.map_err(ReviewError)?.service_with(headers);
        let mut question = Question { config: &self.config, service, user: impersonated_user(identity), attributes };
        let endpoint = self.config.endpoint.uri();
        let Ok(answer) = timeout(ANSWER_TIMEOUT, question.ask()).await else {
            self.leave();
            return Err(ReviewError(format!("{endpoint}: no response within {ANSWER_TIMEOUT:?}")));
        };
        let is_refused =
            matches!(&answer, Err(Failure::Denied(error)) if error.reason() == Some("IMPERSONATION_DENIED"));
        if self.is_denied.swap(is_refused, Ordering::Relaxed) != is_refused && is_refused {
            tracing::warn!(endpoint, "upstream denies this relay the right to forward identities");
        }
        match answer {
            Ok(scope) => Ok(Some(scope)),
            Err(Failure::Denied(_)) => Ok(None),
            Err(Failure::Unconfirmed) => Err(ReviewError(format!(
                "{endpoint}: the identity of the caller was not confirmed: the upstream is too old, or a proxy has removed the headers \
                 impersonate-*"
            ))),
            Err(Failure::Unanswered(error @ ClientError::Refused(_))) => {
                Err(ReviewError(format!("{endpoint}: {error}")))
            }
            // The text of the others names the server.
            Err(Failure::Unanswered(error)) => {
                self.leave();
                Err(ReviewError(error.to_string()))
            }
        }
    }

    async fn client(self: &Arc<Self>) -> Result<Client, String> {
        if let Some((client, _)) = &*self.client.lock() {
            return Ok(client.clone());
        }
        // Before they are read for the connection, so that a change in the meantime is noticed.
        let files = connection_files::digest(self.config.files()).await;
        let address = upstream::read_secured(&self.config).await?;
        let connected = Client::connect_lazy(&address).map_err(|error| error.to_string())?;
        let (inner, changed) = (Arc::downgrade(self), connection_files::changed(self.config.files(), files));
        let leaving = AbortOnDropHandle::new(tokio::spawn(async move {
            changed.await;
            if let Some(inner) = inner.upgrade() {
                inner.leave();
            }
        }));
        // Another question may have connected meanwhile.
        Ok(self.client.lock().get_or_insert((connected, leaving)).0.clone())
    }

    /// Drops the connection: the next question takes another one, with the certificates of then.
    fn leave(&self) {
        *self.client.lock() = None;
    }
}

// === impl Question ===

impl Question<'_> {
    async fn ask(&mut self) -> Result<Scope, Failure> {
        match self.attributes.operation {
            Operation::Get => self.get().await,
            Operation::List => self.list().await,
            Operation::Watch => self.watch().await,
            Operation::See | Operation::Inspect | Operation::Disconnect => self.see().await,
        }
    }

    async fn get(&mut self) -> Result<Scope, Failure> {
        let Attributes { format, selects_content, .. } = self.attributes;
        self.get_any(&[*format], self.view()).await?;
        if *selects_content {
            self.get_any(&[Format::Raw, Format::Struct], None).await?;
        }
        Ok(Scope::All)
    }

    /// Requests the object in one of these formats; without a view, by the right to whole bodies.
    async fn get_any(&mut self, formats: &[Format], view: Option<pb::View>) -> Result<(), Failure> {
        let Attributes { namespace, name, .. } = self.attributes;
        let small = || pb::View { fields: vec![SMALL_PART.to_owned()], ..Default::default() };
        let view = view.unwrap_or_else(small);
        let mut denied = None;
        for format in formats {
            let request = pb::GetRequest {
                resource: self.config.query.resource.clone(),
                namespace: namespace.clone().unwrap_or_default(),
                name: name.clone().unwrap_or_default(),
                format: format_of(*format).into(),
                view: Some(view.clone()).filter(|_| *format != Format::Metadata),
                ..Default::default()
            };
            let answer = self.service.get(request).await;
            match self.answer(answer) {
                Ok(_) => return Ok(()),
                Err(Failure::Denied(error)) => denied = Some(error),
                Err(failure) => return Err(failure),
            }
        }
        denied.map_or(Err(Failure::Unconfirmed), |error| Err(Failure::Denied(error)))
    }

    /// Returns the view that the caller needs a right to: that of the relay, which has no more, or else the one of the call if it
    /// means the same at the upstream. None if it needs the right to whole bodies.
    fn view(&self) -> Option<pb::View> {
        let Attributes { format, view, .. } = self.attributes;
        if *format == Format::Metadata {
            return None;
        }
        let named = || view.as_ref().filter(|name| View::built_in(name).is_some());
        let of_call = || named().map(|name| pb::View { name: name.clone(), ..pb::View::default() });
        self.config.query.view.clone().or_else(of_call)
    }

    async fn list(&mut self) -> Result<Scope, Failure> {
        let pb::WatchRequest { resource, namespace, field_selector, index, format, view, .. } = self.nothing();
        let request =
            pb::ListRequest { resource, namespace, field_selector, index, format, view, ..Default::default() };
        let answer = self.service.list(request).await;
        let Some(mut chunks) = self.answer(answer)? else { return Ok(Scope::All) };
        match chunks.message().await {
            Ok(Some(chunk)) => Ok(scope(chunk.namespaces)),
            Ok(None) => Err(Failure::Unanswered(ClientError::contract("List without a chunk"))),
            Err(status) => Err(self.failure(&status)),
        }
    }

    async fn watch(&mut self) -> Result<Scope, Failure> {
        let initial_events = pb::InitialEvents::None.into();
        let name = self.attributes.name.clone().unwrap_or_default();
        let request = pb::WatchRequest { name, initial_events, ..self.nothing() };
        let answer = self.service.watch(request).await;
        let Some(mut messages) = self.answer(answer)? else { return Ok(Scope::All) };
        loop {
            match messages.message().await {
                Ok(Some(pb::WatchResponse { bookmark: Some(bookmark), .. })) => return Ok(scope(bookmark.namespaces)),
                Ok(Some(_)) => {}
                Ok(None) => return Err(Failure::Unanswered(ClientError::contract("Watch without a bookmark"))),
                Err(status) => return Err(self.failure(&status)),
            }
        }
    }

    /// Decides if the caller may get, list or watch anything, and learns that the resource exists.
    async fn see(&mut self) -> Result<Scope, Failure> {
        let answer = self.service.list_resources(pb::ListResourcesRequest {}).await;
        let resources = self.answer(answer)?.unwrap_or_default().resources;
        let is_seen = resources.iter().any(|resource| resource.name == self.config.query.resource);
        let denied = || Failure::Denied(ClientError::contract("ListResources without the resource"));
        if is_seen { Ok(Scope::Only(Namespaces::default())) } else { Err(denied()) }
    }

    /// Returns the request of no objects, with the rights that the call needs.
    fn nothing(&self) -> pb::WatchRequest {
        let Attributes { namespace, format, selects_content, .. } = self.attributes;
        // A relay of one namespace has no others, whatever its callers may read there.
        let namespace = namespace.as_ref().or(self.config.query.namespace.as_ref());
        let index = pb::IndexMatch { name: INDEX.to_owned(), values: vec![NO_NAMESPACE.to_owned()] };
        pb::WatchRequest {
            resource: self.config.query.resource.clone(),
            namespace: namespace.cloned().unwrap_or_default(),
            field_selector: if *selects_content { BODY_SELECTOR.to_owned() } else { String::new() },
            index: Some(index),
            format: format_of(*format).into(),
            view: self.view(),
            ..Default::default()
        }
    }

    /// Returns the message of an answer that grants the call; `None` if it is an error that only a caller with the right receives.
    fn answer<T>(&self, answer: Result<Response<T>, Status>) -> Result<Option<T>, Failure> {
        let (metadata, message) = match answer {
            Ok(response) => {
                let (metadata, message, _) = response.into_parts();
                (metadata, Some(message))
            }
            Err(status) => match self.failure(&status) {
                Failure::Unanswered(error) if error.reason().is_some_and(|reason| GRANTED.contains(&reason)) => {
                    (status.metadata().clone(), None)
                }
                failure => return Err(failure),
            },
        };
        if self.is_confirmed(metadata) { Ok(message) } else { Err(Failure::Unconfirmed) }
    }

    fn is_confirmed(&self, metadata: MetadataMap) -> bool {
        self.user.is_some() && metadata.into_headers().get(IMPERSONATED_USER) == self.user.as_ref()
    }

    fn failure(&self, status: &Status) -> Failure {
        let error = ClientError::from_status(&self.config.endpoint, status);
        match error.reason() {
            Some("ACCESS_DENIED" | "IMPERSONATION_DENIED" | "VIEW_NOT_ALLOWED") => Failure::Denied(error),
            _ => Failure::Unanswered(error),
        }
    }
}

/// Returns the namespaces that an answer is limited to.
fn scope(namespaces: Vec<String>) -> Scope {
    if namespaces.is_empty() { Scope::All } else { Scope::Only(namespaces.into_iter().collect()) }
}

fn format_of(format: Format) -> pb::PayloadFormat {
    match format {
        Format::Metadata => pb::PayloadFormat::Metadata,
        Format::Struct => pb::PayloadFormat::Struct,
        Format::Raw => pb::PayloadFormat::Raw,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tonic::Code;
    use tonic_types::{ErrorDetails, StatusExt};

    use super::*;
    use crate::{auth::IdentityDetails, net::TlsOptions};

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_once_the_files_have_changed_that_it_was_made_from() {
        let directory = tempfile::tempdir().unwrap();
        let authority = directory.path().join("ca");
        std::fs::write(&authority, "one").unwrap();
        let tls = TlsOptions { authority: Some(authority.clone()), ..TlsOptions::default() };
        let config = RelayConfig { tls, ..RelayConfig::new("http://127.0.0.1:1".parse().unwrap(), "pods") };
        let RelayReviewer(inner) = RelayReviewer::new(config);
        inner.client().await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(inner.client.lock().is_some());
        std::fs::write(&authority, "two").unwrap();
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert!(inner.client.lock().is_none(), "the next question makes another one");
    }

    /// A server that does not know the headers answers with the rights of the relay.
    #[tokio::test]
    async fn an_answer_counts_only_if_it_names_the_caller() {
        let config = RelayConfig::new("http://127.0.0.1:1".parse().unwrap(), "pods");
        let user = |user: &str| {
            let details = IdentityDetails { user: user.to_owned(), ..IdentityDetails::default() };
            impersonated_user(&Identity::new(details))
        };
        let client = Client::connect_lazy(&config.endpoint).unwrap();
        let attributes = Attributes::new(Operation::List, "pods");
        let service = client.service_with(http::HeaderMap::new());
        let question = Question { config: &config, service, user: user("ann"), attributes: &attributes };
        for (named, is_confirmed) in [(user("ann"), true), (user("relay"), false), (None, false)] {
            let mut headers = http::HeaderMap::new();
            headers.extend(named.map(|user| (IMPERSONATED_USER, user)));
            let metadata = MetadataMap::from_headers(headers);
            let granted = Response::from_parts(metadata.clone(), (), tonic::Extensions::default());
            assert_eq!(question.answer(Ok(granted)).is_ok(), is_confirmed);
            let error_info = HashMap::<String, String>::new();
            let details = ErrorDetails::with_error_info("OBJECT_NOT_FOUND", "informerd", error_info);
            let mut not_found = Status::with_error_details(Code::NotFound, "", details);
            *not_found.metadata_mut() = metadata;
            assert_eq!(question.answer::<()>(Err(not_found)).is_ok(), is_confirmed);
            let lost = Err(Status::unavailable("connection refused"));
            assert!(matches!(question.answer::<()>(lost), Err(Failure::Unanswered(_))));
        }
    }
}
