//! Requests to the Kubernetes API, with the same rules, callers and objects as the RPCs: whoever may not read all that a request is for is
//! refused, and never receives a part of it.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use fastrand::Rng;
use informerd::{
    grpc::{KubernetesApi, MostRecent},
    model::ApiKind,
};
use serde_json::Value;

use super::{
    super::{
        OBJECTS, objects_in,
        rules::{Caller, Form, RuleSet},
    },
    Failures, KINDS, REQUESTS,
    rights::{CONTENT, METADATA, Rights, Verbs, Wanted},
    setting,
    world::{BEGIN, CAME, Credential, Kind, World, body_of},
};
use crate::{
    kubernetes::{Answer, ask, send, serve, watch_list},
    server_sent_events::Events,
};

/// Request to the Kubernetes API.
#[derive(Debug, Clone, Copy)]
struct RestAsk {
    verb: Verb,
    resource: &'static str,
    /// Namespace; none for all.
    namespace: Option<&'static str>,
    name: &'static str,
    form: RestForm,
    version: Version,
    select: RestSelect,
    /// True for the resource under its own name, false for the kind of Kubernetes.
    is_own: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verb {
    Get,
    List,
    Watch,
    Discover,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RestForm {
    Object,
    Metadata,
    Table,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Unset,
    Any,
    NotOlder,
    Exact,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RestSelect {
    All,
    Label,
    Name,
    Body,
    /// The only shard by a field of the content, which has every object.
    Shard,
}

/// Objects of an answer by namespace and name, each with its body or none; or the code of the refusal.
type Objects = Result<BTreeMap<(String, String), Option<Value>>, u16>;

/// Most requests of a run.
const RUN: u64 = 2000;

/// Returns the kind as which the resource of a world is served.
pub(super) fn api() -> Arc<KubernetesApi> {
    let most_recent = Some(MostRecent::new(|at| Box::pin(async move { Ok(at.safe().clone()) })));
    Arc::new(KubernetesApi { kind: ApiKind::new("", "v1", "pods", "Pod"), is_discovered: false, most_recent })
}

fn pick<T: Copy>(random: &mut Rng, of: &[T]) -> T {
    of[random.usize(..of.len())]
}

// === impl RestAsk ===

impl RestAsk {
    fn draw(random: &mut Rng) -> Self {
        let verb =
            pick(random, &[Verb::Get, Verb::Get, Verb::List, Verb::List, Verb::List, Verb::Watch, Verb::Discover]);
        let namespace = pick(random, &[Some("x"), Some("x"), Some("y"), Some("z"), Some("none"), None, None]);
        let of_list = [Version::Unset, Version::Any, Version::NotOlder, Version::Exact];
        let is_own = verb != Verb::Discover && random.bool();
        let selects = [
            RestSelect::All,
            RestSelect::All,
            RestSelect::Label,
            RestSelect::Name,
            RestSelect::Body,
            RestSelect::Shard,
        ];
        let forms = [RestForm::Object, RestForm::Object, RestForm::Metadata, RestForm::Metadata, RestForm::Table];
        Self {
            verb,
            is_own,
            resource: if random.u8(..12) == 0 { "nodes" } else { "pods" },
            namespace: if verb == Verb::Get { namespace.or(Some("x")) } else { namespace },
            name: pick(random, &["a", "a", "b", "c"]),
            form: pick(random, if is_own { &forms[..4] } else { &forms }),
            version: pick(random, if verb == Verb::Watch { &of_list[..2] } else { &of_list }),
            select: pick(random, if is_own { &selects } else { &selects[..5] }),
        }
    }

    /// Returns the path of the resource under its own name.
    fn own_path(&self) -> String {
        let Self { verb, resource, namespace, name, select, .. } = self;
        let (place, namespace) = match (verb, namespace) {
            (Verb::Get, namespace) => (format!("/{}/{name}", namespace.unwrap_or("-")), String::new()),
            (Verb::Watch, None) => ("/watch".to_owned(), String::new()),
            (Verb::Watch, Some(namespace)) => ("/watch".to_owned(), format!("&namespace={namespace}")),
            (_, namespace) => {
                (String::new(), namespace.map(|namespace| format!("&namespace={namespace}")).unwrap_or_default())
            }
        };
        let version = match (self.version, verb) {
            (_, Verb::Watch) | (Version::Unset | Version::Any, _) => String::new(),
            (Version::NotOlder, _) => format!("&resourceVersion={BEGIN}"),
            (Version::Exact, _) => format!("&resourceVersion={CAME}&resourceVersionMatch=Exact"),
        };
        let select = match select {
            _ if *verb == Verb::Get => "",
            RestSelect::All => "",
            RestSelect::Label => "&labelSelector=app%3Da",
            RestSelect::Name => "&fieldSelector=metadata.name%3Da",
            // By the content, in two ways.
            RestSelect::Body if self.version == Version::Unset => "&expression=object.spec.nodeName%3D%3D%22node-a%22",
            RestSelect::Body => "&fieldSelector=spec.nodeName%3Dnode-a",
            RestSelect::Shard => "&shard=spec.nodeName:0/1",
        };
        let format = if self.form == RestForm::Metadata { "format=metadata" } else { "format=" };
        format!("/v1/{resource}{place}?{format}{namespace}{version}{select}")
    }

    fn path(&self) -> String {
        if self.is_own {
            return self.own_path();
        }
        let Self { verb, resource, namespace, name, select, .. } = self;
        if *verb == Verb::Discover {
            return "/api/v1".to_owned();
        }
        let namespace = namespace.map(|namespace| format!("namespaces/{namespace}/")).unwrap_or_default();
        let name = if *verb == Verb::Get { format!("/{name}") } else { String::new() };
        let version = match (self.version, verb) {
            (Version::Unset, _) => String::new(),
            (Version::Any, Verb::Watch) => "&resourceVersion=0".to_owned(),
            (Version::Any, _) => "&resourceVersion=0&resourceVersionMatch=NotOlderThan".to_owned(),
            (Version::NotOlder, _) => format!("&resourceVersion={BEGIN}"),
            (Version::Exact, _) => format!("&resourceVersion={CAME}&resourceVersionMatch=Exact"),
        };
        let select = match select {
            _ if *verb == Verb::Get => "",
            RestSelect::All | RestSelect::Shard => "",
            RestSelect::Label => "&labelSelector=app%3Da",
            RestSelect::Name => "&fieldSelector=metadata.name%3Da",
            RestSelect::Body => "&fieldSelector=spec.nodeName%3Dnode-a",
        };
        let include = if self.form == RestForm::Table { "&includeObject=Metadata" } else { "" };
        format!("/api/v1/{namespace}{resource}{name}?limit=0{version}{select}{include}")
    }

    fn accept(&self) -> String {
        let kind = match (self.form, self.verb) {
            (RestForm::Object, _) => return "application/json".to_owned(),
            (RestForm::Table, _) => "Table",
            (RestForm::Metadata, Verb::List) => "PartialObjectMetadataList",
            (RestForm::Metadata, _) => "PartialObjectMetadata",
        };
        format!("application/json;as={kind};g=meta.k8s.io;v=v1")
    }

    /// Makes the request.
    async fn call(&self, address: SocketAddr, headers: &[(String, String)]) -> Objects {
        let accept = self.accept();
        let mut all = vec![("Accept", &*accept)];
        all.extend(headers.iter().map(|(name, value)| (&**name, &**value)));
        if self.verb == Verb::Watch && self.is_own {
            let (stream, head) = send(address, "GET", &self.path(), &all, "").await;
            let code = head.split(' ').nth(1).unwrap().parse().unwrap();
            if code != 200 {
                return Err(code);
            }
            let (mut events, mut objects) = (Events::new(stream), BTreeMap::new());
            loop {
                let event = events.next().await.expect("the end of the initial events").data;
                if event["type"] == "BOOKMARK" {
                    return Ok(objects);
                }
                objects.extend(self.objects(&event["object"]));
            }
        }
        if self.verb == Verb::Watch {
            let query = "&watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
            let lines = watch_list(address, &(self.path() + query), &all).await?;
            return Ok(lines.iter().flat_map(|line| self.objects(&line["object"])).collect());
        }
        let answer = ask(address, "GET", &self.path(), &all, "").await;
        let Answer { code: 200, .. } = answer else { return Err(answer.failure().0) };
        let json = answer.json();
        Ok(match (self.verb, self.form) {
            (Verb::Discover, _) => json["resources"]
                .as_array()
                .unwrap()
                .iter()
                .map(|kind| ((String::new(), kind["name"].as_str().unwrap().to_owned()), None))
                .collect(),
            (Verb::Get, _) | (_, RestForm::Table) => self.objects(&json).collect(),
            _ if self.is_own => {
                json["objects"].as_array().unwrap().iter().flat_map(|object| self.objects(object)).collect()
            }
            _ => json["items"].as_array().unwrap().iter().flat_map(|item| self.objects(item)).collect(),
        })
    }

    /// Returns the objects of a document: of a table, those of its rows.
    fn objects(&self, document: &Value) -> impl Iterator<Item = ((String, String), Option<Value>)> {
        let rows = document["rows"].as_array().into_iter().flatten().map(|row| row["object"].clone());
        let (form, is_own, is_table) = (self.form, self.is_own, document["rows"].is_array());
        let objects: Vec<Value> = if is_table { rows.collect() } else { vec![document.clone()] };
        objects.into_iter().map(move |object| {
            let (envelope, body) =
                if is_own { (&object, object.get("body")) } else { (&object["metadata"], Some(&object)) };
            let text = |field: &str| envelope[field].as_str().unwrap_or_default().to_owned();
            let key = (text("namespace"), text("name"));
            // What only a body has.
            let spec = body.and_then(|body| body.get("spec")).cloned();
            assert!(spec.is_none() || form == RestForm::Object, "{object}");
            (key, spec)
        })
    }

    /// Returns what a caller must receive, by the rights and what exists.
    fn expected(&self, rights: &Rights<'_>) -> Objects {
        let verbs = match self.verb {
            Verb::Discover => {
                let any = Verbs::Any(&["get", "list", "watch"]);
                let mut of = rights.namespaces("pods").iter().copied().chain(["*"]);
                let is_seen = of.any(|namespace| rights.may(any, METADATA, namespace));
                let seen = BTreeMap::from([((String::new(), "pods".to_owned()), None)]);
                return if is_seen { Ok(seen) } else { Err(404) };
            }
            Verb::Get => Verbs::Any(&["get", "list"]),
            Verb::List => Verbs::All(&["list"]),
            Verb::Watch => Verbs::All(&["list", "watch"]),
        };
        let may = |forms: &[Form]| {
            let wanted = Wanted { verbs, resource: self.resource, forms: forms.to_vec() };
            // Some namespaces are not all.
            rights.scope(&wanted, self.namespace).is_ok_and(|scope| scope.is_none())
        };
        let (whole, is_required) = (("RAW", None), rights.kind == Kind::Required);
        if self.resource != "pods" {
            // Under its own name a resource has the rights of gRPC, which depend on the format.
            let may_some = |forms: &[Form]| {
                let wanted = Wanted { verbs, resource: self.resource, forms: forms.to_vec() };
                rights.scope(&wanted, self.namespace).is_ok()
            };
            let is_seen = if self.is_own {
                may_some(&[whole]) || self.form == RestForm::Metadata && may_some(&[METADATA])
            } else {
                may(&[METADATA])
            };
            return Err(if is_seen { 404 } else { 403 });
        }
        let may_whole = may(&[whole]) && !is_required;
        let selects_content = matches!(self.select, RestSelect::Body | RestSelect::Shard) && self.verb != Verb::Get;
        let may_content = !selects_content || may(&[METADATA, CONTENT]) && !is_required;
        let is_allowed = may_whole || self.form == RestForm::Metadata && may(&[METADATA]);
        if !is_allowed || !may_content {
            return Err(403);
        }
        let is_in = |of: &str| self.namespace.is_none_or(|namespace| namespace == of);
        let is_selected = |name: &str| match self.verb {
            Verb::Get => name == self.name,
            _ => matches!(self.select, RestSelect::All | RestSelect::Shard) || name == "a",
        };
        let keys = objects_in(is_in).into_iter().filter(|(_, name)| is_selected(name));
        let body = |(namespace, name): (&str, &str)| {
            let body: Value = serde_json::from_str(&body_of(namespace, name, None)).unwrap();
            (self.form == RestForm::Object).then(|| body["spec"].clone())
        };
        let objects: BTreeMap<_, _> = keys.map(|key| ((key.0.to_owned(), key.1.to_owned()), body(key))).collect();
        if self.verb == Verb::Get && objects.is_empty() { Err(404) } else { Ok(objects) }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_rest_answer_has_what_the_rights_of_its_caller_grant() {
    let (requests, seed) = (setting("INFORMERD_ORACLE_REQUESTS", RUN), setting("INFORMERD_CHECKER_SEED", 1));
    let mut random = Rng::with_seed(seed);
    let mut worlds = Vec::new();
    for kind in [Kind::Plain, Kind::Secret, Kind::Required, Kind::Reviewed, Kind::Relay] {
        let world = World::start(kind).await.with_past().await;
        let (address, server) = serve(&world.sandbox, false).await;
        worlds.push((world, address, server));
    }
    let (mut made, mut answered): (u64, BTreeMap<(Verb, bool), [u64; 2]>) = (0, BTreeMap::new());
    let mut failures = Failures::default();
    'sets: for number in 0.. {
        let kind = KINDS[number % KINDS.len()];
        let (world, address, _) = worlds.iter().find(|(world, ..)| world.kind == kind).unwrap();
        let rules = RuleSet::draw(&mut random);
        world.set_rules(&rules);
        for _ in 0..REQUESTS {
            if made == requests {
                break 'sets;
            }
            made += 1;
            let (caller, ask) = (Caller::draw(&mut random), RestAsk::draw(&mut random));
            let credential = match world.credential(caller, &mut random) {
                // Over a plain socket there is none.
                Credential::Certificate => Credential::Reviewed,
                credential => credential,
            };
            let rights = Rights { rules: &rules, caller, kind };
            let (expected, found) =
                (ask.expected(&rights), ask.call(*address, &world.headers(caller, credential)).await);
            let missing = if expected == found { Vec::new() } else { vec![format!("{expected:?}")] };
            let too_much = if expected == found || found.is_err() { Vec::new() } else { vec![format!("{found:?}")] };
            let at = format!("request {made} of seed {seed}, {kind:?}, {:?}", found.as_ref().map(BTreeMap::len));
            let request = format!("{caller:?} by {credential:?}: {ask:?} {}\n{rules:?}", ask.path());
            failures.add(&at, (&too_much, &missing), &request);
            answered.entry((ask.verb, ask.is_own)).or_default()[usize::from(found.is_ok())] += 1;
        }
    }
    failures.check();
    println!("{made} requests of seed {seed}: refused and answered, by verb: {answered:?}");
    assert!(OBJECTS.len() > 1 && answered.values().all(|counts| requests < RUN || counts.iter().all(|of| *of > 10)));
}
