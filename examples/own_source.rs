//! `cargo run --example own_source`
//!
//! Serves a source of its own, behind a tower layer that refuses calls without the header `authorization: Bearer example`.

use std::{error::Error, sync::Arc, time::Duration};

use informerd::{
    app::{App, AppError, CallRequest, CallService, ServeOptions},
    cache::{Delta, List, ListVersion, ListerWatcher, SourceError, Watch},
    config::{AdminConfig, Config, GeneralConfig, ListenAddr},
    model::{Event, Object, ResourceVersion},
    watch::ProxyWatcher,
};
use tokio::sync::{mpsc, watch};
use tonic::Status;
use tower::{ServiceExt, layer::layer_fn, service_fn};

/// Source of one object, which changes with each tick of a clock. Its version is the tick.
struct Clock(watch::Receiver<u32>);

fn clock(tick: u32) -> Arc<Object> {
    let body = format!(r#"{{"metadata":{{"name":"clock"}},"tick":{tick}}}"#);
    Arc::new(Object::from_json(body, "clock", ResourceVersion::decimal(tick.into())).expect("a JSON map"))
}

impl ListerWatcher for Clock {
    async fn list(&self, _: ListVersion) -> Result<List, SourceError> {
        let tick = *self.0.borrow();
        Ok(List::new(vec![clock(tick)], ResourceVersion::decimal(tick.into())))
    }

    async fn watch(&self, from: ResourceVersion) -> Result<Watch, SourceError> {
        let ((events, receiver), mut ticks) = (mpsc::channel(16), self.0.clone());
        tokio::spawn(async move {
            loop {
                let now = clock(*ticks.borrow_and_update());
                let is_new = *now.version() > from;
                let is_dropped = is_new && events.send(Ok(Delta::event(Event::Modified(now)))).await.is_err();
                if is_dropped || ticks.changed().await.is_err() {
                    return;
                }
            }
        });
        Ok(Box::pin(ProxyWatcher::new(receiver)))
    }

    fn heartbeat(&self) -> Duration {
        Duration::from_secs(5)
    }
}

pub(crate) async fn start(listen: ListenAddr, ticks: watch::Receiver<u32>) -> Result<App, AppError> {
    let guard = layer_fn(|calls: CallService| {
        service_fn(move |call: CallRequest| {
            let is_allowed = call.headers().get("authorization").is_some_and(|given| given == "Bearer example");
            let answer = is_allowed.then(|| calls.clone().oneshot(call));
            async move {
                let Some(answer) = answer else { return Err(Status::unauthenticated("expected authorization: …")) };
                answer.await.map_err(|never| match never {})
            }
        })
    });
    let general = GeneralConfig { listen, ..GeneralConfig::default() };
    let config = Config { general, admin: AdminConfig { listen: None, ..AdminConfig::default() }, ..Config::default() };
    App::builder(config).serve("clocks", ServeOptions::default(), Clock(ticks)).layer(guard).start().await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (clock, ticks) = watch::channel(1);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            clock.send_modify(|tick| *tick += 1);
        }
    });
    let app = start("127.0.0.1:50051".parse()?, ticks).await?;
    Ok(app.run(async { drop(tokio::signal::ctrl_c().await) }).await?)
}
