//! Random calls that name hidden objects too, and their answers without what differs between any two servers.

use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use informerd::proto::pb::{
    self, admin_service_client::AdminServiceClient, informer_service_client::InformerServiceClient,
};
use tonic::{Request, Status, Streaming};

use super::{Run, by, in_words, normalize, pick};
use crate::sandbox::{InProcess, Sandbox};

/// Call of Ann. The number chooses among the page tokens that she has received so far.
#[derive(Debug, Clone)]
pub(super) enum Call {
    List(pb::ListRequest, usize),
    ByIndex(pb::ByIndexRequest, usize),
    Watch(pb::WatchRequest),
    Until(pb::UntilRequest),
    Get(pb::GetRequest),
    Values(pb::ListIndexValuesRequest, usize),
    Resources,
    Watchers(pb::ListWatchersRequest),
}

const NAMESPACES: [&str; 6] = ["", "", "x", "y", "z", "none"];
const NAMES: [&str; 4] = ["a", "c", "secret", "none"];
const INDEXES: [&str; 4] = ["namespace", "app", "node", "none"];
const VALUES: [&str; 6] = ["x", "z", "a", "secret", "node-a", "hidden"];
/// Deadline of calls that wait until the server gives up, a little earlier.
const DEADLINE: Duration = Duration::from_secs(3);

// === impl Call ===

impl Call {
    /// Draws a call, more often of a view where the caller may read no more than that.
    pub(super) fn draw(random: &mut Rng, is_of_view: bool) -> Self {
        let text = |random: &mut Rng, of: &[&str]| pick(random, of).to_owned();
        let resource = if random.u8(..12) == 0 { "nodes".to_owned() } else { "pods".to_owned() };
        let (namespace, format) = (text(random, &NAMESPACES), random.i32(0..4));
        let (mut label_selector, mut field_selector, mut expression) = (String::new(), String::new(), String::new());
        let mut index = None;
        match random.u8(..8) {
            0 => label_selector = text(random, &["app=secret", "app in (a,b,other)", "app!=a", "app=("]),
            1 => {
                let fields = ["spec.nodeName=hidden", "spec.nodeName!=node-a", "metadata.namespace=z"];
                field_selector = text(random, &fields);
            }
            2 => {
                let half = "object.spec.secret > 9000000000000000000";
                expression = text(random, &["object.spec.secret > 0", half, "object.metadata.namespace != 'x'"]);
            }
            3 | 4 => index = Some(pb::IndexMatch { name: text(random, &INDEXES), values: vec![text(random, &VALUES)] }),
            _ => {}
        }
        let view = draw_view(random, is_of_view);
        let keys = ["uid", "key", "namespace", "spec.nodeName"];
        let half = |random: &mut Rng| pb::Shard {
            key: text(random, &keys),
            ranges: vec![pb::ShardRange { start: 0, end: 1 << 63 }],
        };
        let shard = (random.u8(..6) == 0).then(|| half(random));
        let watch = |random: &mut Rng| pb::WatchRequest {
            view: view.clone(),
            shard: shard.clone(),
            resource: resource.clone(),
            namespace: namespace.clone(),
            name: if random.u8(..4) == 0 { text(random, &NAMES) } else { String::new() },
            format,
            label_selector: label_selector.clone(),
            field_selector: field_selector.clone(),
            expression: expression.clone(),
            index: index.clone(),
            ..Default::default()
        };
        let (page_size, token) = (random.u32(..3), random.usize(..6));
        match random.u8(..9) {
            0 | 1 => {
                let request = pb::ListRequest {
                    view,
                    shard,
                    resource,
                    namespace,
                    format,
                    label_selector,
                    field_selector,
                    expression,
                    index,
                    page_size,
                    ..Default::default()
                };
                Self::List(request, token)
            }
            2 => {
                let key = pb::ObjectKey { namespace: text(random, &["x", "z", "none"]), name: text(random, &NAMES) };
                let like = random.bool().then_some(key);
                let value = if like.is_some() { String::new() } else { text(random, &VALUES) };
                let index = text(random, &INDEXES);
                let request = pb::ByIndexRequest {
                    view,
                    resource,
                    namespace,
                    format,
                    index,
                    value,
                    like,
                    page_size,
                    ..Default::default()
                };
                Self::ByIndex(request, token)
            }
            3 => Self::Watch(watch(random)),
            4 => {
                let conditions = vec![text(random, &["count >= 0", "type == 'SYNCED'", "true", "count >"])];
                Self::Until(pb::UntilRequest { watch: Some(watch(random)), conditions })
            }
            5 => Self::Get(pb::GetRequest {
                view,
                resource,
                namespace,
                name: text(random, &NAMES),
                format,
                ..Default::default()
            }),
            6 => {
                let index = text(random, &INDEXES);
                Self::Values(pb::ListIndexValuesRequest { resource, index, page_size, ..Default::default() }, token)
            }
            7 => Self::Resources,
            _ => {
                let resource = if random.bool() { resource } else { String::new() };
                Self::Watchers(pb::ListWatchersRequest { resource, ..Default::default() })
            }
        }
    }

    /// Makes the call.
    pub(super) async fn make(self, run: &mut Run) {
        let (answer, page_token) = self.answer(&run.server, &run.page_tokens, None).await;
        run.answered(answer);
        run.page_tokens.extend(page_token);
    }

    /// Makes all of these at once, each with a deadline.
    pub(super) async fn make_all(calls: &[Self], run: &mut Run) {
        let answers = calls.iter().map(|call| call.clone().answer(&run.server, &run.page_tokens, Some(DEADLINE)));
        for (answer, _) in join_all(answers).await {
            run.answered(answer);
        }
    }

    /// Returns the answer, and the token of the next page.
    async fn answer(
        self,
        server: &Sandbox,
        page_tokens: &[String],
        deadline: Option<Duration>,
    ) -> (Result<String, Status>, Option<String>) {
        let mut client = server.in_process();
        let mut next = Vec::new();
        let page_token =
            |number: usize| page_tokens[page_tokens.len().saturating_sub(number) % page_tokens.len()].clone();
        let answer = async {
            Ok(match self {
                Self::List(request, number) => {
                    let request = pb::ListRequest { page_token: page_token(number), ..request };
                    let mut stream = client.list(of_ann(request, deadline)).await?.into_inner();
                    let mut messages = Vec::new();
                    while let Some(message) = stream.message().await? {
                        let has_more = !message.next_page_token.is_empty();
                        next.push(message.next_page_token.clone());
                        let (history, next_page_token) = (String::new(), String::new());
                        let message = pb::ListResponse { history, next_page_token, source_seen_at: None, ..message };
                        messages.push((message, has_more));
                    }
                    format!("{messages:?}")
                }
                Self::ByIndex(request, number) => {
                    let request = pb::ByIndexRequest { page_token: page_token(number), ..request };
                    let mut stream = client.by_index(of_ann(request, deadline)).await?.into_inner();
                    let mut messages = Vec::new();
                    while let Some(message) = stream.message().await? {
                        let has_more = !message.next_page_token.is_empty();
                        next.push(message.next_page_token.clone());
                        let (history, next_page_token) = (String::new(), String::new());
                        let message = pb::ByIndexResponse { history, next_page_token, source_seen_at: None, ..message };
                        messages.push((message, has_more));
                    }
                    format!("{messages:?}")
                }
                Self::Watch(request) => initial(client.watch(of_ann(request, deadline)).await?.into_inner()).await?,
                Self::Until(request) => {
                    let mut met = client.until(of_ann(request, deadline)).await?.into_inner();
                    met.event.iter_mut().for_each(normalize);
                    format!("{met:?}")
                }
                Self::Get(request) => {
                    let found = client.get(of_ann(request, deadline)).await?.into_inner();
                    let found = pb::GetResponse { history: String::new(), source_seen_at: None, ..found };
                    format!("{found:?}")
                }
                Self::Values(request, number) => {
                    let request = pb::ListIndexValuesRequest { page_token: page_token(number), ..request };
                    let values = client.list_index_values(of_ann(request, deadline)).await?.into_inner();
                    let has_more = !values.next_page_token.is_empty();
                    next.push(values.next_page_token.clone());
                    let values = pb::ListIndexValuesResponse { next_page_token: String::new(), ..values };
                    format!("{values:?} {has_more}")
                }
                Self::Resources => resources(&mut client, deadline).await?,
                Self::Watchers(request) => {
                    let mut admin = AdminServiceClient::new(server.service());
                    let watchers = admin.list_watchers(of_ann(request, deadline)).await?.into_inner();
                    format!("{watchers:?}")
                }
            })
        };
        let answer = answer.await;
        (answer, next.into_iter().find(|token| !token.is_empty()))
    }
}

/// Draws a view, more often the one that a caller may read who may read no more.
fn draw_view(random: &mut Rng, is_of_view: bool) -> Option<pb::View> {
    let named = |name: &str| Some(pb::View { name: name.to_owned(), ..Default::default() });
    match random.u8(..8) {
        0 => Some(pb::View { fields: vec!["spec.nodeName".to_owned()], ..Default::default() }),
        1 => named("@metadata"),
        2 => named("none"),
        3 => named("small"),
        _ if is_of_view => named("small"),
        _ => None,
    }
}

async fn resources(
    client: &mut InformerServiceClient<InProcess>,
    deadline: Option<Duration>,
) -> Result<String, Status> {
    let mut answer = client.list_resources(of_ann(pb::ListResourcesRequest::default(), deadline)).await?.into_inner();
    for resource in &mut answer.resources {
        (resource.history, resource.source_seen_at, resource.path) = (String::new(), None, Vec::new());
        resource.oldest_at = None;
        resource.problems.iter_mut().for_each(|problem| problem.since = None);
    }
    Ok(format!("{answer:?}"))
}

/// Reads the initial events, or the end of a watch that has none.
async fn initial(mut stream: Streaming<pb::WatchResponse>) -> Result<String, Status> {
    let mut messages = Vec::new();
    loop {
        match stream.message().await {
            Ok(Some(mut message)) => {
                let is_last = message.bookmark.as_ref().is_some_and(|bookmark| bookmark.initial_events_end);
                normalize(&mut message);
                messages.push(format!("{message:?}"));
                if is_last {
                    break;
                }
            }
            Ok(None) => break,
            Err(status) => {
                messages.push(in_words(&status));
                break;
            }
        }
    }
    Ok(messages.concat())
}

fn of_ann<M>(message: M, deadline: Option<Duration>) -> Request<M> {
    let mut request = by("ann", message);
    if let Some(deadline) = deadline {
        request.set_timeout(deadline);
    }
    request
}
