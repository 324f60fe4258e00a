//! Clients behind a proxy: whom the limits count, and whom not.

use std::time::Duration;

use informerd::{
    config::{ListenAddr, ServeFlags},
    proto::pb::{self, informer_service_client::InformerServiceClient},
};
use tempfile::TempDir;
use tonic::{Request, Status, Streaming, transport::Channel};

use crate::{kubernetes::send, served::Served};

/// Starts a server of which a peer may have two of eight watches.
async fn start(limits: &str) -> Served {
    let directory = TempDir::new().unwrap();
    std::fs::create_dir(directory.path().join("pods")).unwrap();
    std::fs::write(directory.path().join("pods/a.yaml"), "kind: Pod\nmetadata: { name: a }\n").unwrap();
    let config = format!(
        "watch: {{ max_watchers: 8 }}\nlimits: {{ peer_share: 25{limits} }}\nkubernetes: {{ listen: '127.0.0.1:0' }}\n\
         resources:\n  pods:\n    source: {{ files: {{ path: pods }} }}\n"
    );
    let path = directory.path().join("config.yml");
    std::fs::write(&path, config).unwrap();
    let served = Served::start(directory, ServeFlags { config: Some(path), ..ServeFlags::default() }).await;
    served.until(|resource| resource.state() == pb::SyncState::Synced).await;
    served
}

/// Opens a watch, as the proxy of these clients would.
async fn watch(
    client: &mut InformerServiceClient<Channel>,
    forwarded: &[&'static str],
) -> Result<Streaming<pb::WatchResponse>, Status> {
    let mut request = Request::new(pb::WatchRequest { resource: "pods".to_owned(), ..Default::default() });
    for value in forwarded {
        request.metadata_mut().append("x-forwarded-for", value.parse().unwrap());
    }
    let open = async {
        let mut stream = client.watch(request).await?.into_inner();
        let first = stream.message().await?.unwrap();
        match first.error {
            Some(error) => Err(Status::new(error.code.into(), error.message)),
            None => Ok(stream),
        }
    };
    tokio::time::timeout(Duration::from_secs(20), open).await.expect("an answer in time")
}

#[tokio::test]
async fn each_client_of_a_trusted_proxy_has_a_share_of_its_own() {
    let served = start(", trusted_peers: [127.0.0.0/8]").await;
    let mut client = served.client().await;
    let mut open = Vec::new();
    for client_of_proxy in ["192.0.2.1", "192.0.2.2, 127.0.0.9"] {
        for _ in 0..2 {
            open.push(watch(&mut client, &[client_of_proxy]).await.unwrap());
        }
    }
    // It names others before itself, which its proxy has not seen.
    for values in [&["192.0.2.1"][..], &["192.0.2.9, 192.0.2.1"], &["192.0.2.9", "192.0.2.1"]] {
        let refused = watch(&mut client, values).await.unwrap_err();
        assert!(refused.message().contains("limits.peer_share"), "{values:?}: {refused:?}");
    }
    let Some(ListenAddr::Tcp(address)) = served.kubernetes.clone() else { panic!("a TCP address") };
    for (client_of_proxy, code) in [("192.0.2.1", "429"), ("192.0.2.4", "200")] {
        let headers = [("X-Forwarded-For", client_of_proxy)];
        let (_stream, head) = send(address, "GET", "/v1/pods/watch", &headers, "").await;
        assert_eq!(head.split(' ').nth(1), Some(code), "{client_of_proxy}: {head}");
    }
    served.until(|resource| resource.watchers == 4).await;
    // Clients that the proxy does not name have no share.
    for _ in 0..4 {
        open.push(watch(&mut client, &[]).await.unwrap());
    }
    let refused = watch(&mut client, &["192.0.2.3"]).await.unwrap_err();
    assert!(refused.message().contains("watch.max_watchers") && !refused.message().contains("share"), "{refused:?}");
    drop(open);
    served.stop().await;
}

#[tokio::test]
async fn the_word_of_a_peer_that_is_not_trusted_changes_nothing() {
    let served = start(", trusted_peers: [10.0.0.0/8, 192.0.2.0/24]").await;
    let mut client = served.client().await;
    let mut open = Vec::new();
    for client_of_proxy in ["192.0.2.1", "198.51.100.2"] {
        open.push(watch(&mut client, &[client_of_proxy]).await.unwrap());
    }
    let refused = watch(&mut client, &["198.51.100.3"]).await.unwrap_err();
    assert!(refused.message().contains("limits.peer_share"), "{refused:?}");
    drop(open);
    served.stop().await;
}
