//! Checker of the `files` source: real directories, drawn histories, and a check of every observation of every client.
//!
//! ```text
//!   script ──▶ directory ──▶ a real directory ──▶ FilesSource … Service ──▶ clients (live)
//!                  └──▶ Timeline ◀────────────── every observation ────────────┘
//! ```
//!
//! It verifies that:
//!
//! - at a quiet point the resource is SYNCED and every client has the truth; or, while the directory is missing, it is STALE and
//!   every client has that state;
//! - the states that a client observes of an object are a subsequence of the object's states in the script; in particular nothing
//!   is DELETED that was not deleted, and no partial file is served;
//! - no watch ends for a reason that such a source does not have.

mod content;
mod directory;
mod script;

use std::time::Duration;

use informerd::{
    cache::SourceHealth,
    source::files::{FilesConfig, FilesSource},
};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use tempfile::TempDir;

use self::{
    directory::{Directory, Patience},
    script::{Begin, Restart, Script, Step, Target, any_script},
};
use super::{
    live::{Expected, Live, pause},
    parallel::{Checker, Counts, Excluded, Stop},
    runner::real_time,
};

const QUIET: Duration = Duration::from_millis(30);
const RESCAN: Duration = Duration::from_millis(100);
const STALE_AFTER: Duration = Duration::from_millis(150);

/// Kinds that are not drawn yet, each with the finding that it leads to.
const NOT_YET: &[(&str, &str)] = &[];

const REQUIRED: &[&str] = &[
    "write",
    "slow write",
    "slow write in a new directory",
    "write in parts",
    "rename over a file",
    "deletion",
    "deletion of all files",
    "renamed file",
    "renamed directory",
    "object that moves",
    "clone in which objects move",
    "unusable file",
    "unreadable document",
    "renamed with a mistake",
    "restart",
    "restart with a snapshot",
    "verdict: incomplete",
    "swapped link",
    "removed link",
    "moved away",
    "rm -rf",
    "empty directory in its place",
    "comes back",
    "comes back changed",
    "clone",
    "another directory",
    "empty at start",
    "missing at start",
    "too many notifications",
    "verdict: truth",
    "verdict: STALE",
    "resume",
    "DELETED",
];

/// State of a running history.
struct Run<'c> {
    directory: Directory,
    config: FilesConfig,
    stale_after: Duration,
    /// Directories of snapshots, and the number of starts without one.
    state_directory: TempDir,
    starts: u32,
    live: Live,
    patience: Patience,
    excluded: &'c Excluded,
    counts: &'c mut Counts,
}

impl From<directory::TooSlow> for Stop {
    fn from(_: directory::TooSlow) -> Self {
        Self::TooSlow
    }
}

impl Run<'_> {
    async fn rest(&mut self, expected: Expected) -> Result<(), String> {
        self.counts.count(match expected {
            Expected::Truth => "verdict: truth",
            Expected::Incomplete => "verdict: incomplete",
            _ => "verdict: STALE",
        });
        self.live.rest(expected, &self.directory.truth).await?;
        if expected == Expected::Truth {
            self.directory.settle();
        }
        Ok(())
    }

    async fn all(&mut self, script: &Script) -> Result<(), Stop> {
        match script.begin {
            Begin::Full => {}
            Begin::Empty => {
                self.counts.count("empty at start");
                self.rest(Expected::Truth).await?;
                self.directory.appear(&script.first);
            }
            Begin::Missing => {
                self.counts.count("missing at start");
                self.live.rest(Expected::Syncing, &self.directory.truth).await?;
                self.directory.appear(&script.first);
            }
        }
        self.rest(Expected::Truth).await?;
        for (at, step) in script.steps.iter().enumerate() {
            let kinds = step.kinds(&self.directory);
            if self.excluded.has_any(&kinds) {
                continue;
            }
            for kind in kinds {
                self.counts.count(kind);
            }
            self.step(step).await.map_err(|stop| stop.at(format_args!("step {at}: {step:?}")))?;
        }
        self.rest(Expected::Truth).await?;
        self.live.verify(&self.directory.truth)?;
        Ok(())
    }

    /// Restarts the server. Without a snapshot it has not read what is damaged, and clients of the earlier run keep that.
    async fn restart(&mut self, restart: &Restart) -> Result<(), Stop> {
        self.rest(Expected::Truth).await?;
        if restart.has_snapshot {
            if self.directory.shares_damage() {
                self.directory.mend();
                self.rest(Expected::Truth).await?;
            }
            // During a scan there is none.
            while !self.live.save().await {
                tokio::time::sleep(self.config.quiet).await;
            }
        } else {
            self.starts += 1;
        }
        if let Some((file, damage)) = restart.damage
            && !(restart.has_snapshot && self.directory.shares(file))
        {
            self.directory.damage(file, damage);
        }
        let health = SourceHealth::new(self.config.rescan, self.stale_after);
        let source = FilesSource::new(self.config.clone(), health.clone());
        self.live.restart(source, health, &self.state_directory.path().join(self.starts.to_string()));
        if !restart.has_snapshot && self.directory.has_damage() {
            self.rest(Expected::Incomplete).await?;
            self.directory.remove_held(restart.removed);
            self.rest_held(Expected::Incomplete).await?;
            self.directory.mend();
        }
        self.rest(Expected::Truth).await?;
        Ok(())
    }

    /// Waits until the server has had time for a deletion that it must not serve, and checks that.
    async fn rest_held(&mut self, expected: Expected) -> Result<(), String> {
        tokio::time::sleep(3 * self.patience.fill).await;
        self.rest(expected).await
    }

    async fn step(&mut self, step: &Step) -> Result<(), Stop> {
        if self.directory.is_another && matches!(step, Step::Remove(_) | Step::RemoveAll | Step::Unlink(_)) {
            // Another directory that becomes empty before the server has read it counts as an outage, as documented. Clients may
            // have all objects while removed files wait for their deletion, for six intervals at most.
            self.rest(Expected::Truth).await?;
            tokio::time::sleep(7 * self.patience.fill).await;
            self.directory.is_another = false;
        }
        match step {
            Step::Parts(file, gap) => {
                // So that the number of its objects is certain.
                self.rest(Expected::Truth).await?;
                self.directory.write_parts(*file, *gap, &self.patience)?;
            }
            Step::Write(content, how) => self.directory.write(content, how, &self.patience)?,
            Step::Remove(file) => self.directory.remove(*file),
            Step::RemoveAll => self.directory.remove_all(),
            Step::Rename(from, to) => self.directory.rename(*from, *to),
            Step::RenameDirectory(from, to, times) => self.directory.rename_directory(*from, *to, *times),
            Step::Move(from, to, times) => self.directory.move_objects(*from, *to, *times, &self.patience)?,
            Step::Damage(file, damage) => {
                // So that the objects that it keeps are certain.
                self.rest(Expected::Truth).await?;
                self.directory.damage(*file, *damage);
            }
            Step::Spoil(from, to, removed) => {
                self.rest(Expected::Truth).await?;
                if self.directory.spoil(*from, *to) {
                    self.rest(Expected::Truth).await?;
                    self.directory.remove_held(*removed);
                    self.rest_held(Expected::Truth).await?;
                    self.directory.mend();
                    self.rest(Expected::Truth).await?;
                }
            }
            Step::Restart(restart) => self.restart(restart).await?,
            Step::Swap(swap) => self.directory.swap(swap),
            Step::Unlink(shape) => self.directory.unlink(*shape),
            Step::Outage(outage) => {
                if outage.is_noticed || self.directory.is_empty() {
                    // A server cannot notice that files are missing that it never read, or still has.
                    self.rest(Expected::Truth).await?;
                }
                self.directory.leave(outage, &self.patience)?;
                // An empty directory in the place of another empty one makes no difference.
                if outage.is_noticed && !self.directory.is_empty() {
                    self.rest(Expected::Stale).await?;
                }
                self.directory.come_back(outage, &self.patience)?;
            }
            Step::Forbid(target, mode) if self.directory.obeys_permissions() => {
                self.rest(Expected::Truth).await?;
                if self.directory.set_mode(*target, Some(*mode)) {
                    self.counts.count("permission lost");
                    let is_root = matches!(target, Target::Root);
                    let rested = self.rest(if is_root { Expected::Stale } else { Expected::Truth }).await;
                    self.directory.set_mode(*target, None);
                    self.directory.is_unsettled = true;
                    self.directory.is_another = true;
                    rested?;
                }
            }
            Step::Forbid(..) => self.counts.count("permission that this process need not have"),
            Step::Flood => self.directory.flood(),
            Step::Pause(milliseconds) => pause(Duration::from_millis(*milliseconds)),
            Step::Quiet => self.rest(Expected::Truth).await?,
        }
        Ok(())
    }
}

/// Runs one history.
fn run(script: &Script, excluded: &Excluded, slower: u32, counts: &mut Counts) -> Result<(), Stop> {
    drop_rights();
    let runtime = real_time();
    let (quiet, rescan, stale_after) = (QUIET * slower, RESCAN * slower, STALE_AFTER * slower);
    let (write, piece) = (5 * rescan, 7 * rescan / 5);
    let mut directory = Directory::new(script.is_mounted && script.begin != Begin::Missing);
    match script.begin {
        Begin::Full => directory.appear(&script.first),
        Begin::Empty => {}
        Begin::Missing => directory.vanish(),
    }
    let health = SourceHealth::new(rescan, stale_after);
    let config = FilesConfig { rescan, quiet, ..FilesConfig::new(directory.root(), "things") };
    let state_directory = tempfile::tempdir().unwrap();
    let live = {
        let _inside = runtime.enter();
        let source = FilesSource::new(config.clone(), health.clone());
        Live::start(source, health, 2, script.seed, slower, &state_directory.path().join("0"))
    };
    let mut run = Run {
        directory,
        config,
        stale_after,
        state_directory,
        starts: 0,
        live,
        patience: Patience { remove: quiet, fill: rescan, write, piece },
        excluded,
        counts,
    };
    // The script blocks this thread; the server has another one.
    let outcome = runtime.block_on(run.all(script));
    run.live.count(run.counts);
    drop(run);
    runtime.shutdown_background();
    outcome
}

/// Drops the capability to read files against their permissions, for this thread and those that it starts.
fn drop_rights() {
    let Ok(mut sets) = capabilities(None) else { return };
    sets.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
    // A process without the capability has none to drop.
    set_capabilities(None, sets).unwrap_or_default();
}

const CHECKER: Checker = Checker { name: "files", cases: 150, required: REQUIRED, not_yet: NOT_YET };

/// Checks the source with drawn histories.
pub(crate) fn check() {
    CHECKER.check(any_script, run);
}
