//! Reads of any resource under its own name: `/v1/RESOURCE`, `/v1/RESOURCE/watch`, `/v1/RESOURCE/NAMESPACE/NAME`.
//!
//! Parameters, rights and versions are those of gRPC; one that there is not is an error. A caller that may read some namespaces only
//! names one of them.

use bytes::BytesMut;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use prost_types::Duration;
use tracing::Instrument;

use super::{
    Answer, RestService,
    body::{ListBody, ReadBody},
    events::{self, Documents, EventEncoder, EventForm, EventId},
    path::{Resource, ResourceRead},
    query::{boolean, number, pairs},
    status::{Failure, Refused},
    unless_ended,
};
use crate::{
    auth::Operation,
    grpc::{HttpCall, HttpMethod, LineOptions, ObjectsWanted},
    model::{Shard, excerpt},
    proto::{self, BookmarkLines, LineFormat, pb},
    transport::RequestBody,
};

/// Header in which a client that reconnects sends the id of its last event.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// End of each event of a watch: data is one line.
const EVENT_END: &[u8] = b"\n\n";
/// Header by which a proxy (nginx) passes each event on at once.
const UNBUFFERED: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));

/// Parameters of a request, of which each is taken once.
struct Parameters {
    pairs: Vec<(String, String)>,
    known: Vec<&'static str>,
}

/// Answers a request for objects of a resource.
pub(super) async fn answer(rest: &RestService, mut request: Request<RequestBody>, resource: &Resource) -> Answer {
    let method = match resource.read {
        ResourceRead::Get(..) => HttpMethod::ResourceGet,
        ResourceRead::List => HttpMethod::ResourceList,
        ResourceRead::Watch => HttpMethod::ResourceWatch,
    };
    let mut call = rest.begin(method, &mut request).await?;
    let ended = call.ended();
    let answering = async {
        let parameters = Parameters::parse(request.uri().query().unwrap_or_default())?;
        begin(rest, &call, request.headers(), resource, parameters).await
    };
    let begun = unless_ended(ended, Box::pin(answering).instrument(call.span())).await;
    let body = begun.map_err(|refused| refused.end(&mut call, None))?;
    let is_watch = resource.read == ResourceRead::Watch;
    let content_type = if is_watch { "text/event-stream" } else { "application/json" };
    let mut response = body.into_response(call.into_outcome(), content_type);
    if is_watch {
        let (name, value) = UNBUFFERED;
        response.headers_mut().insert(name, value);
    }
    Ok(response)
}

async fn begin(
    rest: &RestService,
    call: &HttpCall,
    headers: &HeaderMap,
    Resource { name: resource, read }: &Resource,
    mut parameters: Parameters,
) -> Result<ReadBody, Refused> {
    let is_metadata = match &*parameters.take("format") {
        "" => false,
        "metadata" => true,
        other => return Err(bad_request(&format!("format: unknown value {:?}; known: metadata", excerpt(other)))),
    };
    let has_bodies = !is_metadata;
    match read {
        ResourceRead::Get(namespace, name) => {
            let (min_resource_version, resource_version_match, history) = parameters.at()?;
            parameters.end()?;
            let wanted = ObjectsWanted { resource, namespace, is_metadata };
            let name = name.clone();
            let request =
                pb::GetRequest { name, min_resource_version, resource_version_match, history, ..Default::default() };
            let (object, payload) = call.get(wanted, request).await?;
            let mut buffer = BytesMut::new();
            events::put_object(&object, object.version(), (payload, has_bodies), &mut buffer);
            Ok(ReadBody::Object(buffer.freeze()))
        }
        ResourceRead::List => {
            let (min_resource_version, resource_version_match, history) = parameters.at()?;
            let request = pb::ListRequest {
                resource: resource.clone(),
                namespace: parameters.take("namespace"),
                label_selector: parameters.take("labelSelector"),
                field_selector: parameters.take("fieldSelector"),
                expression: parameters.take("expression"),
                shard: parameters.shard()?,
                page_size: parameters.number("limit")?,
                page_token: parameters.take("continue"),
                min_resource_version,
                resource_version_match,
                history,
                ..Default::default()
            };
            parameters.end()?;
            let namespace = &request.namespace.clone();
            let listing = call.list(ObjectsWanted { resource, namespace, is_metadata }, request).await?;
            let list = ListBody::begin(listing, Documents { has_bodies }, rest.may_compress(headers)).await;
            Ok(ReadBody::List(Box::new(list)))
        }
        ResourceRead::Watch => watch(rest, call, headers, resource, (parameters, is_metadata)).await,
    }
}

async fn watch(
    rest: &RestService,
    call: &HttpCall,
    headers: &HeaderMap,
    resource: &str,
    (mut parameters, is_metadata): (Parameters, bool),
) -> Result<ReadBody, Refused> {
    let mut request = pb::WatchRequest {
        resource: resource.to_owned(),
        namespace: parameters.take("namespace"),
        label_selector: parameters.take("labelSelector"),
        field_selector: parameters.take("fieldSelector"),
        expression: parameters.take("expression"),
        shard: parameters.shard()?,
        ..Default::default()
    };
    let seconds: u32 = parameters.number("timeoutSeconds")?;
    request.timeout = (seconds > 0).then(|| Duration { seconds: seconds.into(), nanos: 0 });
    let queue = pb::QueueOptions { policy: parameters.policy()?.into(), length: parameters.number("queueLength")? };
    request.queue = Some(queue);
    // A client that reconnects repeats its parameters, and is further by now.
    let given = parameters.take("resourceVersion");
    let from = headers.get(LAST_EVENT_ID).map_or(given, |id| String::from_utf8_lossy(id.as_bytes()).into_owned());
    let sends_initial_events = parameters.take("initialEvents");
    parameters.end()?;
    let mut last = None;
    if !from.is_empty() {
        let unknown = || bad_request(&format!("{:?} is neither a version nor the id of an event", excerpt(&from)));
        let id = EventId::parse(&from).ok_or_else(unknown)?;
        (request.resource_version, request.history, last) = (id.version.to_string(), id.history, id.last);
    } else if !sends_initial_events.is_empty() && !boolean(&sends_initial_events) {
        request.initial_events = pb::InitialEvents::None.into();
    }
    let namespace = &request.namespace.clone();
    let wanted = ObjectsWanted { resource, namespace, is_metadata };
    call.check(Operation::Watch, wanted, "").await?;
    let served = rest.service.resources().find(|served| served.name == resource);
    let served = served.ok_or_else(|| Refused::Failure(Failure::not_found()))?;
    let policy = match queue.policy() {
        pb::FullChannelPolicy::Unspecified => proto::full_channel_policy_name(served.queue.policy),
        policy => policy,
    };
    let form = EventForm { has_bodies: !is_metadata, is_ordered: policy != pb::FullChannelPolicy::Coalesce };
    let history = served.informer.history(served.informer.history_id(), None);
    let encoder = rest.event_encoders.share((served.calls.id(), form), EventEncoder { history, form });
    let bookmarks = BookmarkLines { is_wanted: true, marks_end: true };
    let lines = (LineFormat(encoder), LineOptions { bookmarks, last, ..LineOptions::default() });
    Ok(ReadBody::Watch(call.watch(wanted, &request, lines).await?, EVENT_END))
}

fn bad_request(message: &str) -> Refused {
    Refused::Failure(Failure::bad_request(message))
}

// === impl Parameters ===

impl Parameters {
    fn parse(text: &str) -> Result<Self, Failure> {
        Ok(Self { pairs: pairs(text).collect::<Result<_, _>>()?, known: Vec::new() })
    }

    /// Takes a parameter; empty if it is not given.
    fn take(&mut self, name: &'static str) -> String {
        self.known.push(name);
        let at = self.pairs.iter().position(|(given, _)| given == name);
        at.map(|at| self.pairs.swap_remove(at).1).unwrap_or_default()
    }

    fn number(&mut self, name: &'static str) -> Result<u32, Refused> {
        let text = self.take(name);
        if text.is_empty() {
            return Ok(0);
        }
        let number = u32::try_from(number(&text)?);
        number.map_err(|_| bad_request(&format!("{name}: {:?} is no number from 0 to {}", excerpt(&text), u32::MAX)))
    }

    fn shard(&mut self) -> Result<Option<pb::Shard>, Refused> {
        let text = self.take("shard");
        if text.is_empty() {
            return Ok(None);
        }
        let shard = text.parse::<Shard>().map_err(|error| bad_request(&format!("shard: {error}")))?;
        Ok(Some((&shard).into()))
    }

    fn policy(&mut self) -> Result<pb::FullChannelPolicy, Refused> {
        let text = self.take("policy");
        if text.is_empty() {
            return Ok(pb::FullChannelPolicy::Unspecified);
        }
        let policy = pb::FullChannelPolicy::from_str_name(&format!("FULL_CHANNEL_POLICY_{}", text.to_uppercase()));
        let unknown = || format!("policy: unknown value {:?}; known: replay, coalesce, drop, block", excerpt(&text));
        policy.ok_or_else(|| bad_request(&unknown()))
    }

    /// Takes the version of a read, as gRPC has it: with the value of `ResourceVersionMatch`, and the history.
    fn at(&mut self) -> Result<(String, i32, String), Refused> {
        let (version, matching) = (self.take("resourceVersion"), self.take("resourceVersionMatch"));
        let version_match = match &*matching {
            "" | "NotOlderThan" => pb::ResourceVersionMatch::Unspecified,
            "Exact" => pb::ResourceVersionMatch::Exact,
            other => {
                let other = excerpt(other);
                let message = format!("resourceVersionMatch: unknown value {other:?}; known: NotOlderThan, Exact");
                return Err(bad_request(&message));
            }
        };
        if version.is_empty() && !matching.is_empty() {
            return Err(bad_request("resourceVersionMatch needs resourceVersion"));
        }
        // An exact version may be the id of an event, which has its history.
        let has_history = version_match == pb::ResourceVersionMatch::Exact;
        let (version, history) = version.split_once(';').filter(|_| has_history).unwrap_or((&*version, ""));
        Ok((version.to_owned(), version_match.into(), history.to_owned()))
    }

    /// Checks that nothing is left.
    fn end(self) -> Result<(), Refused> {
        let Some((name, _)) = self.pairs.first() else { return Ok(()) };
        let known = self.known.join(", ");
        Err(bad_request(&format!("unknown parameter {:?}, or given twice; known: {known}", excerpt(name))))
    }
}
