//! Requests of every RPC, and the calls.

use fastrand::Rng;
use futures_util::{StreamExt, TryStreamExt, stream};
use informerd::proto::pb::{self, admin_service_client::AdminServiceClient, explain_request::Selection};
use prost::Message;
use tonic::{Code, Request, Status};

use super::{
    super::rules::Caller,
    NAMESPACES,
    leaves::Leaves,
    world::{BEGIN, CAME, Credential, OPERATOR, WENT, World},
};
use crate::sandbox::{DEADLINE, reason};

/// Request of one RPC.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "independent parts of a request")]
pub(super) struct Ask {
    pub(super) method: Method,
    pub(super) resource: &'static str,
    /// Namespace of the request; none for all.
    pub(super) namespace: Option<&'static str>,
    /// Object of Get and Explain: its namespace is the request's, or "" without one.
    pub(super) key: (&'static str, &'static str),
    pub(super) format: pb::PayloadFormat,
    pub(super) view: View,
    pub(super) select: Select,
    /// Open watch to explain.
    pub(super) watch: u64,
    /// Name in a request of a watch.
    pub(super) name: Option<&'static str>,
    /// Object in place of the value of a ByIndex.
    pub(super) like: Option<(&'static str, &'static str)>,
    /// True if the answer needs the version of the beginning.
    has_version: bool,
    /// True if the answer is of the version in which the objects came.
    is_exact: bool,
    /// True if the changes are those in which the objects went.
    pub(super) is_of_deletions: bool,
    /// Objects or values of each page of a List, ByIndex or ListIndexValues; 0 without pages.
    page_size: u32,
    /// True if the first page is the second one of the operator.
    is_page_of_another: bool,
    /// True if the watches that have ended are listed, too.
    pub(super) include_ended: bool,
    /// True if a Watch requests initial events in batches.
    pub(super) has_batches: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    None,
    Named(&'static str),
    /// Paths of the request's own.
    Paths,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Method {
    List,
    ByIndex,
    Changes,
    Watch,
    Subscribe,
    Until,
    Values,
    Get,
    Explain,
    ExplainWatch,
    Resources,
    Watchers,
    Stats,
    Disconnect,
}

/// Selection of the objects with the name "a", or of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Select {
    All,
    Label,
    NameField,
    LabelIndex,
    BodyField,
    BodyIndex,
    Expression,
    KeyShard,
    BodyShard,
}

/// Id that stands for those of all watches that have ended.
pub(super) const ENDED: u64 = 1000;

/// Answer: its leaves, or the reason of the refusal.
pub(super) type Answer = Result<Leaves, String>;

pub(super) const METHODS: [Method; 14] = [
    Method::List,
    Method::ByIndex,
    Method::Changes,
    Method::Watch,
    Method::Subscribe,
    Method::Until,
    Method::Values,
    Method::Get,
    Method::Explain,
    Method::ExplainWatch,
    Method::Resources,
    Method::Watchers,
    Method::Stats,
    Method::Disconnect,
];
const SELECTS: [Select; 9] = [
    Select::All,
    Select::Label,
    Select::NameField,
    Select::LabelIndex,
    Select::BodyField,
    Select::BodyIndex,
    Select::Expression,
    Select::KeyShard,
    Select::BodyShard,
];
const FORMATS: [pb::PayloadFormat; 4] =
    [pb::PayloadFormat::Unspecified, pb::PayloadFormat::Metadata, pb::PayloadFormat::Raw, pb::PayloadFormat::Struct];

fn pick<T: Copy>(random: &mut Rng, of: &[T]) -> T {
    of[random.usize(..of.len())]
}

// === impl Method ===

impl Method {
    /// Returns the name of the RPC.
    pub(super) fn rpc(self) -> &'static str {
        match self {
            Self::List => "List",
            Self::ByIndex => "ByIndex",
            Self::Changes => "Changes",
            Self::Watch => "Watch",
            Self::Subscribe => "Subscribe",
            Self::Until => "Until",
            Self::Values => "ListIndexValues",
            Self::Get => "Get",
            Self::Explain | Self::ExplainWatch => "Explain",
            Self::Resources => "ListResources",
            Self::Watchers => "ListWatchers",
            Self::Stats => "GetStats",
            Self::Disconnect => "DisconnectWatchers",
        }
    }
}

// === impl Select ===

impl Select {
    pub(super) fn reads_body(self) -> bool {
        matches!(self, Self::BodyField | Self::BodyIndex | Self::Expression | Self::BodyShard)
    }

    pub(super) fn selects(self, name: &str) -> bool {
        self == Self::All || name == "a"
    }

    /// Returns the watch with this selection.
    pub(super) fn of(self, watch: pb::WatchRequest) -> pb::WatchRequest {
        let text = |is: bool, text: &str| if is { text.to_owned() } else { String::new() };
        pb::WatchRequest {
            label_selector: text(self == Self::Label, "app=a"),
            field_selector: match self {
                Self::NameField => "metadata.name=a".to_owned(),
                Self::BodyField => "spec.nodeName=node-a".to_owned(),
                _ => String::new(),
            },
            expression: text(self == Self::Expression, r#"object.spec.nodeName == "node-a""#),
            index: self.index(),
            shard: self.shard(),
            ..watch
        }
    }

    fn index(self) -> Option<pb::IndexMatch> {
        let of = |name: &str, value: &str| pb::IndexMatch { name: name.to_owned(), values: vec![value.to_owned()] };
        match self {
            Self::LabelIndex => Some(of("app", "a")),
            Self::BodyIndex => Some(of("node", "node-a")),
            _ => None,
        }
    }

    fn shard(self) -> Option<pb::Shard> {
        let of = |key: &str, values: &[&str]| {
            let hash = |value: &&str| {
                value
                    .bytes()
                    .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
            };
            let ranges = values.iter().map(hash).map(|start| pb::ShardRange { start, end: start + 1 }).collect();
            Some(pb::Shard { key: key.to_owned(), ranges })
        };
        match self {
            Self::KeyShard => of("key", &["a", "x/a", "y/a"]),
            Self::BodyShard => of("spec.nodeName", &["node-a"]),
            _ => None,
        }
    }
}

// === impl View ===

impl View {
    /// Returns the name that rights are to; whoever names paths needs whole bodies.
    pub(super) fn name(self) -> Option<&'static str> {
        if let Self::Named(name) = self { Some(name) } else { None }
    }

    fn message(self) -> Option<pb::View> {
        match self {
            Self::None => None,
            Self::Named(name) => Some(pb::View { name: name.to_owned(), ..Default::default() }),
            Self::Paths => Some(pb::View { fields: vec!["kind".to_owned()], ..Default::default() }),
        }
    }
}

// === impl Ask ===

impl Ask {
    pub(super) fn draw(random: &mut Rng, world: &World) -> Self {
        let mut method = pick(random, &METHODS);
        while method == Method::Changes && !world.has_past() {
            method = pick(random, &METHODS);
        }
        Self::draw_of(method, random, world)
    }

    pub(super) fn draw_of(method: Method, random: &mut Rng, world: &World) -> Self {
        // A call of these has an index, and nothing else selects.
        let of_index = [Method::ByIndex, Method::Values].contains(&method);
        let selects = if of_index { &[Select::LabelIndex, Select::BodyIndex][..] } else { &SELECTS };
        let is_paged = of_index || method == Method::List;
        let has_name =
            [Method::Watch, Method::Subscribe, Method::Until, Method::Explain, Method::Changes].contains(&method);
        let namespace = pick(random, &NAMESPACES);
        let views = [
            View::None,
            View::None,
            View::None,
            View::Named("small"),
            View::Named("@metadata"),
            View::Named("none"),
            View::Paths,
        ];
        Self {
            method,
            resource: if random.u8(..12) == 0 { "nodes" } else { "pods" },
            namespace: Some(namespace).filter(|namespace| !namespace.is_empty()),
            key: (pick(random, &NAMESPACES), pick(random, &["a", "a", "b", "c", "big"])),
            format: pick(random, &FORMATS),
            view: if method == Method::Values { View::None } else { pick(random, &views) },
            select: pick(random, selects),
            watch: pick(random, &world.watches).0,
            name: Some(pick(random, &["a", "b"])).filter(|_| has_name && random.u8(..4) == 0),
            like: Some((pick(random, &NAMESPACES), pick(random, &["a", "b", "c", "big"])))
                .filter(|_| method == Method::ByIndex && random.u8(..3) == 0),
            has_version: random.u8(..4) == 0,
            is_exact: world.has_past()
                && [Method::List, Method::ByIndex, Method::Get].contains(&method)
                && random.u8(..3) == 0,
            is_of_deletions: random.bool(),
            page_size: if is_paged && random.bool() { random.u32(1..4) } else { 0 },
            is_page_of_another: method == Method::List && random.u8(..6) == 0,
            include_ended: random.bool(),
            has_batches: random.bool(),
        }
    }

    pub(super) fn watch(&self) -> pb::WatchRequest {
        self.select.of(pb::WatchRequest {
            resource: self.resource.to_owned(),
            namespace: self.namespace.unwrap_or_default().to_owned(),
            format: self.format.into(),
            view: self.view.message(),
            name: self.name.unwrap_or_default().to_owned(),
            min_resource_version: self.version(),
            batch_initial_events: self.has_batches,
            ..Default::default()
        })
    }

    fn version(&self) -> String {
        match (self.is_exact, self.has_version) {
            (true, _) => CAME.to_owned(),
            (false, true) => BEGIN.to_owned(),
            (false, false) => String::new(),
        }
    }

    fn version_match(&self) -> i32 {
        let exact = pb::ResourceVersionMatch::Exact;
        if self.is_exact { exact.into() } else { pb::ResourceVersionMatch::Unspecified.into() }
    }

    /// Returns the token for the second page of the operator's answer to this request, if that has one and the request is to use it.
    pub(super) async fn token_of_another(&self, world: &World) -> Option<String> {
        if !self.is_page_of_another {
            return None;
        }
        let ask = Self { page_size: 1, ..*self };
        let request =
            world.by(Caller { user: OPERATOR, groups: &[] }, Credential::Certificate, ask.list(String::new()));
        let mut pages = world.sandbox.in_process().list(request).await.ok()?.into_inner();
        let mut token = String::new();
        while let Some(page) = pages.message().await.ok()? {
            token = page.next_page_token;
        }
        Some(token).filter(|token| !token.is_empty())
    }

    fn list(&self, page_token: String) -> pb::ListRequest {
        let pb::WatchRequest {
            resource,
            namespace,
            label_selector,
            field_selector,
            expression,
            format,
            view,
            index,
            shard,
            ..
        } = self.watch();
        pb::ListRequest {
            resource,
            namespace,
            label_selector,
            field_selector,
            expression,
            format,
            view,
            index,
            shard,
            page_size: self.page_size,
            page_token,
            min_resource_version: self.version(),
            resource_version_match: self.version_match(),
            history: String::new(),
        }
    }

    fn changes(&self) -> pb::ChangesRequest {
        let pb::WatchRequest {
            resource,
            namespace,
            name,
            label_selector,
            field_selector,
            expression,
            format,
            view,
            index,
            shard,
            ..
        } = self.watch();
        let newest = if self.has_version { "" } else { CAME };
        let (from, to) = if self.is_of_deletions { (BEGIN, WENT) } else { (WENT, newest) };
        pb::ChangesRequest {
            resource,
            from_resource_version: from.to_owned(),
            to_resource_version: to.to_owned(),
            namespace,
            name,
            label_selector,
            field_selector,
            expression,
            format,
            view,
            index,
            shard,
            history: String::new(),
        }
    }

    /// Makes the call. An Until waits for this number of objects, and a List begins with the page of this token.
    pub(super) async fn call(
        &self,
        world: &World,
        caller: Caller,
        credential: Credential,
        (count, token): (usize, Option<String>),
    ) -> Answer {
        match self.answer(world, caller, credential, (count, token)).await {
            Ok(leaves) => Ok(leaves),
            Err(status) if status.code() == Code::DeadlineExceeded => Err("DEADLINE".to_owned()),
            Err(status) => Err(reason(&status)),
        }
    }

    #[expect(clippy::too_many_lines, reason = "one request for each RPC")]
    async fn answer(
        &self,
        world: &World,
        caller: Caller,
        credential: Credential,
        (count, token): (usize, Option<String>),
    ) -> Result<Leaves, Status> {
        let mut client = world.sandbox.in_process();
        let (namespace, name) = self.key;
        let pb::WatchRequest { resource, format, view, index, .. } = self.watch();
        let (mut page_token, page_size) = (token.unwrap_or_default(), self.page_size);
        match self.method {
            Method::List => {
                let mut messages: Vec<pb::ListResponse> = Vec::new();
                loop {
                    let request = world.by(caller, credential, self.list(page_token));
                    let page: Vec<_> = client.list(request).await?.into_inner().try_collect().await?;
                    page_token = page.iter().map(|message| &*message.next_page_token).collect();
                    messages.extend(page);
                    if page_token.is_empty() {
                        return Ok(world.contract.leaves("ListResponse", &messages));
                    }
                }
            }
            Method::ByIndex => {
                let pb::IndexMatch { name: index, values } = index.unwrap_or_default();
                let mut messages: Vec<pb::ByIndexResponse> = Vec::new();
                loop {
                    let like = self.like.map(|(namespace, name)| pb::ObjectKey {
                        namespace: namespace.to_owned(),
                        name: name.to_owned(),
                    });
                    let request = pb::ByIndexRequest {
                        resource: resource.clone(),
                        namespace: self.namespace.unwrap_or_default().to_owned(),
                        index: index.clone(),
                        value: if like.is_some() { String::new() } else { values.concat() },
                        like,
                        format,
                        view: view.clone(),
                        page_size,
                        page_token,
                        min_resource_version: self.version(),
                        resource_version_match: self.version_match(),
                        ..Default::default()
                    };
                    let request = world.by(caller, credential, request);
                    let page: Vec<_> = client.by_index(request).await?.into_inner().try_collect().await?;
                    page_token = page.iter().map(|message| &*message.next_page_token).collect();
                    messages.extend(page);
                    if page_token.is_empty() {
                        return Ok(world.contract.leaves("ByIndexResponse", &messages));
                    }
                }
            }
            Method::Changes => {
                let request = world.by(caller, credential, self.changes());
                let messages: Vec<_> = client.changes(request).await?.into_inner().try_collect().await?;
                Ok(world.contract.leaves("ChangesResponse", &messages))
            }
            Method::Watch => {
                let stream = client.watch(world.by(caller, credential, self.watch())).await?.into_inner();
                let messages = initial(stream).await?;
                Ok(world.contract.leaves("WatchResponse", &messages))
            }
            Method::Subscribe => {
                let watch = pb::OpenWatch { id: 7, watch: Some(self.watch()) };
                let open = pb::SubscribeRequest { open: vec![watch], ..Default::default() };
                let requests = stream::iter([open]).chain(stream::pending());
                let mut stream = client.subscribe(world.by(caller, credential, requests)).await?.into_inner();
                let mut messages = Vec::new();
                while let Some(message) = stream.message().await? {
                    let responses = || message.deliveries.iter().flat_map(|delivery| &delivery.responses);
                    if let Some(error) = responses().find_map(|response| response.error.as_ref()) {
                        return Err(Status::with_details(Code::from(error.code), "", error.encode_to_vec().into()));
                    }
                    let is_last = responses().any(is_synced);
                    messages.push(message);
                    if is_last {
                        break;
                    }
                }
                Ok(world.contract.leaves("SubscribeResponse", &messages))
            }
            Method::Until => {
                let conditions = vec![format!("count == {count}")];
                let request = pb::UntilRequest { watch: Some(self.watch()), conditions };
                let mut request: Request<_> = world.by(caller, credential, request);
                request.set_timeout(DEADLINE / 10);
                Ok(world.contract.leaves("UntilResponse", &[client.until(request).await?.into_inner()]))
            }
            Method::Values => {
                let index = index.unwrap_or_default().name;
                let mut messages = Vec::new();
                loop {
                    let (resource, index) = (resource.clone(), index.clone());
                    let request = pb::ListIndexValuesRequest { resource, index, page_size, page_token };
                    let mut page = client.list_index_values(world.by(caller, credential, request)).await?.into_inner();
                    page_token = std::mem::take(&mut page.next_page_token);
                    messages.push(page);
                    if page_token.is_empty() {
                        return Ok(world.contract.leaves("ListIndexValuesResponse", &messages));
                    }
                }
            }
            Method::Get => {
                let (namespace, name) = (namespace.to_owned(), name.to_owned());
                let min_resource_version = self.version();
                let resource_version_match = self.version_match();
                let request = pb::GetRequest {
                    resource,
                    namespace,
                    name,
                    format,
                    view,
                    min_resource_version,
                    resource_version_match,
                    history: String::new(),
                };
                let answer = client.get(world.by(caller, credential, request)).await?.into_inner();
                Ok(world.contract.leaves("GetResponse", &[answer]))
            }
            Method::Explain | Method::ExplainWatch => {
                let selection = match self.method {
                    Method::Explain => Selection::Watch(self.watch()),
                    _ => Selection::WatcherId(self.watch),
                };
                let key = Some(pb::ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() });
                let request = pb::ExplainRequest { selection: Some(selection), key };
                let answer = client.explain(world.by(caller, credential, request)).await?.into_inner();
                Ok(world.contract.leaves("ExplainResponse", &[answer]))
            }
            Method::Resources => {
                let request = world.by(caller, credential, pb::ListResourcesRequest {});
                let answer = client.list_resources(request).await?.into_inner();
                Ok(world.contract.leaves("ListResourcesResponse", &[answer]))
            }
            Method::Watchers => {
                let mut client = AdminServiceClient::new(world.sandbox.service());
                let include_ended = self.include_ended;
                let request = pb::ListWatchersRequest { resource, include_ended, ..Default::default() };
                let mut answer = client.list_watchers(world.by(caller, credential, request)).await?.into_inner();
                // One stands for all that have ended.
                let (ended, open): (Vec<_>, Vec<_>) =
                    std::mem::take(&mut answer.watchers).into_iter().partition(|of| of.ended_at.is_some());
                let ended = ended.into_iter().next().map(|of| pb::Watcher { id: ENDED, ..of });
                answer.watchers = open.into_iter().chain(ended).collect();
                Ok(world.contract.leaves("ListWatchersResponse", &[answer]))
            }
            Method::Stats => {
                let mut client = AdminServiceClient::new(world.sandbox.service());
                let request = world.by(caller, credential, pb::GetStatsRequest {});
                let answer = client.get_stats(request).await?.into_inner();
                Ok(world.contract.leaves("GetStatsResponse", &[answer]))
            }
            Method::Disconnect => {
                let mut client = AdminServiceClient::new(world.sandbox.service());
                // The watches of the other requests stay.
                let request = pb::DisconnectWatchersRequest { ids: vec![ENDED] };
                let answer = client.disconnect_watchers(world.by(caller, credential, request)).await?.into_inner();
                Ok(world.contract.leaves("DisconnectWatchersResponse", &[answer]))
            }
        }
    }
}

/// Reads a watch to the end of its initial events.
async fn initial(mut stream: tonic::Streaming<pb::WatchResponse>) -> Result<Vec<pb::WatchResponse>, Status> {
    let mut messages = Vec::new();
    while let Some(message) = stream.message().await? {
        let is_last = is_synced(&message);
        messages.push(message);
        if is_last {
            break;
        }
    }
    Ok(messages)
}

pub(super) fn is_synced(message: &pb::WatchResponse) -> bool {
    message.bookmark.as_ref().is_some_and(|bookmark| bookmark.initial_events_end)
}
