//! Two servers that differ only in what a caller may not see give it the same answers.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc};

use informerd::{
    auth::{Authorizer, Identity, IdentityDetails, Rules},
    grpc::AccessConfig,
    model::{Event, Object},
    proto::pb::{self, admin_service_client::AdminServiceClient},
};
use serde_json::json;
use tonic::{Request, Status, Streaming};
use tonic_types::StatusExt;

use crate::sandbox::{Options, Sandbox, next, pod, pod_at, queue, watch_pods};

/// One run: a server, and the answers that the caller has received so far.
struct Run {
    server: Sandbox,
    answers: Vec<String>,
    watches: Vec<Streaming<pb::WatchResponse>>,
}

const POLICIES: [pb::FullChannelPolicy; 4] = [
    pb::FullChannelPolicy::Drop,
    pb::FullChannelPolicy::Block,
    pb::FullChannelPolicy::Replay,
    pb::FullChannelPolicy::Coalesce,
];

// === impl Run ===

impl Run {
    /// Starts a server with these objects besides those that the caller may see.
    async fn start(hidden: Vec<Arc<Object>>) -> Self {
        let rules = json!([{
            "subjects": ["user:ann"], "verbs": ["get", "list", "watch"], "resources": ["*"], "namespaces": ["x", "y"]
        }]);
        let authorizer = Some(Authorizer::of_rules(Rules::from_value(&rules).unwrap()));
        let access = AccessConfig { authorizer, ..AccessConfig::default() };
        let seen = [("x", "a"), ("x", "b"), ("y", "a")].map(|(namespace, name)| pod(namespace, name, ""));
        let objects = seen.into_iter().chain(hidden).collect();
        let server = Sandbox::start_with(Options { access, ..Options::default() }, objects).await;
        Self { server, answers: Vec::new(), watches: Vec::new() }
    }

    fn answered<T: Debug>(&mut self, answer: Result<T, Status>) {
        self.answers.push(match answer {
            Ok(message) => format!("{message:?}"),
            Err(status) => {
                let details = status.get_error_details();
                let info = details.error_info().expect("every status has a reason");
                // A map on the wire, in any order.
                let metadata: BTreeMap<_, _> = info.metadata.iter().collect();
                let retry = details.retry_info();
                format!("{:?} {} {} {metadata:?} {retry:?}", status.code(), status.message(), info.reason)
            }
        });
    }

    /// Makes every read call, with requests that name hidden objects too.
    async fn read(&mut self) {
        let mut client = self.server.in_process();
        let pods = || "pods".to_owned();
        for namespace in ["", "x", "z", "none"].map(str::to_owned) {
            for (label, field, name) in
                [("", "", "node"), ("app=secret", "", "app"), ("", "spec.nodeName=hidden", "node")]
            {
                let request = pb::ListRequest {
                    resource: pods(),
                    namespace: namespace.clone(),
                    label_selector: label.to_owned(),
                    field_selector: field.to_owned(),
                    page_size: 2,
                    ..Default::default()
                };
                let listed = listed(client.list(by(request)).await).await;
                self.answered(listed);
                let request = pb::ByIndexRequest {
                    resource: pods(),
                    namespace: namespace.clone(),
                    index: name.to_owned(),
                    like: Some(pb::ObjectKey { namespace: "z".to_owned(), name: "secret".to_owned() }),
                    ..Default::default()
                };
                let found = by_index(client.by_index(by(request)).await).await;
                self.answered(found);
            }
            let watch = pb::WatchRequest { namespace: namespace.clone(), ..watch_pods() };
            let conditions = vec!["count >= 0".to_owned()];
            let met = client.until(by(pb::UntilRequest { watch: Some(watch), conditions })).await;
            self.answered(met.map(|met| {
                let mut met = met.into_inner();
                met.event.iter_mut().for_each(normalize);
                met
            }));
            for name in ["a", "secret", "none"] {
                let (resource, name) = (pods(), name.to_owned());
                let request = pb::GetRequest { resource, namespace: namespace.clone(), name, ..Default::default() };
                let found = client.get(by(request)).await.map(|found| pb::GetResponse {
                    history: String::new(),
                    source_seen_at: None,
                    ..found.into_inner()
                });
                self.answered(found);
            }
        }
        for index in ["namespace", "app", "node", "none"].map(str::to_owned) {
            let request = pb::ListIndexValuesRequest { resource: pods(), index, page_size: 2, ..Default::default() };
            let values = client.list_index_values(by(request)).await.map(|values| {
                let values = values.into_inner();
                let has_more = !values.next_page_token.is_empty();
                (pb::ListIndexValuesResponse { next_page_token: String::new(), ..values }, has_more)
            });
            self.answered(values);
        }
        let resources = client.list_resources(by(pb::ListResourcesRequest::default())).await.map(|resources| {
            let mut resources = resources.into_inner().resources;
            for resource in &mut resources {
                (resource.history, resource.source_seen_at, resource.path) = (String::new(), None, Vec::new());
            }
            resources
        });
        self.answered(resources);
        let mut admin = AdminServiceClient::new(self.server.service());
        let watchers = admin.list_watchers(by(pb::ListWatchersRequest::default())).await;
        self.answered(watchers.map(tonic::Response::into_inner));
    }

    async fn watch(&mut self) {
        for policy in POLICIES {
            let request = pb::WatchRequest { queue: Some(queue(policy, 2)), ..watch_pods() };
            let stream = self.server.in_process().watch(by(request)).await.unwrap();
            self.watches.push(stream.into_inner());
        }
        self.follow(|message| message.bookmark.is_some_and(|bookmark| bookmark.initial_events_end)).await;
    }

    /// Reads each watch until a message.
    async fn follow(&mut self, is_last: impl Fn(pb::WatchResponse) -> bool) {
        for watch in &mut self.watches {
            loop {
                let mut message = next(watch).await;
                normalize(&mut message);
                self.answers.push(format!("{message:?}"));
                if is_last(message) {
                    break;
                }
            }
        }
    }

    /// Publishes a version: a change that the caller may see, or one that it may not.
    async fn publish(&mut self, change: impl FnOnce(&informerd::model::ResourceVersion) -> Event) {
        let version = self.server.version();
        self.server.push(change(&version)).await;
        self.server.reached(&version).await;
    }
}

/// The same calls, events and versions: only names, bodies, labels and the number of the hidden objects differ.
#[tokio::test]
async fn what_a_caller_may_not_see_changes_no_answer() {
    let few = vec![pod("z", "secret", r#""nodeName":"hidden""#)];
    let many = ["", "w", "z", "z2"].map(|namespace| pod(namespace, "other", r#""nodeName":"elsewhere""#));
    let mut runs = [Run::start(few).await, Run::start(many.into()).await];
    for (number, run) in runs.iter_mut().enumerate() {
        run.read().await;
        run.watch().await;
        for round in 0..5 {
            run.publish(|version| Event::Modified(pod_at("x", "a", &format!(r#""round":{round}"#), version))).await;
            for _ in 0..4 {
                let (namespace, name) = if number == 0 { ("z", "secret") } else { ("w", "other") };
                run.publish(|version| {
                    let object = pod_at(namespace, name, &format!(r#""secret":{round}"#), version);
                    if number == 1 && round % 2 == 0 { Event::Deleted(object) } else { Event::Modified(object) }
                })
                .await;
            }
            run.publish(|version| Event::Modified(pod_at("y", "new", &format!(r#""round":{round}"#), version))).await;
            run.follow(|message| message.object.is_some_and(|object| object.name == "new")).await;
            run.read().await;
        }
    }
    let [first, second] = runs.map(|run| run.answers);
    assert!(first.len() > 300);
    for (number, (first, second)) in first.iter().zip(&second).enumerate() {
        assert_eq!(first, second, "answer {number}");
    }
    assert_eq!(first.len(), second.len());
    assert!(!first.iter().any(|answer| answer.contains("hidden") || answer.contains(r#""secret""#)));
}

/// Removes what differs between any two servers: the name of the history, and the times.
fn normalize(message: &mut pb::WatchResponse) {
    if let Some(bookmark) = &mut message.bookmark {
        (bookmark.history, bookmark.source_seen_at) = (String::new(), None);
    }
}

async fn listed(
    answer: Result<tonic::Response<Streaming<pb::ListResponse>>, Status>,
) -> Result<Vec<(pb::ListResponse, bool)>, Status> {
    let (mut stream, mut messages) = (answer?.into_inner(), Vec::new());
    while let Some(message) = stream.message().await? {
        let has_more = !message.next_page_token.is_empty();
        let (history, next_page_token) = (String::new(), String::new());
        messages.push((pb::ListResponse { history, next_page_token, source_seen_at: None, ..message }, has_more));
    }
    Ok(messages)
}

async fn by_index(
    answer: Result<tonic::Response<Streaming<pb::ByIndexResponse>>, Status>,
) -> Result<Vec<pb::ByIndexResponse>, Status> {
    let (mut stream, mut messages) = (answer?.into_inner(), Vec::new());
    while let Some(message) = stream.message().await? {
        messages.push(pb::ByIndexResponse { history: String::new(), source_seen_at: None, ..message });
    }
    Ok(messages)
}

/// Returns a request of the caller, as authentication passes it on.
fn by<M>(message: M) -> Request<M> {
    let details = IdentityDetails { user: "ann".to_owned(), ..IdentityDetails::default() };
    let mut request = Request::new(message);
    request.extensions_mut().insert(Identity::new(details));
    request
}
