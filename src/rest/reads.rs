//! Get, list and watch of the objects of one kind.

use std::{sync::Arc, time::Duration};

use bytes::BytesMut;
use http::{HeaderMap, HeaderValue, Request, header};
use tracing::Instrument;

use super::{
    Answer, Form, RestService,
    body::{ListBody, ReadBody},
    encode::Encoder,
    kinds,
    path::Objects,
    query::Query,
    status::{About, Failure, Refused},
    unless_ended,
};
use crate::{
    auth::Operation,
    grpc::{ApiError, HttpCall, HttpMethod, LineOptions, ObjectsWanted, ServedResource},
    model::{ApiKind, ResourceVersion, excerpt},
    proto::{BookmarkLines, LineFormat, duration_message, pb},
    transport::RequestBody,
};

/// Time after which a watch ends whose client names none: 30 to 60 minutes, as in Kubernetes.
const MIN_WATCH_SECONDS: u64 = 1800;
/// Longest time of a watch.
const MAX_WATCH: Duration = Duration::from_secs(86_400);
/// Longest wait for a version that is not reached yet, as in Kubernetes.
const MAX_FRESH_WAIT: Duration = Duration::from_secs(3);
/// Interval of bookmarks.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(30);
/// End of each event of a watch.
const LINE_END: &[u8] = b"\n";

/// Answers a request for objects.
pub(super) async fn answer(rest: &RestService, mut request: Request<RequestBody>, objects: &Objects) -> Answer {
    let parameters = request.uri().query().unwrap_or_default();
    let query = if objects.name.is_empty() { Query::parse(parameters) } else { Query::parse_get(parameters) };
    let (method, operation, verb) = match &query {
        _ if !objects.name.is_empty() => (HttpMethod::Get, Operation::Get, "get"),
        Ok(query) if query.is_watch => (HttpMethod::Watch, Operation::Watch, "watch"),
        _ => (HttpMethod::List, Operation::List, "list"),
    };
    let mut call = rest.begin(method, &mut request).await?;
    let (ended, span) = (call.ended(), call.span());
    let reading = read(rest, &mut call, &request, objects, (query, operation, verb));
    let answered = unless_ended(ended, Box::pin(reading).instrument(span)).await;
    let Read { body, warning } = answered.map_err(|refused| refused.end(&mut call, None))?;
    let mut response = body.into_response(call.into_outcome(), "application/json");
    if let Some(warning) = warning {
        response.headers_mut().insert(header::WARNING, warning);
    }
    Ok(response)
}

/// Result of a read.
struct Read {
    body: ReadBody,
    /// Warning that the state may not be the most recent.
    warning: Option<HeaderValue>,
}

async fn read(
    rest: &RestService,
    call: &mut HttpCall,
    request: &Request<RequestBody>,
    objects: &Objects,
    (query, operation, verb): (Result<Query, Failure>, Operation, &'static str),
) -> Result<Read, Refused> {
    let Some((resource, kind)) = kinds::find(&rest.service, objects) else {
        return Err(unknown(call, objects, (operation, verb)).await.into());
    };
    let is_list = query.is_ok() && operation == Operation::List;
    let form = Form::accepted(request.headers(), is_list).ok_or_else(Failure::not_acceptable)?;
    let query = query?;
    let form = form.including(&query.include_object)?;
    if objects.name.is_empty() {
        query.check()?;
    }
    if !query.is_any_version() {
        call.waits_at_most(MAX_FRESH_WAIT);
    }
    let headers = request.headers();
    let reader = Reader { rest, resource: &resource, kind: &kind, objects, query: &query, headers, form };
    let read = match operation {
        Operation::Get => reader.get(call).await,
        Operation::Watch => reader.watch(call).await,
        _ => reader.list(call).await,
    };
    read.map_err(|refused| {
        let (Objects { namespace, name, .. }, user) = (objects, call.user().map(str::to_owned));
        let about = About { kind: &kind, verb, namespace, name, user: user.as_deref() };
        refused.end(call, Some(about)).into()
    })
}

/// Returns the error for a kind that is not served: where callers have rights, only those who could read it learn that.
async fn unknown(call: &HttpCall, objects: &Objects, (operation, verb): (Operation, &'static str)) -> Failure {
    let Objects { group, version, plural, namespace, name } = objects;
    match call.may(operation, plural, namespace).await {
        // kubectl requests the namespace of an object that is not found, and says that there is none if that is not found either.
        Ok(true) if (&**group, &**plural) == ("", "namespaces") && !name.is_empty() => Failure::unknown_namespace(),
        Ok(true) => Failure::not_found(),
        Ok(false) => {
            let kind = ApiKind::new(group, version, plural, "");
            Failure::forbidden(About { kind: &kind, verb, namespace, name, user: call.user() })
        }
        Err(refusal) => Failure::of(&refusal, None),
    }
}

struct Reader<'a> {
    rest: &'a RestService,
    resource: &'a Arc<ServedResource>,
    kind: &'a ApiKind,
    objects: &'a Objects,
    query: &'a Query,
    headers: &'a HeaderMap,
    form: Form,
}

// === impl Reader ===

impl Reader<'_> {
    fn wanted(&self) -> ObjectsWanted<'_> {
        let is_metadata = self.form == Form::Metadata;
        ObjectsWanted { resource: &self.resource.name, namespace: &self.objects.namespace, is_metadata }
    }

    /// Returns the version that the state needs: that of the request, or, if it has none, one that the upstream confirms to be as recent
    /// as this call; none for any version.
    async fn min_version(&self, call: &HttpCall) -> Result<(Option<ResourceVersion>, Option<HeaderValue>), Refused> {
        match &*self.query.resource_version {
            "0" => Ok((None, None)),
            "" => {
                let problem = match call.most_recent(self.resource).await {
                    Ok(version) => return Ok((version, None)),
                    Err(problem) => problem,
                };
                tracing::debug!(resource = self.resource.name, problem, "most recent state not confirmed");
                let shown = if self.rest.service.authorizes() { "see the server's log" } else { &problem };
                if self.rest.warns {
                    let text =
                        format!("299 - \"informerd: the state may not be the most recent: {}\"", printable(shown));
                    return Ok((None, HeaderValue::from_str(&text).ok()));
                }
                let message = format!("the most recent state is not known: {shown}; resourceVersion=0 is served");
                Err(Refused::Failure(Failure::unavailable(message)))
            }
            version => Ok((Some(decimal(version)?), None)),
        }
    }

    async fn get(&self, call: &HttpCall) -> Result<Read, Refused> {
        // The rights come first: nobody else makes the upstream confirm anything.
        let mut request = pb::GetRequest { name: self.objects.name.clone(), ..Default::default() };
        call.check(Operation::Get, self.wanted(), &request.name).await?;
        let (version, warning) = self.min_version(call).await?;
        (request.min_resource_version, request.resource_version_match) = at(version, self.query.is_exact());
        let (object, payload) = call.get(self.wanted(), request).await?;
        let mut buffer = BytesMut::new();
        self.encoder().object(&object, payload, &mut buffer);
        Ok(Read { body: ReadBody::Object(buffer.freeze()), warning })
    }

    async fn list(&self, call: &HttpCall) -> Result<Read, Refused> {
        let Query { limit, token, resource_version, label_selector, field_selector, .. } = self.query;
        let mut request = pb::ListRequest {
            resource: self.resource.name.clone(),
            namespace: self.objects.namespace.clone(),
            label_selector: label_selector.clone(),
            field_selector: field_selector.clone(),
            // As in Kubernetes, a list of any version has no pages.
            page_size: if resource_version == "0" && token.is_empty() { 0 } else { *limit },
            page_token: token.clone(),
            shard: self.query.shard.as_ref().map(Into::into),
            ..Default::default()
        };
        let mut warning = None;
        if token.is_empty() {
            call.check(Operation::List, self.wanted(), "").await?;
            let (version, found) = self.min_version(call).await?;
            warning = found;
            (request.min_resource_version, request.resource_version_match) = at(version, self.query.lists_exactly());
        }
        let listing = call.list(self.wanted(), request).await?;
        let list = ListBody::begin(
            listing,
            self.encoder().of_shard(self.query.shard.as_ref()),
            self.rest.may_compress(self.headers),
        )
        .await;
        Ok(Read { body: ReadBody::List(Box::new(list)), warning })
    }

    async fn watch(&self, call: &mut HttpCall) -> Result<Read, Refused> {
        let Query { resource_version, label_selector, field_selector, allows_bookmarks, .. } = self.query;
        let sends_initial_events = self.query.sends_initial_events;
        let own = || Duration::from_secs(MIN_WATCH_SECONDS + fastrand::u64(0..MIN_WATCH_SECONDS));
        let timeout = self.query.timeout.map_or_else(own, |timeout| timeout.min(MAX_WATCH));
        let mut request = pb::WatchRequest {
            resource: self.resource.name.clone(),
            namespace: self.objects.namespace.clone(),
            label_selector: label_selector.clone(),
            field_selector: field_selector.clone(),
            shard: self.query.shard.as_ref().map(Into::into),
            timeout: duration_message(timeout),
            bookmark_interval: duration_message(BOOKMARK_INTERVAL),
            ..Default::default()
        };
        let mut warning = None;
        let is_any = resource_version == "0";
        if sends_initial_events != Some(true) && !is_any && !resource_version.is_empty() {
            // Resumes after the version, also if the client does not want the initial events.
            request.resource_version = decimal(resource_version)?.to_string();
        } else {
            if sends_initial_events == Some(false) {
                request.initial_events = pb::InitialEvents::None.into();
            }
            // The objects are those at the version of the bookmark that ends them, also if a later one is open: client-go's detector of
            // inconsistencies compares the two.
            request.complete_initial_events = sends_initial_events == Some(true);
            call.check(Operation::Watch, self.wanted(), "").await?;
            let (version, found) = self.min_version(call).await?;
            warning = found;
            (request.min_resource_version, _) = at(version, false);
        }
        let bookmarks = BookmarkLines { is_wanted: *allows_bookmarks, marks_end: sends_initial_events == Some(true) };
        let lines = self.rest.encoders.share((self.resource.calls.id(), self.form), self.encoder());
        let options = LineOptions { bookmarks, has_objects_only: true, ..LineOptions::default() };
        let body = match call.watch(self.wanted(), &request, (LineFormat(lines), options)).await {
            Ok(watch) => ReadBody::Watch(watch, LINE_END),
            // As in Kubernetes, a version is refused by an event: clients such as client-go's RetryWatcher begin a watch again and again
            // that is refused as a whole.
            Err(refusal @ (ApiError::VersionExpired { .. } | ApiError::VersionTooLarge { .. })) => {
                call.refuse(&refusal);
                ReadBody::Refused(format!("{}\n", Failure::of(&refusal, None).to_event()).into())
            }
            Err(refusal) => return Err(refusal.into()),
        };
        Ok(Read { body, warning })
    }

    fn encoder(&self) -> Encoder {
        Encoder::new(self.kind.clone(), self.form)
    }
}

/// Returns a version as a request of gRPC has it, with the value of `ResourceVersionMatch`.
fn at(version: Option<ResourceVersion>, is_exact: bool) -> (String, i32) {
    use pb::ResourceVersionMatch::{Exact, Unspecified};
    let matching = if is_exact && version.is_some() { Exact } else { Unspecified };
    (version.map(|version| version.to_string()).unwrap_or_default(), matching.into())
}

/// Parses a version, of which only decimals are served here, also with zeros before them.
fn decimal(text: &str) -> Result<ResourceVersion, Refused> {
    ResourceVersion::parse_decimal(text.trim_start_matches('0')).map_err(|_| {
        let message = format!("resourceVersion: Invalid value: {:?}: it is no decimal", excerpt(text));
        Refused::Failure(Failure::bad_request(&message))
    })
}

/// Returns a text as it may be in a header.
fn printable(text: &str) -> String {
    let is_plain = |c: &char| (' '..='~').contains(c) && !['"', '\\'].contains(c);
    excerpt(text).chars().filter(is_plain).collect()
}
