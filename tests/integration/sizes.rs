//! Sizes of messages: each is within the limit of a client, and a chunk of a List has at most 64 KiB or one object.

use std::{fmt::Write, fs, sync::Arc};

use informerd::{
    app::App,
    config::{self, ServeFlags},
    model::{IndexFunc, MAX_MESSAGE_BYTES, MAX_OBJECT_BYTES, Object, ObjectError, Path, ResourceVersion},
    proto::{Compression, pb},
};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestCaseError, TestRunner},
};
use prost::Message;
use tempfile::TempDir;
use tokio_util::task::AbortOnDropHandle;
use tonic::{
    Request, Streaming,
    codec::CompressionEncoding,
    transport::{Channel, Endpoint},
};

use crate::{
    authentication::line,
    sandbox::{Options, Sandbox, next},
};

type Client = pb::informer_service_client::InformerServiceClient<Channel>;

const CHUNK_BYTES: usize = 64 << 10;
/// Part of a message that is no object's.
const REST_BYTES: usize = 64 << 10;
const FORMATS: [pb::PayloadFormat; 3] =
    [pb::PayloadFormat::Raw, pb::PayloadFormat::Struct, pb::PayloadFormat::Metadata];

/// Returns an object with so many labels of this size, and a body of so many bytes beside them, of texts or of numbers, which are many
/// times as large in a Struct.
fn object(name: &str, labels: (usize, usize), bytes: usize, has_numbers: bool) -> Result<Object, ObjectError> {
    let mut json = format!(r#"{{"metadata":{{"name":"{name}","labels":{{"app":"x""#);
    for at in 0..labels.0 {
        write!(json, r#","l{at}":"{}""#, "v".repeat(labels.1)).unwrap();
    }
    let spec = if has_numbers { vec!["1"; bytes / 2].join(",") } else { format!("{:?}", "s".repeat(bytes)) };
    write!(json, r#"}}}},"spec":[{spec}]}}"#).unwrap();
    Object::from_json(json, "", ResourceVersion::decimal(1))
}

/// Returns clients with gRPC's default limit: one that accepts no compression, and one for each.
async fn clients(address: &str) -> Vec<Client> {
    let channel = Endpoint::new(address.to_owned()).unwrap().connect().await.unwrap();
    let client = Client::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let accepting = |compression: &Compression| {
        let gzip = *compression == Compression::Gzip;
        client.clone().accept_compressed(if gzip { CompressionEncoding::Gzip } else { CompressionEncoding::Zstd })
    };
    [client.clone()].into_iter().chain(Compression::ALL.iter().map(accepting)).collect()
}

/// Reads a List or ByIndex. Returns the number of its objects.
async fn read_list(mut stream: Streaming<pb::ListResponse>) -> Result<usize, TestCaseError> {
    let mut objects = 0;
    while let Some(message) = stream.message().await.map_err(|status| TestCaseError::fail(status.to_string()))? {
        let bytes = message.encoded_len();
        prop_assert!(bytes <= MAX_MESSAGE_BYTES, "{bytes} bytes");
        prop_assert!(bytes <= CHUNK_BYTES || message.objects.len() == 1, "{} in {bytes}", message.objects.len());
        objects += message.objects.len();
    }
    Ok(objects)
}

/// Reads `count` objects in every format and compression, with a view and without, by every RPC that sends objects.
async fn read(sandbox: &Sandbox, count: usize) -> Result<(), TestCaseError> {
    let failed = |status: tonic::Status| TestCaseError::fail(status.to_string());
    for (at, mut client) in clients(sandbox.address()).await.into_iter().enumerate() {
        for format in FORMATS {
            for view in [None, Some(pb::View { drop: vec!["metadata.uid".to_owned()], ..Default::default() })] {
                if view.is_some() && (format != pb::PayloadFormat::Raw || at > 1) {
                    continue;
                }
                let format = format.into();
                let list =
                    pb::ListRequest { resource: "pods".to_owned(), format, view: view.clone(), ..Default::default() };
                let listed = client.list(list.clone()).await.map_err(failed)?.into_inner();
                prop_assert_eq!(read_list(listed).await?, count);
                let index = Some(pb::IndexMatch { name: "app".to_owned(), values: vec!["x".to_owned()] });
                let listed = client.list(pb::ListRequest { index, page_size: 7, ..list }).await.map_err(failed)?;
                prop_assert_eq!(read_list(listed.into_inner()).await?, count.min(7));

                let watch = pb::WatchRequest { resource: "pods".to_owned(), format, view, ..Default::default() };
                let mut stream = client.watch(watch.clone()).await.map_err(failed)?.into_inner();
                let mut events = 0;
                loop {
                    let event = next(&mut stream).await;
                    prop_assert!(event.encoded_len() <= MAX_MESSAGE_BYTES);
                    if event.bookmark.as_ref().is_some_and(|bookmark| bookmark.initial_events_end) {
                        break;
                    }
                    events += usize::from(event.object.is_some());
                }
                prop_assert_eq!(events, count);

                if at > 0 {
                    // A Subscribe stream is not compressed.
                    continue;
                }
                let open = pb::OpenWatch { id: 1, watch: Some(watch) };
                let (sender, requests) = tokio::sync::mpsc::channel(1);
                let requests = Request::new(tokio_stream::wrappers::ReceiverStream::new(requests));
                sender.send(pb::SubscribeRequest { open: vec![open], ..Default::default() }).await.unwrap();
                let mut stream = client.subscribe(requests).await.map_err(failed)?.into_inner();
                let (mut events, mut has_ended) = (0, false);
                while !has_ended {
                    let response = stream.message().await.map_err(failed)?.unwrap();
                    let bytes = response.encoded_len();
                    let responses: Vec<_> = response.deliveries.iter().flat_map(|one| &one.responses).collect();
                    prop_assert!(bytes <= MAX_MESSAGE_BYTES, "{bytes} bytes");
                    prop_assert!(bytes <= CHUNK_BYTES || responses.len() == 1, "{} in {bytes}", responses.len());
                    let ends =
                        |event: &&pb::WatchResponse| event.bookmark.as_ref().is_some_and(|b| b.initial_events_end);
                    has_ended = responses.iter().any(ends);
                    events += responses.iter().filter(|event| event.object.is_some()).count();
                }
                prop_assert_eq!(events, count);
            }
        }
    }
    Ok(())
}

#[test]
fn each_message_is_within_the_limit_of_a_client_and_the_size_of_a_chunk() {
    let labels =
        prop_oneof![4 => (0..20_usize, 0..60_usize), 2 => (200..600_usize, 20..60_usize), 1 => Just((5_000, 60))];
    let bytes = prop_oneof![4 => 0..2_000_usize, 3 => 10_000..80_000_usize, 1 => Just(300_000)];
    let objects = vec((labels, bytes, any::<bool>()), 1..40);
    let config = Config { cases: 3, max_shrink_iters: 0, failure_persistence: None, ..Config::default() };
    let tested = TestRunner::new(config).run(&objects, |objects| {
        let objects: Vec<_> = objects.into_iter().enumerate().collect();
        let objects = objects.into_iter().filter_map(|(at, (labels, bytes, has_numbers))| {
            object(&format!("o{at:02}"), labels, bytes, has_numbers).ok().map(Arc::new)
        });
        let objects: Vec<_> = objects.collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (sandbox, count) = (Sandbox::start(objects.clone()).await, objects.len());
            read(&sandbox, count).await
        })
    });
    tested.unwrap_or_else(|error| panic!("{error}"));
}

/// The largest object with so many labels that is served, and what is larger than it.
#[tokio::test]
async fn the_largest_objects_can_be_received_in_every_format() {
    let mut objects = Vec::new();
    for (name, labels, has_numbers) in [("a", 0, false), ("b", 0, true), ("c", 1500, false), ("d", 1900, true)] {
        let mut bytes = MAX_MESSAGE_BYTES;
        let (mut refused, mut served) = (0, None);
        while served.is_none() {
            match object(name, (labels, 1000), bytes, has_numbers) {
                Ok(object) => served = Some(object),
                // The size is in the error: what it is above the limit is taken away.
                Err(ObjectError::TooLarge { size }) => (refused, bytes) = (size, bytes - (size - MAX_OBJECT_BYTES)),
                Err(ObjectError::MessageTooLarge { size }) => {
                    (refused, bytes) = (size, bytes - (size + REST_BYTES - MAX_MESSAGE_BYTES));
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(refused > MAX_OBJECT_BYTES);
        objects.extend(served.map(Arc::new));
    }
    // Its Struct is within the limit of a body, and too large beside the labels.
    objects.push(Arc::new(object("e", (1900, 1000), 80_000, true).unwrap()));
    let count = objects.len();
    let sandbox = Sandbox::start(objects).await;
    read(&sandbox, count).await.unwrap();
}

#[tokio::test]
async fn namespaces_of_a_caller_and_an_object_that_are_too_large_together_are_two_messages() {
    let directory = TempDir::new().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    let large = object("large", (500, 1000), MAX_OBJECT_BYTES - (600 << 10), false).unwrap();
    fs::create_dir(directory.path().join("files")).unwrap();
    fs::write(directory.path().join("files/large.json"), large.body()).unwrap();
    write("tokens", &line("ann", "ann"));
    let namespaces: Vec<_> = (0..13_000).map(|at| format!("{at}{}", "n".repeat(60))).collect();
    let config = format!(
        r#"{{ listen: "127.0.0.1:0", admin: {{ listen: none }}, authentication: {{ token_file: tokens }}, authorization: {{ rules: [
            {{ subjects: ["user:ann"], verbs: [list], resources: [pods], namespaces: ["", {}] }} ] }},
            resources: {{ pods: {{ source: {{ files: {{ path: files }} }} }} }} }}"#,
        namespaces.join(", ")
    );
    write("informerd.yaml", &config);
    let path = Some(directory.path().join("informerd.yaml"));
    let app =
        App::start(config::Config::load(&ServeFlags { config: path, ..ServeFlags::default() }).unwrap()).await.unwrap();
    let address = format!("http://{}", app.grpc_address());
    let _running = AbortOnDropHandle::new(tokio::spawn(async { app.run(std::future::pending()).await.unwrap() }));
    for mut client in clients(&address).await {
        let list = pb::ListRequest { resource: "pods".to_owned(), format: FORMATS[0].into(), ..Default::default() };
        let mut request = Request::new(list);
        request.metadata_mut().insert("authorization", "Bearer ann".parse().unwrap());
        let mut stream = client.list(request).await.unwrap().into_inner();
        let first = stream.message().await.unwrap().unwrap();
        assert_eq!((first.namespaces.len(), first.objects.len()), (13_001, 0));
        let second = stream.message().await.unwrap().unwrap();
        assert_eq!((second.namespaces.len(), second.objects.len()), (0, 1));
        assert!(stream.message().await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_page_of_watches_is_within_the_limit_of_a_client() {
    const WATCHES: usize = 600;
    let sandbox = Sandbox::start(Vec::new()).await;
    let mut client = clients(sandbox.address()).await.remove(0);
    let mut streams = Vec::new();
    for at in 0..WATCHES {
        // Equal values would be one.
        let values: Vec<_> = (0..130).map(|value| format!("{value}{}", "v".repeat(57))).collect();
        let label_selector = format!("app in (w{at},{})", values.join(","));
        let watch = pb::WatchRequest { resource: "pods".to_owned(), label_selector, ..Default::default() };
        streams.push(client.watch(watch).await.unwrap().into_inner());
    }
    let channel = Endpoint::new(sandbox.address().to_owned()).unwrap().connect().await.unwrap();
    let mut admin = pb::admin_service_client::AdminServiceClient::new(channel);
    let (mut request, mut found) = (pb::ListWatchersRequest::default(), Vec::new());
    loop {
        let page = admin.list_watchers(request.clone()).await.unwrap().into_inner();
        assert!(!page.watchers.is_empty() && page.encoded_len() <= MAX_MESSAGE_BYTES);
        found.extend(page.watchers.into_iter().map(|watcher| watcher.id));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(found.len(), WATCHES);
    assert!(found.is_sorted_by(|one, next| one < next));
}

#[tokio::test]
async fn what_is_said_of_large_values_is_within_the_limit_and_each_index_value_is_listed_once() {
    // Four of them have the same beginning in a page token.
    const VALUES: usize = 12;
    let pod = |at: usize, bytes: usize| {
        let value = format!("{}{at}", "v\\\"".repeat(bytes / 3));
        let json = format!(r#"{{"metadata":{{"name":"o{at}"}},"spec":{{"long":{value:?}}}}}"#);
        Arc::new(Object::from_json(json, "", ResourceVersion::decimal(1)).unwrap())
    };
    let objects = (0..VALUES).map(|at| pod(at, [3, 900, 600_000][at % 3])).collect();
    let long = ("long".to_owned(), IndexFunc::Path(Path::parse("spec.long").unwrap()));
    let sandbox = Sandbox::start_with(Options { indexes: vec![long], ..Options::default() }, objects).await;
    let mut client = clients(sandbox.address()).await.remove(0);
    for page_size in [0, 1, 2] {
        let (mut values, mut page_token) = (Vec::new(), String::new());
        loop {
            let (resource, index) = ("pods".to_owned(), "long".to_owned());
            let request = pb::ListIndexValuesRequest { resource, index, page_size, page_token };
            let page = client.list_index_values(request).await.unwrap().into_inner();
            assert!(page.next_page_token.len() < 16 << 10);
            values.extend(page.values.into_iter().map(|value| value.value));
            assert!(values.len() <= VALUES && values.is_sorted_by(|one, next| one < next), "each once");
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        assert_eq!(values.len(), VALUES);
    }
    let terms: Vec<_> = (0..64).map(|at| format!("spec.long!={at}")).collect();
    let index = Some(pb::IndexMatch { name: "long".to_owned(), values: vec!["x".to_owned()] });
    let watch =
        pb::WatchRequest { resource: "pods".to_owned(), field_selector: terms.join(","), index, ..Default::default() };
    let key = Some(pb::ObjectKey { namespace: String::new(), name: "o2".to_owned() });
    let selection = Some(pb::explain_request::Selection::Watch(watch));
    let explained = client.explain(pb::ExplainRequest { key, selection }).await.unwrap().into_inner();
    assert_eq!(explained.terms.len(), 65);
    assert!(explained.encoded_len() < CHUNK_BYTES, "{} bytes", explained.encoded_len());
    assert!(explained.terms.iter().all(|term| term.found.starts_with("v\\\"v")), "{:?}", explained.terms[0]);
}
