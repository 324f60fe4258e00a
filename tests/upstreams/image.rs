//! The static program in the image, without a system around it: name resolution, trusted authorities and its user.

use std::{fs, net::SocketAddr, process::Output};

use informerd::{
    app::App,
    config::{Config, ListenAddr, ServeFlags},
};
use tempfile::TempDir;
use tokio::net::UdpSocket;

use crate::{
    authority::Authority,
    root::{Root, is_root},
};

/// Address for a resolver that is free whatever else listens on this machine.
const NAME_SERVER: &str = "127.53.0.1";
/// Resolver configuration as the kubelet writes it.
const RESOLV_CONF: &str =
    "search shop.svc.cluster.local svc.cluster.local cluster.local\nnameserver 127.53.0.1\noptions ndots:5\n";

/// Starts a server of one pod under TLS. Returns its address, and the authority that signed for the names.
async fn serve(names: &[&str]) -> (SocketAddr, String, TempDir) {
    let authority = Authority::new();
    let (certificate, key) = authority.sign(names);
    let directory = TempDir::new().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(directory.path().join(name), bytes).unwrap();
    write("tls.crt", &certificate);
    write("tls.key", &key);
    write("web.json", br#"{"kind":"Pod","metadata":{"name":"web"}}"#);
    write(
        "config.yaml",
        b"{ listen: '127.0.0.1:0', admin: { listen: none }, tls: { cert: tls.crt, key: tls.key }, \
         resources: { pods: { source: { files: { path: ., kind: Pod } } } } }",
    );
    let flags = ServeFlags { config: Some(directory.path().join("config.yaml")), ..ServeFlags::default() };
    let app = App::start(Config::load(&flags).unwrap()).await.unwrap();
    let ListenAddr::Tcp(address) = app.grpc_address() else { panic!("a TCP address") };
    tokio::spawn(app.run(std::future::pending()));
    (address, String::from_utf8(authority.pem()).unwrap(), directory)
}

/// Answers for one name with 127.0.0.1, and reports every other one as unknown.
async fn resolve(name: &'static str) -> std::io::Result<()> {
    let socket = UdpSocket::bind((NAME_SERVER, 53)).await?;
    let known: Vec<u8> =
        name.split('.').flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat()).chain([0]).collect();
    tokio::spawn(async move {
        let mut query = [0; 512];
        loop {
            let (length, from) = socket.recv_from(&mut query).await.unwrap();
            // Skips its id and flags of one question; the name, the type and the class follow.
            let question = &query[12..length];
            let end = 12 + question.iter().position(|byte| *byte == 0).unwrap() + 5;
            let (asked, kind) = (&query[12..end - 4], query[end - 3]);
            let is_known = asked.eq_ignore_ascii_case(&known);
            let is_answered = is_known && kind == 1;
            let mut answer = query[..end].to_vec();
            answer[2..12].copy_from_slice(&[
                0x81,
                if is_known { 0x80 } else { 0x83 },
                0,
                1,
                0,
                u8::from(is_answered),
                0,
                0,
                0,
                0,
            ]);
            if is_answered {
                // The name of the question, A, IN, a minute, four bytes.
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
            }
            socket.send_to(&answer, from).await.unwrap();
        }
    });
    Ok(())
}

async fn list(root: &Root, server: &str) -> Result<String, String> {
    let mut command = root.informerd(&["list", "pods", "-o", "name", "--server", server]);
    let Output { status, stdout, stderr } =
        tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if status.success() { Ok(text(stdout)) } else { Err(text(stderr)) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_resolved_and_authorities_are_trusted() {
    let (address, authority, _directory) = serve(&["informerd.cache", "pinned"]).await;
    let root = Root::of_image();
    let (named, pinned) =
        (format!("https://informerd.cache:{}", address.port()), format!("https://pinned:{}", address.port()));
    root.write("etc/hosts", "127.0.0.1 localhost\n127.0.0.1 pinned\n");
    // The image trusts the public authorities, and no other.
    let unknown = list(&root, &pinned).await.unwrap_err();
    assert!(unknown.contains("UnknownIssuer"), "{unknown}");
    root.write("etc/ssl/certs/ca-certificates.crt", &authority);
    assert_eq!(list(&root, &pinned).await, Ok("web\n".to_owned()));

    let unknown = list(&root, &named).await.unwrap_err();
    assert!(unknown.contains("name resolution"), "{unknown}");
    match resolve("informerd.cache.svc.cluster.local").await {
        Ok(()) => {
            root.write("etc/resolv.conf", RESOLV_CONF);
            assert_eq!(list(&root, &named).await, Ok("web\n".to_owned()), "through DNS");
            assert_eq!(list(&root, &pinned).await, Ok("web\n".to_owned()), "the kubelet's hosts first");
        }
        Err(error) if !is_root() => eprintln!("skipped: DNS, whose port is not for this user: {error}"),
        Err(error) => panic!("{NAME_SERVER}:53: {error}"),
    }
}

/// Checks that the error for a pod without a token does not mention kubeconfigs.
#[test]
fn a_pod_without_a_service_account_has_its_own_error() {
    let root = Root::of_image();
    let check = |environment: &[(&str, &str)]| {
        let mut command = root.informerd(&["check", "--kube", "pods=v1/pods"]);
        let output = command.envs(environment.iter().copied()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let in_pod = check(&[("KUBERNETES_SERVICE_HOST", "10.0.0.1"), ("KUBERNETES_SERVICE_PORT", "443")]);
    assert_eq!(in_pod.lines().count(), 1, "{in_pod}");
    assert!(
        in_pod.starts_with("error: resource pods: the service account of this pod: ")
            && in_pod.contains("automountServiceAccountToken"),
        "{in_pod}"
    );
    let elsewhere = check(&[]);
    assert!(elsewhere.contains("no kubeconfig: ") && elsewhere.contains("run inside a cluster"), "{elsewhere}");
}
