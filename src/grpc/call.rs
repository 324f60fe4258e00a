//! A call outside the generated services: its deadline, its caller and its one request.

use std::time::Duration;

use bytes::Buf;
use http::Request;
use http_body_util::BodyExt;
use prost::Message;
use tonic::body::Body;

use super::{frame, request::RequestMessages, routes::timeout_of, service::wait_of, status::Refusal};
use crate::{
    transport::{Origin, Peer, StreamHandle},
    watch::Client,
};

/// What is known of a call before its request is read.
#[derive(Debug)]
pub(super) struct Call {
    /// [`peer`].
    pub(super) peer: Option<Peer>,
    /// By which the transport resets the stream, if it is polled by its connection.
    pub(super) stream: Option<StreamHandle>,
    /// How long it waits for the first list.
    pub(super) wait: Duration,
    body: Option<RequestMessages<Body>>,
}

// === impl Call ===

impl Call {
    pub(super) fn new(request: Request<RequestMessages<Body>>) -> Self {
        Self {
            peer: peer(request.extensions()),
            stream: request.extensions().get().cloned(),
            wait: wait_of(timeout_of(request.headers())),
            body: Some(request.into_body()),
        }
    }

    /// Reads its one message, once.
    pub(super) async fn request<M: Message + Default>(&mut self) -> Result<M, Refusal> {
        match self.body.take() {
            Some(body) => decode(body).await,
            None => Err(Refusal::Internal),
        }
    }
}

/// Where the client is, as far as the transport knows.
pub(super) fn peer(extensions: &http::Extensions) -> Option<Peer> {
    extensions.get().copied()
}

/// Returns whose share a call has, as far as the transport knows.
pub(super) fn origin(extensions: &http::Extensions) -> Option<Origin> {
    extensions.get().map(Peer::origin)
}

/// Returns whose budget of BLOCK the watches of a peer draw on. A caller that no transport knows has one for each watch.
pub(super) fn client(peer: Option<Peer>) -> Client {
    match peer.as_ref().map(Peer::origin) {
        Some(Origin::Address(address)) => Client::Address(address),
        Some(Origin::User(Some(uid))) => Client::User(uid),
        Some(Origin::User(None)) | None => Client::Watch,
    }
}

/// Reads one message: no request is a stream.
async fn decode<M: Message + Default>(body: RequestMessages<Body>) -> Result<M, Refusal> {
    let mut bytes = body.collect().await?.to_bytes();
    if bytes.len() < frame::PREFIX_BYTES {
        return Err(Refusal::request("there is no message"));
    }
    let is_compressed = bytes.get_u8() != 0;
    let length = bytes.get_u32() as usize;
    if is_compressed {
        return Err(Refusal::NotImplemented { what: "a compressed request" });
    }
    if bytes.len() != length {
        return Err(Refusal::request("its length is not the one in its prefix"));
    }
    M::decode(bytes).map_err(|error| Refusal::request(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_a_host_a_network_or_a_user() {
        let tcp = |text: &str| client(Some(Peer::Tcp(text.parse().unwrap())));
        assert_eq!(tcp("10.1.2.3:1"), tcp("10.1.2.3:2"), "whatever its connection");
        assert_ne!(tcp("10.1.2.3:1"), tcp("10.1.2.4:1"));
        assert_eq!(tcp("[2001:db8::1]:1"), tcp("[2001:db8::2]:1"));
        assert_eq!(client(Some(Peer::Unix { uid: Some(7) })), Client::User(7));
        assert_eq!(client(Some(Peer::Unix { uid: None })), Client::Watch);
        assert_eq!(client(None), Client::Watch);
    }
}
