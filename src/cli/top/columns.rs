//! Columns of the two tables: text, order and width.

use std::{
    cmp::Ordering,
    time::{Duration, SystemTime},
};

use clap::ValueEnum;

use super::sample::{ResourceFigures, WatcherFigures};
use crate::{
    cli::print::{
        age::age_of,
        quantity::{byte_rate, bytes, count, delay, rate},
    },
    proto::{
        self,
        pb::{self, SyncState},
    },
};

/// Column, by which a table can be sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub(super) enum Key {
    Name,
    Id,
    Client,
    Resource,
    Selection,
    Policy,
    State,
    Objects,
    Changes,
    Queue,
    Lag,
    Drops,
    Events,
    Bytes,
    Cache,
    History,
    Watchers,
    Parked,
    Held,
    Age,
}

/// Meaning of a cell's text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Tone {
    #[default]
    Plain,
    Warning,
    Error,
}

/// Column of a table.
#[derive(Debug)]
pub(super) struct Column<R: 'static> {
    pub(super) key: Key,
    pub(super) header: &'static str,
    /// Width of numbers and fixed words; the least width of a text.
    pub(super) width: u16,
    /// True for texts of any length, which get the width that is left.
    pub(super) is_text: bool,
    /// Columns with a high rank are left out first where there is no room.
    pub(super) rank: u8,
    pub(super) cell: fn(&R, SystemTime) -> (String, Tone),
    /// Order of ascending values.
    pub(super) order: fn(&R, &R) -> Ordering,
}

/// Row of a table.
pub(super) trait Row: Sized + 'static {
    const COLUMNS: &'static [Column<Self>];
    /// Column that it is sorted by at first.
    const SORTED_BY: Key;

    /// Identity of the row across samples.
    type Id: Clone + PartialEq + std::fmt::Debug;

    fn id(&self) -> Self::Id;

    /// Returns true if a filter in lower case is part of a text of the row.
    fn matches(&self, filter: &str) -> bool;
}

// === impl Key ===

impl Key {
    /// Returns true if the largest value comes first.
    pub(super) fn is_descending(self) -> bool {
        match self {
            Self::Name | Self::Id | Self::Client | Self::Resource | Self::Selection | Self::Policy | Self::State => {
                false
            }
            Self::Objects
            | Self::Changes
            | Self::Queue
            | Self::Lag
            | Self::Drops
            | Self::Events
            | Self::Bytes
            | Self::Cache
            | Self::History
            | Self::Watchers
            | Self::Parked
            | Self::Held
            | Self::Age => true,
        }
    }
}

// === impl ResourceFigures ===

impl Row for ResourceFigures {
    const COLUMNS: &'static [Column<Self>] = &[
        Column {
            key: Key::Name,
            header: "NAME",
            width: 11,
            is_text: true,
            rank: 0,
            cell: |row, _| plain(row.resource.name.clone()),
            order: |one, other| one.resource.name.cmp(&other.resource.name),
        },
        Column {
            key: Key::State,
            header: "STATE",
            width: 7,
            is_text: false,
            rank: 0,
            cell: |row, _| state_of(&row.resource),
            order: |one, other| one.resource.state.cmp(&other.resource.state),
        },
        Column {
            key: Key::Objects,
            header: "OBJECTS",
            width: 7,
            is_text: false,
            rank: 0,
            cell: |row, _| plain(count(row.resource.objects)),
            order: |one, other| one.resource.objects.cmp(&other.resource.objects),
        },
        Column {
            key: Key::Changes,
            header: "CHANGES/S",
            width: 9,
            is_text: false,
            rank: 0,
            cell: |row, _| plain(rate(row.rates.changes)),
            order: |one, other| by_rate(one.rates.changes, other.rates.changes),
        },
        Column {
            key: Key::Events,
            header: "EVENTS/S",
            width: 8,
            is_text: false,
            rank: 0,
            cell: |row, _| plain(rate(row.rates.events)),
            order: |one, other| by_rate(one.rates.events, other.rates.events),
        },
        Column {
            key: Key::Bytes,
            header: "BYTES/S",
            width: 7,
            is_text: false,
            rank: 0,
            cell: |row, _| plain(byte_rate(row.rates.bytes)),
            order: |one, other| by_rate(one.rates.bytes, other.rates.bytes),
        },
        Column {
            key: Key::Cache,
            header: "CACHE",
            width: 6,
            is_text: false,
            rank: 1,
            cell: |row, _| plain(bytes(row.stats.cache_bytes)),
            order: |one, other| one.stats.cache_bytes.cmp(&other.stats.cache_bytes),
        },
        Column {
            key: Key::History,
            header: "HISTORY",
            width: 7,
            is_text: false,
            rank: 4,
            cell: |row, _| plain(bytes(row.stats.history_bytes)),
            order: |one, other| one.stats.history_bytes.cmp(&other.stats.history_bytes),
        },
        Column {
            key: Key::Watchers,
            header: "WATCHERS",
            width: 8,
            is_text: false,
            rank: 0,
            cell: |row, _| plain(count(row.resource.watchers)),
            order: |one, other| one.resource.watchers.cmp(&other.resource.watchers),
        },
        Column {
            key: Key::Parked,
            header: "PARKED",
            width: 6,
            is_text: false,
            rank: 3,
            cell: |row, _| warn_if(row.stats.parked > 0, count(row.stats.parked)),
            order: |one, other| one.stats.parked.cmp(&other.stats.parked),
        },
        Column {
            key: Key::Lag,
            header: "LAG",
            width: 5,
            is_text: false,
            rank: 2,
            cell: |row, _| lag(row.stats.max_lag),
            order: |one, other| duration(one.stats.max_lag).cmp(&duration(other.stats.max_lag)),
        },
        Column {
            key: Key::Drops,
            header: "DROPS",
            width: 6,
            is_text: false,
            rank: 5,
            cell: |row, _| error_if(row.stats.dropped > 0, count(row.stats.dropped)),
            order: |one, other| one.stats.dropped.cmp(&other.stats.dropped),
        },
    ];

    const SORTED_BY: Key = Key::Name;

    type Id = String;

    fn id(&self) -> String {
        self.resource.name.clone()
    }

    fn matches(&self, filter: &str) -> bool {
        [&*self.resource.name, &self.resource.source, &state_of(&self.resource).0]
            .iter()
            .any(|text| text.to_lowercase().contains(filter))
    }
}

// === impl WatcherFigures ===

impl WatcherFigures {
    /// Returns the identity of the client; its address without one.
    pub(super) fn client(&self) -> &str {
        if self.watcher.identity.is_empty() { &self.watcher.peer } else { &self.watcher.identity }
    }

    /// Returns the state in lower case; empty for a server that does not report it.
    pub(super) fn state(&self) -> String {
        match self.watcher.state() {
            pb::WatcherState::Unspecified if self.watcher.parked => "parked".to_owned(),
            pb::WatcherState::Unspecified => String::new(),
            pb::WatcherState::InitialEvents => "initial".to_owned(),
            pb::WatcherState::CatchingUp => "catchup".to_owned(),
            state => state.as_str_name().trim_start_matches("WATCHER_STATE_").to_lowercase(),
        }
    }

    pub(super) fn policy(&self) -> &'static str {
        self.watcher.policy().as_str_name().trim_start_matches("FULL_CHANNEL_POLICY_")
    }

    /// Returns the number of queued events and, where it is a bound, the length of the queue.
    fn queue(&self) -> String {
        let pb::Watcher { queued, queue_length, parked, .. } = self.watcher;
        match queue_length {
            _ if parked => "parked".to_owned(),
            // Events of the history, which is longer than the queue.
            length if queued > length => count(queued.into()),
            length => format!("{}/{}", count(queued.into()), count(length.into())),
        }
    }
}

impl Row for WatcherFigures {
    const COLUMNS: &'static [Column<Self>] = &[
        Column {
            key: Key::Id,
            header: "ID",
            width: 5,
            is_text: false,
            rank: 0,
            cell: |row, _| plain(row.watcher.id.to_string()),
            order: |one, other| one.watcher.id.cmp(&other.watcher.id),
        },
        Column {
            key: Key::Client,
            header: "CLIENT",
            width: 19,
            is_text: true,
            rank: 0,
            cell: |row, _| plain(row.client().to_owned()),
            order: |one, other| one.client().cmp(other.client()),
        },
        Column {
            key: Key::Resource,
            header: "RESOURCE",
            width: 8,
            is_text: true,
            rank: 1,
            cell: |row, _| plain(row.watcher.resource.clone()),
            order: |one, other| one.watcher.resource.cmp(&other.watcher.resource),
        },
        Column {
            key: Key::Selection,
            header: "SELECTION",
            width: 14,
            is_text: true,
            rank: 4,
            cell: |row, _| plain(row.watcher.selection.clone()),
            order: |one, other| one.watcher.selection.cmp(&other.watcher.selection),
        },
        Column {
            key: Key::Policy,
            header: "POLICY",
            width: 8,
            is_text: false,
            rank: 2,
            cell: |row, _| plain(row.policy().to_owned()),
            order: |one, other| one.policy().cmp(other.policy()),
        },
        Column {
            key: Key::State,
            header: "STATE",
            width: 10,
            is_text: false,
            rank: 5,
            cell: |row, _| {
                let is_behind = !matches!(row.watcher.state(), pb::WatcherState::Live | pb::WatcherState::Unspecified);
                warn_if(is_behind, row.state())
            },
            order: |one, other| one.watcher.state.cmp(&other.watcher.state),
        },
        Column {
            key: Key::Queue,
            header: "QUEUE",
            width: 9,
            is_text: false,
            rank: 0,
            cell: |row, _| warn_if(row.watcher.parked, row.queue()),
            order: |one, other| {
                (one.watcher.parked, one.watcher.queued).cmp(&(other.watcher.parked, other.watcher.queued))
            },
        },
        Column {
            key: Key::Lag,
            header: "LAG",
            width: 5,
            is_text: false,
            rank: 0,
            cell: |row, _| lag(row.watcher.lag),
            order: |one, other| duration(one.watcher.lag).cmp(&duration(other.watcher.lag)),
        },
        Column {
            key: Key::Drops,
            header: "DROPS",
            width: 5,
            is_text: false,
            rank: 0,
            cell: |row, _| error_if(row.watcher.dropped > 0, count(row.watcher.dropped)),
            order: |one, other| one.watcher.dropped.cmp(&other.watcher.dropped),
        },
        Column {
            key: Key::Events,
            header: "EVENTS/S",
            width: 8,
            is_text: false,
            rank: 0,
            cell: |row, _| plain(rate(row.events)),
            order: |one, other| by_rate(one.events, other.events),
        },
        Column {
            key: Key::Bytes,
            header: "BYTES/S",
            width: 7,
            is_text: false,
            rank: 0,
            cell: |row, _| plain(byte_rate(row.bytes)),
            order: |one, other| by_rate(one.bytes, other.bytes),
        },
        Column {
            key: Key::Held,
            header: "HELD",
            width: 6,
            is_text: false,
            rank: 6,
            cell: |row, _| plain(bytes(row.watcher.bytes_held)),
            order: |one, other| one.watcher.bytes_held.cmp(&other.watcher.bytes_held),
        },
        Column {
            key: Key::Age,
            header: "AGE",
            width: 5,
            is_text: false,
            rank: 7,
            cell: |row, now| plain(age_of(row.watcher.since, now).unwrap_or_else(|| "-".to_owned())),
            order: |one, other| since(other).cmp(&since(one)),
        },
    ];

    const SORTED_BY: Key = Key::Events;

    type Id = u64;

    fn id(&self) -> u64 {
        self.watcher.id
    }

    fn matches(&self, filter: &str) -> bool {
        let pb::Watcher { resource, peer, identity, selection, user_agent, .. } = &self.watcher;
        let texts = [resource, peer, identity, selection, user_agent];
        texts.iter().any(|text| text.to_lowercase().contains(filter))
            || self.policy().to_lowercase().contains(filter)
            || self.state().contains(filter)
            || self.watcher.id.to_string() == filter
    }
}

fn since(row: &WatcherFigures) -> Option<(i64, i32)> {
    row.watcher.since.map(|since| (since.seconds, since.nanos))
}

fn state_of(resource: &pb::Resource) -> (String, Tone) {
    let tone = match resource.state() {
        SyncState::Stale => Tone::Error,
        SyncState::Syncing => Tone::Warning,
        SyncState::Synced | SyncState::Unspecified => Tone::Plain,
    };
    (resource.state().as_str_name().trim_start_matches("SYNC_STATE_").to_owned(), tone)
}

fn plain(text: String) -> (String, Tone) {
    (text, Tone::Plain)
}

fn warn_if(is_warning: bool, text: String) -> (String, Tone) {
    (text, if is_warning { Tone::Warning } else { Tone::Plain })
}

fn error_if(is_error: bool, text: String) -> (String, Tone) {
    (text, if is_error { Tone::Error } else { Tone::Plain })
}

/// Returns a lag; a second and more is a warning.
fn lag(lag: Option<prost_types::Duration>) -> (String, Tone) {
    let lag = duration(lag);
    warn_if(lag >= Duration::from_secs(1), delay(lag))
}

pub(super) fn duration(duration: Option<prost_types::Duration>) -> Duration {
    duration.and_then(proto::duration).unwrap_or_default()
}

/// Compares rates; an unknown one is the lowest.
fn by_rate(one: Option<f64>, other: Option<f64>) -> Ordering {
    one.unwrap_or(-1.0).total_cmp(&other.unwrap_or(-1.0))
}
