//! Connection to the upstream: its name and path, its streams and its errors.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;

use super::{RelayClients, RelayConfig, clients::RelayServer, message};
use crate::{
    cache::{Provenance, SourceError, SourceHealth},
    client::{Client, ClientError, WatchMessages},
    model::{Object, ObjectKey, ResourceVersion},
    net::{ServerAddress, connection_files, small_file},
    proto::{
        self,
        pb::{
            self, EventType, FullChannelPolicy, GetRequest, InitialEvents, PayloadFormat, QueueOptions, Resource,
            WatchRequest, WatchResponse,
        },
    },
};

/// Connection to the upstream, made on demand, with one watch at a time.
#[derive(Debug)]
pub(super) struct Upstream {
    config: RelayConfig,
    health: SourceHealth,
    provenance: Provenance,
    /// True if the upstream has the objects from Kubernetes, or relays them, and Secrets are not allowed.
    refuses_secrets: AtomicBool,
    clients: RelayClients,
    /// Runtime of the connection, which other sources may share; none for that of the call.
    runtime: Option<Handle>,
    client: Mutex<Option<Arc<Client>>>,
    /// Digest of the files that the last connection was made from; `None` if one could not be read.
    files: Mutex<Option<connection_files::Digest>>,
}

/// Start of a stream.
#[derive(Debug, Clone, Copy)]
pub(super) enum Start<'a> {
    /// All objects first, once the upstream has reached a version.
    List {
        /// Version to reach; `None` without a position.
        not_before: Option<&'a ResourceVersion>,
    },
    /// Changes after a version of a history.
    After {
        /// Version to resume after.
        version: &'a ResourceVersion,
        /// Name of the history that the upstream sent with the version; empty if unknown.
        history: &'a str,
    },
}

/// Time for which an upstream may wait to sync or to reach a version before it answers a list.
const LIST_PATIENCE: Duration = Duration::from_secs(10);
/// Bookmark intervals without a message before the stream fails: a busy upstream does not miss that many.
const SILENT_HEARTBEATS: u32 = 3;
/// Limit of servers before this one; a longer path means a loop that is not visible yet.
const MAX_PATH: usize = 16;

// === impl Upstream ===

impl Upstream {
    pub(super) fn new(config: RelayConfig, health: SourceHealth, clients: &RelayClients) -> Self {
        let (provenance, refuses_secrets) = (Provenance::default(), AtomicBool::new(false));
        let (clients, runtime) = (clients.clone(), Handle::try_current().ok());
        Self {
            config,
            health,
            provenance,
            refuses_secrets,
            clients,
            runtime,
            client: Mutex::default(),
            files: Mutex::default(),
        }
    }

    /// Returns the servers that the resource comes through.
    pub(super) fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    /// Returns the time without a message after which the source gives a stream up.
    pub(super) fn silence(&self) -> Duration {
        self.config.heartbeat * SILENT_HEARTBEATS
    }

    /// Opens a stream. The caller calls [`Self::check_path`] first.
    pub(super) async fn open(
        &self,
        start: Start<'_>,
        bookmark_interval: Duration,
    ) -> Result<WatchMessages, SourceError> {
        let mut request = WatchRequest {
            format: PayloadFormat::Raw.into(),
            queue: Some(QueueOptions { policy: FullChannelPolicy::Replay.into(), length: 0 }),
            bookmark_interval: proto::duration_message(bookmark_interval),
            ..self.config.query.watch_request()
        };
        let patience = match start {
            Start::List { not_before } => {
                request.initial_events = InitialEvents::Send.into();
                request.complete_initial_events = true;
                request.min_resource_version = not_before.map(ToString::to_string).unwrap_or_default();
                LIST_PATIENCE + self.config.answer_timeout
            }
            Start::After { version, history } => {
                request.resource_version = version.to_string();
                history.clone_into(&mut request.history);
                self.config.resume_timeout
            }
        };
        let client = self.client().await?;
        self.answer(patience, client.open(request)).await
    }

    /// Returns the object under a key, selected or not, and the version of the state that it was read from, once the upstream has
    /// reached a version; without one at once. `None` without an object, in a state at or after that version.
    pub(super) async fn get(
        &self,
        key: &ObjectKey,
        not_before: Option<&ResourceVersion>,
    ) -> Result<Option<(Object, ResourceVersion)>, SourceError> {
        let request = GetRequest {
            resource: self.config.query.resource.clone(),
            namespace: key.namespace().to_owned(),
            name: key.name().to_owned(),
            format: PayloadFormat::Raw.into(),
            min_resource_version: not_before.map(ToString::to_string).unwrap_or_default(),
            view: self.config.query.view.clone(),
            ..GetRequest::default()
        };
        let limit = self.config.answer_timeout;
        let client = self.client().await?;
        let call = async {
            match client.get_within(request, limit).await {
                Err(error) if error.reason() == Some("OBJECT_NOT_FOUND") => Ok(None),
                answer => answer.map(Some),
            }
        };
        let Some(answer) = self.answer(limit, call).await? else { return Ok(None) };
        let at = message::version(&answer.resource_version)?;
        Ok(Some((message::object(self.with_body(answer.object))?, at)))
    }

    /// Returns an object as the upstream has sent it, with an empty body if the view leaves out the whole of it.
    pub(super) fn with_body(&self, object: Option<pb::Object>) -> Option<pb::Object> {
        if self.config.query.view.is_some() { message::with_body(object) } else { object }
    }

    /// Returns the name of the view of the upstream's configuration that this relay follows, if it follows one.
    pub(super) fn view_name(&self) -> Option<&str> {
        let name = self.config.query.view.as_ref().map(|view| view.name.as_str())?;
        // Names with this sign mean the same at every server.
        Some(name).filter(|name| !name.is_empty() && !name.starts_with('@'))
    }

    /// Returns the paths of that view, as a text; none if this relay follows none.
    pub(super) fn named_view(&self, resource: &Resource) -> Result<Option<String>, SourceError> {
        let Some(name) = self.view_name() else { return Ok(None) };
        let Some(named) = resource.views.iter().find(|view| view.name == name) else {
            let known: Vec<&str> = resource.views.iter().map(|view| view.name.as_str()).collect();
            let (endpoint, resource, known) = (self.config.endpoint.uri(), &resource.name, known.join(", "));
            let problem = format!("{endpoint}: resource {resource:?} has no view {name:?} (known: {known})");
            return Err(SourceError::Unavailable(problem));
        };
        let pb::View { fields, drop, .. } = named.view.clone().unwrap_or_default();
        Ok(Some(format!("{fields:?} {drop:?}")))
    }

    /// Waits for the next message of a stream, which has to arrive in time and be no error.
    pub(super) async fn next(&self, messages: &mut WatchMessages) -> Result<WatchResponse, SourceError> {
        match tokio::time::timeout(self.silence(), messages.message()).await {
            Ok(Ok(message)) => message.ok_or_else(|| self.ended()),
            Ok(Err(status)) => Err(self.status(&status)),
            Err(_) => Err(self.silent()),
        }
    }

    /// Converts the status that a stream ended with.
    pub(super) fn status(&self, status: &tonic::Status) -> SourceError {
        self.error(&ClientError::from_status(&self.config.endpoint, status))
    }

    /// Converts a message that ends a stream, or that an upstream must not send to a relay, to an error.
    pub(super) fn not_an_event(&self, message: WatchResponse) -> SourceError {
        match (message.r#type(), message.error) {
            (EventType::Error, Some(status)) => self.error(&ClientError::from_proto(&status)),
            // REPLAY never drops events. The position is before the gap.
            (EventType::Dropped, _) => {
                let dropped = message.dropped.unwrap_or_default();
                let (count, after) = (dropped.count, dropped.after_resource_version);
                SourceError::Busy(format!(
                    "{}: {count} events dropped after version {after}",
                    self.config.endpoint.uri()
                ))
            }
            (event_type, _) => self.contract(&format!("unexpected {}", event_type.as_str_name())),
        }
    }

    /// Checks that an object is no Secret that must not be served. Only the objects show that an upstream's resource has Secrets.
    pub(super) fn check_secret(&self, object: Option<&pb::Object>) -> Result<(), SourceError> {
        let is_secret = object.is_some_and(|object| object.api_version == "v1" && object.kind == "Secret");
        if !is_secret || !self.refuses_secrets.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (endpoint, resource) = (self.config.endpoint.uri(), &self.config.query.resource);
        Err(SourceError::Unavailable(format!(
            "{endpoint}: resource {resource:?} has Secrets: write `allow_secrets: true` for the resource of this relay, or remove it"
        )))
    }

    /// Returns the error of an upstream that breaks its contract.
    pub(super) fn contract(&self, problem: &str) -> SourceError {
        SourceError::Undecodable(format!("{}: {problem}", self.config.endpoint.uri()))
    }

    pub(super) fn ended(&self) -> SourceError {
        SourceError::Busy(format!("{}: stream closed", self.config.endpoint.uri()))
    }

    /// Returns the error after a change of the namespaces that this relay may read: the state has to be listed again.
    pub(super) fn access_changed(&self) -> SourceError {
        SourceError::Expired(format!(
            "{}: the namespaces that this relay may read have changed",
            self.config.endpoint.uri()
        ))
    }

    /// Returns the error after a change of the files that the connection was made from.
    pub(super) fn changed(&self) -> SourceError {
        SourceError::Busy(format!("{}: a certificate has changed, reconnecting", self.config.endpoint.uri()))
    }

    /// Returns the digest of the files that the connection was made from.
    pub(super) fn files(&self) -> Option<connection_files::Digest> {
        self.files.lock().clone()
    }

    pub(super) fn silent(&self) -> SourceError {
        SourceError::Busy(format!("{}: no data for {:?}", self.config.endpoint.uri(), self.silence()))
    }

    /// Drops the connection: the next stream takes another one.
    pub(super) fn leave(&self) {
        if let Some(client) = self.client.lock().take() {
            self.clients.leave(&self.server(), &client);
        }
    }

    fn server(&self) -> RelayServer {
        (self.config.endpoint.clone(), self.config.tls.clone(), self.files())
    }

    async fn client(&self) -> Result<Arc<Client>, SourceError> {
        if let Some(client) = &*self.client.lock() {
            return Ok(Arc::clone(client));
        }
        // Before they are read for a connection, so that a change in the meantime is noticed.
        let files = connection_files::digest(self.config.files()).await;
        *self.files.lock() = files;
        let client = match self.clients.get(&self.server()) {
            Some(client) => client,
            None => self.clients.insert(self.server(), self.connect().await?),
        };
        *self.client.lock() = Some(Arc::clone(&client));
        Ok(client)
    }

    async fn connect(&self) -> Result<Client, SourceError> {
        let address = read_secured(&self.config).await.map_err(SourceError::Unavailable)?;
        let runtime = self.runtime.clone().unwrap_or_else(Handle::current);
        let connecting = runtime.spawn(async move { Client::connect(&address).await.map(Client::subscribing) });
        let ended = |_| SourceError::Busy(format!("{}: this server shuts down", self.config.endpoint.uri()));
        let connected = AbortOnDropHandle::new(connecting).await.map_err(ended)?;
        let client = connected.map_err(|error| self.error(&error))?;
        tracing::info!(endpoint = self.config.endpoint.uri(), "connected to informerd");
        Ok(client)
    }

    /// Reads the upstream's resource, and records its path and namespaces.
    pub(super) async fn check_path(&self) -> Result<Resource, SourceError> {
        let RelayConfig { endpoint, query, answer_timeout, .. } = &self.config;
        let name = &query.resource;
        let endpoint = endpoint.uri();
        let client = self.client().await?;
        let resources = self.answer(*answer_timeout, client.resources()).await?;
        let provenance = &self.provenance;
        let known = || resources.iter().map(|resource| resource.name.as_str()).collect::<Vec<_>>().join(", ");
        let Some(resource) = resources.iter().find(|resource| resource.name == *name) else {
            let problem = format!("{endpoint}: resource {name:?} not found (known: {})", known());
            return Err(SourceError::Unavailable(problem));
        };
        let path = &resource.path;
        let problem = if path.iter().any(|server| server == provenance.name()) {
            format!(
                "{endpoint}: resource {name:?} comes from this server: a relay cannot follow itself; name another upstream"
            )
        } else if path.len() >= MAX_PATH {
            format!(
                "{endpoint}: resource {name:?} comes through {} servers; relay a server closer to the source",
                path.len()
            )
        } else {
            provenance.set_upstream(path.clone());
            let may_be_secrets = ["kube", "informerd"].contains(&&*resource.source);
            self.refuses_secrets.store(may_be_secrets && !self.config.allows_secrets, Ordering::Relaxed);
            let selected = query.namespace.clone().filter(|namespace| !namespace.is_empty());
            self.health.set_namespaces(selected.map_or_else(|| resource.namespaces.clone(), |selected| vec![selected]));
            return Ok(resource.clone());
        };
        // A relay that follows this one must not take it for a part of the loop.
        provenance.set_upstream(Vec::new());
        Err(SourceError::Unavailable(problem))
    }

    async fn answer<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, SourceError> {
        match tokio::time::timeout(limit, call).await {
            Ok(answer) => answer.map_err(|error| self.error(&error)),
            Err(_) => Err(SourceError::Busy(format!("{}: no response within {limit:?}", self.config.endpoint.uri()))),
        }
    }

    /// Converts an error by the Reflector's next step.
    fn error(&self, error: &ClientError) -> SourceError {
        let RelayConfig { endpoint, query, .. } = &self.config;
        let endpoint = endpoint.uri();
        let text = match error {
            ClientError::Refused(_) => format!("{endpoint}: {error}"),
            // The text of the others names the server.
            _ => error.to_string(),
        };
        match (error.code(), error.reason()) {
            // A version that this upstream has sent is of another lineage for it now.
            (_, Some("HISTORY_CHANGED" | "RESOURCE_VERSION_INVALID")) => SourceError::HistoryRewritten(text),
            // Another reason is one of a newer server, and none was removed on the way: the next list shows what has changed.
            (Code::OutOfRange, _) => SourceError::Expired(text),
            (_, Some("RESOURCE_VERSION_TOO_LARGE")) => SourceError::VersionTooLarge(text),
            (_, Some("NOT_SYNCED")) => SourceError::NotYet(text),
            (_, Some("POLICY_NOT_ALLOWED")) => SourceError::Unavailable(format!(
                "{endpoint}: policy `replay` not allowed for {:?}, which a relay needs; add it to the upstream's watch.allowed_policies",
                query.resource
            )),
            // The selection: its syntax, an unknown index, or expressions that the upstream was built without.
            (Code::InvalidArgument | Code::Unimplemented, _) => SourceError::Refused(text),
            _ => SourceError::Busy(text),
        }
    }
}

/// Does the same as [`secured`] on a thread that may block.
pub(super) async fn read_secured(config: &RelayConfig) -> Result<ServerAddress, String> {
    let config = config.clone();
    connection_files::reading(move || secured(&config)).await
}

/// Returns the upstream's address with the contents of its TLS files, which may have been renewed.
pub(super) fn secured(config: &RelayConfig) -> Result<ServerAddress, String> {
    let RelayConfig { endpoint, tls, .. } = config;
    let options = tls.try_map(|path| small_file::read(path))?;
    Ok(endpoint.with_tls(options).unwrap_or_else(|| endpoint.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{net::TlsOptions, proto::pb::Dropped};

    /// Another source may still have a connection that was made from earlier contents.
    #[tokio::test]
    async fn a_connection_is_shared_by_sources_that_have_read_the_same_files() {
        let directory = tempfile::tempdir().unwrap();
        let authority = directory.path().join("ca");
        std::fs::write(&authority, "one").unwrap();
        let tls = TlsOptions { authority: Some(authority.clone()), ..TlsOptions::default() };
        let config = RelayConfig { tls, ..RelayConfig::new("http://127.0.0.1:1".parse().unwrap(), "pods") };
        let clients = RelayClients::default();
        let upstream = || Upstream::new(config.clone(), SourceHealth::new(Duration::MAX, Duration::MAX), &clients);
        let first = upstream();
        let files = connection_files::digest(config.files()).await;
        *first.files.lock() = files;
        let client = clients.insert(first.server(), Client::connect_lazy(&config.endpoint).unwrap());
        assert!(Arc::ptr_eq(&upstream().client().await.unwrap(), &client));
        std::fs::write(&authority, "two").unwrap();
        assert!(upstream().client().await.is_err(), "it makes its own");
    }

    /// A gap is never hidden, even if an upstream drops events against its contract.
    #[test]
    fn events_dropped_despite_replay_are_an_error() {
        let health = SourceHealth::new(Duration::MAX, Duration::MAX);
        let upstream = Upstream::new(
            RelayConfig::new("http://127.0.0.1:1".parse().unwrap(), "pods"),
            health,
            &RelayClients::default(),
        );
        let dropped = Some(Dropped { count: 3, after_resource_version: "7".to_owned() });
        let message = WatchResponse { r#type: EventType::Dropped.into(), dropped, ..WatchResponse::default() };
        let error = upstream.not_an_event(message);
        assert_eq!(error, SourceError::Busy("http://127.0.0.1:1: 3 events dropped after version 7".to_owned()));
        let message = WatchResponse { r#type: 99, ..WatchResponse::default() };
        assert!(matches!(upstream.not_an_event(message), SourceError::Undecodable(_)));
    }
}
