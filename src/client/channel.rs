//! Connection as its calls see it: the endpoint, the limits, and the token that each call carries.

use std::time::Duration;

use tonic::{
    Request, Status,
    codec::CompressionEncoding,
    metadata::MetadataMap,
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};

use super::ClientError;
use crate::{endpoint::ServerAddress, proto::pb::informer_service_client::InformerServiceClient};

/// Connection whose calls carry the token of the address.
pub(crate) type Connection = InterceptedService<Channel, Credentials>;

/// Interceptor that adds the token of an address, and perhaps other headers, to each call.
#[derive(Debug, Clone)]
pub(crate) struct Credentials {
    address: ServerAddress,
    headers: MetadataMap,
}

/// Timeout for connecting, short because a person often waits for it.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Keepalive interval after which the kernel probes an idle peer, which may have disappeared without closing the connection.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);
/// Interval of HTTP/2 PINGs, also without a call: what is between client and server forgets idle connections.
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// Time for the answer to a PING, after which the connection is dead.
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest message accepted; larger than any that a server sends: the largest object (8 MiB) with its Struct's overhead.
pub(super) const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// Largest window of HTTP/2: one stream that is not read must not use up the window of all the others.
const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;
/// Bytes that a server may send ahead on one stream.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;

/// Returns the endpoint of an address.
pub(super) fn endpoint(address: &ServerAddress) -> Result<Endpoint, ClientError> {
    let invalid = |error: tonic::transport::Error| ClientError::Request { problem: format!("{address}: {error}") };
    let mut endpoint = Endpoint::from_shared(address.uri().to_owned()).map_err(invalid)?;
    if address.is_unix() {
        // HTTP/2 rejects a path as an authority, even percent-encoded.
        endpoint = endpoint.origin(http::Uri::from_static("http://localhost"));
    }
    if let Some(tls) = address.tls() {
        endpoint = endpoint.tls_config(tls.config()).map_err(invalid)?;
    }
    let endpoint = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .tcp_keepalive(Some(TCP_KEEPALIVE))
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES);
    endpoint.user_agent(concat!("informerd/", env!("CARGO_PKG_VERSION"))).map_err(invalid)
}

// === impl Credentials ===

impl Credentials {
    pub(super) fn of(address: &ServerAddress) -> Self {
        Self { address: address.clone(), headers: MetadataMap::new() }
    }

    /// Returns the credentials with these headers.
    #[cfg(feature = "server")]
    pub(super) fn with_headers(self, headers: http::HeaderMap) -> Self {
        Self { headers: MetadataMap::from_headers(headers), ..self }
    }
}

impl Interceptor for Credentials {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if !self.headers.is_empty() {
            let mut headers = std::mem::take(request.metadata_mut()).into_headers();
            headers.extend(self.headers.clone().into_headers());
            *request.metadata_mut() = MetadataMap::from_headers(headers);
        }
        if let Some(authorization) = self.address.authorization().map_err(Status::unauthenticated)? {
            request.metadata_mut().insert("authorization", authorization);
        }
        Ok(request)
    }
}

/// Returns the service over a connection.
pub(super) fn service(connection: Connection) -> InformerServiceClient<Connection> {
    let service = InformerServiceClient::new(connection).max_decoding_message_size(MAX_MESSAGE_BYTES);
    #[cfg(feature = "zstd")]
    let service = service.accept_compressed(CompressionEncoding::Zstd);
    service.accept_compressed(CompressionEncoding::Gzip)
}
