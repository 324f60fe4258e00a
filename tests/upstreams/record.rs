//! `informerd record things | informerd serve --stream copy=-` over an etcd prefix: names with slashes, JSON without a name, bytes.

use std::{
    collections::BTreeMap,
    io::Write,
    net::SocketAddr,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use informerd::proto::pb::{self, informer_service_client::InformerServiceClient};
use tonic::transport::Channel;

use crate::{
    DEADLINE,
    etcd::{Driver, Etcd, VERSIONS, etcdctl},
    killable::KillableServer,
    port::free_address,
    truth::PREFIX,
};

/// Process that is killed at the end of the test.
struct Running(Child);

/// Objects by namespace and name: uid, media type, body.
type Objects = BTreeMap<(String, String), (String, String, Vec<u8>)>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_an_etcd_prefix_equals_it_across_a_kill_with_changes_meanwhile() {
    for version in VERSIONS {
        let etcd = Etcd::start(version).await;
        let mut driver = etcd.driver();
        let first = [
            ("a/web", r#"{"kind":"Pod","metadata":{"namespace":"other","name":"other","uid":"other"}}"#),
            ("a/deep/er/name", r#"{"on":true}"#),
            ("plain", "null"),
            ("é", "[1,2]"),
            ("a/gone", "5"),
            ("a/again", r#"{"kind":5}"#),
            ("a/text", "hello\nworld"),
        ];
        put(&mut driver, &first.map(|(key, value)| (key, Some(value))));
        put_bytes(&etcd, "a/bytes", b"\xff\0\n");
        let mut original = KillableServer::start(&etcd);
        original.synced().await;

        let address = free_address();
        let mut record = Command::new(env!("CARGO_BIN_EXE_informerd"))
            .args(["record", "things", "-q", "--server", &original.address().to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .map(Running)
            .unwrap();
        let _copy = Command::new(env!("CARGO_BIN_EXE_informerd"))
            .args(["serve", "--stream", "copy=-", "--listen", &address.to_string(), "--admin-listen", "none"])
            .stdin(record.0.stdout.take().unwrap())
            .stderr(Stdio::null())
            .spawn()
            .map(Running)
            .unwrap();
        let copied = until_equal(original.address(), address, first.len() + 1).await;
        assert_eq!(copied[&key("a", "bytes")].2, b"\xff\0\n");
        assert_eq!(copied[&key("a", "web")].1, "application/json");

        original.kill();
        let again = &copied[&key("a", "again")].0;
        put(&mut driver, &[("a/gone", None), ("a/again", None)]);
        put(&mut driver, &[("a/again", Some(r#"{"kind":5}"#)), ("plain", Some("hello")), ("new", Some("{}"))]);
        put_bytes(&etcd, "a/bytes", b"\xfe");
        original.restart();
        original.synced().await;
        let copied = until_equal(original.address(), address, first.len() + 1).await;
        assert_ne!(&copied[&key("a", "again")].0, again, "another object with the same bytes");
        put(&mut driver, &[("a/web", None)]);
        until_equal(original.address(), address, first.len()).await;
    }
}

fn key(namespace: &str, name: &str) -> (String, String) {
    (namespace.to_owned(), name.to_owned())
}

fn put(driver: &mut Driver, changes: &[(&str, Option<&str>)]) {
    let changes = changes.iter().map(|(key, value)| (format!("{PREFIX}{key}"), value.map(str::to_owned)));
    driver.write(&changes.collect());
}

/// Puts a value that is not UTF-8, which a driver cannot.
fn put_bytes(etcd: &Etcd, key: &str, value: &[u8]) {
    let mut command = etcdctl();
    command.args(["--endpoints", &etcd.url(), "put", &format!("{PREFIX}{key}")]);
    let mut putting = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    putting.stdin.take().unwrap().write_all(value).unwrap();
    assert!(putting.wait().unwrap().success());
}

/// Waits until the copy equals the original, with this number of objects. Returns them.
async fn until_equal(original: SocketAddr, copy: SocketAddr, count: usize) -> Objects {
    let started = Instant::now();
    loop {
        let expected = objects(original, "things").await;
        let found = objects(copy, "copy").await;
        if expected == found && found.as_ref().is_some_and(|found| found.len() == count) {
            return found.unwrap();
        }
        assert!(started.elapsed() < DEADLINE, "{found:?} instead of {expected:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns the objects of a resource, unless the server does not listen yet.
async fn objects(address: SocketAddr, resource: &str) -> Option<Objects> {
    let mut client: InformerServiceClient<Channel> =
        InformerServiceClient::connect(format!("http://{address}")).await.ok()?;
    let format = pb::PayloadFormat::Raw.into();
    let request = pb::ListRequest { resource: resource.to_owned(), format, ..pb::ListRequest::default() };
    let mut chunks = client.list(request).await.ok()?.into_inner();
    let mut objects = Objects::new();
    while let Some(chunk) = chunks.message().await.ok()? {
        for object in chunk.objects {
            let Some(pb::object::Body::Raw(body)) = object.body else { panic!("no raw body") };
            objects.insert((object.namespace, object.name), (object.uid, object.media_type, body.to_vec()));
        }
    }
    Some(objects)
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
