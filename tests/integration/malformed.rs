//! Requests that are no messages of the contract: whatever the bytes, no method answers INTERNAL or UNKNOWN.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use futures_util::{FutureExt, future::BoxFuture};
use http_body_util::{BodyExt, Full};
use informerd::{
    config::ServeFlags,
    grpc::{GeneratedServices, Routes},
    proto::pb,
};
use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorSet, field_descriptor_proto::Type};
use tonic::{
    Code, Status,
    body::Body,
    server::NamedService,
    transport::{Channel, Endpoint},
};
use tower::{Service, ServiceExt};

use crate::{
    refused_watch::error_of,
    sandbox::{DEADLINE, Sandbox, next, reason},
    served::Served,
};

/// Path of a method, and the message of its requests.
type Method = (String, DescriptorProto);

/// Returns every method that the server has: those of its own services, of health and of reflection.
fn methods() -> Vec<Method> {
    let sets = [
        pb::FILE_DESCRIPTOR_SET,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
    ];
    let mut methods = BTreeMap::new();
    for set in sets {
        for file in FileDescriptorSet::decode(set).unwrap().file {
            let messages: BTreeMap<_, _> = file
                .message_type
                .iter()
                .map(|message| (format!(".{}.{}", file.package(), message.name()), message))
                .collect();
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    methods.insert(path, (*messages[method.input_type()]).clone());
                }
            }
        }
    }
    assert!(methods.len() >= 15, "{:?}", methods.keys());
    methods.into_iter().collect()
}

/// Returns messages that cannot be decoded as one of this type.
fn malformed(message: &DescriptorProto) -> Vec<Vec<u8>> {
    // A key that is none, a length beyond the end, groups in groups, a group without an end, a varint of eleven bytes.
    let mut found = vec![
        vec![0xff],
        vec![0x0a, 5, b'a'],
        [0xfb, 0x7f].repeat(200),
        vec![0xfb, 0x7f],
        [&[0x80; 10][..], &[1]].concat(),
    ];
    // The keys of other fields have two bytes.
    for field in message.field.iter().filter(|field| field.number() < 16) {
        let key = |wire: u32| (u32::try_from(field.number()).unwrap() << 3 | wire) as u8;
        match field.r#type() {
            Type::String => found.extend([vec![key(0), 1], vec![key(2), 1, 0xff], vec![key(2), 2, b'a', 0xc3]]),
            Type::Message => found.extend([vec![key(0), 1], vec![key(2), 2, 0xff, 0xff], vec![key(2), 9, 1]]),
            Type::Enum | Type::Int32 | Type::Uint32 | Type::Uint64 | Type::Bool => {
                found.extend([vec![key(1), 0, 0, 0, 0, 0, 0, 0, 0], vec![key(0), 0x80]]);
            }
            _ => {}
        }
    }
    found
}

fn framed(flag: u8, message: &[u8]) -> Vec<u8> {
    [&[flag][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}

/// Sends a request of these bytes. Returns the status with which the call ends, or `None` for a call with another answer before that.
async fn status(channel: &Channel, path: &str, bytes: Vec<u8>, encoding: Option<&str>) -> Option<Status> {
    let builder = http::Request::post(path).header("content-type", "application/grpc").header("te", "trailers");
    let builder = builder.header("grpc-timeout", "9S");
    let builder = encoding.into_iter().fold(builder, |builder, name| builder.header("grpc-encoding", name));
    let request = builder.body(Body::new(Full::new(Bytes::from(bytes)))).unwrap();
    let answered = async {
        let mut channel = channel.clone();
        let response = channel.ready().await.unwrap().call(request).await.unwrap();
        if let Some(status) = Status::from_header_map(response.headers()) {
            return Some(status);
        }
        let mut body = response.into_body();
        let mut frame = body.frame().await?.unwrap();
        if path.ends_with("/Watch") && frame.data_ref().and_then(error_of).is_some() {
            frame = body.frame().await?.unwrap();
        }
        frame.trailers_ref().and_then(Status::from_header_map)
    };
    tokio::time::timeout(DEADLINE, answered).await.expect("an answer in time")
}

async fn server() -> (Served, Channel) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a.json"), r#"{"metadata":{"name":"a"}}"#).unwrap();
    let flags = ServeFlags { files: vec![format!("pods={}", directory.path().display())], ..ServeFlags::default() };
    let served = Served::start(directory, flags).await;
    let channel = Endpoint::new(served.address.clone()).unwrap().connect().await.unwrap();
    (served, channel)
}

#[tokio::test]
async fn a_malformed_request_is_refused_with_a_reason_by_every_method() {
    let (_served, channel) = server().await;
    for (path, message) in methods() {
        for bytes in malformed(&message) {
            let status = status(&channel, &path, framed(0, &bytes), None).await;
            let status = status.unwrap_or_else(|| panic!("{path} answers {bytes:x?}"));
            assert_eq!(status.code(), Code::InvalidArgument, "{path} {bytes:x?}: {status:?}");
            assert!(["REQUEST_INVALID", "SUBSCRIBE_INVALID"].contains(&&*reason(&status)), "{path}: {status:?}");
        }
        for (bytes, encoding, code) in [
            (Vec::new(), None, Code::InvalidArgument),
            (vec![0, 0, 0], None, Code::InvalidArgument),
            (framed(0, b"abc")[..6].to_vec(), None, Code::InvalidArgument),
            (framed(1, b""), None, Code::Unimplemented),
            (framed(1, b"abc"), Some("gzip"), Code::Unimplemented),
            (framed(1, b"abc"), Some("snappy"), Code::Unimplemented),
            (framed(7, b"abc"), None, Code::Unimplemented),
        ] {
            let is_stream = path.contains("Reflection") || path.ends_with("/Subscribe");
            if bytes.is_empty() && is_stream {
                continue;
            }
            let status = status(&channel, &path, bytes.clone(), encoding).await;
            let status = status.unwrap_or_else(|| panic!("{path} answers {bytes:x?}"));
            assert_eq!(status.code(), code, "{path} {bytes:x?} {encoding:?}: {status:?}");
            assert!(!reason(&status).is_empty());
        }
    }
}

/// Draws bytes for every method: mostly with keys that a message has.
#[tokio::test]
async fn no_bytes_of_a_client_are_an_internal_error() {
    const DRAWN: usize = 150;
    let (_served, channel) = server().await;
    let seed = std::env::var("INFORMERD_CHECKER_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| fastrand::u64(..));
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for (path, message) in methods() {
        for _ in 0..DRAWN {
            let mut bytes = Vec::new();
            for _ in 0..random.usize(0..6) {
                let number = random.choice(&message.field).map_or(1, prost_types::FieldDescriptorProto::number);
                prost::encoding::encode_varint((number as u64) << 3 | random.u64(0..6), &mut bytes);
                match random.u8(0..3) {
                    0 => bytes.extend((0..random.usize(0..12)).map(|_| random.u8(..))),
                    1 => bytes.extend([2, b'a', b'b']),
                    _ => prost::encoding::encode_varint(random.u64(..) >> random.u32(0..64), &mut bytes),
                }
            }
            let flag = if random.u8(0..20) == 0 { random.u8(..) } else { 0 };
            let status = status(&channel, &path, framed(flag, &bytes), None).await;
            let is_internal =
                status.as_ref().is_some_and(|status| matches!(status.code(), Code::Internal | Code::Unknown));
            assert!(!is_internal, "{path} {bytes:x?}: {status:?}");
        }
    }
}

/// Sends durations at which a conversion may overflow; in the type of a request they are valid.
#[tokio::test]
async fn no_duration_of_a_client_is_an_internal_error() {
    let (_served, channel) = server().await;
    let mut client = pb::informer_service_client::InformerServiceClient::new(channel);
    for seconds in [0, 1, -1, i64::MIN, i64::MIN + 1, i64::MAX] {
        for nanos in [0, -1, i32::MIN, i32::MAX] {
            let given = Some(prost_types::Duration { seconds, nanos });
            let watch = pb::WatchRequest { resource: "pods".to_owned(), ..Default::default() };
            for request in [
                pb::WatchRequest { timeout: given, ..watch.clone() },
                pb::WatchRequest { bookmark_interval: given, ..watch.clone() },
            ] {
                let until =
                    pb::UntilRequest { watch: Some(request.clone()), conditions: vec!["count >= 0".to_owned()] };
                let until = client.until(until).await.err();
                assert!(until.is_none_or(|status| status.code() == Code::InvalidArgument), "{given:?}");
                let mut stream = client.watch(request).await.unwrap().into_inner();
                if next(&mut stream).await.error.is_some() {
                    let status = stream.message().await.unwrap_err();
                    assert_eq!(
                        (status.code(), &*reason(&status)),
                        (Code::InvalidArgument, "DURATION_INVALID"),
                        "{given:?}"
                    );
                }
            }
        }
    }
}

/// Service of a program, which reads its requests itself.
#[derive(Clone)]
struct Echo;

impl NamedService for Echo {
    const NAME: &str = "example.Echo";
}

impl tower::Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        async move {
            let encoding = request.headers().get("grpc-encoding").cloned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let mut response = http::Response::new(Body::new(Full::new(body)));
            response.headers_mut().extend(encoding.map(|encoding| (http::header::CONTENT_ENCODING, encoding)));
            Ok(response)
        }
        .boxed()
    }
}

/// The services of this server take no compressed requests; another one beside them receives what its client has sent.
#[tokio::test]
async fn a_service_of_a_program_receives_compressed_requests() {
    let sandbox = Sandbox::start(Vec::new()).await;
    let routes = Routes::beside(sandbox.state.clone(), GeneratedServices::default().with(Echo));
    let sent = framed(1, b"compressed");
    let request = http::Request::post("/example.Echo/Call")
        .header("content-type", "application/grpc")
        .header("grpc-encoding", "gzip")
        .body(Full::new(Bytes::from(sent.clone())))
        .unwrap();
    let response = routes.oneshot(request).await.unwrap();
    assert_eq!(response.headers().get("content-encoding").map(http::HeaderValue::as_bytes), Some(&b"gzip"[..]));
    let mut received = response.into_body().frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(received.copy_to_bytes(received.remaining()), sent);
}
