//! `informerd watch --state`: the whole list, once synced and after changes.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::interval};

use crate::{
    cache::{
        KeyFunc, Reflector, ReflectorConfig, ReflectorError, ReflectorStats, SourceError, SourceHealth, SyncState,
        UndeltaStore,
    },
    cli::{
        client_flags::{ObjectFlags, ServerFlags},
        failure::Failure,
        print::{PrintOptions, stdout, write_list},
        reader::Reader,
        signals::Signals,
    },
    client::Query,
    model::Object,
    proto::{self, PayloadFormat},
    source::relay::{RelayConfig, RelaySource},
};

type State = Vec<Arc<Object>>;

/// Output so far.
struct StatePrinter<'a> {
    resource: &'a str,
    server: &'a ServerFlags,
    options: PrintOptions,
    stats: Arc<ReflectorStats>,
    last: Option<State>,
    is_stale: bool,
}

/// Silence beyond the heartbeat of the server after which the state is stale, as in a server.
const STALE_AFTER: Duration = Duration::from_secs(15);
/// Interval at which the health of the upstream is compared with the one that was noted.
const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

pub(super) async fn run(resource: &str, query: Query, objects: &ObjectFlags) -> Result<(), Failure> {
    let server = &objects.server;
    let (mut signals, reader) = (Signals::of_writer()?, Reader::new());
    // The first failure ends the command, as without --state: later ones are repeated.
    let client = server.connect_lazy()?;
    tokio::select! {
        tried = server.try_watch(&client, &query) => tried?,
        _ = signals.next() => return Ok(()),
    }
    let (address, tls) = server.upstream()?;
    let config = RelayConfig { query, tls, ..RelayConfig::new(address, resource) };
    let health = SourceHealth::new(config.heartbeat, STALE_AFTER);
    let source = RelaySource::new(config, health.clone());
    let (push, mut states) = watch::channel(State::new());
    let store = Arc::new(UndeltaStore::new(KeyFunc::default(), move |state| drop(push.send_replace(state))));
    let notes = server.clone();
    let config = ReflectorConfig { name: Some(resource.to_owned()), ..ReflectorConfig::default() };
    let config = config.with_error_handler(move |error| note_error(&notes, error));
    let reflector = Reflector::new(source, store, health.clone(), config);
    let mut printer = StatePrinter {
        resource,
        server,
        options: objects.options(),
        stats: Arc::clone(reflector.stats()),
        last: None,
        is_stale: false,
    };
    let mut following = Box::pin(reflector.run());
    let mut health_checks = interval(HEALTH_INTERVAL);
    loop {
        tokio::select! {
            // Cancel-safe: no arm loses anything when another one wins, and `following` continues.
            _ = signals.next() => return Ok(()),
            () = reader.gone() => return Ok(()),
            () = &mut following => return Ok(()),
            // Only the last state is there, whatever the time that printing takes.
            Ok(()) = states.changed() => {
                let state = states.borrow_and_update().clone();
                printer.print(state)?;
            }
            _ = health_checks.tick() => {}
        }
        printer.note_health(health.state());
    }
}

/// Prints a note about an error. An expired version is none: a list follows.
fn note_error(server: &ServerFlags, error: &ReflectorError) {
    if !matches!(error, ReflectorError::Watch(SourceError::Expired(_))) {
        server.note(&format_args!("# {error}"));
    }
}

// === impl StatePrinter ===

impl StatePrinter<'_> {
    /// Prints a state, unless it has the same objects as the last one: a relist may have found no change.
    fn print(&mut self, state: State) -> Result<(), Failure> {
        if self.last.as_ref().is_some_and(|last| is_same(last, &state)) {
            return Ok(());
        }
        let objects = state.iter().map(|object| proto::object(object, object.version(), PayloadFormat::Raw)).collect();
        let is_first = self.last.is_none();
        write_list(objects, is_first, stdout(), &self.options)?;
        if is_first {
            let count = state.len();
            let objects = if count == 1 { "object" } else { "objects" };
            let version = self.stats.last_sync_resource_version();
            let version = version.map(|version| format!(" at {version}")).unwrap_or_default();
            self.server.note(&format_args!("# synced: {count} {objects}{version}"));
        }
        self.last = Some(state);
        Ok(())
    }

    /// Prints a note if the state of the upstream has changed since the first list.
    fn note_health(&mut self, state: SyncState) {
        let is_stale = self.last.is_some() && state == SyncState::Stale;
        if std::mem::replace(&mut self.is_stale, is_stale) != is_stale {
            let what = if is_stale { "upstream unreachable" } else { "upstream reachable again" };
            self.server.note(&format_args!("# {}: {what}", self.resource));
        }
    }
}

/// Returns true if two states have the same objects with the same bytes. In a view the labels are no part of these.
fn is_same(last: &State, state: &State) -> bool {
    let is_same = |old: &Arc<Object>, new: &Arc<Object>| {
        Arc::ptr_eq(old, new)
            || (old.key() == new.key()
                && old.uid() == new.uid()
                && old.body() == new.body()
                && old.labels().iter().eq(new.labels().iter()))
    };
    last.len() == state.len() && last.iter().zip(state).all(|(old, new)| is_same(old, new))
}
