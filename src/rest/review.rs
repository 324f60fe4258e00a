//! `SelfSubjectAccessReview`: answers whether the caller may read objects of a kind, for `kubectl auth can-i` and its like.

use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde::Deserialize;
use serde_json::json;

use super::{Answer, RestService, body, kinds, path::Objects, status::Failure};
use crate::{
    auth::Operation,
    grpc::{HttpCall, HttpMethod},
    transport::RequestBody,
};

#[derive(Debug, Default, Deserialize)]
struct Review {
    #[serde(default)]
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    resource_attributes: Option<Attributes>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Attributes {
    namespace: String,
    verb: String,
    group: String,
    resource: String,
    subresource: String,
}

/// Largest review, in bytes.
const MAX_REVIEW: usize = 64 << 10;

/// Answers a review.
pub(super) async fn answer(rest: &RestService, request: Request<RequestBody>) -> Answer {
    let (parts, sent) = request.into_parts();
    let mut request = Request::from_parts(parts, ());
    let mut call = rest.begin(HttpMethod::Review, &mut request).await?;
    let timeout = rest.service.config().request_timeout;
    let received = tokio::time::timeout(timeout, Limited::new(sent, MAX_REVIEW).collect()).await;
    let bytes = match received {
        Ok(Ok(bytes)) => bytes.to_bytes(),
        Ok(Err(_)) => return Err(Failure::bad_request("the body is too large, or not complete")),
        Err(_) => return Err(Failure::bad_request("the body is not complete in time")),
    };
    let review: Review = serde_json::from_slice(&bytes).map_err(|error| Failure::bad_request(&error.to_string()))?;
    let attributes = review.spec.resource_attributes.unwrap_or_default();
    let allowed = match may(rest, &call, &attributes).await {
        Ok(allowed) => allowed,
        Err(refusal) => {
            call.refuse(&refusal);
            return Err(Failure::of(&refusal, None));
        }
    };
    let Attributes { namespace, verb, group, resource, subresource } = attributes;
    let response = body::json(
        StatusCode::CREATED,
        &json!({
            "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {},
            "spec": { "resourceAttributes": {
                "namespace": namespace, "verb": verb, "group": group, "resource": resource, "subresource": subresource,
            } },
            "status": { "allowed": allowed },
        }),
    );
    Ok(response.map(|body| body.of_call(call.into_outcome())))
}

/// Returns true if the caller may do this here. Nobody may write, or read what this server does not have.
async fn may(rest: &RestService, call: &HttpCall, attributes: &Attributes) -> Result<bool, crate::grpc::ApiError> {
    let Attributes { namespace, verb, group, resource, subresource } = attributes;
    let operation = match &**verb {
        "get" => Operation::Get,
        "list" => Operation::List,
        "watch" => Operation::Watch,
        _ => return Ok(false),
    };
    let resources: Vec<_> = rest.service.resources().collect();
    let kind = kinds::all(&resources).into_iter().find(|kind| kind.group == *group && kind.plural == *resource);
    let Some(kind) = kind.filter(|_| subresource.is_empty()) else { return Ok(false) };
    let objects = Objects { group: kind.group, version: kind.version, plural: kind.plural, ..Objects::default() };
    let Some((resource, _)) = kinds::find(&rest.service, &objects) else { return Ok(false) };
    call.may(operation, &resource.name, namespace).await
}
