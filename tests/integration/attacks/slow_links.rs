//! Clients that read all the time through a slow link, and watches of a stream that wait: nobody is ended, or delayed, for what its
//! neighbours use.

use informerd::proto::pb::{self, informer_service_client::InformerServiceClient};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::wrappers::ReceiverStream;

use super::{
    attacked_server::{AttackedServer, Setup, subscribe, watch, within},
    number,
};
use crate::{sandbox::next, tcp_proxy::TcpProxy};

/// Steps in which everything passes the link: events of the server come each 10 ms, so it takes several times the timeout.
const STEPS: u64 = 400;
/// Window of a stream that HTTP/2 has by itself.
const HTTP2_WINDOW: u32 = 65_535;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_of_a_client_that_reads_through_a_slow_link_stay() {
    let attack = "a slow link";
    let watches = number(100, 1000);
    for (is_tls, window, bytes) in
        [(false, HTTP2_WINDOW, 4 << 10), (false, 1 << 20, 32 << 10), (true, 1 << 20, 32 << 10)]
    {
        let config = "watch: { progress_timeout: 1s }";
        let attacked = AttackedServer::start(Setup { config, large: bytes, is_tls, ..Setup::default() }).await;
        let link = TcpProxy::to(&attacked.process.address()).await;
        let endpoint = attacked.endpoint(link.address());
        let endpoint = endpoint.initial_stream_window_size(window).initial_connection_window_size(window);
        let client = InformerServiceClient::new(endpoint.connect().await.unwrap());
        link.throttle();
        let (read, mut reading) = (mpsc::channel(watches as usize), JoinSet::new());
        let (sends, mut read) = read;
        for _ in 0..watches {
            let (mut client, sends) = (client.clone(), sends.clone());
            let (namespace, name) = ("d".to_owned(), "a0".to_owned());
            let request =
                pb::WatchRequest { namespace, name, initial_events: pb::InitialEvents::Send.into(), ..watch() };
            reading.spawn(async move {
                let mut watch = client.watch(request).await.unwrap().into_inner();
                while next(&mut watch).await.object.is_none() {}
                sends.send(()).await.unwrap();
                loop {
                    match watch.message().await {
                        Ok(Some(_)) => {}
                        end => return end,
                    }
                }
            });
        }
        let step = (watches as usize * bytes).div_ceil(STEPS as usize);
        while (read.len() as u64) < watches {
            link.grant(step);
            tokio::select! {
                biased;
                Some(ended) = reading.join_next() => panic!("{attack}: ended: {ended:?}"),
                () = attacked.reads(attack, 1) => {}
            }
        }
        read.close();
        // The end of what they have read was written slowly, too: a flush that has waited is no stall of the quiet connection.
        for _ in 0..STEPS {
            attacked.reads(attack, 1).await;
        }
        let ended = reading.try_join_next();
        assert!(ended.is_none(), "{attack}: ended: {ended:?}");
        let stalled = attacked.process.metrics().await.sum("informerd_streams_stalled_total");
        assert!(stalled < 1.0, "{stalled} streams");
        drop((client, reading, link));
        attacked.recovers(attack).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_that_wait_delay_nothing_else_of_their_stream() {
    let attack = "watches that wait";
    let attacked = AttackedServer::start(Setup::default()).await;
    let waiting = number(200, 1000) as u32;
    let (requests, sent) = mpsc::channel(10);
    let mut client = attacked.client().await;
    let mut stream = client.subscribe(ReceiverStream::new(sent)).await.unwrap().into_inner();
    let nothing = || pb::WatchRequest { namespace: "d".to_owned(), name: "none".to_owned(), ..watch() };
    requests.send(subscribe([nothing()])).await.unwrap();
    let first = within(attack, stream.message()).await.unwrap().unwrap();
    let version = first.deliveries[0].responses[0].resource_version.clone();
    let (lineage, _) = version.rsplit_once('.').unwrap_or(("", &version));
    let lineage = if lineage.is_empty() { String::new() } else { format!("{lineage}.") };
    let future =
        || pb::WatchRequest { initial_events: 0, resource_version: format!("{lineage}999999999"), ..nothing() };
    let open = |id, watch| pb::OpenWatch { id, watch: Some(watch) };
    let open_waiting = (2..2 + waiting).map(|id| open(id, future())).collect();
    requests.send(pb::SubscribeRequest { open: open_waiting, ..Default::default() }).await.unwrap();
    let last = 2 + waiting;
    let request = pb::SubscribeRequest { close: vec![1], open: vec![open(last, nothing())], ..Default::default() };
    requests.send(request).await.unwrap();
    let (mut is_closed, mut is_open) = (false, false);
    while !is_closed || !is_open {
        for delivery in within(attack, stream.message()).await.unwrap().unwrap().deliveries {
            is_closed |= delivery.ended && delivery.watch_ids.contains(&1);
            is_open |= delivery.watch_ids.contains(&last);
            assert!(delivery.watch_ids.iter().all(|id| [1, last].contains(id)), "they wait: {delivery:?}");
        }
    }
    drop((requests, stream, client));
    attacked.recovers(attack).await;
}
