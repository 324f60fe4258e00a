//! Reload of the configuration: at a request, and when the content of its file has changed.
//!
//! It is all or nothing: a configuration with an error, or with another value of a key that cannot change while the server runs,
//! changes nothing, and the last good one stays in use. What can change: `resources`, and the rules of `authorization.rules`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prometheus_client::{
    metrics::gauge::Gauge,
    registry::{Registry, Unit},
};
use ring::digest::{SHA256, digest};
use tokio::{sync::Notify, time};

use crate::config::{AuthorityConfig, Config, KeyValue, ServeFlags};

/// Handle to request a reload of the configuration; clones are handles of the same server.
#[derive(Debug, Clone, Default)]
pub struct Reloader {
    requests: Arc<Notify>,
}

/// Origin of the configuration, which is read again.
#[derive(Debug)]
pub(super) struct ConfigSource {
    flags: ServeFlags,
    /// Values of the keys in use.
    values: BTreeMap<String, KeyValue>,
    reloader: Reloader,
    /// Digest of the file at the last attempt; none if it could not be read.
    digest: Option<Vec<u8>>,
    metrics: ReloadMetrics,
}

/// Outcome of the reloads, under the names that Prometheus uses for its own.
#[derive(Debug, Clone, Default)]
struct ReloadMetrics {
    is_successful: Gauge,
    success_time: Gauge,
}

/// Configuration that was read, and the values of its keys.
pub(super) type Loaded = (Config, BTreeMap<String, KeyValue>);

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
    /// Returns the source of a configuration that was loaded from these flags.
    pub(super) fn new(flags: ServeFlags, values: BTreeMap<String, KeyValue>) -> Self {
        let digest = digest_of(&flags);
        let source = Self { flags, values, reloader: Reloader::default(), digest, metrics: ReloadMetrics::default() };
        source.metrics.succeed();
        source
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
    }

    /// Waits until a reload is requested or the file has changed, and reads the configuration then.
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
            let (flags, last) = (self.flags.clone(), self.digest.take());
            // The reads would block a thread of the runtime, on a network file system for long.
            let reading = tokio::task::spawn_blocking(move || {
                let digest = digest_of(&flags);
                let is_changed = is_requested || digest != last;
                (digest, is_changed.then(|| Config::load_with_values(&flags)))
            });
            let (digest, loaded) = reading.await.map_err(|error| error.to_string())?;
            self.digest = digest;
            let Some(loaded) = loaded else { continue };
            let loaded = loaded.map_err(|errors| errors.to_string().replace('\n', "; "))?;
            self.check(current, &loaded)?;
            return Ok(loaded);
        }
    }

    /// Checks that no key differs that cannot change while the server runs.
    fn check(&self, current: &Config, (config, values): &Loaded) -> Result<(), String> {
        let is_fixed = |key: &&String| !key.starts_with("resources.") && *key != "authorization.rules";
        let value = |values: &BTreeMap<String, KeyValue>, key: &String| values.get(key).map(|of| of.value.clone());
        let keys: BTreeSet<&String> = self.values.keys().chain(values.keys()).filter(is_fixed).collect();
        let changed = keys.into_iter().filter(|key| value(&self.values, key) != value(values, key));
        let mut changed: Vec<String> = changed.map(|key| format!("`{key}`")).collect();
        if changed.is_empty() && fixed(current) != fixed(config) {
            changed.push("a key outside of `resources`".to_owned());
        }
        if changed.is_empty() {
            return Ok(());
        }
        let keys = changed.join(", ");
        Err(format!("{keys} cannot change while the server runs: restart it, or restore the former value"))
    }

    /// Records the outcome of a reload: the values in use, or the reason why they stay. Returns the reason.
    pub(super) fn record(&mut self, outcome: Result<BTreeMap<String, KeyValue>, String>) -> Option<String> {
        match outcome {
            Ok(values) => {
                self.values = values;
                self.metrics.succeed();
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
        *rules = crate::auth::Rules::default();
    }
    fixed
}

/// Returns the digest of the file that these flags name; none if it cannot be read.
fn digest_of(flags: &ServeFlags) -> Option<Vec<u8>> {
    let content = fs::read(flags.config.as_deref()?).ok()?;
    Some(digest(&SHA256, &content).as_ref().to_vec())
}

// === impl ReloadMetrics ===

impl ReloadMetrics {
    fn succeed(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.is_successful.set(1);
        self.success_time.set(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let (config, values) = Config::load_with_values(&flags).unwrap();
        let mut source = ConfigSource::new(flags, values);
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
        // With the defaults written out, the values are the same.
        write("watch: { queue_length: 1024 },");
        assert_eq!(source.next(&config).await.unwrap().0, config);
    }
}
