//! Discovery: the groups, versions and kinds that the caller may see, in the aggregated form of `apidiscovery.k8s.io/v2` for whoever
//! accepts it, else in that of earlier clients.

use std::{cmp::Reverse, collections::BTreeMap};

use http::{HeaderValue, Request, Response, StatusCode, header};
use serde_json::{Value, json};

use super::{
    Answer, RestService,
    body::{self, RestBody},
    kinds,
    path::Target,
    status::Failure,
    unless_ended,
};
use crate::{
    grpc::{HttpCall, HttpMethod},
    model::ApiKind,
    transport::RequestBody,
};

const VERBS: [&str; 3] = ["get", "list", "watch"];
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// Version of the API that clients are shown. Some refuse to start below the oldest that they support.
const MINOR: &str = "36";

/// Returns the document of `/version`.
pub(super) fn version() -> Value {
    json!({
        "major": "1", "minor": MINOR, "gitVersion": format!("v1.{MINOR}.0+informerd-{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

/// Answers a request for a document of discovery.
pub(super) async fn answer(rest: &RestService, mut request: Request<RequestBody>, target: &Target) -> Answer {
    let mut call = rest.begin(HttpMethod::Discover, &mut request).await?;
    let seen = unless_ended(call.ended(), async { Ok(call.seen().await?) }).await;
    let seen = seen.map_err(|refused| refused.end(&mut call, None))?;
    let kinds = kinds::all(&seen);
    let is_aggregated = request.headers().get_all(header::ACCEPT).iter().any(accepts_aggregated);
    let response = match target {
        Target::Groups { is_core } if is_aggregated => {
            let mut response = body::json(StatusCode::OK, &aggregated(&kinds, *is_core));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(AGGREGATED));
            response
        }
        Target::Groups { is_core: true } => {
            let versions: Vec<&str> =
                grouped(&kinds, true).values().flat_map(|group| group.keys().map(|(_, version)| *version)).collect();
            json_ok(&json!({ "kind": "APIVersions", "versions": versions, "serverAddressByClientCIDRs": [] }))
        }
        Target::Groups { is_core: false } => json_ok(&groups(&kinds)),
        Target::GroupVersion { group, version } => {
            let found: Vec<&ApiKind> =
                kinds.iter().filter(|kind| kind.group == *group && kind.version == *version).collect();
            let Some(first) = found.first() else {
                call.ends(tonic::Code::NotFound);
                return Err(Failure::not_found());
            };
            let resources: Vec<Value> = found.iter().map(|kind| resource(kind)).collect();
            json_ok(&json!({
                "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": first.api_version(), "resources": resources,
            }))
        }
        _ => return Err(Failure::not_found()),
    };
    Ok(of_call(call, response))
}

fn of_call(call: HttpCall, response: Response<RestBody>) -> Response<RestBody> {
    response.map(|body| body.of_call(call.into_outcome()))
}

fn json_ok(value: &Value) -> Response<RestBody> {
    body::json(StatusCode::OK, value)
}

fn accepts_aggregated(value: &HeaderValue) -> bool {
    let clauses = value.to_str().unwrap_or_default().split(',');
    clauses.map(|clause| clause.replace(' ', "")).any(|clause| {
        let parts: Vec<&str> = clause.split(';').collect();
        ["application/json", "g=apidiscovery.k8s.io", "v=v2", "as=APIGroupDiscoveryList"]
            .iter()
            .all(|part| parts.contains(part))
    })
}

/// Kinds by group and version, the preferred version first.
type Grouped<'a> = BTreeMap<&'a str, BTreeMap<Ranked<'a>, Vec<&'a ApiKind>>>;

/// Version of a group after its rank: stable ones before beta and alpha, higher numbers first, and others at the end.
type Ranked<'a> = (Reverse<[u64; 3]>, &'a str);

fn ranked(version: &str) -> Ranked<'_> {
    let parse = || {
        let rest = version.strip_prefix('v')?;
        let (major, stage) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
        let (stability, minor) = match (stage.strip_prefix("beta"), stage.strip_prefix("alpha")) {
            (Some(minor), _) => (2, minor),
            (_, Some(minor)) => (1, minor),
            _ if stage.is_empty() => (3, "0"),
            _ => return None,
        };
        Some([stability, major.parse().ok()?, minor.parse().ok()?])
    };
    (Reverse(parse().unwrap_or_default()), version)
}

fn grouped(kinds: &[ApiKind], is_core: bool) -> Grouped<'_> {
    let mut groups = Grouped::default();
    for kind in kinds.iter().filter(|kind| kind.group.is_empty() == is_core) {
        groups.entry(&kind.group).or_default().entry(ranked(&kind.version)).or_default().push(kind);
    }
    groups
}

fn groups(kinds: &[ApiKind]) -> Value {
    let groups: Vec<Value> = grouped(kinds, false)
        .iter()
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .keys()
                .map(|(_, version)| json!({ "groupVersion": format!("{group}/{version}"), "version": version }))
                .collect();
            json!({ "name": group, "preferredVersion": versions[0], "versions": versions })
        })
        .collect();
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
}

fn resource(kind: &ApiKind) -> Value {
    json!({
        "name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced, "kind": kind.kind,
        "verbs": VERBS, "shortNames": kind.short_names, "categories": kind.categories,
    })
}

fn aggregated(kinds: &[ApiKind], is_core: bool) -> Value {
    let version = |((_, version), kinds): (&Ranked<'_>, &Vec<&ApiKind>)| {
        let resources: Vec<Value> = kinds
            .iter()
            .map(|ApiKind { group, version, plural, kind, singular, short_names, categories, namespaced, .. }| {
                json!({
                    "resource": plural, "singularResource": singular, "shortNames": short_names, "categories": categories, "verbs": VERBS,
                    "scope": if *namespaced { "Namespaced" } else { "Cluster" },
                    "responseKind": { "group": group, "version": version, "kind": kind },
                })
            })
            .collect();
        json!({ "version": version, "resources": resources, "freshness": "Current" })
    };
    let items: Vec<Value> = grouped(kinds, is_core)
        .iter()
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions.iter().map(version).collect();
            json!({ "metadata": { "name": group, "creationTimestamp": null }, "versions": versions })
        })
        .collect();
    json!({ "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preferred_version_of_a_group_is_the_most_stable_one() {
        let versions = ["v1beta1", "v1", "v2", "other", "v10", "v2alpha1", "v2beta1", "v2beta2"];
        let kinds = versions.map(|version| ApiKind::new("x", version, "things", "Thing"));
        let order = ["v10", "v2", "v1", "v2beta2", "v2beta1", "v1beta1", "v2alpha1", "other"];
        let of = |versions: &Value| {
            let versions = versions.as_array().unwrap().iter();
            versions.map(|version| version["version"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let group = groups(&kinds)["groups"][0].clone();
        assert_eq!(
            (&group["preferredVersion"]["version"], of(&group["versions"])),
            (&json!("v10"), order.map(str::to_owned).to_vec())
        );
        assert_eq!(of(&aggregated(&kinds, false)["items"][0]["versions"]), order);
    }
}
