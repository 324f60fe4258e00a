//! Watches that are refused: the server opens their stream, whose only message is the status that it ends with.

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream};
use http_body_util::{BodyExt, BodyStream, StreamBody};
use informerd::proto::pb;
use prost::Message;
use tonic::{Response, Status, Streaming, body::Body};

use crate::sandbox::next;

/// Returns the status with which a Watch is refused.
pub(crate) async fn watch_refusal(
    watch: impl Future<Output = Result<Response<Streaming<pb::WatchResponse>>, Status>>,
) -> Status {
    let mut stream = watch.await.expect("the stream is opened").into_inner();
    let message = next(&mut stream).await;
    let status = stream.message().await.unwrap_err();
    check(&message, &status);
    status
}

/// Moves the status of a refused Watch into the headers of the response, so that a generated client fails at once. Other responses
/// stay as they are.
pub(crate) async fn in_headers(response: http::Response<Body>) -> http::Response<Body> {
    assert!(!response.headers().contains_key("grpc-status"), "a Watch without a message: {response:?}");
    let (mut parts, mut body) = response.into_parts();
    let first = body.frame().now_or_never().flatten();
    let message = first.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref().and_then(error_of));
    if let Some(message) = message {
        let end = body.frame().now_or_never().flatten().unwrap().unwrap();
        let trailers = end.into_trailers().unwrap();
        check(&message, &Status::from_header_map(&trailers).unwrap());
        parts.headers.extend(trailers);
        return http::Response::from_parts(parts, Body::empty());
    }
    let body = StreamBody::new(stream::iter(first).chain(BodyStream::new(body)));
    http::Response::from_parts(parts, Body::new(body))
}

/// Returns the message of a frame, if it is an ERROR.
pub(crate) fn error_of(data: &Bytes) -> Option<pb::WatchResponse> {
    let message = pb::WatchResponse::decode(data.get(5..)?).ok()?;
    (message.r#type() == pb::EventType::Error).then_some(message)
}

fn check(message: &pb::WatchResponse, status: &Status) {
    let error = message.error.as_ref().expect("a status");
    assert_eq!((error.code, &*error.message), (status.code() as i32, status.message()));
    let details = tonic_types::Status::decode(status.details()).unwrap();
    assert_eq!(error.details, details.details);
}
