//! Callers of all sorts, and their random calls. Everything that a caller receives is searched.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use fastrand::Rng;
use informerd::proto::pb::{
    self, admin_service_client::AdminServiceClient, informer_service_client::InformerServiceClient,
};
use parking_lot::Mutex;
use prost::Message;
use tonic::{
    Request, Status, Streaming,
    metadata::{AsciiMetadataKey, AsciiMetadataValue},
    transport::Channel,
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use super::canary::{Kind, Search};

/// Caller, and the kinds of canaries that it may receive.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) name: &'static str,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) may_see: &'static [Kind],
}

/// Calls of all callers to one server.
pub(super) struct Calls {
    pub(super) search: Arc<Search>,
    /// Kinds that callers have received.
    pub(super) seen: Mutex<std::collections::BTreeSet<(&'static str, Kind)>>,
    /// Page tokens of any caller, for any other.
    page_tokens: Mutex<Vec<String>>,
}

pub(super) const RESOURCES: [&str; 6] = ["pods", "secrets", "relayed", "configmaps", "settings", "none"];
const NAMESPACES: [&str; 4] = ["", "open", "closed", "none"];
/// Longest time of one call, in milliseconds.
const CALL_MS: u64 = 150;

// === impl Calls ===

impl Calls {
    pub(super) fn new(search: Arc<Search>) -> Self {
        let page_tokens = Mutex::new(vec![String::new(), Kind::Token.canary("InPageToken")]);
        Self { search, seen: Mutex::default(), page_tokens }
    }

    /// Makes one call, drawn at random, and checks its answer.
    pub(super) async fn call(&self, channel: &Channel, caller: &Caller, random: &mut Rng) {
        let call = random.u8(..10);
        let answer = match call {
            0 | 1 => self.watch(channel, caller, watch_request(random), false).await,
            2 => self.list(channel, caller, random).await,
            3 => self.by_index(channel, caller, random).await,
            4 => self.until(channel, caller, random).await,
            5 => self.get(channel, caller, random).await,
            6 => self.values(channel, caller, random).await,
            7 => self.resources(channel, caller).await,
            8 => self.watchers(channel, caller, random).await,
            _ => health(channel, caller, random).await,
        };
        if let Err(status) = answer {
            self.received(caller, &format!("the status of call {call}"), format!("{status:?}").as_bytes());
            self.received(caller, &format!("the details of call {call}"), status.details());
        }
    }

    /// Reads a watch: for a moment, or until the server ends it.
    pub(super) async fn watch(
        &self,
        channel: &Channel,
        caller: &Caller,
        request: pb::WatchRequest,
        is_long: bool,
    ) -> Result<(), Status> {
        let nanos = i32::try_from(CALL_MS).unwrap() * 1_000_000;
        let timeout = (!is_long).then_some(prost_types::Duration { seconds: 0, nanos });
        let mut request = caller.request(pb::WatchRequest { timeout, ..request }, None);
        if !is_long {
            request.set_timeout(Duration::from_millis(3 * CALL_MS));
        }
        let stream = InformerServiceClient::new(channel.clone()).watch(request).await?;
        self.read(caller, stream.into_inner(), |_| {}).await
    }

    async fn read<M: Message>(
        &self,
        caller: &Caller,
        mut stream: Streaming<M>,
        each: impl Fn(&M),
    ) -> Result<(), Status> {
        while let Some(message) = stream.message().await? {
            each(&message);
            self.received(caller, "a message", &message.encode_to_vec());
        }
        if let Some(trailers) = stream.trailers().await? {
            self.received(caller, "trailers", format!("{trailers:?}").as_bytes());
        }
        Ok(())
    }

    fn received(&self, caller: &Caller, place: &str, bytes: &[u8]) {
        self.search.check(&format!("{place}, to {}", caller.name), bytes, caller.may_see);
        self.seen.lock().extend(self.search.kinds(bytes).into_iter().map(|kind| (caller.name, kind)));
    }

    fn page_token(&self, random: &mut Rng) -> String {
        let tokens = self.page_tokens.lock();
        tokens[random.usize(..tokens.len())].clone()
    }

    fn keeps(&self, page_token: &str) {
        if !page_token.is_empty() {
            self.page_tokens.lock().push(page_token.to_owned());
        }
    }

    async fn list(&self, channel: &Channel, caller: &Caller, random: &mut Rng) -> Result<(), Status> {
        let pb::WatchRequest { resource, namespace, format, label_selector, field_selector, expression, index, .. } =
            watch_request(random);
        let request = pb::ListRequest {
            resource,
            namespace,
            format,
            label_selector,
            field_selector,
            expression,
            index,
            page_size: random.u32(..2),
            page_token: self.page_token(random),
            ..Default::default()
        };
        let answer = InformerServiceClient::new(channel.clone()).list(caller.request(request, Some(CALL_MS))).await?;
        self.read(caller, answer.into_inner(), |message: &pb::ListResponse| self.keeps(&message.next_page_token)).await
    }

    async fn by_index(&self, channel: &Channel, caller: &Caller, random: &mut Rng) -> Result<(), Status> {
        let pb::WatchRequest { resource, namespace, format, index, .. } = watch_request(random);
        let pb::IndexMatch { name: index, values } = index.unwrap_or_default();
        let key = pb::ObjectKey { namespace: pick(random, &NAMESPACES), name: pick(random, &["web", "key", "none"]) };
        let like = random.bool().then_some(key);
        let value = if like.is_some() { String::new() } else { values.concat() };
        let request =
            pb::ByIndexRequest { resource, namespace, format, index, value, like, page_size: 1, ..Default::default() };
        let mut client = InformerServiceClient::new(channel.clone());
        let answer = client.by_index(caller.request(request, Some(CALL_MS))).await?;
        self.read(caller, answer.into_inner(), |message: &pb::ByIndexResponse| self.keeps(&message.next_page_token))
            .await
    }

    async fn until(&self, channel: &Channel, caller: &Caller, random: &mut Rng) -> Result<(), Status> {
        let secret = STANDARD.encode(Kind::Secret.canary("Keys"));
        let condition = match random.u8(..4) {
            0 => "count >= 1".to_owned(),
            1 => "type == 'ADDED'".to_owned(),
            2 => format!("object.data.key == '{secret}'"),
            _ => "object.spec.text != ''".to_owned(),
        };
        let request = pb::UntilRequest { watch: Some(watch_request(random)), conditions: vec![condition] };
        let answer = InformerServiceClient::new(channel.clone()).until(caller.request(request, Some(CALL_MS))).await?;
        self.answered(caller, "Until", &answer.into_inner());
        Ok(())
    }

    async fn get(&self, channel: &Channel, caller: &Caller, random: &mut Rng) -> Result<(), Status> {
        let request = pb::GetRequest {
            resource: pick(random, &RESOURCES),
            namespace: pick(random, &NAMESPACES),
            name: pick(random, &["web", "key", "none", ""]),
            format: random.i32(0..5),
            ..Default::default()
        };
        let answer = InformerServiceClient::new(channel.clone()).get(caller.request(request, Some(CALL_MS))).await?;
        self.answered(caller, "Get", &answer.into_inner());
        Ok(())
    }

    async fn values(&self, channel: &Channel, caller: &Caller, random: &mut Rng) -> Result<(), Status> {
        let request = pb::ListIndexValuesRequest {
            resource: pick(random, &RESOURCES),
            index: pick(random, &["namespace", "app", "text", "key", "none"]),
            page_size: random.u32(..2),
            page_token: self.page_token(random),
        };
        let mut client = InformerServiceClient::new(channel.clone());
        let answer = client.list_index_values(caller.request(request, Some(CALL_MS))).await?.into_inner();
        self.keeps(&answer.next_page_token);
        self.answered(caller, "ListIndexValues", &answer);
        Ok(())
    }

    async fn resources(&self, channel: &Channel, caller: &Caller) -> Result<(), Status> {
        let request = caller.request(pb::ListResourcesRequest {}, Some(CALL_MS));
        let answer = InformerServiceClient::new(channel.clone()).list_resources(request).await?.into_inner();
        self.answered(caller, "ListResources", &answer);
        Ok(())
    }

    async fn watchers(&self, channel: &Channel, caller: &Caller, random: &mut Rng) -> Result<(), Status> {
        let resource = if random.bool() { String::new() } else { pick(random, &RESOURCES) };
        let request = pb::ListWatchersRequest { resource, page_token: self.page_token(random), ..Default::default() };
        let mut client = AdminServiceClient::new(channel.clone());
        let answer = client.list_watchers(caller.request(request, Some(CALL_MS))).await?.into_inner();
        self.answered(caller, "ListWatchers", &answer);
        Ok(())
    }

    fn answered(&self, caller: &Caller, call: &str, message: &impl Message) {
        self.received(caller, call, &message.encode_to_vec());
    }
}

// === impl Caller ===

impl Caller {
    fn request<M>(&self, message: M, timeout_ms: Option<u64>) -> Request<M> {
        let mut request = Request::new(message);
        for (name, value) in &self.headers {
            let name: AsciiMetadataKey = name.parse().unwrap();
            request.metadata_mut().append(name, AsciiMetadataValue::try_from(value.as_str()).unwrap());
        }
        if let Some(timeout_ms) = timeout_ms {
            request.set_timeout(Duration::from_millis(timeout_ms));
        }
        request
    }
}

async fn health(channel: &Channel, caller: &Caller, random: &mut Rng) -> Result<(), Status> {
    let request = caller.request(HealthCheckRequest { service: pick(random, &RESOURCES) }, Some(CALL_MS));
    HealthClient::new(channel.clone()).check(request).await.map(drop)
}

/// Draws a request. What selects by the body of a Secret names its content.
fn watch_request(random: &mut Rng) -> pb::WatchRequest {
    let resource = pick(random, &RESOURCES);
    let mut request = pb::WatchRequest {
        resource: resource.clone(),
        namespace: pick(random, &NAMESPACES),
        name: pick(random, &["", "", "", "web", "key"]),
        label_selector: pick(random, &["", "", "app=web", "app in (a", "none"]),
        format: random.i32(0..5),
        ..Default::default()
    };
    let secret = STANDARD.encode(Kind::Secret.canary("Keys"));
    let is_secret = ["secrets", "relayed"].contains(&&*resource);
    let index =
        |name: &str, value: &str| Some(pb::IndexMatch { name: name.to_owned(), values: vec![value.to_owned()] });
    match (random.u8(..9), is_secret) {
        (0, true) => request.field_selector = format!("data.key={secret}"),
        (1, true) => request.expression = format!("object.data.key == '{secret}'"),
        (2, true) => request.index = index("key", &secret),
        (0, false) => "spec.kind=web".clone_into(&mut request.field_selector),
        (1, false) => "object.spec.text.size() > 3".clone_into(&mut request.expression),
        (2, false) => request.index = index("text", "none"),
        (3, _) => "metadata.name=web".clone_into(&mut request.field_selector),
        (4, _) => request.index = index("app", "web"),
        (5, _) => "object.x +".clone_into(&mut request.expression),
        (6, _) => request.history = Kind::Token.canary("InHistory"),
        _ => {}
    }
    if random.u8(..4) == 0 {
        request.resource_version = pick(random, &["1", "2", "7", "x.1"]);
    }
    request
}

fn pick(random: &mut Rng, of: &[&str]) -> String {
    of[random.usize(..of.len())].to_owned()
}
