//! Resources of the server, each with its thread and its tasks, and their exchange at a reload.

use std::{collections::BTreeMap, future::pending, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    authorization,
    connector::{Connected, Connector},
    error::AppError,
    writer::RuntimeThread,
};
use crate::{
    config::{Config, ResourceConfig, SourceConfig},
    grpc::{ResourceEnd, Service},
    telemetry::ObservedResource,
};

/// Resources that are served, by their names.
pub(super) struct Resources {
    connector: Connector,
    running: BTreeMap<String, Running>,
    /// Tasks that each end with the name of their resource, once its own tasks have ended.
    tasks: JoinSet<Result<String, AppError>>,
    /// Error of a task that ended during an exchange.
    failure: Option<AppError>,
    observed: Arc<ArcSwap<Vec<ObservedResource>>>,
    changes: watch::Sender<()>,
}

/// Resource whose tasks run.
struct Running {
    config: ResourceConfig,
    observed: ObservedResource,
    stop: CancellationToken,
}

/// Names of the resources that a reload has changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Exchanged {
    pub(super) added: Vec<String>,
    pub(super) replaced: Vec<String>,
    pub(super) removed: Vec<String>,
}

/// Time for the tasks of a replaced resource to end before those of its successor begin: both may read the same pipe.
const END_TIMEOUT: Duration = Duration::from_secs(1);

// === impl Resources ===

impl Resources {
    /// Connects the resources of a configuration.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started.
    pub(super) fn start(connector: Connector, resources: &BTreeMap<String, ResourceConfig>) -> Result<Self, AppError> {
        let (tasks, changes) = (JoinSet::new(), watch::Sender::new(()));
        let (running, failure, observed) = (BTreeMap::new(), None, Arc::default());
        let mut started = Self { connector, running, tasks, failure, observed, changes };
        started.connector.prepare(resources)?;
        for resource in resources.values() {
            let writer = thread(&resource.name)?;
            started.connect(writer, resource);
        }
        started.observe();
        Ok(started)
    }

    /// Returns what metrics are read from, which changes with the resources.
    pub(super) fn observed(&self) -> Arc<ArcSwap<Vec<ObservedResource>>> {
        Arc::clone(&self.observed)
    }

    /// Returns a receiver that is notified after an exchange.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Waits until a task of a resource ends that should not, and returns the error. Cancel-safe.
    pub(super) async fn failed(&mut self) -> AppError {
        loop {
            if let Some(failure) = self.failure.take() {
                return failure;
            }
            if self.ended().await.is_none() && self.failure.is_none() {
                return pending().await;
            }
        }
    }

    /// Waits until the tasks of a resource have ended. Returns its name, or keeps the error; `None` also if there are no tasks.
    /// Cancel-safe.
    async fn ended(&mut self) -> Option<String> {
        match self.tasks.join_next().await? {
            Ok(Ok(resource)) => return Some(resource),
            Ok(Err(error)) => self.failure = Some(error),
            Err(error) => self.failure = Some(AppError::ended(Err(error))),
        }
        None
    }

    /// Exchanges the resources that differ from those of a configuration, and leaves the others as they are. The watches of those
    /// that are removed or replaced end. Sources of the program itself stay.
    ///
    /// # Errors
    ///
    /// If a resource has the name of one of the program, or a thread cannot be started; then nothing is exchanged.
    pub(super) async fn exchange(&mut self, config: &Config, service: &Service) -> Result<Exchanged, AppError> {
        let resources = &config.resources;
        let is_own = |running: &Running| running.config.source == SourceConfig::Own;
        if let Some(name) = resources.keys().find(|name| self.running.get(*name).is_some_and(is_own)) {
            return Err(AppError::of_resource(name, "the program serves a resource of this name; choose another"));
        }
        let is_new = |resource: &&ResourceConfig| {
            self.running.get(&resource.name).is_none_or(|running| running.config != **resource)
        };
        let new: Vec<&ResourceConfig> = resources.values().filter(is_new).collect();
        self.connector.prepare(resources)?;
        let threads: Vec<RuntimeThread> =
            new.iter().map(|resource| thread(&resource.name)).collect::<Result<_, _>>()?;

        let mut exchanged = Exchanged::default();
        let is_gone = |(name, running): &(&String, &Running)| !is_own(running) && !resources.contains_key(*name);
        exchanged.removed = self.running.iter().filter(is_gone).map(|(name, _)| name.clone()).collect();
        for resource in &new {
            let is_replaced = self.running.contains_key(&resource.name);
            let names = if is_replaced { &mut exchanged.replaced } else { &mut exchanged.added };
            names.push(resource.name.clone());
        }
        self.end(&exchanged.removed, ResourceEnd::Removed);
        self.end(&exchanged.replaced, ResourceEnd::Replaced);
        // Calls still find them and are refused with the reason, so that clients resume with those that follow.
        self.until_ended(&exchanged.replaced).await;
        // No call begins to read the old ones any more: nobody reads one with rights to the other.
        if let Some(authorizer) = &service.config().access.authorizer {
            authorization::update(authorizer, config);
        }
        for (resource, writer) in new.into_iter().zip(threads) {
            self.connect(writer, resource);
        }
        self.publish(service);
        self.changes.send_replace(());
        Ok(exchanged)
    }

    /// Ends all tasks at once; waits for them.
    pub(super) async fn shutdown(&mut self) {
        self.tasks.shutdown().await;
    }

    fn connect(&mut self, writer: RuntimeThread, resource: &ResourceConfig) {
        let Connected { observed, tasks, stop } = self.connector.resource(&writer, resource);
        self.tasks.spawn(supervise(resource.name.clone(), tasks, stop.clone(), writer));
        self.running.insert(resource.name.clone(), Running { config: resource.clone(), observed, stop });
    }

    fn end(&mut self, names: &[String], end: ResourceEnd) {
        for running in names.iter().filter_map(|name| self.running.remove(name)) {
            if let Some(snapshot_writer) = &self.connector.snapshot_writer {
                snapshot_writer.remove(&running.config.name);
            }
            running.observed.resource.calls.end(end);
            running.stop.cancel();
        }
    }

    /// Waits until the tasks of these resources have ended, for a limited time.
    async fn until_ended(&mut self, names: &[String]) {
        let deadline = Instant::now() + END_TIMEOUT;
        let mut missing = names.to_vec();
        while !missing.is_empty()
            && let Ok(Some(ended)) = timeout_at(deadline, self.ended()).await
        {
            missing.retain(|name| *name != ended);
        }
    }

    fn publish(&self, service: &Service) {
        self.observe();
        service.set_resources(self.running.values().map(|running| running.observed.resource.clone()));
    }

    fn observe(&self) {
        self.observed.store(Arc::new(self.running.values().map(|running| running.observed.clone()).collect()));
    }
}

debug_fields!(Resources, this => { running: this.running.keys() });

fn thread(resource: &str) -> Result<RuntimeThread, AppError> {
    RuntimeThread::start("writer", || ()).map_err(|error| AppError::thread(resource, &error))
}

/// Waits until the tasks of a resource have ended, and drops their thread then; returns the name of the resource.
///
/// # Errors
///
/// If one ends without `stop`, or panics.
async fn supervise(
    resource: String,
    mut tasks: JoinSet<String>,
    stop: CancellationToken,
    writer: RuntimeThread,
) -> Result<String, AppError> {
    // The tasks are dropped before the thread that they run on.
    let _writer = writer;
    while let Some(ended) = tasks.join_next().await {
        if ended.is_err() || !stop.is_cancelled() {
            return Err(AppError::ended(ended));
        }
    }
    Ok(resource)
}
