//! Flags of `informerd watch`, and of the commands that go on as it does.

use std::time::Duration;

use clap::{Args, ValueEnum, builder::BoolishValueParser};

use crate::{
    cli::{
        alias::of_resource,
        client_flags::{ChangedFlag, ObjectFlags, TimeoutFlags},
    },
    config::parse_duration,
    proto::pb,
};

/// Flags of `informerd watch`.
#[derive(Debug, Clone, Args)]
pub(crate) struct WatchFlags {
    /// A name from `informerd resources`, or several: pods,services
    #[arg(value_name = "RESOURCE")]
    pub(super) resource: String,
    /// Only objects of this name; NAMESPACE/NAME is one object
    #[arg(value_name = "NAME")]
    pub(super) name: Option<String>,
    /// Begin with the current objects
    #[arg(
        long,
        value_name = "BOOL",
        action = clap::ArgAction::Set,
        default_value_t = true,
        value_parser = BoolishValueParser::new(),
        hide_possible_values = true,
        help_heading = "Selection"
    )]
    pub(super) initial: bool,
    /// Changes only, as with --initial=false
    #[arg(long, help_heading = "Selection")]
    pub(super) watch_only: bool,
    /// In place of events, print the whole list, sorted, once it is complete and after changes
    #[arg(
        long,
        help_heading = "Selection",
        conflicts_with_all = [
            "initial", "watch_only", "since", "policy", "queue_length", "diff", "timestamps", "exec", "metadata"
        ]
    )]
    pub(super) state: bool,
    #[command(flatten)]
    pub(super) changed: ChangedFlag,
    #[command(flatten)]
    pub(super) events: EventFlags,
    #[command(flatten)]
    pub(super) objects: ObjectFlags,
}

of_resource!(WatchFlags, objects.server);

/// Flags about the events of a watch.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Events")]
pub(super) struct EventFlags {
    /// Begin with the changes after this version, as `list` and `watch -o json` print it, in place of the current objects
    #[arg(long, value_name = "VERSION", conflicts_with_all = ["initial", "watch_only"])]
    pub(super) since: Option<String>,

    /// Policy of the server when the queue of this watch is full [default: the server's]
    #[arg(long, value_name = "POLICY", value_enum)]
    policy: Option<Policy>,

    /// Length of the queue at the server, in events [default: the server's]
    #[arg(long, value_name = "NUMBER")]
    queue_length: Option<u32>,

    /// End after this time, with exit code 0 [default: never]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(super) timeout: Option<Duration>,

    /// Print the time at which each event was received
    #[arg(long)]
    pub(super) timestamps: bool,

    /// Print the fields that each change has altered, for tables
    #[arg(long)]
    pub(super) diff: bool,

    /// Run this command for each event that is printed, one at a time
    #[arg(long, value_name = "COMMAND")]
    pub(super) exec: Option<String>,

    /// Kill a command that runs longer than this
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = parse_duration, requires = "exec")]
    pub(super) exec_timeout: Duration,
}

/// Flags of the commands that print the current objects, and can go on as `informerd watch`.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Events")]
pub(crate) struct FollowFlags {
    /// Print the objects and every change to them, as `informerd watch` does
    #[arg(short, long, conflicts_with_all = ["sort_by", "limit"])]
    pub(crate) watch: bool,

    /// With -w: changes only
    #[arg(long, requires = "watch")]
    watch_only: bool,
}

/// Policy of a full queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// Events are dropped, and fetched again later
    Drop,
    /// Other watches wait for this one, for a while
    Block,
    /// The server reads its history for this watch
    Replay,
    /// Changes of an object merge
    Coalesce,
}

// === impl FollowFlags ===

impl FollowFlags {
    /// Returns the flags of the same watch.
    pub(crate) fn flags(
        &self,
        resource: &str,
        name: Option<&str>,
        timeout: &TimeoutFlags,
        objects: &ObjectFlags,
    ) -> WatchFlags {
        WatchFlags {
            resource: resource.to_owned(),
            name: name.map(str::to_owned),
            initial: true,
            watch_only: self.watch_only,
            state: false,
            changed: ChangedFlag::default(),
            events: EventFlags { timeout: timeout.timeout, ..EventFlags::default() },
            objects: objects.clone(),
        }
    }
}

// === impl EventFlags ===

impl EventFlags {
    /// Returns the options of the queue; none if they are all the server's.
    pub(super) fn queue(&self) -> Option<pb::QueueOptions> {
        let policy = match self.policy {
            None => pb::FullChannelPolicy::Unspecified,
            Some(Policy::Drop) => pb::FullChannelPolicy::Drop,
            Some(Policy::Block) => pb::FullChannelPolicy::Block,
            Some(Policy::Replay) => pb::FullChannelPolicy::Replay,
            Some(Policy::Coalesce) => pb::FullChannelPolicy::Coalesce,
        };
        let options = pb::QueueOptions { policy: policy.into(), length: self.queue_length.unwrap_or_default() };
        Some(options).filter(|options| *options != pb::QueueOptions::default())
    }
}
