//! Runner of one history: executes its steps, and judges the served state after each quiet point.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    time::Duration,
};

use informerd::proto::pb::SyncState;
use tokio::time::Instant;

use super::{
    client::{Clients, Held, Listed, list, part},
    proxy::Proxy,
    script::{Script, Step},
    served::Served,
    totals::Totals,
    upstream::{Bounds, Fact, Key, Truth, Upstream, UpstreamSetup, UpstreamStep},
};

struct History<'a, U: Upstream> {
    script: &'a Script<U>,
    upstream: U,
    served: Option<Served>,
    clients: Clients,
    state: tempfile::TempDir,
    /// Disturbances and lists when the state was last SYNCED and equal to the truth without a fault.
    calm: Option<(u64, u64)>,
    /// Lists and disturbances at the last judgement, and its time.
    judged: (u64, u64, Instant),
    is_saved: bool,
    /// Starts from a state that may be older than a rewrite, which the server then notices once more.
    late_starts: u64,
    /// Rewrites when the clients last discarded their versions.
    known_rewrites: u64,
    /// Starts since the last judgement.
    starts: u64,
    /// True if the next quiet point after a disturbance waits for the full recovery time.
    settles: bool,
    /// Number of steps that were no writes.
    drawn: u64,
    probes: u32,
    /// Kinds of steps that are not drawn.
    left_out: Vec<String>,
    totals: &'a mut Totals,
}

/// Served state at one moment.
struct Seen {
    listed: Result<Listed, String>,
    /// Differences from the nearest truth; empty if there are none.
    wrong: String,
    /// State of each client whose state differs from the listed one.
    untold: String,
}

/// Default interval of bookmarks, and some slack.
const TOLD_WITHIN: Duration = Duration::from_secs(31);

/// Returns the kinds that are not drawn: those of `NOT_YET`, unless `INFORMERD_SOURCE_CHECKER_ALL` is set, and those of the
/// comma-separated `INFORMERD_SOURCE_CHECKER_WITHOUT`.
fn left_out<U: Upstream>() -> Vec<String> {
    let is_all = std::env::var_os("INFORMERD_SOURCE_CHECKER_ALL").is_some();
    let not_yet = U::NOT_YET.iter().filter(|_| !is_all).map(|(kind, _)| (*kind).to_owned());
    let without = std::env::var("INFORMERD_SOURCE_CHECKER_WITHOUT").unwrap_or_default();
    not_yet.chain(without.split(',').map(|kind| kind.trim().to_owned())).collect()
}

/// Runs a script.
///
/// # Errors
///
/// Returns the first violation.
pub(crate) async fn run<U: Upstream>(script: &Script<U>, totals: &mut Totals) -> Result<(), String> {
    let began = Instant::now();
    let left_out = left_out::<U>();
    let kinds = script.setup.kinds();
    if kinds.iter().any(|kind| left_out.iter().any(|left_out| left_out == kind)) {
        return Ok(());
    }
    for kind in kinds {
        *totals.faults.entry(kind.to_owned()).or_default() += 1;
    }
    let upstream = U::start(&script.setup).await;
    let state =
        if std::path::Path::new("/dev/shm").is_dir() { tempfile::tempdir_in("/dev/shm") } else { tempfile::tempdir() };
    let mut history = History {
        clients: Clients::new(script.hop),
        script,
        upstream,
        served: None,
        state: state.unwrap(),
        calm: None,
        judged: (0, 0, began),
        is_saved: false,
        late_starts: 0,
        known_rewrites: 0,
        starts: 0,
        settles: false,
        drawn: 0,
        probes: 0,
        left_out,
        totals,
    };
    for step in &script.first {
        history.upstream_step(step).await;
    }
    history.serve().await;
    let result = history.all().await;
    history.count(began);
    result
}

/// A source that fails for this long retries a list at most this often on average.
const RETRY: Duration = Duration::from_secs(10);

impl<U: Upstream> History<'_, U> {
    async fn all(&mut self) -> Result<(), String> {
        for (at, step) in self.script.steps.iter().enumerate() {
            self.step(step).await.map_err(|violation| format!("{violation}\nat step {at}: {step:?}"))?;
        }
        let at_the_end = |violation| format!("{violation}\nat the end");
        self.upstream.heal().await;
        self.calm_down().await.map_err(at_the_end)?;
        // The bytes of this write may make a connection reach the byte at which it is cut.
        self.probes += 1;
        self.upstream.probe(self.probes).await;
        self.calm_down().await.map_err(at_the_end)?;
        if self.calm.is_none() {
            return Err("the history ended with a fault that heals by no means".to_owned());
        }
        Ok(())
    }

    /// Waits until no disturbance is left: earlier steps may take effect only now.
    async fn calm_down(&mut self) -> Result<(), String> {
        for _ in 0..5 {
            self.settles = false;
            self.quiet().await?;
            if self.calm.is_some() {
                break;
            }
        }
        Ok(())
    }

    async fn step(&mut self, step: &Step<U::Step>) -> Result<(), String> {
        match step {
            Step::Upstream(step) => self.upstream_step(step).await,
            Step::Wait(time) => tokio::time::sleep(*time).await,
            Step::Heal => self.upstream.heal().await,
            Step::Quiet => self.quiet().await?,
            Step::Idle(time) => self.idle(*time).await?,
            Step::Save => {
                if let Some(served) = &self.served {
                    self.is_saved |= served.save().await;
                }
            }
            Step::Restart(meanwhile) => {
                self.clients.go_to(None);
                if let Some(served) = self.served.take() {
                    served.stop().await;
                }
                for step in meanwhile {
                    self.upstream_step(step).await;
                }
                self.serve().await;
                self.totals.restarts += 1;
            }
        }
        Ok(())
    }

    async fn upstream_step(&mut self, step: &U::Step) {
        let kind = step.kind();
        if self.left_out.iter().any(|left_out| left_out == kind) {
            return;
        }
        *self.totals.faults.entry(kind.to_owned()).or_default() += 1;
        self.drawn += u64::from(!step.is_write());
        self.upstream.step(step).await;
    }

    async fn serve(&mut self) {
        let served = self.upstream.serve(self.state.path()).await;
        self.totals.warm_starts += u64::from(served.is_warm);
        self.late_starts += u64::from(served.is_warm && self.upstream.rewrites() > 0);
        // A version from another process may be of a rewritten history, and its number does not show it.
        if self.upstream.rewrites() > self.known_rewrites {
            self.clients.forget();
        }
        self.clients.go_to(Some(served.routes.clone()));
        self.served = Some(served);
        (self.calm, self.starts) = (None, self.starts + 1);
    }

    /// Returns the number of events and faults so far that interrupt the source or may cause a list, when drawn and when they
    /// take effect.
    fn disturbances(&self) -> u64 {
        let late_cuts: u64 = self.upstream.proxies().into_iter().map(Proxy::late_cuts).sum();
        self.drawn + self.upstream.late_disturbances() + late_cuts
    }

    fn is_faulty(&self) -> bool {
        self.upstream.has_fault() || self.upstream.proxies().into_iter().any(Proxy::is_faulty)
    }

    fn lists(&self) -> u64 {
        self.upstream.requests().map_or(0, |(lists, _)| lists)
    }

    /// Waits until the state is as it must be, up to a bound, and judges it.
    async fn quiet(&mut self) -> Result<(), String> {
        let (began, bounds) = (Instant::now(), self.upstream.bounds());
        let is_faulty = self.is_faulty();
        let must_be_stale = is_faulty && self.upstream.is_unreachable();
        let (seen, is_calm) = loop {
            // Earlier steps may take effect only now.
            let is_calm = !is_faulty && self.calm.is_some_and(|(at, _)| at == self.disturbances());
            let bound = match (is_faulty, is_calm) {
                (true, _) => bounds.detects,
                (false, true) => bounds.prompt,
                (false, false) => bounds.recovers,
            };
            let seen = self.look().await;
            let is_settled = seen.is(SyncState::Synced) || is_faulty;
            if seen.wrong.is_empty() && is_settled && seen.untold.is_empty() && !must_be_stale {
                break (seen, is_calm);
            }
            if is_calm && !seen.is(SyncState::Synced) {
                return Err(self.report("nothing is wrong, and the state is not SYNCED", &seen));
            }
            // The first bookmark carries the state to a client that has resumed meanwhile.
            let is_to_be_told = !seen.untold.is_empty() && Self::judge_state(&seen, is_faulty, must_be_stale).is_ok();
            if began.elapsed() >= if is_to_be_told { bound + TOLD_WITHIN } else { bound } {
                break (seen, is_calm);
            }
            tokio::time::sleep((bound / 100).clamp(Duration::from_millis(5), Duration::from_millis(500))).await;
        };
        let verdict = Self::judge(&seen, is_faulty, must_be_stale);
        let verdict = verdict.map_err(|why| self.report(&format!("{why}, after {:?}", began.elapsed()), &seen))?;
        *self.totals.verdicts.entry(verdict).or_default() += 1;
        if !is_faulty && !is_calm {
            self.totals.slowest_recovery = self.totals.slowest_recovery.max(began.elapsed());
        }
        self.judge_clients().map_err(|why| self.report(&why, &seen))?;
        self.judge_requests(is_calm).map_err(|why| self.report(&why, &seen))?;
        let is_settled = is_calm || !is_faulty && self.settle().await?;
        self.calm = is_settled.then(|| (self.disturbances(), self.lists()));
        Ok(())
    }

    /// Waits, every other time after a disturbance, until the source must have recovered: an equal state does not prove recovery,
    /// because the source may not have noticed the disturbance yet.
    async fn settle(&mut self) -> Result<bool, String> {
        self.settles = !self.settles;
        if !self.settles {
            return Ok(false);
        }
        let (before, recovers) = (self.disturbances(), self.upstream.bounds().recovers);
        tokio::time::sleep(recovers).await;
        if before != self.disturbances() {
            return Ok(false);
        }
        let seen = self.look().await;
        Self::judge(&seen, false, false).map_err(|why| self.report(&format!("{why}, {recovers:?} later"), &seen))?;
        self.judge_requests(false).map_err(|why| self.report(&why, &seen))?;
        Ok(true)
    }

    fn judge(seen: &Seen, is_faulty: bool, must_be_stale: bool) -> Result<&'static str, String> {
        let verdict = Self::judge_state(seen, is_faulty, must_be_stale)?;
        match &*seen.untold {
            "" => Ok(verdict),
            untold => Err(format!("{verdict}, and a client was told another state: {untold}")),
        }
    }

    fn judge_state(seen: &Seen, is_faulty: bool, must_be_stale: bool) -> Result<&'static str, String> {
        let is_equal = seen.wrong.is_empty();
        match &seen.listed {
            Err(reason) if is_faulty && reason == "NOT_SYNCED" => Ok("no state yet"),
            Err(reason) => Err(format!("the list failed: {reason}")),
            Ok(_) if seen.is(SyncState::Stale) && is_faulty => Ok(if is_equal { "STALE, and equal" } else { "STALE" }),
            Ok(_) if !seen.is(SyncState::Synced) => Err("it has not recovered".to_owned()),
            Ok(_) if must_be_stale => Err("SYNCED, while nothing reaches the source".to_owned()),
            Ok(_) if !is_equal => Err("SYNCED, and wrong".to_owned()),
            Ok(_) => Ok("SYNCED, and equal"),
        }
    }

    fn judge_clients(&self) -> Result<(), String> {
        for (name, view) in self.clients.views() {
            let view = view.lock();
            if let Some(wrong) = &view.wrong {
                return Err(format!("{name} received {wrong}"));
            }
            if let Some(key) = view.deleted.iter().find(|key| !self.upstream.was_deleted(key)) {
                return Err(format!("{name} was told that {key:?} was deleted, which it never was"));
            }
            let changed = view.ends.get("HISTORY_CHANGED").copied().unwrap_or_default();
            let rewrites = self.upstream.rewrites();
            if changed > rewrites + self.late_starts {
                return Err(format!("{name} was told HISTORY_CHANGED {changed} times, after {rewrites} rewrites"));
            }
        }
        Ok(())
    }

    /// Verifies that the lists do not exceed their causes.
    fn judge_requests(&mut self, is_calm: bool) -> Result<(), String> {
        if let Some(violation) = self.upstream.violation() {
            return Err(violation);
        }
        let (lists, disturbances) = (self.lists(), self.disturbances());
        let (begun, causes) = (lists - self.judged.0, disturbances - self.judged.1 + std::mem::take(&mut self.starts));
        let attempts = self.judged.2.elapsed().div_duration_f64(RETRY) as u64;
        self.judged = (lists, disturbances, Instant::now());
        let most = if is_calm { 0 } else { (causes + 1) * self.upstream.bounds().lists + attempts };
        if begun > most {
            return Err(format!("{begun} lists after {causes} disturbances and starts, at most {most} are expected"));
        }
        Ok(())
    }

    /// Advances time. Without faults this must change neither the state nor the number of requests to the upstream.
    async fn idle(&mut self, time: Duration) -> Result<(), String> {
        let is_calm =
            !self.is_faulty() && self.calm.is_some_and(|(disturbances, _)| disturbances == self.disturbances());
        if !is_calm {
            tokio::time::sleep(time).await;
            return Ok(());
        }
        let (began, before) = (Instant::now(), self.upstream.requests());
        let step = (time / 100).max(Duration::from_secs(1));
        while began.elapsed() < time {
            tokio::time::sleep(step.min(time)).await;
            let seen = self.look().await;
            if self.calm.is_none_or(|(disturbances, _)| disturbances != self.disturbances()) {
                return Ok(());
            }
            if !seen.is(SyncState::Synced) {
                let after = began.elapsed();
                return Err(
                    self.report(&format!("nothing is wrong, and after {after:?} at rest it is not SYNCED"), &seen)
                );
            }
        }
        if let Some(((lists, watches), (more_lists, more_watches))) = before.zip(self.upstream.requests()) {
            let Bounds { watches: open, watch, .. } = self.upstream.bounds();
            let most = open + time.as_secs() / watch.as_secs().max(1);
            if more_lists > lists || more_watches > watches + most {
                let (lists, watches) = (more_lists - lists, more_watches - watches);
                return Err(format!("{time:?} at rest: {lists} lists, and {watches} watches of at most {most}"));
            }
        }
        *self.totals.verdicts.entry("at rest").or_default() += 1;
        Ok(())
    }

    /// Lists, and compares the result and the clients' states with the truth.
    async fn look(&mut self) -> Seen {
        let Some(served) = &self.served else {
            return Seen { listed: Err("no server".to_owned()), wrong: String::new(), untold: String::new() };
        };
        let listed = list(&mut served.routes.clone(), self.script.page).await;
        let truths = self.upstream.truths();
        let parts: Vec<Truth> = truths.iter().map(part_of).collect();
        let wrong = |name: &str, truths: &[Truth], objects: &BTreeMap<Key, Held>| {
            let mut nearest = String::new();
            for truth in truths {
                let differences = differences(truth, objects);
                if differences.is_empty() {
                    return String::new();
                }
                if nearest.is_empty() {
                    nearest = differences;
                }
            }
            format!("\n  {name} differs:{nearest}")
        };
        let mut seen = Seen { listed, wrong: String::new(), untold: String::new() };
        let Ok(listed) = &seen.listed else {
            "\n  there is no list".clone_into(&mut seen.wrong);
            return seen;
        };
        seen.wrong = wrong("the list", &truths, &listed.objects);
        if served.is_stale_without_a_reason() {
            seen.wrong += "\n  it is STALE without a reason";
        }
        for (name, view) in self.clients.views() {
            let view = view.lock();
            seen.wrong += &wrong(name, if view.is_part { &parts } else { &truths }, &view.objects);
            let source = view.source.map_or(0, |source| source as i32);
            if !view.is_connected || source != listed.source {
                let told = view.source.map_or("nothing", |source| source.as_str_name());
                write!(seen.untold, "\n  {name}: connected {}, {told}", view.is_connected).unwrap();
            }
        }
        seen
    }

    fn report(&self, why: &str, seen: &Seen) -> String {
        let mut text = why.to_owned();
        match &seen.listed {
            Ok(listed) => {
                let source = SyncState::try_from(listed.source).unwrap_or_default();
                write!(text, "\n  listed at {} {source:?}", listed.version).unwrap();
            }
            Err(reason) => write!(text, "\n  no list: {reason}").unwrap(),
        }
        text += &seen.wrong;
        text += &seen.untold;
        if let Some(served) = &self.served {
            write!(text, "\n  the last error: {}", served.last_error()).unwrap();
        }
        if let Some((lists, watches)) = self.upstream.requests() {
            write!(text, "\n  requests: {lists} lists, {watches} watches").unwrap();
        }
        for (name, view) in self.clients.views() {
            write!(text, "\n  {name}:{}", view.lock().log()).unwrap();
        }
        text
    }

    fn count(&mut self, began: Instant) {
        let totals = &mut *self.totals;
        totals.histories += 1;
        totals.seconds += began.elapsed().as_secs();
        totals.rewrites += self.upstream.rewrites();
        if let Some((lists, watches)) = self.upstream.requests() {
            (totals.lists, totals.watches) = (totals.lists + lists, totals.watches + watches);
        }
        let late_cuts = self.upstream.proxies().into_iter().flat_map(Proxy::counts);
        for (kind, count) in late_cuts.chain(self.upstream.tally()).filter(|(_, count)| *count > 0) {
            *totals.faults.entry(kind.to_owned()).or_default() += count;
        }
        for (_, view) in self.clients.views() {
            let view = view.lock();
            (totals.events, totals.resumes) = (totals.events + view.events, totals.resumes + view.resumes);
            totals.suppressed += view.suppressed;
            for (reason, count) in &view.ends {
                *totals.ends.entry(reason.clone()).or_default() += count;
            }
        }
    }
}

impl Seen {
    fn is(&self, state: SyncState) -> bool {
        self.listed.as_ref().is_ok_and(|listed| listed.source == state as i32)
    }
}

/// Returns what a client of a part holds of the objects.
fn part_of(truth: &Truth) -> Truth {
    let part = |fact: &Fact| Fact { uid: fact.uid.clone(), version: None, body: part(&fact.body) };
    truth.iter().map(|(key, fact)| (key.clone(), part(fact))).collect()
}

fn differences(truth: &Truth, objects: &BTreeMap<Key, Held>) -> String {
    let mut text = String::new();
    let body = |body: &[u8]| String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
    for (key, fact) in truth {
        let Some(held) = objects.get(key) else {
            write!(text, "\n    missing {key:?} {:?}", fact.version).unwrap();
            continue;
        };
        let is_same = fact.uid.as_ref().is_none_or(|uid| *uid == held.uid)
            && fact.version.as_ref().is_none_or(|version| *version == held.version);
        if !is_same {
            write!(text, "\n    {key:?} is {} at {}, ", held.uid, held.version).unwrap();
            write!(text, "and the truth {:?} at {:?}", fact.uid, fact.version).unwrap();
        } else if held.body != fact.body {
            write!(text, "\n    {key:?} has {}\n    and the truth is {}", body(&held.body), body(&fact.body)).unwrap();
        }
    }
    let mut uids = BTreeSet::new();
    for (key, held) in objects.iter().filter(|(_, held)| !held.uid.is_empty()) {
        if !uids.insert(&held.uid) {
            write!(text, "\n    {key:?} shares its uid {}", held.uid).unwrap();
        }
    }
    for (key, held) in objects.iter().filter(|(key, _)| !truth.contains_key(*key)) {
        write!(text, "\n    a ghost {key:?} at {}", held.version).unwrap();
    }
    text
}
