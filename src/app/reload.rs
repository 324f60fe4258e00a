//! Reload of the configuration: at a request, and when the content of its file has changed.
//!
//! It is all or nothing: a configuration with an error, or with another value of a key that cannot change while the server runs,
//! changes nothing, and the last good one stays in use. What can change: `resources`, and the rules of `authorization.rules`.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use arc_swap::ArcSwap;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{
        MetricType,
        gauge::{ConstGauge, Gauge},
    },
    registry::{Registry, Unit},
};
use ring::digest::SHA256;
use serde_json::{Map, Value};
use tokio::{sync::Notify, time};

use super::{authorization, error::AppError, sources};
use crate::{
    auth::Rules,
    config::{self, AuthorityConfig, Config, ConfigErrors, ResourceConfig, ServeFlags, changed_keys},
    source::kube::KubeClients,
};

/// Handle to request a reload of the configuration; clones are handles of the same server.
#[derive(Debug, Clone, Default)]
pub struct Reloader {
    requests: Arc<Notify>,
}

/// Origin of the configuration, which is read again.
#[derive(Debug)]
pub(super) struct ConfigSource {
    flags: ServeFlags,
    /// Keys of the file that is in use.
    file: Map<String, Value>,
    reloader: Reloader,
    /// Content of the file at the last attempt, at most 1 MiB; none if it could not be read.
    content: Option<Vec<u8>>,
    metrics: ReloadMetrics,
}

/// Outcome of the reloads, under the names that Prometheus uses for its own.
#[derive(Debug, Clone, Default)]
struct ReloadMetrics {
    is_successful: Gauge,
    success_time: Gauge,
    hash: ConfigHash,
}

/// Hash of the keys of the file that is in use: it tells whether replicas have the same configuration.
#[derive(Debug, Clone, Default)]
struct ConfigHash(Arc<ArcSwap<String>>);

/// Configuration that was read, and the keys of its file.
pub(super) type Loaded = (Config, Map<String, Value>);

/// Time in which the files that a resource or the authority needs have to be read.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval at which the file is checked for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

// === impl Reloader ===

impl Reloader {
    /// Requests a reload. Requests during a reload lead to one more.
    pub fn reload(&self) {
        self.requests.notify_one();
    }
}

// === impl ConfigSource ===

impl ConfigSource {
    /// Loads the configuration of these flags, and returns its source, too.
    pub(super) fn load(flags: ServeFlags) -> Result<(Config, Self), ConfigErrors> {
        // Read first: a change in between leads to a reload.
        let content = content(&flags);
        let (config, file) = Config::load_with_file(&flags)?;
        let source = Self { flags, file, reloader: Reloader::default(), content, metrics: ReloadMetrics::default() };
        source.metrics.succeed(&source.file);
        Ok((config, source))
    }

    pub(super) fn reloader(&self) -> &Reloader {
        &self.reloader
    }

    /// Registers the metrics of the reloads.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "informerd_config_last_reload_successful",
            "1 if the configuration in use is that of the file at the last attempt to load it",
            self.metrics.is_successful.clone(),
        );
        registry.register_with_unit(
            "informerd_config_last_reload_success_timestamp",
            "Time at which the configuration in use was loaded",
            Unit::Seconds,
            self.metrics.success_time.clone(),
        );
        registry.register_collector(Box::new(self.metrics.hash.clone()));
    }

    /// Waits until a reload is requested or the file has changed, and reads the configuration and the files that it names then.
    ///
    /// # Errors
    ///
    /// If it cannot be used, as one line.
    ///
    /// # Cancel safety
    ///
    /// A request whose configuration is being read is lost.
    pub(super) async fn next(&mut self, current: &Config) -> Result<Loaded, String> {
        loop {
            let is_requested = tokio::select! {
                () = self.reloader.requests.notified() => true,
                () = time::sleep(CHECK_INTERVAL) => false,
            };
            let (flags, last) = (self.flags.clone(), self.content.take());
            // The reads would block a thread of the runtime, on a network file system for long.
            let reading = tokio::task::spawn_blocking(move || {
                let content = content(&flags);
                let is_changed = is_requested || content != last;
                (content, is_changed.then(|| load(&flags)))
            });
            let (content, loaded) = reading.await.map_err(|error| error.to_string())?;
            self.content = content;
            let Some(loaded) = loaded else { continue };
            let loaded = loaded?;
            self.check(current, &loaded)?;
            check_files(current, &loaded.0).await?;
            return Ok(loaded);
        }
    }

    /// Checks that no key differs that cannot change while the server runs.
    fn check(&self, current: &Config, (config, file): &Loaded) -> Result<(), String> {
        if fixed(current) == fixed(config) {
            return Ok(());
        }
        let is_fixed = |key: &String| !key.starts_with("resources.") && key != "authorization.rules";
        let changed = changed_keys(&self.file, file).into_iter().filter(is_fixed);
        let keys = changed.map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
        Err(format!("{keys} cannot change while the server runs: restart it, or restore the former value"))
    }

    /// Records the outcome of a reload: the file that is in use now, or the reason why it is not. Returns the reason.
    pub(super) fn record(&mut self, outcome: Result<Map<String, Value>, String>) -> Option<String> {
        match outcome {
            Ok(file) => {
                self.file = file;
                self.metrics.succeed(&self.file);
                None
            }
            Err(error) => {
                self.metrics.is_successful.set(0);
                tracing::warn!(error, "configuration not reloaded, last good one in use");
                Some(error)
            }
        }
    }
}

/// Returns the parts of a configuration that cannot change.
fn fixed(config: &Config) -> Config {
    let mut fixed = Config { resources: BTreeMap::new(), ..config.clone() };
    if let Some(AuthorityConfig::Rules(rules)) = &mut fixed.authorization.authority {
        *rules = Rules::default();
    }
    fixed
}

/// Returns the content of the file that these flags name.
fn content(flags: &ServeFlags) -> Option<Vec<u8>> {
    config::content(flags.config.as_deref()?)
}

/// Reads the configuration again.
///
/// # Errors
///
/// All problems, as one line. A pipe, which may have no content a second time and would block, is not read.
fn load(flags: &ServeFlags) -> Result<Loaded, String> {
    if let Some(path) = flags.config.as_deref().filter(|path| path.exists() && !path.is_file()) {
        return Err(format!("{}: not a regular file, and can be read only once: restart the server", path.display()));
    }
    Config::load_with_file(flags).map_err(|errors| errors.lines().collect::<Vec<_>>().join("; "))
}

/// Checks that the files of the authority, and of the resources that differ, can be read.
async fn check_files(current: &Config, config: &Config) -> Result<(), String> {
    let owned = config.clone();
    let check = move || {
        let authorizer = authorization::load(&owned, &KubeClients::default())?;
        authorization::warn(&owned, authorizer.as_ref());
        Ok(())
    };
    in_time("authorization", check).await?;
    let differs = |resource: &&ResourceConfig| current.resources.get(&resource.name) != Some(*resource);
    for resource in config.resources.values().filter(differs).cloned() {
        in_time(&format!("resource {}", resource.name), move || sources::check(&resource)).await?;
    }
    Ok(())
}

/// Runs a check on a thread for blocking work. It may never end, on a network file system whose server is gone or at a named pipe; then
/// the thread is left to it.
async fn in_time(of: &str, check: impl FnOnce() -> Result<(), AppError> + Send + 'static) -> Result<(), String> {
    match time::timeout(READ_TIMEOUT, tokio::task::spawn_blocking(check)).await {
        Ok(Ok(checked)) => checked.map_err(|error| error.to_string()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("{of}: its files cannot be read within {READ_TIMEOUT:?}")),
    }
}

// === impl ReloadMetrics ===

impl ReloadMetrics {
    fn succeed(&self, file: &Map<String, Value>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.is_successful.set(1);
        self.success_time.set(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        // Keys are sorted, and comments are left out.
        let digest = ring::digest::digest(&SHA256, Value::Object(file.clone()).to_string().as_bytes());
        let hash = digest.as_ref().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        self.hash.0.store(Arc::new(format!("{hash:016x}")));
    }
}

// === impl ConfigHash ===

impl Collector for ConfigHash {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let help = "Hash of the keys of the configuration file in use.";
        let mut family = encoder.encode_descriptor("informerd_config_info", help, None, MetricType::Gauge)?;
        ConstGauge::new(1_i64).encode(family.encode_family(&[("hash", self.0.load().as_str())])?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_file_that_is_never_read_is_an_error() {
        let (release, released) = std::sync::mpsc::channel::<()>();
        let check = move || {
            released.recv().unwrap_err();
            Ok(())
        };
        let checked = tokio::spawn(in_time("resource x", check));
        tokio::task::yield_now().await;
        time::advance(READ_TIMEOUT).await;
        assert_eq!(checked.await.unwrap().unwrap_err(), "resource x: its files cannot be read within 30s");
        drop(release);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_of_the_file_is_noticed_and_an_error_is_reported_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("informerd.yaml");
        let write = |keys: &str| {
            let text = format!("{{ {keys} resources: {{ x: {{ source: {{ files: {{ path: . }} }} }} }} }}");
            fs::write(&path, text).unwrap();
        };
        write("");
        let flags = ServeFlags { config: Some(path.clone()), ..ServeFlags::default() };
        let (config, mut source) = ConfigSource::load(flags).unwrap();
        let quiet = async |source: &mut ConfigSource| {
            // The time stands still while the file is read.
            time::timeout(CHECK_INTERVAL * 3, source.next(&config)).await.is_err()
        };
        assert!(quiet(&mut source).await);
        write("# a comment\n");
        assert_eq!(source.next(&config).await.unwrap().0, config);
        assert!(quiet(&mut source).await);
        write("watch: { queue_length: 7 },");
        let expected =
            "`watch.queue_length` cannot change while the server runs: restart it, or restore the former value";
        assert_eq!(source.next(&config).await.unwrap_err(), expected);
        assert!(quiet(&mut source).await, "reported once");
        source.reloader().reload();
        assert_eq!(source.next(&config).await.unwrap_err(), expected, "a request reads it again");
        fs::remove_file(&path).unwrap();
        assert!(source.next(&config).await.unwrap_err().contains("no such file"));
        fs::create_dir(&path).unwrap();
        source.reloader().reload();
        assert!(source.next(&config).await.unwrap_err().contains("not a regular file, and can be read only once"));
        fs::remove_dir(&path).unwrap();
        // With the defaults written out, the values are the same.
        write("watch: { queue_length: 1024 },");
        assert_eq!(source.next(&config).await.unwrap().0, config);
    }
}
