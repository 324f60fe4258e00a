//! Open watches whose rights change.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use informerd::{
    auth::{Authentication, Authorizer, Identity, IdentityDetails, Rules},
    grpc::AccessConfig,
    model::{Event, Object},
    proto::pb,
};
use serde_json::json;
use tonic::{Code, Request, Status, Streaming};

use super::views;
use crate::sandbox::{DEADLINE, Options, Sandbox, next, pod, queue, reason, watch_pods};

const NAMESPACES: [&str; 4] = ["", "x", "y", "z"];
const POLICIES: [pb::FullChannelPolicy; 4] = [
    pb::FullChannelPolicy::Drop,
    pb::FullChannelPolicy::Block,
    pb::FullChannelPolicy::Replay,
    pb::FullChannelPolicy::Coalesce,
];

/// Returns the rules that let Ann read these namespaces.
pub(super) fn readable(namespaces: &[&str]) -> Rules {
    let rules = if namespaces.is_empty() {
        json!([])
    } else {
        json!([{"subjects": ["user:ann"], "verbs": ["list", "watch"], "resources": ["pods"], "namespaces": namespaces}])
    };
    Rules::from_value(&rules).unwrap()
}

async fn server(authorizer: &Authorizer, authentication: Option<Authentication>) -> Sandbox {
    let access = AccessConfig { authorizer: Some(authorizer.clone()), ..AccessConfig::default() };
    let authentication = authentication.map(Arc::new);
    let objects = NAMESPACES.map(|namespace| pod(namespace, &format!("in-{namespace}"), ""));
    let options = Options { access, authentication, views: views(), ..Options::default() };
    Sandbox::start_with(options, objects.into()).await
}

pub(super) async fn watch(
    server: &Sandbox,
    request: pb::WatchRequest,
    expires: Option<SystemTime>,
) -> Result<Streaming<pb::WatchResponse>, Status> {
    let details = IdentityDetails { user: "ann".to_owned(), expires, ..IdentityDetails::default() };
    let mut request = Request::new(request);
    request.extensions_mut().insert(Identity::new(details));
    Ok(server.in_process().watch(request).await?.into_inner())
}

/// Reads until the end of the initial events, and returns the last bookmark.
pub(super) async fn synced(stream: &mut Streaming<pb::WatchResponse>) -> pb::Bookmark {
    loop {
        if let Some(bookmark) = next(stream).await.bookmark.filter(|bookmark| bookmark.initial_events_end) {
            return bookmark;
        }
    }
}

/// Reads the end of a stream: a bookmark, an ERROR with the version to resume from, and the same status.
pub(super) async fn ended(stream: &mut Streaming<pb::WatchResponse>) -> (String, Status) {
    let bookmark = next(stream).await;
    assert_eq!(bookmark.r#type(), pb::EventType::Bookmark, "{bookmark:?}");
    let error = next(stream).await;
    assert_eq!(error.r#type(), pb::EventType::Error, "no event after the decision: {error:?}");
    let status = tokio::time::timeout(DEADLINE, stream.message()).await.expect("an end in time").unwrap_err();
    (error.resource_version, status)
}

#[tokio::test]
async fn a_revoked_watch_ends_with_the_version_to_resume_from() {
    for policy in POLICIES {
        let authorizer = Authorizer::of_rules(readable(&["x", "y"]));
        let mut server = server(&authorizer, None).await;
        let named = pb::WatchRequest { namespace: "x".to_owned(), ..watch_pods() };
        for request in [watch_pods(), named] {
            authorizer.set_rules(readable(&["x", "y"]));
            let request = pb::WatchRequest { queue: Some(queue(policy, 16)), ..request };
            let mut stream = watch(&server, request.clone(), None).await.unwrap();
            synced(&mut stream).await;
            let seen = server.put("x", "in-x", "").await;
            assert_eq!(next(&mut stream).await.resource_version, seen.version().to_string());
            authorizer.set_rules(readable(&[]));
            let (version, status) = ended(&mut stream).await;
            assert_eq!((status.code(), &*reason(&status)), (Code::PermissionDenied, "ACCESS_DENIED"), "{policy:?}");
            assert_eq!(version, seen.version().to_string());
            let resumed = pb::WatchRequest { resource_version: version, ..request };
            let refused = watch(&server, resumed, None).await.unwrap_err();
            assert_eq!(reason(&refused), "ACCESS_DENIED", "a resume is judged by the present rights");
        }
    }
}

/// A caller's present rights decide, whatever the version that it resumes from.
#[tokio::test]
async fn a_watch_resumes_with_the_namespaces_of_its_version_only() {
    let authorizer = Authorizer::of_rules(readable(&["x", "y"]));
    let server = server(&authorizer, None).await;
    let mut stream = watch(&server, watch_pods(), None).await.unwrap();
    let bookmark = synced(&mut stream).await;
    assert_eq!(bookmark.namespaces, ["x", "y"]);
    let resume = |history: &str| pb::WatchRequest {
        resource_version: "1".to_owned(),
        history: history.to_owned(),
        ..watch_pods()
    };
    assert!(watch(&server, resume(&bookmark.history), None).await.is_ok());
    assert_eq!(reason(&watch(&server, resume(""), None).await.unwrap_err()), "ACCESS_CHANGED", "unknown namespaces");
    for others in [&["x"][..], &["x", "y", "z"], &["*"]] {
        authorizer.set_rules(readable(others));
        let refused = watch(&server, resume(&bookmark.history), None).await.unwrap_err();
        assert_eq!((refused.code(), &*reason(&refused)), (Code::OutOfRange, "ACCESS_CHANGED"), "{others:?}");
    }
    authorizer.set_rules(readable(&["y", "x"]));
    assert!(watch(&server, resume(&bookmark.history), None).await.is_ok());
}

/// A rule with other views, or for other formats, is a change of rights as one of namespaces is.
#[tokio::test]
async fn a_watch_ends_when_its_view_is_withdrawn() {
    let of_views = |views: &[&str]| {
        let ann = json!({"subjects": ["user:ann"], "verbs": ["list", "watch"], "resources": ["pods"], "namespaces": ["x"], "views": views});
        Rules::from_value(&json!([ann])).unwrap()
    };
    for policy in POLICIES {
        let authorizer = Authorizer::of_rules(of_views(&["small", "@metadata"]));
        let mut server = server(&authorizer, None).await;
        let view = Some(pb::View { name: "small".to_owned(), only_if_changed: true, ..pb::View::default() });
        let request = pb::WatchRequest { view, queue: Some(queue(policy, 16)), ..watch_pods() };
        let mut stream = watch(&server, request.clone(), None).await.unwrap();
        assert_eq!(synced(&mut stream).await.namespaces, ["x"]);
        authorizer.set_rules(of_views(&["other", "small"]));
        let seen = server.put("x", "new", "").await;
        assert_eq!(next(&mut stream).await.resource_version, seen.version().to_string(), "{policy:?}");
        authorizer.set_rules(of_views(&["@metadata"]));
        let (version, status) = ended(&mut stream).await;
        assert_eq!((status.code(), &*reason(&status)), (Code::PermissionDenied, "ACCESS_DENIED"), "{policy:?}");
        assert!(status.message().contains("in the view \"small\""), "{}", status.message());
        assert_eq!(version, seen.version().to_string());
        let resumed = pb::WatchRequest { resource_version: version, ..request };
        assert_eq!(reason(&watch(&server, resumed, None).await.unwrap_err()), "ACCESS_DENIED");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_when_its_credentials_expire() {
    let authorizer = Authorizer::of_rules(readable(&["*"]));
    let authentication = Authentication { accepts_certificates: true, ..Authentication::default() };
    let server = server(&authorizer, Some(authentication)).await;
    // The clock of the system decides, which does not stand still with that of the test.
    let expires = SystemTime::now() + Duration::from_millis(500);
    let mut stream = watch(&server, watch_pods(), Some(expires)).await.unwrap();
    synced(&mut stream).await;
    let (version, status) = loop {
        // Time passes while nothing happens, and bookmarks with it.
        let message = stream.message().await;
        match message {
            Ok(Some(message)) if message.r#type() == pb::EventType::Error => {
                break (message.resource_version, stream.message().await.unwrap_err());
            }
            Ok(Some(message)) => assert_eq!(message.r#type(), pb::EventType::Bookmark),
            end => panic!("{end:?}"),
        }
    };
    assert!(SystemTime::now() >= expires);
    assert_eq!((status.code(), &*reason(&status)), (Code::Unauthenticated, "CREDENTIALS_EXPIRED"));
    assert_eq!(version, "1");
    let refused = watch(&server, watch_pods(), Some(expires)).await.unwrap_err();
    assert_eq!(reason(&refused), "CREDENTIALS_EXPIRED");
}

/// State of one client: its watch, and the objects that it has.
struct Client {
    stream: Streaming<pb::WatchResponse>,
    objects: BTreeMap<(String, String), String>,
    namespaces: Vec<String>,
}

impl Client {
    /// Reads until the client has these namespaces and the last version.
    async fn follow(&mut self, namespaces: &[String], last: &str, is_allowed: impl Fn(&str) -> bool) {
        loop {
            let message = next(&mut self.stream).await;
            if let Some(object) = &message.object {
                let key = (object.namespace.clone(), object.name.clone());
                if message.r#type() == pb::EventType::Deleted {
                    let is_bare = object.body.is_none() && object.labels.is_empty();
                    assert!(message.cause() != pb::Cause::LeftSelection || is_bare, "{message:?}");
                    assert!(self.objects.remove(&key).is_some(), "{message:?}");
                } else {
                    assert!(is_allowed(&object.namespace), "{message:?}");
                    self.objects.insert(key, object.resource_version.clone());
                }
            }
            if let Some(bookmark) = message.bookmark {
                self.namespaces = bookmark.namespaces;
            }
            if self.namespaces == namespaces && message.resource_version == last {
                return;
            }
        }
    }
}

/// Rules and objects change at random; after each change of rules the client's fold is what it may read, and it is never sent
/// anything of other namespaces.
#[tokio::test]
async fn a_watch_follows_the_namespaces_that_its_caller_may_read() {
    for (seed, policy) in (0..).zip(POLICIES) {
        let mut random = fastrand::Rng::with_seed(seed);
        let authorizer = Authorizer::of_rules(readable(&["x"]));
        let mut server = server(&authorizer, None).await;
        let mut objects: BTreeMap<(String, String), Arc<Object>> = BTreeMap::new();
        for namespace in NAMESPACES {
            let name = format!("in-{namespace}");
            let pod = server.put(namespace, &name, "").await;
            objects.insert((namespace.to_owned(), name), pod);
        }
        let interval = Some(prost_types::Duration { seconds: 0, nanos: 100_000_000 });
        let request =
            pb::WatchRequest { queue: Some(queue(policy, 1024)), bookmark_interval: interval, ..watch_pods() };
        let stream = watch(&server, request, None).await.unwrap();
        let mut client = Client { stream, objects: BTreeMap::new(), namespaces: Vec::new() };
        let mut readers: BTreeSet<&str> = ["x"].into();
        for _ in 0..40 {
            for _ in 0..random.usize(0..4) {
                let namespace = NAMESPACES[random.usize(..NAMESPACES.len())];
                let key = (namespace.to_owned(), format!("pod-{}", random.u8(..4)));
                match objects.remove(&key) {
                    Some(pod) if random.bool() => server.delete(&pod).await,
                    _ => {
                        let pod = server.put(namespace, &key.1, "").await;
                        objects.insert(key, pod);
                    }
                }
            }
            let before = readers.clone();
            let drawn: BTreeSet<&str> = NAMESPACES.into_iter().filter(|_| random.bool()).collect();
            readers = if drawn.is_empty() { ["*"].into() } else { drawn };
            authorizer.set_rules(readable(&readers.iter().copied().collect::<Vec<_>>()));
            // The last event of the round: with it the client has everything.
            let version = server.version();
            let may = |namespaces: &BTreeSet<&str>, namespace: &str| {
                namespaces.contains("*") || namespaces.contains(namespace)
            };
            let namespace = NAMESPACES.into_iter().find(|namespace| may(&readers, namespace)).unwrap();
            let pod = crate::sandbox::pod_at(namespace, "last", "", &version);
            server.push(Event::Modified(Arc::clone(&pod))).await;
            objects.insert((namespace.to_owned(), "last".to_owned()), pod);
            let named: Vec<String> = readers
                .iter()
                .filter(|namespace| **namespace != "*")
                .map(|namespace| (*namespace).to_owned())
                .collect();
            let is_allowed = |namespace: &str| may(&before, namespace) || may(&readers, namespace);
            client.follow(&named, &version.to_string(), is_allowed).await;
            let expected: BTreeMap<_, _> = objects
                .iter()
                .filter(|((namespace, _), _)| may(&readers, namespace))
                .map(|(key, pod)| (key.clone(), pod.version().to_string()))
                .collect();
            assert_eq!(client.objects, expected, "{policy:?} {readers:?}");
        }
    }
}
