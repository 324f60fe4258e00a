//! `SelfSubjectAccessReview`: answers whether the caller may read objects of a kind, for `kubectl auth can-i` and its like. It is the only
//! body that clients send, and those with typed clients of Kubernetes 1.35 and later send protobuf; the answer is JSON, which they accept.

use std::time::Duration;

use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use prost::Message;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    Answer, RestService,
    body::{self, RestBody},
    kinds,
    path::Objects,
    status::{Failure, Refused},
    unless_ended,
};
use crate::{
    auth::Operation,
    grpc::{ApiError, HttpCall, HttpMethod, ObjectsWanted},
    model::ApiKind,
    transport::RequestBody,
};

/// Envelope of a body in protobuf (`runtime.Unknown`), behind its magic bytes.
#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct Review {
    #[prost(message, optional, tag = "2")]
    spec: Option<Spec>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[prost(message, optional, tag = "1")]
    resource_attributes: Option<Attributes>,
    #[prost(message, optional, tag = "2")]
    non_resource_attributes: Option<Other>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct Attributes {
    #[prost(string, tag = "1")]
    namespace: String,
    #[prost(string, tag = "2")]
    verb: String,
    #[prost(string, tag = "3")]
    group: String,
    #[prost(string, tag = "4")]
    version: String,
    #[prost(string, tag = "5")]
    resource: String,
    #[prost(string, tag = "6")]
    subresource: String,
    #[prost(string, tag = "7")]
    name: String,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct Other {
    #[prost(string, tag = "1")]
    path: String,
}

const MAGIC: &[u8] = b"k8s\0";
/// Largest review, in bytes.
const MAX_REVIEW: usize = 64 << 10;

/// Answers a review.
pub(super) async fn answer(rest: &RestService, request: Request<RequestBody>) -> Answer {
    let (parts, sent) = request.into_parts();
    let mut request = Request::from_parts(parts, ());
    let mut call = rest.begin(HttpMethod::Review, &mut request).await?;
    let reviewed = unless_ended(call.ended(), review(rest, &call, request.headers(), sent)).await;
    let response = reviewed.map_err(|refused| refused.end(&mut call, None))?;
    Ok(response.map(|body| body.of_call(call.into_outcome())))
}

async fn review(
    rest: &RestService,
    call: &HttpCall,
    headers: &HeaderMap,
    sent: RequestBody,
) -> Result<Response<RestBody>, Refused> {
    let media_type = headers.get(header::CONTENT_TYPE).map_or("", |value| value.to_str().unwrap_or("x"));
    let parse = match media_type.split(';').next().unwrap_or_default().trim() {
        // As at an API server, none is JSON.
        "" | "application/json" => |bytes: &[u8]| serde_json::from_slice(bytes).map_err(|error| error.to_string()),
        "application/vnd.kubernetes.protobuf" => of_protobuf,
        _ => return Err(Failure::new(415, "the body of the request is neither JSON nor protobuf").into()),
    };
    let bytes = receive(call, sent, rest.service.config().request_timeout).await?;
    let review = parse(&bytes).map_err(|error| Failure::bad_request(&error))?;
    let spec = &review["spec"];
    let [resource, other] = ["resourceAttributes", "nonResourceAttributes"].map(|name| &spec[name]);
    if resource.is_object() == other.is_object() {
        let message = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        return Err(Failure::bad_request(&format!("spec.resourceAttributes: {message}")).into());
    }
    let allowed = may(rest, call, resource).await?;
    Ok(body::json(
        StatusCode::CREATED,
        &json!({
            "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {}, "spec": spec,
            "status": { "allowed": allowed },
        }),
    ))
}

/// Converts a review in protobuf to one in JSON.
fn of_protobuf(bytes: &[u8]) -> Result<Value, String> {
    let bytes = bytes.strip_prefix(MAGIC).ok_or("the body has not the magic bytes of protobuf")?;
    let decoded = Envelope::decode(bytes).and_then(|envelope| Review::decode(&*envelope.raw));
    serde_json::to_value(decoded.map_err(|error| error.to_string())?).map_err(|error| error.to_string())
}

/// Receives the body of a request.
async fn receive(call: &HttpCall, mut sent: RequestBody, time: Duration) -> Result<Vec<u8>, Failure> {
    let all = async {
        let mut bytes = Vec::new();
        while let Some(frame) = sent.frame().await {
            let frame = frame.map_err(|_| Failure::bad_request("the body is not complete"))?;
            let data = frame.into_data().unwrap_or_default();
            call.receives(data.len());
            bytes.extend_from_slice(&data);
            if bytes.len() > MAX_REVIEW {
                return Err(Failure::new(
                    413,
                    format!("the body of the request is too large (limit: {MAX_REVIEW} bytes)"),
                ));
            }
        }
        Ok(bytes)
    };
    timeout(time, all).await.unwrap_or_else(|_| Err(Failure::bad_request("the body is not complete in time")))
}

/// Returns true if the caller may do this here, with whole objects. Nobody may write, or read what this server does not have.
async fn may(rest: &RestService, call: &HttpCall, attributes: &Value) -> Result<bool, ApiError> {
    let of = |name: &str| attributes[name].as_str().unwrap_or_default();
    let operation = match of("verb") {
        "get" => Operation::Get,
        "list" => Operation::List,
        "watch" => Operation::Watch,
        _ => return Ok(false),
    };
    let resources: Vec<_> = rest.service.resources().collect();
    let (group, version, plural) = (of("group"), of("version"), of("resource"));
    let is_version = |kind: &ApiKind| ["", "*", &kind.version].contains(&version);
    let is_named = |kind: &ApiKind| kind.group == group && kind.plural == plural && is_version(kind);
    let kind = kinds::all(&resources).into_iter().find(is_named);
    let Some(kind) = kind.filter(|_| of("subresource").is_empty()) else { return Ok(false) };
    let objects = Objects { group: kind.group, version: kind.version, plural: kind.plural, ..Objects::default() };
    let Some((resource, _)) = kinds::find(&rest.service, &objects) else { return Ok(false) };
    let wanted = ObjectsWanted { resource: &resource.name, namespace: of("namespace"), is_metadata: false };
    call.may_read(operation, wanted, of("name")).await
}
