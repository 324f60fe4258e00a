//! Connection as its calls see it: the endpoint, the limits, and the token that each call carries.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::FutureExt;
use http::{HeaderMap, Request, Response};
use tonic::{
    body::Body,
    codec::CompressionEncoding,
    codegen::Service,
    metadata::MetadataMap,
    transport::{Channel, Endpoint, Error},
};

use super::{ClientError, error::root_cause};
use crate::{net::ServerAddress, proto::pb::informer_service_client::InformerServiceClient};

/// Connection whose calls carry the token of the address.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    channel: Channel,
    /// Address whose token each call carries.
    address: ServerAddress,
    /// Further headers of each call.
    headers: HeaderMap,
    has_answered: Arc<AtomicBool>,
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
    let invalid =
        |error: tonic::transport::Error| ClientError::Request { problem: format!("{address}: {}", root_cause(&error)) };
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

// === impl Connection ===

impl Connection {
    pub(super) fn new(channel: Channel, address: &ServerAddress) -> Self {
        Self { channel, address: address.clone(), headers: HeaderMap::new(), has_answered: Arc::default() }
    }

    /// Returns the same connection with these headers in each call.
    #[cfg(feature = "server")]
    pub(super) fn with_headers(self, headers: HeaderMap) -> Self {
        Self { headers, ..self }
    }

    /// Returns another connection to the same server.
    pub(super) fn over(self, channel: Channel) -> Self {
        Self { channel, ..self }
    }

    /// Returns true once a server has answered a call of this connection, or of one of its clones.
    pub(super) fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::Relaxed)
    }
}

impl Service<Request<Body>> for Connection {
    type Response = Response<Body>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.channel.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        request.headers_mut().extend(self.headers.clone());
        let has_answered = Arc::clone(&self.has_answered);
        let note = move |answer: Result<Response<Body>, Error>| {
            has_answered.fetch_or(answer.is_ok(), Ordering::Relaxed);
            answer
        };
        if !self.address.has_token_file() {
            return Box::pin(self.channel.call(request).map(note));
        }
        let address = self.address.clone();
        // This one is ready; the clone becomes so before the next call.
        let next = self.channel.clone();
        let mut channel = std::mem::replace(&mut self.channel, next);
        Box::pin(async move {
            // The read would block a thread of the runtime, on a network file system for long.
            let token = tokio::task::spawn_blocking(move || address.authorization()).await;
            match token.unwrap_or_else(|error| Err(error.to_string())) {
                Ok(token) => {
                    let mut metadata = MetadataMap::from_headers(std::mem::take(request.headers_mut()));
                    if let Some(token) = token {
                        metadata.insert("authorization", token);
                    }
                    *request.headers_mut() = metadata.into_headers();
                    note(channel.call(request).await)
                }
                Err(problem) => Ok(ClientError::token_file(problem).into_http()),
            }
        })
    }
}

/// Returns the service over a connection.
pub(super) fn service(connection: Connection) -> InformerServiceClient<Connection> {
    let service = InformerServiceClient::new(connection).max_decoding_message_size(MAX_MESSAGE_BYTES);
    #[cfg(feature = "zstd")]
    let service = service.accept_compressed(CompressionEncoding::Zstd);
    service.accept_compressed(CompressionEncoding::Gzip)
}

#[cfg(all(test, feature = "server"))]
mod tests {
    use tonic::Status;

    use super::*;
    use crate::client::Client;

    /// Checks that a pipe which breaks after an answer is no sign of TLS.
    #[tokio::test]
    async fn a_connection_that_has_worked_has_no_hint_about_tls() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: ServerAddress = listener.local_addr().unwrap().to_string().parse().unwrap();
        let (_, health) = tonic_health::server::health_reporter();
        let server = tonic::transport::Server::builder().add_service(health);
        tokio::spawn(server.serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener)));
        let mut client = Client::connect(&address).await.unwrap();
        let broken = || Status::from_error(Box::new(std::io::Error::from(std::io::ErrorKind::BrokenPipe)));
        assert!(client.error(&broken()).to_string().contains("use https://"));
        // There is no such service, which is an answer, too.
        assert_eq!(client.clone().resources().await.unwrap_err().code(), tonic::Code::Unimplemented);
        assert!(!client.error(&broken()).to_string().contains("use https://"));
        client.drop_connection();
        assert!(!client.error(&broken()).to_string().contains("use https://"));
    }
}
