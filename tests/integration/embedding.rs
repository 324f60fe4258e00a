//! A server that a program embeds: the examples, a source of the program, and layers around every call.

#[allow(dead_code, reason = "the test calls the parts of the program")]
#[path = "../../examples/own_source.rs"]
mod own_source;
#[cfg(feature = "testing")]
#[allow(dead_code, reason = "the test calls the part of the program that prints nothing")]
#[path = "../../examples/watch_until.rs"]
mod watch_until;

use std::{
    convert::Infallible,
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    sync::Arc,
    time::{Duration, Instant},
};

use informerd::{
    app::{App, AppBuilder, AppError, CallRequest, CallService, ServeOptions},
    cache::{List, ListVersion, ListerWatcher, SourceError, SourceHealth, Watch},
    client::{Client, ServerAddress},
    config::{
        AdminConfig, AuditConfig, Config, GeneralConfig, ListenAddr, ResourceConfig, ResourceOptions, SourceConfig,
    },
    model::ResourceVersion,
    proto::pb::{self, EventType, informer_service_client::InformerServiceClient},
    source::files::{FilesConfig, FilesSource},
    source::relay::RelayConfig,
};
use parking_lot::Mutex;
use prost::Message;
use prost_types::FileDescriptorSet;
use rustix::fs::{CWD, OFlags, mkfifoat};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tonic::{
    Code, Request, Status,
    client::Grpc,
    metadata::MetadataValue,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;
use tower::{ServiceExt, layer::layer_fn, service_fn};

use crate::sandbox::DEADLINE;

const TOKEN: &str = "Bearer example";
const LIST: &str = "/informerd.v1.InformerService/ListResources";

fn free_port() -> ListenAddr {
    ListenAddr::Tcp(([127, 0, 0, 1], 0).into())
}

fn config() -> Config {
    let general = GeneralConfig { listen: free_port(), ..GeneralConfig::default() };
    Config { general, admin: AdminConfig { listen: None, ..AdminConfig::default() }, ..Config::default() }
}

/// Runs a server until the handle is dropped, and connects to it.
async fn run(app: App) -> (Channel, AbortOnDropHandle<Result<(), AppError>>) {
    let address = format!("http://{}", app.grpc_address());
    let task = AbortOnDropHandle::new(tokio::spawn(app.run(std::future::pending())));
    (Endpoint::new(address).unwrap().connect().await.unwrap(), task)
}

/// Returns the paths of all methods of the server.
fn methods() -> Vec<String> {
    let mut paths = Vec::new();
    for set in [
        pb::FILE_DESCRIPTOR_SET,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
    ] {
        for file in FileDescriptorSet::decode(set).unwrap().file {
            for service in &file.service {
                let path = |method: &str| format!("/{}.{}/{method}", file.package(), service.name());
                paths.extend(service.method.iter().map(|method| path(method.name())));
            }
        }
    }
    paths
}

/// Calls a method with an empty request, and returns the status of the response's headers; that of a Watch comes after a message.
async fn call(channel: &Channel, path: &str, token: Option<&'static str>) -> Result<(), Status> {
    let mut request = Request::new(());
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", MetadataValue::from_static(token));
    }
    let mut client = Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let codec = ProstCodec::<(), ()>::default();
    let answer = client.server_streaming(request, path.parse().unwrap(), codec);
    let mut stream = tokio::time::timeout(DEADLINE, answer).await.expect("a response")?.into_inner();
    if path.ends_with("InformerService/Watch") {
        while stream.message().await?.is_some() {}
    }
    Ok(())
}

#[tokio::test]
async fn a_layer_that_requires_a_header_refuses_every_call_without_it() {
    let (_ticks, clock) = watch::channel(1);
    let (channel, _task) = run(own_source::start(free_port(), clock).await.unwrap()).await;
    let methods = methods();
    for part in ["InformerService/Watch", "InformerService/List", "AdminService", "Health/Check", "ServerReflection"] {
        assert!(methods.iter().any(|path| path.contains(part)), "{part}: {methods:?}");
    }
    for path in &methods {
        for token in [None, Some("Bearer other")] {
            let refused = call(&channel, path, token).await.unwrap_err();
            assert_eq!(refused.code(), Code::Unauthenticated, "{path}: {refused}");
            assert!(refused.message().contains("authorization"), "{path}: {refused}");
        }
        let code = call(&channel, path, Some(TOKEN)).await.map_or_else(|status| status.code(), |()| Code::Ok);
        assert!(matches!(code, Code::Ok | Code::NotFound | Code::InvalidArgument), "{path}: {code:?}");
    }
}

/// The token is read at each call, by a client and by a relay alike.
#[tokio::test]
async fn calls_carry_the_token_in_a_file() {
    let (_ticks, clock) = watch::channel(1);
    let app = own_source::start(free_port(), clock).await.unwrap();
    let address: ServerAddress = app.grpc_address().to_string().parse().unwrap();
    let (_channel, _task) = run(app).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "other\n").unwrap();
    let address = address.with_token_file(file.path()).unwrap();
    let client = Client::connect(&address).await.unwrap();
    assert_eq!(client.resources().await.unwrap_err().code(), Code::Unauthenticated);

    let source = SourceConfig::Informerd(RelayConfig::new(address, "clocks"));
    let resource = ResourceConfig {
        name: "clocks".to_owned(),
        source,
        indexers: Arc::default(),
        views: Arc::default(),
        options: ResourceOptions::default(),
    };
    let config = Config { resources: [("clocks".to_owned(), resource)].into(), ..config() };
    let (channel, _relay) = run(App::start(config).await.unwrap()).await;
    fs::write(file.path(), "example\n").unwrap();
    assert_eq!(client.resources().await.unwrap()[0].name, "clocks");
    let mut relay = InformerServiceClient::new(channel);
    let request = pb::WatchRequest { resource: "clocks".to_owned(), ..Default::default() };
    let relayed = async {
        loop {
            // The relay repeats its request until the token is right.
            if let Ok(stream) = relay.watch(request.clone()).await
                && let Ok(Some(message)) = stream.into_inner().message().await
            {
                return message.object.map(|object| object.name);
            }
        }
    };
    assert_eq!(tokio::time::timeout(DEADLINE, relayed).await.unwrap().as_deref(), Some("clock"));
    drop(file);
    let error = client.resources().await.unwrap_err().to_string();
    assert!(error.contains("token file") && error.contains("No such file"), "{error}");
}

#[tokio::test]
async fn a_source_of_the_program_is_served() {
    let (ticks, clock) = watch::channel(1);
    let (channel, _task) = run(own_source::start(free_port(), clock).await.unwrap()).await;
    let mut client = InformerServiceClient::with_interceptor(channel, |mut request: Request<()>| {
        request.metadata_mut().insert("authorization", MetadataValue::from_static(TOKEN));
        Ok(request)
    });
    let request = pb::WatchRequest { resource: "clocks".to_owned(), ..Default::default() };
    let mut stream = client.watch(request).await.unwrap().into_inner();
    let mut next = async || {
        loop {
            let message = tokio::time::timeout(DEADLINE, stream.message()).await.expect("a message").unwrap().unwrap();
            if message.bookmark.is_none() {
                return (message.r#type(), message.object.unwrap().resource_version);
            }
        }
    };
    assert_eq!(next().await, (EventType::Added, "1".to_owned()));
    for tick in 2..5 {
        ticks.send(tick).unwrap();
        assert_eq!(next().await, (EventType::Modified, tick.to_string()));
    }
    let resources = client.list_resources(pb::ListResourcesRequest {}).await.unwrap().into_inner().resources;
    let found: Vec<_> = resources.iter().map(|of| (of.name.as_str(), of.source.as_str(), of.objects)).collect();
    assert_eq!(found, [("clocks", "own", 1)]);
}

#[tokio::test]
async fn layers_are_passed_in_the_order_in_which_they_were_added_and_their_errors_are_statuses() {
    let passed: Arc<Mutex<Vec<&str>>> = Arc::default();
    let layer = |name: &'static str, error: Option<fn() -> tower::BoxError>| {
        let passed = Arc::clone(&passed);
        layer_fn(move |calls: CallService| {
            let passed = Arc::clone(&passed);
            service_fn(move |call: CallRequest| {
                passed.lock().push(name);
                let answer = calls.clone().oneshot(call);
                async move {
                    match error {
                        Some(error) => Err(error()),
                        None => answer.await.map_err(|never: Infallible| match never {}),
                    }
                }
            })
        })
    };
    let app = App::builder(config()).layer(layer("outer", None)).layer(layer("inner", None)).start().await.unwrap();
    let (channel, _task) = run(app).await;
    call(&channel, LIST, None).await.unwrap();
    assert_eq!(std::mem::take(&mut *passed.lock()), ["outer", "inner"]);
    let errors: [(fn() -> tower::BoxError, Code); 2] =
        [(|| "no more".into(), Code::Unknown), (|| Status::data_loss("no more").into(), Code::DataLoss)];
    for (error, code) in errors {
        let app = App::builder(config()).layer(layer("outer", Some(error))).layer(layer("inner", None));
        let (channel, _task) = run(app.start().await.unwrap()).await;
        let status = call(&channel, LIST, None).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (code, "no more"));
        assert_eq!(std::mem::take(&mut *passed.lock()), ["outer"]);
    }
}

#[tokio::test]
async fn a_resource_of_the_program_needs_a_name_of_its_own() {
    let source = || {
        let health = SourceHealth::new(DEADLINE, DEADLINE);
        FilesSource::new(FilesConfig::new(".", "x"), health)
    };
    let unknown = ResourceConfig {
        name: "pods".to_owned(),
        source: SourceConfig::Own,
        indexers: Arc::default(),
        views: Arc::default(),
        options: ResourceOptions::default(),
    };
    let no_source = Config { resources: [("pods".to_owned(), unknown)].into(), ..config() };
    let error = App::start(no_source).await.unwrap_err();
    assert_eq!(error.to_string(), "resource pods: it has no source; pass one to AppBuilder::serve");
    for (names, problem) in [
        (["pods", "pods"], "resource pods: another resource has this name"),
        (["pods", "Pods"], "resource Pods: a resource name has"),
    ] {
        let serve = |builder: AppBuilder, name| builder.serve(name, ServeOptions::default(), source());
        let error = names.into_iter().fold(App::builder(config()), serve).start().await.unwrap_err();
        assert!(error.to_string().starts_with(problem), "{error}");
    }
    let ttl = ResourceOptions { ttl: Some(DEADLINE), ..ResourceOptions::default() };
    let verified = ResourceOptions { verify_interval: Some(DEADLINE), ..ResourceOptions::default() };
    for (resource, problem) in [
        (ttl, "`ttl` is only for `stream` sources; remove it"),
        (
            verified,
            "`verify_interval` is not for a source of the program, of which there is no second instance; remove it",
        ),
    ] {
        let options = ServeOptions { resource, ..ServeOptions::default() };
        let error = App::builder(config()).serve("pods", options, source()).start().await.unwrap_err();
        assert_eq!(error.to_string(), format!("resource pods: {problem}"));
    }
}

/// Source whose list has a bug, once there is one.
struct Failing(watch::Receiver<bool>);

impl ListerWatcher for Failing {
    async fn list(&self, _: ListVersion) -> Result<List, SourceError> {
        self.0.clone().wait_for(|fails| *fails).await.unwrap();
        panic!("a bug of the source");
    }

    async fn watch(&self, _: ResourceVersion) -> Result<Watch, SourceError> {
        unreachable!("it has no list")
    }

    fn heartbeat(&self) -> Duration {
        DEADLINE
    }
}

/// Nobody reads the log, which is a pipe without room: the server waits a second for its last lines.
#[tokio::test]
async fn a_server_whose_source_has_failed_writes_its_audit_log_before_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("audit.log");
    mkfifoat(CWD, &file, 0o600.into()).unwrap();
    let options =
        fs::OpenOptions::new().read(true).write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(&file);
    let mut pipe = options.unwrap();
    while pipe.write(&[b'\n'; 1024]).is_ok() {}
    let (fail, fails) = watch::channel(false);
    let config = Config { audit: AuditConfig { file: Some(file) }, ..config() };
    let app = App::builder(config).serve("pods", ServeOptions::default(), Failing(fails)).start().await.unwrap();
    let address: ServerAddress = app.grpc_address().to_string().parse().unwrap();
    let running = tokio::spawn(app.run(std::future::pending()));
    let client = Client::connect(&address).await.unwrap();
    let mut calls = InformerServiceClient::connect(format!("http://{address}")).await.unwrap();
    let watch = pb::WatchRequest { resource: "pods".to_owned(), ..Default::default() };
    let _watch = AbortOnDropHandle::new(tokio::spawn(async move { calls.watch(watch).await.map(drop) }));
    while client.watchers("pods").await.unwrap().is_empty() {}
    let failed = Instant::now();
    fail.send(true).unwrap();
    let error = tokio::time::timeout(DEADLINE, running).await.expect("an end in time").unwrap().unwrap_err();
    assert!(error.to_string().contains("ended unexpectedly"), "{error}");
    assert!(failed.elapsed() >= Duration::from_secs(1), "{:?}", failed.elapsed());
}

#[cfg(feature = "testing")]
#[tokio::test]
async fn the_example_of_until_meets_its_conditions() {
    assert_eq!(watch_until::run().await.unwrap(), ["EVENT_TYPE_ADDED web", "EVENT_TYPE_MODIFIED web", "web"]);
}
