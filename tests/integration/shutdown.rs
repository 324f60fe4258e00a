//! Shutdown of a server: the versions with which watches end, and the end of its connections.

use std::time::Duration;

use futures_util::stream;
use informerd::{
    app::{App, AppError, ServeOptions},
    cache::{Delta, List, ListVersion, ListerWatcher, ProgressDemand, SourceError, Watch},
    config::{AdminConfig, Config, GeneralConfig},
    model::{Event, ResourceVersion},
    proto::pb::{self, informer_service_client::InformerServiceClient},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
    task::JoinHandle,
};

use crate::{
    attacks::frames::{FrameReader, MAX_WINDOW, PING, WATCH, call_with, frame, opening},
    sandbox::DEADLINE,
};

/// Source without objects, of a quiet resource. Its upstream is at version 2, and reports that on request.
struct Quiet {
    demand: ProgressDemand,
}

impl ListerWatcher for Quiet {
    async fn list(&self, _: ListVersion) -> Result<List, SourceError> {
        Ok(List::new(Vec::new(), ResourceVersion::decimal(1)))
    }

    async fn watch(&self, _: ResourceVersion) -> Result<Watch, SourceError> {
        let demand = self.demand.clone();
        Ok(Box::pin(stream::unfold(demand, |demand| async move {
            demand.wanted().await;
            tokio::time::sleep(Duration::from_millis(5)).await;
            Some((Ok(Delta::event(Event::Bookmark(ResourceVersion::decimal(2)))), demand))
        })))
    }

    fn heartbeat(&self) -> Duration {
        Duration::MAX
    }

    fn demand(&self) -> ProgressDemand {
        self.demand.clone()
    }
}

/// Server of one quiet resource.
struct Server {
    address: String,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<(), AppError>>,
}

async fn serve(source: Quiet) -> Server {
    let general = GeneralConfig { listen: "127.0.0.1:0".parse().unwrap(), ..GeneralConfig::default() };
    let config = Config { general, admin: AdminConfig { listen: None, ..AdminConfig::default() }, ..Config::default() };
    let app = App::builder(config).serve("quiet", ServeOptions::default(), source).start().await.unwrap();
    let address = app.grpc_address().to_string();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(app.run(async { drop(stopped.await) }));
    Server { address, stop, running }
}

fn watch() -> pb::WatchRequest {
    pb::WatchRequest { resource: "quiet".into(), ..Default::default() }
}

/// Returns the version with which a watch ends when the server shuts down.
async fn last_version(source: Quiet) -> String {
    let Server { address, stop, running } = serve(source).await;
    let mut client = InformerServiceClient::connect(format!("http://{address}")).await.unwrap();
    let mut watch = client.watch(watch()).await.unwrap().into_inner();
    let first = watch.message().await.unwrap().unwrap();
    assert!(first.resource_version == "1" && first.bookmark.unwrap().initial_events_end);
    stop.send(()).unwrap();
    let last = async {
        loop {
            let message = watch.message().await.unwrap().unwrap();
            if message.bookmark.is_some_and(|bookmark| bookmark.draining) {
                return message.resource_version;
            }
        }
    };
    let last = tokio::time::timeout(DEADLINE, last).await.expect("the watch ends");
    tokio::time::timeout(DEADLINE, running).await.expect("the server ends").unwrap().unwrap();
    last
}

/// A server that has listed since the last report of the upstream has no history from before: a client that is sent there with an
/// older version lists again.
#[tokio::test]
async fn watches_end_at_the_version_that_the_upstream_reports_on_request() {
    assert_eq!(last_version(Quiet { demand: ProgressDemand::met() }).await, "2");
}

/// Closed before its client has read everything, a connection would be reset by the next frame of the client, and the last bookmark
/// with its version would be lost.
#[tokio::test]
async fn a_drained_connection_takes_frames_until_its_client_closes_it() {
    let Server { address, stop, running } = serve(Quiet { demand: ProgressDemand::met() }).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(&opening(MAX_WINDOW)).await.unwrap();
    stream.write_all(&call_with(1, WATCH, &watch())).await.unwrap();
    let mut reader = FrameReader::default();
    let mut stop = Some(stop);
    let all = async {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let count = stream.read(&mut buffer).await.unwrap();
            if count == 0 {
                return;
            }
            for frame in reader.read(&buffer[..count]) {
                if frame.stream == 1 {
                    stop.take().map(|stop| stop.send(()));
                }
                if let Some(acknowledgement) = frame.acknowledgement() {
                    stream.write_all(&acknowledgement).await.unwrap();
                }
            }
        }
    };
    tokio::time::timeout(DEADLINE, all).await.expect("the server ends its side");
    // The answer to a reset is seen by the next write.
    for _ in 0..10 {
        stream.write_all(&frame(PING, 0, 0, &[0; 8])).await.expect("the connection is not reset");
        tokio::task::yield_now().await;
    }
    drop(stream);
    tokio::time::timeout(DEADLINE, running).await.expect("the server ends").unwrap().unwrap();
}
