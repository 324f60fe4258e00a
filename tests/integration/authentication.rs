//! Authentication over the wire: which calls need credentials, which credentials are accepted, and that nothing shows them.

use std::{fmt::Write, fs};

use informerd::{
    client::{Client, ClientError, Query, ServerAddress, TlsOptions, WatchOptions},
    proto::pb,
};
use rcgen::{CertificateParams, date_time_ymd};
use ring::digest::{SHA256, digest};
use tempfile::TempDir;
use tonic::{Code, Request, Status, metadata::AsciiMetadataValue, transport::Endpoint};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::{
    authority::Authority,
    process::{EVERYTHING, Process},
    sandbox::reason,
    tls::Secured,
};

/// Token that nothing may show.
const CANARY: &str = "canary-0123456789";
/// Rights to everything for every authenticated caller.
pub(crate) const ALL: &str =
    r#"authorization: { rules: [{ subjects: ["*"], verbs: ["*"], resources: ["*"], namespaces: ["*"] }] }"#;
const PATHS: [&str; 15] = [
    "/informerd.v1.InformerService/Watch",
    "/informerd.v1.InformerService/List",
    "/informerd.v1.InformerService/Get",
    "/informerd.v1.InformerService/ByIndex",
    "/informerd.v1.InformerService/Until",
    "/informerd.v1.InformerService/ListResources",
    "/informerd.v1.InformerService/Changes",
    "/informerd.v1.InformerService/ListIndexValues",
    "/informerd.v1.AdminService/ListWatchers",
    "/informerd.v1.AdminService/DisconnectWatchers",
    "/informerd.v1.AdminService/GetStats",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/grpc.health.v1.Healthy/Check",
    "/none",
];

/// Returns the line of a token file.
pub(crate) fn line(token: &str, user: &str) -> String {
    let hash = digest(&SHA256, token.as_bytes());
    let hex = hash.as_ref().iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    });
    format!("{hex} {user}\n")
}

/// Calls a method with an empty message and these `authorization` headers.
async fn call(address: &str, path: &'static str, authorization: &[&str]) -> Result<(), Status> {
    let channel = Endpoint::new(address.to_owned()).unwrap().connect().await.unwrap();
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let mut request = Request::new(());
    for value in authorization {
        request.metadata_mut().append("authorization", AsciiMetadataValue::try_from(*value).unwrap());
    }
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    client.unary(request, path.parse().unwrap(), codec).await.map(drop)
}

/// Returns the reason of the status with which the server refused a call.
pub(crate) fn reason_of(error: &ClientError) -> Option<&str> {
    match error {
        ClientError::Refused(status) => status.reason.as_deref(),
        _ => None,
    }
}

#[tokio::test]
async fn every_call_but_health_needs_a_token_and_nothing_shows_it() {
    let directory = TempDir::new().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    fs::create_dir(directory.path().join("pods")).unwrap();
    write("pods/web.json", r#"{"kind":"Pod","metadata":{"name":"web"}}"#);
    write("tokens", &format!("# users\n{}", line(CANARY, "ci team-a")));
    write("token", &format!("{CANARY}\n"));
    let pods = "resources: { pods: { source: { files: { path: pods } } } }";
    let admin = "admin: { open_metrics: true }";
    write("informerd.yaml", &format!("{{ authentication: {{ token_file: tokens }}, {ALL}, {admin}, {pods} }}"));
    let config = directory.path().join("informerd.yaml");
    let server = Process::start(&["--config", config.to_str().unwrap(), "--log", EVERYTHING], None);

    for path in PATHS {
        let status = call(&server.address(), path, &[]).await.unwrap_err();
        assert_eq!((status.code(), reason(&status).as_str()), (Code::Unauthenticated, "CREDENTIALS_MISSING"), "{path}");
    }
    let channel = Endpoint::new(server.address()).unwrap().connect().await.unwrap();
    HealthClient::new(channel).check(HealthCheckRequest { service: String::new() }).await.unwrap();

    let bearer = format!("Bearer {CANARY}");
    let wrong = format!("{bearer}x");
    let list_resources = PATHS[5];
    call(&server.address(), list_resources, &[&bearer]).await.unwrap();
    call(&server.address(), list_resources, &[&bearer.replace("Bearer", "bearer  ")]).await.unwrap();
    for headers in [
        &[&*wrong][..],
        &[CANARY],
        &[""],
        &["Bearer"],
        &[&format!("Basic {CANARY}")],
        &[&format!("{bearer} {CANARY}")],
        &[&bearer, &bearer],
        &[&bearer, &wrong],
        &[&wrong, &bearer],
    ] {
        let status = call(&server.address(), list_resources, headers).await.unwrap_err();
        assert_eq!((status.code(), reason(&status).as_str()), (Code::Unauthenticated, "CREDENTIALS_INVALID"));
        assert!(!format!("{status:?}").contains(CANARY) && !status.message().contains('\n'));
    }

    let address: ServerAddress = server.address().parse().unwrap();
    let client = Client::connect(&address.with_token_file(directory.path().join("token")).unwrap()).await.unwrap();
    let mut watch = client.watch(&Query::of("pods"), &WatchOptions::default());
    watch.next().await.unwrap().unwrap();
    let watchers = client.watchers("pods").await.unwrap();
    assert_eq!(watchers.iter().map(|watcher: &pb::Watcher| watcher.identity.as_str()).collect::<Vec<_>>(), ["ci"]);

    let shown = format!("{}{}", server.log(), server.get("/metrics").await);
    assert!(shown.contains("TRACE") && !shown.contains(CANARY), "{shown}");
}

#[tokio::test]
async fn a_certificate_is_optional_beside_tokens_and_does_not_make_up_for_a_bad_one() {
    let (authority, clients, stranger) = (Authority::new(), Authority::new(), Authority::new());
    let tokens = line(CANARY, "ci");
    let keys = format!("authentication: {{ client_certificates: true, token_file: tokens }}, {ALL},");
    let files = [("tokens", tokens.as_str()), ("good", CANARY), ("bad", "bad")];
    let server = Secured::start_with(&authority, Some(&clients), &keys, &files).await;
    let listed = async |identity: Option<(Vec<u8>, Vec<u8>)>, token: Option<&str>| {
        let options = TlsOptions { authority: Some(authority.pem()), identity, server_name: None };
        let address = server.address.with_tls(options).unwrap();
        let with = |token| address.with_token_file(server.path(token)).unwrap();
        server.listed(&token.map_or_else(|| address.clone(), with)).await
    };
    let certificate = || Some(clients.sign(&["me"]));
    for (identity, token) in [(certificate(), None), (None, Some("good")), (certificate(), Some("good"))] {
        assert_eq!(listed(identity, token).await.unwrap(), ["web"], "{token:?}");
    }
    for (identity, token, expected) in [
        (None, None, "CREDENTIALS_MISSING"),
        (None, Some("bad"), "CREDENTIALS_INVALID"),
        (certificate(), Some("bad"), "CREDENTIALS_INVALID"),
    ] {
        assert_eq!(reason_of(&listed(identity, token).await.unwrap_err()), Some(expected));
    }
    let mut expired = CertificateParams::new(vec!["me".to_owned()]).unwrap();
    expired.not_after = date_time_ymd(2020, 1, 1);
    let mut early = CertificateParams::new(vec!["me".to_owned()]).unwrap();
    early.not_before = date_time_ymd(2990, 1, 1);
    early.not_after = date_time_ymd(2999, 1, 1);
    for identity in [stranger.sign(&["me"]), clients.sign_these(&expired), clients.sign_these(&early)] {
        let error = listed(Some(identity), Some("good")).await.unwrap_err();
        assert_eq!(reason_of(&error), None, "TLS refuses it: {error}");
    }
    server.stop().await;
}

#[tokio::test]
async fn without_another_authenticator_a_certificate_is_required() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let keys = format!("authentication: {{ client_certificates: true }}, {ALL},");
    let server = Secured::start_with(&authority, Some(&clients), &keys, &[("good", CANARY)]).await;
    assert_eq!(server.names(&authority, Some(clients.sign(&["me"]))).await.unwrap(), ["web"]);
    assert_eq!(reason_of(&server.names(&authority, None).await.unwrap_err()), None);
    let identity = Some(clients.sign(&["me"]));
    let options = TlsOptions { authority: Some(authority.pem()), identity, server_name: None };
    let address = server.address.with_tls(options).unwrap().with_token_file(server.path("good")).unwrap();
    assert_eq!(reason_of(&server.listed(&address).await.unwrap_err()), Some("CREDENTIALS_INVALID"));
    server.stop().await;
}
