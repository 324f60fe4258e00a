//! Shutdown of a server: the versions with which watches end.

use std::time::Duration;

use futures_util::stream;
use informerd::{
    app::{App, ServeOptions},
    cache::{Delta, List, ListVersion, ListerWatcher, ProgressDemand, SourceError, Watch},
    config::{AdminConfig, Config, GeneralConfig},
    model::{Event, ResourceVersion},
    proto::pb::{self, informer_service_client::InformerServiceClient},
};
use tokio::sync::oneshot;

use crate::sandbox::DEADLINE;

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

/// Returns the version with which a watch ends when the server shuts down.
async fn last_version(source: Quiet) -> String {
    let general = GeneralConfig { listen: "127.0.0.1:0".parse().unwrap(), ..GeneralConfig::default() };
    let config = Config { general, admin: AdminConfig { listen: None, ..AdminConfig::default() }, ..Config::default() };
    let app = App::builder(config).serve("quiet", ServeOptions::default(), source).start().await.unwrap();
    let address = format!("http://{}", app.grpc_address());
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(app.run(async { drop(stopped.await) }));
    let mut client = InformerServiceClient::connect(address).await.unwrap();
    let request = pb::WatchRequest { resource: "quiet".into(), ..Default::default() };
    let mut watch = client.watch(request).await.unwrap().into_inner();
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
