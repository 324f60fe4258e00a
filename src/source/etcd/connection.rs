//! Connections to etcd, one at a time, and the calls over them.
//!
//! A [`Connection`] is one TCP connection: when it breaks, its calls fail, and the caller takes the next one from
//! [`Connections`]. So the source can tell which responses came over which connection, and has to check the history after each
//! break. Endpoints are tried in order, from the one after the failed one, and the first follows the last.

use std::{error::Error as _, io, time::Duration};

use http::{HeaderMap, HeaderValue, Uri};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Request, Status, Streaming,
    metadata::MetadataMap,
    transport::{Channel, Endpoint},
};

use super::{
    EtcdConfig,
    pb::{
        AuthClient, AuthenticateRequest, KvClient, MaintenanceClient, RangeRequest, RangeResponse, RangeStreamResponse,
        ResponseHeader, StatusRequest, WatchClient, WatchRequest, WatchResponse,
    },
};
use crate::{
    cache::SourceError,
    net::{Dialer, ServerAddress, connection_files, small_file},
    source::text::{one_line, root_cause},
};

/// Current connection, and the endpoint of the next one.
#[derive(Debug)]
pub(super) struct Connections {
    config: EtcdConfig,
    dialer: Dialer,
    state: Mutex<State>,
}

/// One connection to one endpoint; clones share it.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    /// Number of the connection, unique within the source.
    pub(super) id: u64,
    /// True if a progress response covers only events that the server has already sent. Before 3.4.31 and 3.5.13 it may name
    /// a revision whose events come later (etcd #15220).
    pub(super) has_reliable_progress: bool,
    /// Digest of the files that it was made from; `None` if one could not be read.
    pub(super) files: Option<connection_files::Digest>,
    endpoint: ServerAddress,
    channel: Channel,
    metadata: MetadataMap,
    answer_timeout: Duration,
}

#[derive(Debug, Default)]
struct State {
    /// Index of the next endpoint, modulo their number.
    endpoint: usize,
    made: u64,
    current: Option<Connection>,
}

/// Time limit for the TLS and HTTP/2 handshakes on a TCP connection.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of HTTP/2 pings; etcd treats more than one in 5 seconds as an attack.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Factor on the answer timeout for a page of values, which is slow on a slow link; pings show that the server is there.
const PAGE_PATIENCE: u32 = 6;
/// Flow control window of a stream, and of the connection.
const WINDOW_BYTES: u32 = 8 << 20;
/// Limit for a page or a watch response. etcd's own limit for one value is 1.5 MiB, and may be raised.
const MAX_MESSAGE_BYTES: usize = 64 << 20;

// === impl Connections ===

impl Connections {
    pub(super) fn new(config: EtcdConfig) -> Self {
        Self { config, dialer: Dialer::default(), state: Mutex::default() }
    }

    /// Returns the current connection, or connects to the first endpoint that answers. Callers never call it concurrently.
    pub(super) async fn get(&self) -> Result<Connection, SourceError> {
        let (first, id) = {
            let state = self.state.lock();
            if let Some(current) = &state.current {
                return Ok(current.clone());
            }
            (state.endpoint, state.made + 1)
        };
        let endpoints = &self.config.endpoints;
        let mut problems = Vec::new();
        for at in first..first + endpoints.len() {
            let endpoint = &endpoints[at % endpoints.len()];
            match self.connect(endpoint, id).await {
                Ok(connection) => {
                    tracing::info!(endpoint = endpoint.uri(), "connected to etcd");
                    let mut state = self.state.lock();
                    (state.endpoint, state.made, state.current) = (at, id, Some(connection.clone()));
                    return Ok(connection);
                }
                Err(problem) => problems.push(format!("{}: {problem}", endpoint.uri())),
            }
        }
        Err(SourceError::Busy(problems.join("; ")))
    }

    /// Drops a connection that is unusable. The next one is to the next endpoint.
    pub(super) fn lost(&self, id: u64) {
        let mut state = self.state.lock();
        if state.current.take_if(|current| current.id == id).is_some() {
            state.endpoint += 1;
        }
    }

    async fn connect(&self, address: &ServerAddress, id: u64) -> Result<Connection, String> {
        // Before they are read for the connection, so that a change in the meantime is noticed.
        let files = connection_files::digest(self.config.files()).await;
        let channel = self.open(address).await?;
        let mut connection = Connection {
            files,
            id,
            has_reliable_progress: false,
            endpoint: address.clone(),
            channel,
            metadata: MetadataMap::new(),
            answer_timeout: self.config.answer_timeout,
        };
        let text = |status: Status| describe(&status);
        if let Some((name, path)) = &self.config.credentials {
            let path = path.clone();
            let password = connection_files::reading(move || small_file::read_text(&path)).await?;
            connection.authenticate(name, password.trim_end_matches(['\r', '\n'])).await.map_err(text)?;
        }
        connection.has_reliable_progress = has_reliable_progress(&connection.version().await.map_err(text)?);
        Ok(connection)
    }

    /// Opens a channel over one connection, and never reconnects it.
    async fn open(&self, address: &ServerAddress) -> Result<Channel, String> {
        let endpoint = Endpoint::from_shared(address.uri().to_owned()).map_err(|error| root_cause(&error))?;
        let host = endpoint.uri().host().unwrap_or_default().trim_matches(['[', ']']);
        let stream = self.dialer.dial(host, endpoint.uri().port_u16().unwrap_or_default()).await?;

        let mut endpoint = endpoint
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(self.config.answer_timeout)
            .initial_connection_window_size(WINDOW_BYTES)
            .initial_stream_window_size(WINDOW_BYTES);
        if address.is_tls() {
            let files = self.config.tls.clone();
            let tls = connection_files::reading(move || files.try_map(|path| small_file::read(path))).await?;
            endpoint = endpoint.tls_config(tls.config()).map_err(|error| root_cause(&error))?;
        }
        let mut stream = Some(stream);
        let once = tower::service_fn(move |_: Uri| {
            let stream = stream.take().map(TokioIo::new);
            std::future::ready(stream.ok_or_else(|| io::Error::other("the connection is closed")))
        });
        let connected = tokio::time::timeout(HANDSHAKE_TIMEOUT, endpoint.connect_with_connector(once)).await;
        let connected = connected.map_err(|_| format!("no connection within {HANDSHAKE_TIMEOUT:?}"))?;
        connected.map_err(|error| root_cause(&error))
    }
}

// === impl Connection ===

impl Connection {
    /// Returns a connection that never connects; needs a runtime.
    #[cfg(any(test, fuzzing))]
    pub(super) fn idle(id: u64, answer_timeout: Duration) -> Self {
        let channel = Endpoint::from_static("http://127.0.0.1:1").connect_lazy();
        let endpoint = "http://127.0.0.1:1".parse().expect("an address");
        let metadata = MetadataMap::new();
        Self { id, has_reliable_progress: true, files: None, endpoint, channel, metadata, answer_timeout }
    }

    /// Reads one page of keys, or with a limit of 0 all of them.
    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        let max_bytes = if request.limit == 0 { usize::MAX } else { MAX_MESSAGE_BYTES };
        let mut client = KvClient::new(self.channel.clone()).max_decoding_message_size(max_bytes);
        let patience = if request.keys_only { 1 } else { PAGE_PATIENCE };
        let answer = self.answer_within(self.answer_timeout * patience, client.range(self.request(request))).await?;
        checked(answer.into_inner())
    }

    /// Opens a stream of the keys of a range at one revision.
    pub(super) async fn range_stream(
        &self,
        key: Vec<u8>,
        range_end: Vec<u8>,
    ) -> Result<Streaming<RangeStreamResponse>, Status> {
        let mut client = KvClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let request = RangeRequest { key, range_end, ..RangeRequest::default() };
        self.answer(client.range_stream(self.request(request))).await
    }

    /// Reads the next part of a stream; `None` after the last one.
    pub(super) async fn next_part(
        &self,
        parts: &mut Streaming<RangeStreamResponse>,
    ) -> Result<Option<RangeResponse>, Status> {
        let part = self.answer_within(self.answer_timeout * PAGE_PATIENCE, parts.message()).await?;
        let part = part.map(|part| part.range_response.unwrap_or_default());
        part.map(|part| if part.header.is_some() { checked(part) } else { Ok(part) }).transpose()
    }

    /// Reads the newest revision that the cluster has agreed on, over any member. The key need not exist.
    pub(super) async fn head(&self, key: Vec<u8>) -> Result<ResponseHeader, Status> {
        let request = RangeRequest { key, keys_only: true, limit: 1, ..RangeRequest::default() };
        self.range(request).await.map(|answer| answer.header.unwrap_or_default())
    }

    /// Opens a stream of watches. It ends when the sender of the requests is dropped.
    pub(super) async fn watch(
        &self,
        requests: mpsc::Receiver<WatchRequest>,
    ) -> Result<Streaming<WatchResponse>, Status> {
        let mut client = WatchClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let mut request = self.request(ReceiverStream::new(requests));
        // A member without a leader ends the watch instead of staying silent.
        request.metadata_mut().insert("hasleader", tonic::metadata::MetadataValue::from_static("true"));
        self.answer(client.watch(request)).await
    }

    /// Converts a failed call to a source error that names the endpoint.
    pub(super) fn error(&self, status: &Status) -> SourceError {
        let text = format!("{}: {}", self.endpoint(), describe(status));
        match status.code() {
            // As in etcd's own client: the next connection has a new token, and a watch resumes over it.
            _ if !self.metadata.is_empty() && is_token_rejected(status) => SourceError::Busy(text),
            Code::OutOfRange if is_compacted(status) => SourceError::Expired(text),
            Code::OutOfRange if status.message().contains("future revision") => SourceError::VersionTooLarge(text),
            Code::OutOfRange => SourceError::Undecodable(text),
            Code::Unauthenticated | Code::PermissionDenied | Code::InvalidArgument | Code::FailedPrecondition => {
                SourceError::Unavailable(text)
            }
            _ => SourceError::Busy(text),
        }
    }

    /// Converts the reason of a cancelled watch to a source error.
    pub(super) fn cancelled(&self, reason: &str) -> SourceError {
        let code = if reason.contains("denied") || reason.contains("auth") || reason.contains("user name") {
            Code::PermissionDenied
        } else {
            Code::Unavailable
        };
        self.error(&Status::new(code, reason))
    }

    pub(super) fn endpoint(&self) -> &str {
        self.endpoint.uri()
    }

    async fn version(&self) -> Result<String, Status> {
        let mut client = MaintenanceClient::new(self.channel.clone());
        let status = self.answer(client.status(self.request(StatusRequest {}))).await?;
        Ok(status.version)
    }

    async fn authenticate(&mut self, name: &str, password: &str) -> Result<(), Status> {
        let mut client = AuthClient::new(self.channel.clone());
        let request = AuthenticateRequest { name: name.to_owned(), password: password.to_owned() };
        match self.answer(client.authenticate(request)).await {
            Ok(answer) => {
                let token = HeaderValue::try_from(answer.token);
                let token = token.map_err(|_| Status::internal("the token is not a valid header value"))?;
                let mut headers = HeaderMap::new();
                headers.insert("token", token);
                self.metadata = MetadataMap::from_headers(headers);
                Ok(())
            }
            // As in etcd's own client: a cluster without authentication serves every client.
            Err(status) if status.message().contains("authentication is not enabled") => Ok(()),
            Err(status) => Err(status),
        }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        Request::from_parts(self.metadata.clone(), tonic::Extensions::default(), message)
    }

    async fn answer<T>(&self, call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T, Status> {
        self.answer_within(self.answer_timeout, call).await.map(tonic::Response::into_inner)
    }

    async fn answer_within<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let elapsed = |_| Err(Status::deadline_exceeded(format!("no response within {limit:?}")));
        tokio::time::timeout(limit, call).await.unwrap_or_else(elapsed)
    }
}

/// Checks the header. Every field of a message is optional: an empty one, as of a proxy, would be an empty prefix of a cluster without
/// a past.
fn checked(answer: RangeResponse) -> Result<RangeResponse, Status> {
    match &answer.header {
        Some(header) if header.revision > 0 && header.cluster_id != 0 => Ok(answer),
        _ => Err(Status::data_loss("the answer has no revision or no cluster id, so it is none of etcd")),
    }
}

/// Returns true if the revision has been compacted.
pub(super) fn is_compacted(status: &Status) -> bool {
    status.code() == Code::OutOfRange && status.message().contains("compacted")
}

/// Returns true if the token has expired, or the users have changed since it was issued.
fn is_token_rejected(status: &Status) -> bool {
    ["invalid auth token", "revision of auth store is old"].iter().any(|text| status.message().contains(text))
}

/// Returns true if a response exceeded the size limit.
pub(super) fn is_too_large(status: &Status) -> bool {
    status.code() == Code::OutOfRange && status.message().contains("message length too large")
}

/// Describes a status in one line, with a hint where the remedy is known.
fn describe(status: &Status) -> String {
    let message = match status.source() {
        Some(source) => root_cause(source),
        None => one_line(status.message()),
    };
    let hint = match status.code() {
        Code::Unimplemented => "; etcd 3.4 or later is needed",
        _ if message.contains("user name is empty") => "; configure a user and a password file",
        _ if message.contains("permission denied") => "; grant the user read access to every key of the prefix",
        _ if message.contains("authentication failed") => "; correct the user, or the password in the file",
        _ => "",
    };
    format!("{message}{hint}")
}

/// Returns true if a server of this version has correct progress responses.
fn has_reliable_progress(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '+']).map(|part| part.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    match (next(), next(), next()) {
        (3, 4, patch) => patch >= 31,
        (3, 5, patch) => patch >= 13,
        (major, minor, _) => (major, minor) >= (3, 6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_requested_only_of_versions_that_report_it_correctly() {
        for version in ["3.4.31", "3.5.13", "3.6.0", "3.6.0-rc.1", "3.10.2", "4.0.0"] {
            assert!(has_reliable_progress(version), "{version}");
        }
        for version in ["3.4.23", "3.4.30", "3.5.12", "3.5.0-rc.1", "3.3.99", "2.3.8", "", "what"] {
            assert!(!has_reliable_progress(version), "{version}");
        }
    }
}
