//! Every RPC in many shapes, with the answer that is expected of it.

use std::collections::BTreeSet;

use fastrand::Rng;
use informerd::proto::pb::{self, admin_service_client::AdminServiceClient};
use tonic::{Code, Request, Status, Streaming};

use super::{
    objects_in,
    rules::{Caller, Form, Right},
};
use crate::sandbox::{DEADLINE, Sandbox, reason};

/// Request of a test.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    method: Method,
    resource: &'static str,
    /// Namespace of the request; none for all.
    namespace: Option<&'static str>,
    format: pb::PayloadFormat,
    view: View,
    select: Select,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum View {
    None,
    Named(&'static str),
    /// Paths of the request's own.
    Paths,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    List,
    ByIndex,
    Watch,
    Until,
    Values,
    Get,
    Resources,
    Watchers,
}

/// Selection of the objects with the name "a", or of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Select {
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

/// Answer to a call, as far as rights decide about it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Denied,
    /// The resource or the object does not exist.
    NotFound,
    /// The view does not exist, or is one of METADATA.
    Invalid,
    Whole(Found),
    Limited(Vec<String>, Found),
}

/// Objects, or values of an index with their counts, in words.
type Found = BTreeSet<String>;

pub(super) const NAMESPACES: [&str; 5] = ["", "none", "x", "y", "z"];
const METHODS: [Method; 8] = [
    Method::List,
    Method::ByIndex,
    Method::Watch,
    Method::Until,
    Method::Values,
    Method::Get,
    Method::Resources,
    Method::Watchers,
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

// === impl Select ===

impl Select {
    fn reads_body(self) -> bool {
        matches!(self, Self::BodyField | Self::BodyIndex | Self::Expression | Self::BodyShard)
    }

    fn selects(self, name: &str) -> bool {
        self == Self::All || name == "a"
    }

    fn label(self) -> String {
        if self == Self::Label { "app=a".to_owned() } else { String::new() }
    }

    fn field(self) -> String {
        match self {
            Self::NameField => "metadata.name=a".to_owned(),
            Self::BodyField => "spec.nodeName=node-a".to_owned(),
            _ => String::new(),
        }
    }

    fn expression(self) -> String {
        if self == Self::Expression { r#"object.spec.nodeName == "node-a""#.to_owned() } else { String::new() }
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

    fn index(self) -> Option<pb::IndexMatch> {
        let of = |name: &str, value: &str| pb::IndexMatch { name: name.to_owned(), values: vec![value.to_owned()] };
        match self {
            Self::LabelIndex => Some(of("app", "a")),
            Self::BodyIndex => Some(of("node", "node-a")),
            _ => None,
        }
    }
}

// === impl View ===

impl View {
    fn draw(random: &mut Rng) -> Self {
        let views =
            [Self::None, Self::None, Self::Named("small"), Self::Named("@metadata"), Self::Named("none"), Self::Paths];
        views[random.usize(..views.len())]
    }

    /// Returns the name that rights are to; whoever names paths needs whole bodies.
    fn name(self) -> Option<&'static str> {
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

// === impl Shape ===

impl Shape {
    pub(super) fn draw(random: &mut Rng) -> Self {
        let mut select = SELECTS[random.usize(..SELECTS.len())];
        let method = METHODS[random.usize(..METHODS.len())];
        // A call of these has an index, and nothing else selects.
        if [Method::ByIndex, Method::Values].contains(&method) {
            select = if random.bool() { Select::LabelIndex } else { Select::BodyIndex };
        }
        let namespace = NAMESPACES[random.usize(..NAMESPACES.len())];
        let resource = if random.u8(..8) == 0 { "nodes" } else { "pods" };
        Self {
            method,
            resource,
            namespace: Some(namespace).filter(|namespace| !namespace.is_empty() || method == Method::Get),
            format: FORMATS[random.usize(..FORMATS.len())],
            view: if [Method::Values, Method::Resources, Method::Watchers].contains(&method) {
                View::None
            } else {
                View::draw(random)
            },
            select,
        }
    }

    /// Returns the call with the view that the upstream of a relay decides about: a name means the same there only if every server
    /// has it.
    pub(super) fn forwarded(self) -> Self {
        let is_other = self.view.name().is_some_and(|name| !name.starts_with('@'));
        Self { view: if is_other { View::Paths } else { self.view }, ..self }
    }

    /// Returns true if the relay has the view of the call.
    pub(super) fn has_view(&self) -> bool {
        self.view != View::Named("none")
    }

    /// Returns true if the upstream of a relay decides about the call, to the last object.
    pub(super) fn is_forwarded(&self) -> bool {
        self.resource == "pods" && ![Method::Resources, Method::Watchers].contains(&self.method)
    }

    /// Returns the answer for a caller with these rights.
    pub(super) fn expected(&self, allows: impl Fn(Right) -> bool) -> Answer {
        let may = |verb, namespace, form| allows(Right { verb, resource: self.resource, namespace, form });
        let all = |verbs: &[&'static str], namespace, formats: &[Form]| {
            verbs.iter().all(|verb| formats.iter().all(|format| may(verb, namespace, *format)))
        };
        let any = |verbs: &[&'static str], namespace, formats: &[Form]| {
            verbs.iter().any(|verb| all(&[verb], namespace, formats))
        };
        let is_granted = |namespace, formats: &[Form]| match self.method {
            Method::List | Method::ByIndex | Method::Values => all(&["list"], namespace, formats),
            Method::Watch | Method::Until => all(&["list", "watch"], namespace, formats),
            Method::Get => any(&["get", "list"], namespace, formats),
            Method::Resources => any(&["get", "list", "watch"], namespace, formats),
            Method::Watchers => all(&["admin"], namespace, formats),
        };
        let asked = match self.method {
            Method::Values | Method::Resources | Method::Watchers => None,
            _ => self.namespace,
        };
        // The namespaces of the answer; none if it is not limited.
        let scope = |formats: &[Form]| -> Result<Option<Vec<&'static str>>, Answer> {
            match asked {
                _ if is_granted("*", formats) => Ok(None),
                Some(namespace) if is_granted(namespace, formats) => Ok(None),
                Some(_) => Err(Answer::Denied),
                None => {
                    let granted: Vec<_> =
                        NAMESPACES.into_iter().filter(|namespace| is_granted(namespace, formats)).collect();
                    if granted.is_empty() { Err(Answer::Denied) } else { Ok(Some(granted)) }
                }
            }
        };
        match self.method {
            Method::Resources => return Self::resources(&allows),
            Method::Watchers => {
                return match scope(&[("METADATA", None)]) {
                    Ok(None) if self.resource == "pods" => Answer::Whole(Found::new()),
                    Ok(None) => Answer::NotFound,
                    _ => Answer::Denied,
                };
            }
            _ => {}
        }
        let mut format = match (self.method, self.format) {
            (Method::Values, _) | (_, pb::PayloadFormat::Metadata) => "METADATA",
            (_, pb::PayloadFormat::Raw) => "RAW",
            (_, pb::PayloadFormat::Struct | pb::PayloadFormat::Unspecified) => "STRUCT",
        };
        let view = self.view.name().filter(|_| format != "METADATA");
        if self.format == pb::PayloadFormat::Unspecified && self.view == View::None && scope(&[(format, None)]).is_err()
        {
            format = "METADATA";
        }
        let is_invalid = self.view == View::Named("none") || format == "METADATA" && self.view != View::None;
        let mut granted = match scope(&[(format, view)]) {
            Ok(_) if self.resource != "pods" => return Answer::NotFound,
            Ok(_) if is_invalid => return Answer::Invalid,
            Ok(granted) => granted,
            Err(denied) => return denied,
        };
        if self.method != Method::Get && self.select.reads_body() {
            granted = match scope(&[(format, view), ("content", None)]) {
                Ok(granted) => granted,
                Err(denied) => return denied,
            };
        }
        let is_in = |namespace: &str| {
            asked.is_none_or(|asked| asked == namespace)
                && granted.as_ref().is_none_or(|granted| granted.contains(&namespace))
        };
        let body = match self.view {
            _ if format == "METADATA" => "",
            View::None => " with its body",
            View::Named(_) | View::Paths => " with a view",
        };
        let selected: Vec<_> = objects_in(is_in).into_iter().filter(|(_, name)| self.select.selects(name)).collect();
        let found: Found = match self.method {
            Method::Values => {
                let value = |(_, name): &(_, &str)| {
                    if self.select.reads_body() { format!("node-{name}") } else { (*name).to_owned() }
                };
                let values: Vec<_> = objects_in(is_in).iter().map(value).collect();
                let counted = |value: &String| format!("{value}: {}", values.iter().filter(|of| *of == value).count());
                values.iter().map(counted).collect()
            }
            Method::Until => [format!("count {}", selected.len())].into(),
            Method::Get => {
                let object = objects_in(is_in).into_iter().find(|(_, name)| *name == "a");
                let Some((namespace, name)) = object else { return Answer::NotFound };
                [in_words(namespace, name, body)].into()
            }
            _ => selected.iter().map(|(namespace, name)| in_words(namespace, name, body)).collect(),
        };
        match granted.filter(|_| self.method != Method::Get) {
            Some(namespaces) => Answer::Limited(namespaces.into_iter().map(str::to_owned).collect(), found),
            None => Answer::Whole(found),
        }
    }

    /// Returns the resources that a caller sees, with the number of objects that it may list, get or watch.
    fn resources(allows: &impl Fn(Right) -> bool) -> Answer {
        let is_seen = |namespace| {
            ["get", "list", "watch"]
                .into_iter()
                .any(|verb| allows(Right { verb, resource: "pods", namespace, form: ("METADATA", None) }))
        };
        if is_seen("*") {
            return Answer::Whole([format!("pods: {}", objects_in(|_| true).len())].into());
        }
        let seen: Vec<_> = NAMESPACES.into_iter().filter(|namespace| is_seen(namespace)).collect();
        let count = objects_in(|namespace| seen.contains(&namespace)).len();
        Answer::Whole(if seen.is_empty() { Found::new() } else { [format!("pods: {count}")].into() })
    }

    /// Makes the call.
    pub(super) async fn call(&self, server: &Sandbox, caller: &Caller, count: usize) -> Answer {
        match self.answer(server, caller, count).await {
            Ok(answer) => answer,
            Err(status) => match (status.code(), &*reason(&status)) {
                (Code::PermissionDenied, "ACCESS_DENIED") => Answer::Denied,
                (Code::NotFound, "RESOURCE_NOT_FOUND" | "OBJECT_NOT_FOUND") => Answer::NotFound,
                (Code::InvalidArgument, "VIEW_INVALID") => Answer::Invalid,
                _ => panic!("{status:?}"),
            },
        }
    }

    async fn answer(&self, server: &Sandbox, caller: &Caller, count: usize) -> Result<Answer, Status> {
        let Self { method, select, .. } = *self;
        let (resource, namespace) = (self.resource.to_owned(), self.namespace.unwrap_or_default().to_owned());
        let (format, view) = (self.format.into(), self.view.message());
        let mut client = server.in_process();
        let (label_selector, field_selector, expression) = (select.label(), select.field(), select.expression());
        let mut found = Found::new();
        let mut namespaces = Vec::new();
        match method {
            Method::List => {
                let index = select.index();
                let request = pb::ListRequest {
                    resource,
                    namespace,
                    format,
                    label_selector,
                    field_selector,
                    expression,
                    index,
                    view,
                    shard: select.shard(),
                    ..Default::default()
                };
                let mut stream = client.list(by(caller, request)).await?.into_inner();
                while let Some(message) = stream.message().await? {
                    namespaces.extend(message.namespaces);
                    found.extend(message.objects.iter().map(words));
                }
            }
            Method::ByIndex => {
                let pb::IndexMatch { name: index, values } = select.index().unwrap_or_default();
                let value = values.concat();
                let request =
                    pb::ByIndexRequest { resource, namespace, format, index, value, view, ..Default::default() };
                let mut stream = client.by_index(by(caller, request)).await?.into_inner();
                while let Some(message) = stream.message().await? {
                    namespaces.extend(message.namespaces);
                    found.extend(message.objects.iter().map(words));
                }
            }
            Method::Watch | Method::Until => {
                let index = select.index();
                let watch = pb::WatchRequest {
                    resource,
                    namespace,
                    format,
                    label_selector,
                    field_selector,
                    expression,
                    index,
                    view,
                    shard: select.shard(),
                    ..Default::default()
                };
                if method == Method::Until {
                    let conditions = vec![format!("count == {count}")];
                    let request = pb::UntilRequest { watch: Some(watch), conditions };
                    let call = tokio::time::timeout(DEADLINE, client.until(by(caller, request)));
                    namespaces = call.await.expect("the count is the expected one")?.into_inner().namespaces;
                    found.insert(format!("count {count}"));
                } else {
                    let stream = client.watch(by(caller, watch)).await?.into_inner();
                    namespaces = initial(stream, &mut found).await?;
                }
            }
            Method::Values => {
                let index = select.index().unwrap_or_default().name;
                let request = pb::ListIndexValuesRequest { resource, index, ..Default::default() };
                let answer = client.list_index_values(by(caller, request)).await?.into_inner();
                found.extend(answer.values.iter().map(|value| format!("{}: {}", value.value, value.objects)));
                namespaces = answer.namespaces;
            }
            Method::Get => {
                let request =
                    pb::GetRequest { resource, namespace, format, view, name: "a".to_owned(), ..Default::default() };
                found.extend(client.get(by(caller, request)).await?.into_inner().object.as_ref().map(words));
            }
            Method::Resources => {
                let answer = client.list_resources(by(caller, pb::ListResourcesRequest::default())).await?.into_inner();
                found.extend(answer.resources.iter().map(|of| format!("{}: {}", of.name, of.objects)));
            }
            Method::Watchers => {
                let mut client = AdminServiceClient::new(server.service());
                let request = pb::ListWatchersRequest { resource, ..Default::default() };
                let answer = client.list_watchers(by(caller, request)).await?.into_inner();
                found.extend(answer.watchers.iter().map(|watcher| watcher.selection.clone()));
            }
        }
        Ok(if namespaces.is_empty() { Answer::Whole(found) } else { Answer::Limited(namespaces, found) })
    }
}

// === impl Answer ===

impl Answer {
    /// Returns the number of objects that an answer has, for a condition that is met by exactly that many.
    pub(super) fn count(&self) -> usize {
        let (Self::Whole(found) | Self::Limited(_, found)) = self else { return 0 };
        let counted = found.iter().find_map(|words| words.strip_prefix("count "));
        counted.map_or(0, |count| count.parse().unwrap())
    }
}

/// Reads the initial events, and returns the namespaces that the watch is limited to.
async fn initial(mut stream: Streaming<pb::WatchResponse>, found: &mut Found) -> Result<Vec<String>, Status> {
    while let Some(message) = stream.message().await? {
        found.extend(message.object.as_ref().map(words));
        if let Some(bookmark) = message.bookmark.filter(|bookmark| bookmark.initial_events_end) {
            return Ok(bookmark.namespaces);
        }
    }
    panic!("the watch has ended")
}

fn words(object: &pb::Object) -> String {
    let is_whole = match &object.body {
        None => None,
        Some(pb::object::Body::Raw(body)) => Some(memchr::memmem::find(body, b"nodeName").is_some()),
        Some(pb::object::Body::Struct(body)) => Some(body.fields.contains_key("spec")),
    };
    let body = is_whole.map_or("", |is_whole| if is_whole { " with its body" } else { " with a view" });
    in_words(&object.namespace, &object.name, body)
}

fn in_words(namespace: &str, name: &str, body: &str) -> String {
    format!("{namespace}/{name}{body}")
}

/// Returns a request of a caller, as authentication passes it on.
fn by<M>(caller: &Caller, message: M) -> Request<M> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(caller.identity());
    request
}
