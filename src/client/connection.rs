//! Connection to one server, and the calls with one response.

mod opening;

use std::{sync::Arc, time::Duration};

use futures_util::{Stream, TryStreamExt};
use prost_types::Timestamp;
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

use super::{
    ClientError, Query,
    channel::{CONNECT_TIMEOUT, Connection, MAX_MESSAGE_BYTES, endpoint, service},
    subscription::Subscriptions,
};
use crate::{
    net::ServerAddress,
    proto::pb::{self, admin_service_client::AdminServiceClient, informer_service_client::InformerServiceClient},
};

/// Connection to one server. Clones share it; it reconnects when it breaks.
///
/// A call that receives nothing for 30 seconds fails with [`ClientError::Silent`]; wrap it in `tokio::time::timeout` to limit it as a
/// whole. Every future here may be dropped at any time, which cancels the call.
#[derive(Debug, Clone)]
pub struct Client {
    address: ServerAddress,
    endpoint: Endpoint,
    connection: Connection,
    service: InformerServiceClient<Connection>,
    admin: AdminServiceClient<Connection>,
    /// Stream of the watches; none if each has its own.
    subscriptions: Option<Arc<Subscriptions>>,
}

/// Objects of one snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct ListResult {
    /// Version of the snapshot.
    pub resource_version: String,
    /// Objects, sorted by namespace and name.
    pub objects: Vec<pb::Object>,
    /// Sync state of the server: shows if it reaches its upstream.
    pub source: pb::SyncState,
    /// Time of the last contact with the upstream.
    pub source_seen_at: Option<Timestamp>,
    /// History of the version, for [`pb::WatchRequest::history`]; empty from servers that do not name it.
    pub history: String,
    /// Namespaces that the answer is limited to, because the caller may read no others; empty if it is not.
    pub namespaces: Vec<String>,
    /// Objects for which the expression of the query failed; `None` if there are none.
    pub expression_errors: Option<pb::ExpressionErrors>,
}

/// One object of a snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct GetResult {
    /// Version of the snapshot; the object has its own.
    pub resource_version: String,
    /// Object that was requested.
    pub object: pb::Object,
    /// Sync state of the server: shows if it reaches its upstream.
    pub source: pb::SyncState,
    /// Time of the last contact with the upstream.
    pub source_seen_at: Option<Timestamp>,
    /// History of the version, as in [`ListResult::history`].
    pub history: String,
}

/// Longest silence of a call with one response, and before each chunk of a list. A server waits up to 10 s for its first list.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Capability of servers that select by a shard.
const SHARDS: &str = "shards";
/// Capability of servers that send a part of each body.
const VIEWS: &str = "views";
/// Attempts to read all pages. The snapshot of a page token is valid for minutes; to lose it more often is no accident.
const MAX_STARTS: usize = 3;

// === impl Client ===

impl Client {
    /// Connects, within 5 seconds.
    ///
    /// # Errors
    ///
    /// [`ClientError::Unreachable`] with the address and the cause.
    pub async fn connect(address: &ServerAddress) -> Result<Self, ClientError> {
        let endpoint = endpoint(address)?;
        let unreachable = |problem| ClientError::Unreachable { address: address.clone(), problem };
        // The endpoint's own timeout does not cover Unix sockets.
        let channel = tokio::time::timeout(CONNECT_TIMEOUT, endpoint.connect())
            .await
            .map_err(|_| unreachable(format!("no connection within {CONNECT_TIMEOUT:?}")))?
            .map_err(|error| ClientError::from_connect(address, &error))?;
        Ok(Self::over(address, endpoint, channel))
    }

    /// Returns a client that connects when it is first used, for a watch that may start before its server.
    ///
    /// # Errors
    ///
    /// Fails only for invalid certificates: an address that was parsed is valid.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn connect_lazy(address: &ServerAddress) -> Result<Self, ClientError> {
        let endpoint = endpoint(address)?;
        let channel = endpoint.connect_lazy();
        Ok(Self::over(address, endpoint, channel))
    }

    fn over(address: &ServerAddress, endpoint: Endpoint, channel: Channel) -> Self {
        let connection = Connection::new(channel, address);
        let admin = AdminServiceClient::new(connection.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let service = service(connection.clone());
        Self { address: address.clone(), endpoint, connection, service, admin, subscriptions: None }
    }

    /// Returns this client with watches that share one stream, also with those of its clones, as long as there are any: 20 watches
    /// are one call of Subscribe. A watch is paused while 256 KiB of its messages are not read, so that it holds up no other; the
    /// server queues its events, and its policy acts. Above 64 MiB for all watches the stream is not read; after a second of that,
    /// watches that are not read end with `RESOURCE_EXHAUSTED`, the largest first, and [`Self::watch`] resumes them when it is read.
    ///
    /// Each watch has a stream of its own if the server has no Subscribe, and if its request has more than 4 KiB.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime. A task on it reads the stream.
    pub fn subscribing(self) -> Self {
        let subscriptions = Subscriptions::new(self.address.clone(), self.endpoint.clone(), self.service.clone());
        Self { subscriptions: Some(Arc::new(subscriptions)), ..self }
    }

    /// Returns the service over the same connection, with these headers in each call.
    #[cfg(feature = "server")]
    pub(crate) fn service_with(&self, headers: http::HeaderMap) -> InformerServiceClient<Connection> {
        service(self.connection.clone().with_headers(headers))
    }

    /// Returns the connection, for calls of other services.
    #[cfg(feature = "cli")]
    pub(crate) fn connection(&self) -> Connection {
        self.connection.clone()
    }

    /// Returns the address of the server.
    pub fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// Returns the resources of the server, sorted by name.
    pub async fn resources(&self) -> Result<Vec<pb::Resource>, ClientError> {
        self.list_resources().await.map(|answer| answer.resources)
    }

    /// Returns the version and the capabilities of the server; no capabilities of one that predates them.
    pub async fn server(&self) -> Result<pb::ServerInfo, ClientError> {
        self.list_resources().await.map(|answer| answer.server.unwrap_or_default())
    }

    /// Returns both.
    pub async fn list_resources(&self) -> Result<pb::ListResourcesResponse, ClientError> {
        let mut service = self.service.clone();
        self.within(service.list_resources(pb::ListResourcesRequest {})).await.map(tonic::Response::into_inner)
    }

    /// Returns the open watches of one resource of the server, or of all if `resource` is empty, sorted by id.
    pub async fn watchers(&self, resource: &str) -> Result<Vec<pb::Watcher>, ClientError> {
        self.list_watchers(pb::ListWatchersRequest { resource: resource.to_owned(), ..Default::default() }).await
    }

    /// Returns the open watches, and the last ones that have ended.
    pub async fn watchers_and_ended(&self, resource: &str) -> Result<Vec<pb::Watcher>, ClientError> {
        let resource = resource.to_owned();
        self.list_watchers(pb::ListWatchersRequest { resource, include_ended: true, ..Default::default() }).await
    }

    async fn list_watchers(&self, mut request: pb::ListWatchersRequest) -> Result<Vec<pb::Watcher>, ClientError> {
        let mut watchers = Vec::new();
        loop {
            let mut admin = self.admin.clone();
            let page = self.within(admin.list_watchers(request.clone())).await?.into_inner();
            watchers.extend(page.watchers);
            if page.next_page_token.is_empty() {
                return Ok(watchers);
            }
            if page.next_page_token == request.page_token {
                return Err(ClientError::contract("next_page_token repeats the page_token of the request"));
            }
            request.page_token = page.next_page_token;
        }
    }

    /// Ends open watches by their ids, of which their clients resume. Returns those that were open.
    pub async fn disconnect_watchers(&self, ids: Vec<u64>) -> Result<Vec<u64>, ClientError> {
        let mut admin = self.admin.clone();
        let answer = self.within(admin.disconnect_watchers(pb::DisconnectWatchersRequest { ids })).await?;
        Ok(answer.into_inner().ids)
    }

    /// Returns the counters and gauges of the server and of each resource.
    pub async fn stats(&self) -> Result<pb::GetStatsResponse, ClientError> {
        let mut admin = self.admin.clone();
        self.within(admin.get_stats(pb::GetStatsRequest {})).await.map(tonic::Response::into_inner)
    }

    /// Returns the objects that a query selects, from one snapshot.
    pub async fn list(&self, query: &Query) -> Result<ListResult, ClientError> {
        let request = query.list_request();
        self.require(request.shard.is_some(), request.view.is_some()).await?;
        let mut service = self.service.clone();
        let chunks = self.within(service.list(request)).await?.into_inner();
        self.collect(chunks).await
    }

    /// Returns the objects of one page.
    #[cfg(feature = "cli")]
    pub(crate) async fn list_page(&self, request: pb::ListRequest) -> Result<Vec<pb::Object>, ClientError> {
        let mut service = self.service.clone();
        let mut chunks = self.within(service.list(request)).await?.into_inner();
        let mut objects = Vec::new();
        while let Some(chunk) = self.within(chunks.message()).await? {
            objects.extend(chunk.objects);
        }
        Ok(objects)
    }

    /// Returns the objects with a value of an index that a query selects, from one snapshot. The query must not name an index of
    /// its own.
    pub async fn by_index(&self, query: &Query, index: &str, value: &str) -> Result<ListResult, ClientError> {
        self.found(query, pb::ByIndexRequest { value: value.to_owned(), ..query.by_index_request(index) }).await
    }

    /// Returns the objects that share at least one value of an index with one object and that a query selects, from one
    /// snapshot. The query must not name an index of its own.
    ///
    /// # Errors
    ///
    /// `NOT_FOUND` / `OBJECT_NOT_FOUND` if that object does not exist.
    pub async fn by_index_like(
        &self,
        query: &Query,
        index: &str,
        namespace: &str,
        name: &str,
    ) -> Result<ListResult, ClientError> {
        let like = Some(pb::ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() });
        self.found(query, pb::ByIndexRequest { like, ..query.by_index_request(index) }).await
    }

    async fn found(&self, query: &Query, request: pb::ByIndexRequest) -> Result<ListResult, ClientError> {
        if query.index.is_some() {
            let problem = "a lookup by index takes one index; leave out that of the query".to_owned();
            return Err(ClientError::Request { problem });
        }
        self.require(request.shard.is_some(), request.view.is_some()).await?;
        let mut service = self.service.clone();
        let chunks = self.within(service.by_index(request)).await?.into_inner();
        self.collect(chunks.map_ok(|chunk| pb::ListResponse {
            resource_version: chunk.resource_version,
            objects: chunk.objects,
            next_page_token: chunk.next_page_token,
            source: chunk.source,
            source_seen_at: chunk.source_seen_at,
            history: chunk.history,
            namespaces: chunk.namespaces,
            expression_errors: chunk.expression_errors,
        }))
        .await
    }

    /// Returns the net difference between two versions of the objects that a query selects, sorted by key, as one message; without
    /// `to`, up to the newest complete version.
    ///
    /// # Errors
    ///
    /// `OUT_OF_RANGE` / `RESOURCE_VERSION_EXPIRED` if the history of the server does not reach back to a version;
    /// `UNIMPLEMENTED` of a server without the capability "past".
    pub async fn changes(
        &self,
        query: &Query,
        from: &str,
        to: Option<&str>,
    ) -> Result<pb::ChangesResponse, ClientError> {
        let request = pb::ChangesRequest {
            from_resource_version: from.to_owned(),
            to_resource_version: to.unwrap_or_default().to_owned(),
            ..query.changes_request()
        };
        let mut service = self.service.clone();
        let mut chunks = self.within(service.changes(request)).await?.into_inner();
        let mut all: Option<pb::ChangesResponse> = None;
        while let Some(chunk) = self.within(chunks.message()).await? {
            match &mut all {
                None => all = Some(chunk),
                Some(all) => all.changes.extend(chunk.changes),
            }
        }
        all.ok_or_else(|| ClientError::contract("Changes without a chunk"))
    }

    /// Returns one object. `namespace` is empty for cluster-scoped objects.
    ///
    /// # Errors
    ///
    /// `NOT_FOUND` / `OBJECT_NOT_FOUND` if the object does not exist.
    pub async fn get(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        format: pb::PayloadFormat,
    ) -> Result<GetResult, ClientError> {
        self.get_as(&Query { format, ..Query::of(resource) }, namespace, name).await
    }

    /// Returns one object in the form of a query: in its format and its view. What the query selects is ignored.
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub async fn get_as(&self, query: &Query, namespace: &str, name: &str) -> Result<GetResult, ClientError> {
        let request = pb::GetRequest {
            resource: query.resource.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            format: query.format.into(),
            view: query.view.clone(),
            ..Default::default()
        };
        self.require(false, request.view.is_some()).await?;
        let mut service = self.service.clone();
        let answer = self.within(service.get(request)).await?.into_inner();
        let source = answer.source();
        Ok(GetResult {
            resource_version: answer.resource_version,
            object: answer.object.ok_or_else(|| ClientError::contract("Get without an object"))?,
            source,
            source_seen_at: answer.source_seen_at,
            history: answer.history,
        })
    }

    /// Returns one object at or after a version. The server gets the deadline, to report first if it misses the version.
    pub(crate) async fn get_within(
        &self,
        request: pb::GetRequest,
        deadline: Duration,
    ) -> Result<pb::GetResponse, ClientError> {
        let mut request = tonic::Request::new(request);
        request.set_timeout(deadline);
        let answer = self.service.clone().get(request).await;
        Ok(answer.map_err(|status| self.error(&status))?.into_inner())
    }

    /// Explains why a watch has an object or not: every term of its selection with its result.
    pub async fn explain(&self, request: pb::ExplainRequest) -> Result<pb::ExplainResponse, ClientError> {
        let mut service = self.service.clone();
        Ok(self.within(service.explain(request)).await?.into_inner())
    }

    /// Returns every value of an index with its number of objects, sorted, from one snapshot, as one message.
    pub async fn values(&self, resource: &str, index: &str) -> Result<pb::ListIndexValuesResponse, ClientError> {
        for _ in 1..MAX_STARTS {
            match self.all_pages(resource, index).await {
                Err(error) if error.reason() == Some("PAGE_TOKEN_EXPIRED") => {}
                answer => return answer,
            }
        }
        self.all_pages(resource, index).await
    }

    async fn all_pages(&self, resource: &str, index: &str) -> Result<pb::ListIndexValuesResponse, ClientError> {
        let mut request =
            pb::ListIndexValuesRequest { resource: resource.to_owned(), index: index.to_owned(), ..Default::default() };
        let (mut values, mut version) = (Vec::new(), None);
        loop {
            let mut service = self.service.clone();
            let mut page = self.within(service.list_index_values(request.clone())).await?.into_inner();
            check_version(&mut version, page.resource_version.clone())?;
            values.append(&mut page.values);
            if page.next_page_token.is_empty() {
                return Ok(pb::ListIndexValuesResponse { values, ..page });
            }
            if page.next_page_token == request.page_token {
                return Err(ClientError::contract("next_page_token repeats the page_token of the request"));
            }
            request.page_token = page.next_page_token;
        }
    }

    async fn collect(
        &self,
        chunks: impl Stream<Item = Result<pb::ListResponse, Status>>,
    ) -> Result<ListResult, ClientError> {
        let mut chunks = std::pin::pin!(chunks);
        let (mut objects, mut namespaces, mut version, mut last) = (Vec::new(), Vec::new(), None, None);
        while let Some(mut chunk) = self.within(chunks.try_next()).await? {
            check_version(&mut version, std::mem::take(&mut chunk.resource_version))?;
            objects.append(&mut chunk.objects);
            namespaces.append(&mut chunk.namespaces);
            last = Some(chunk);
        }
        let (Some(resource_version), Some(last)) = (version, last) else {
            return Err(ClientError::contract("List without a chunk"));
        };
        if !last.next_page_token.is_empty() {
            return Err(ClientError::contract("List with pages that were not requested"));
        }
        let source = last.source();
        let pb::ListResponse { source_seen_at, history, expression_errors, .. } = last;
        Ok(ListResult { resource_version, objects, source, source_seen_at, history, namespaces, expression_errors })
    }

    /// Waits for one message of a response.
    async fn within<T>(&self, message: impl Future<Output = Result<T, Status>>) -> Result<T, ClientError> {
        let silent = |_| ClientError::Silent { address: self.address.clone(), after: REQUEST_TIMEOUT };
        let answer = tokio::time::timeout(REQUEST_TIMEOUT, message).await.map_err(silent)?;
        answer.map_err(|status| self.error(&status))
    }

    /// Checks that the server has the capabilities that a request needs: one without them would ignore that part of the request.
    /// Each request checks, because an older server may have replaced this one.
    async fn require(&self, has_shard: bool, has_view: bool) -> Result<(), ClientError> {
        if !has_shard && !has_view {
            return Ok(());
        }
        let pb::ServerInfo { version, capabilities, .. } = self.server().await?;
        let needed = [(SHARDS, has_shard), (VIEWS, has_view)].into_iter().filter(|(_, is_needed)| *is_needed);
        let has = |needed: &str| capabilities.iter().any(|known| known == needed);
        match needed.map(|(capability, _)| capability).find(|capability| !has(capability)) {
            Some(missing) => Err(ClientError::unsupported(&self.address, &version, missing)),
            None => Ok(()),
        }
    }

    /// Leaves the connection to the clones that share it; the next call of this client opens its own.
    pub(super) fn drop_connection(&mut self) {
        self.connection = self.connection.clone().over(self.endpoint.connect_lazy());
        self.service = service(self.connection.clone());
    }

    pub(crate) fn error(&self, status: &Status) -> ClientError {
        let error = ClientError::from_status(&self.address, status);
        if self.connection.has_answered() { error } else { error.before_an_answer() }
    }
}

/// Checks that all parts of a response have the same version: one response is of one snapshot.
fn check_version(version: &mut Option<String>, found: String) -> Result<(), ClientError> {
    match version {
        None => *version = Some(found),
        Some(version) if *version == found => {}
        Some(version) => {
            return Err(ClientError::contract(format!("one response with two versions, {version} and {found}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first chunk has the namespaces, and the last one the failures.
    #[tokio::test]
    async fn a_list_has_what_its_first_and_its_last_chunk_have() {
        let client = Client::connect_lazy(&"http://127.0.0.1:1".parse().unwrap()).unwrap();
        let chunk = || pb::ListResponse { resource_version: "a.1".to_owned(), ..Default::default() };
        let namespaces = vec!["shop".to_owned()];
        let errors = Some(pb::ExpressionErrors { failed: 1, ..Default::default() });
        let first = pb::ListResponse { namespaces: namespaces.clone(), ..chunk() };
        let last = pb::ListResponse { expression_errors: errors.clone(), ..chunk() };
        let chunks = tokio_stream::iter([Ok(first), Ok(chunk()), Ok(last)]);
        let listed = client.collect(chunks).await.unwrap();
        assert_eq!((listed.namespaces, listed.expression_errors), (namespaces, errors));
    }
}
