//! Checker of the `stream` source: real named pipes and files, drawn writers, and a check of every observation of every client.
//!
//! It verifies that:
//!
//! - at a quiet point of a writer the resource is SYNCED and every client has the truth, also when the writer has not confirmed
//!   all objects of the one before, or of its own before an ERROR;
//! - after the end of a writer, and until the next one has opened the pipe, the resource is STALE, every client has that state, and
//!   nothing is deleted; the same as long as an event of the next one could not be read;
//! - the states that a client observes of an object are a subsequence of the object's states in the script;
//! - no watch ends for a reason that such a source does not have.

mod pipe;
mod script;

use std::{path::Path, time::Duration};

use informerd::{
    cache::SourceHealth,
    source::stream::{HEARTBEAT, StreamConfig, StreamPath, StreamSource},
};

use self::{
    pipe::Pipe,
    script::{Begin, End, Input, Piece, Script, Silence, Writer, any_script},
};
use super::{
    live::{Expected, Live, pause},
    parallel::{Checker, Counts, Excluded, Stop},
    runner::real_time,
};

const STALE_AFTER: Duration = Duration::from_millis(150);

/// Time for which a writer must be quiet before the server deletes the objects that it has not confirmed.
const CONFIRM_AFTER: Duration = Duration::from_millis(400);

/// Kinds that are not drawn yet, each with the finding that it leads to.
const NOT_YET: &[(&str, &str)] = &[];

const REQUIRED: &[&str] = &[
    "writer of changes alone",
    "file",
    "writer that repeats everything",
    "writer that repeats a part",
    "writer that repeats nothing",
    "end of initial events",
    "writer without an event",
    "bookmark",
    "error",
    "garbage",
    "torn event",
    "end within an event",
    "end that is not waited for",
    "verdict: truth",
    "verdict: STALE",
    "resume",
    "DELETED",
];

/// State of a running history.
struct Run<'c> {
    pipe: Pipe,
    live: Live,
    /// True if a writer begins by confirming all existing objects.
    confirms: bool,
    confirm_after: Duration,
    excluded: &'c Excluded,
    counts: &'c mut Counts,
}

impl Run<'_> {
    async fn rest(&mut self, expected: Expected) -> Result<(), String> {
        self.counts.count(if expected == Expected::Truth { "verdict: truth" } else { "verdict: STALE" });
        self.live.rest(expected, &self.pipe.truth).await
    }

    /// Writes a change that reaches every client, after everything before it.
    async fn quiet(&mut self) -> Result<(), String> {
        self.pipe.mark();
        self.rest(Expected::Truth).await
    }

    async fn all(&mut self, script: &Script) -> Result<(), Stop> {
        if script.input == Input::File {
            self.counts.count("file");
            self.rest(Expected::Kept).await?;
            return Ok(());
        }
        self.rest(Expected::Truth).await?;
        let mut is_noticed = true;
        for (at, writer) in script.writers.iter().enumerate() {
            let is_last = at + 1 == script.writers.len();
            let next = script.writers.get(at + 1);
            is_noticed = self
                .writer(writer, at == 0, is_noticed, is_last, next)
                .await
                .map_err(|stop| stop.at(format_args!("writer {at}")))?;
        }
        self.live.verify(&self.pipe.truth)?;
        Ok(())
    }

    /// Runs one writer from its beginning to its end. Returns true if the server noticed the end.
    async fn writer(
        &mut self,
        writer: &Writer,
        is_first: bool,
        was_noticed: bool,
        is_last: bool,
        next: Option<&Writer>,
    ) -> Result<bool, Stop> {
        self.counts.count(if self.confirms { "writer" } else { "writer of changes alone" });
        self.pipe.open(&writer.pace);
        let everything = Begin::All { has_end: false, changed: Vec::new() };
        let begin = if self.excluded.has_any(&[writer.begin.kind()]) { &everything } else { &writer.begin };
        if let Begin::Silent(silence) = begin {
            return self.silent(*silence, is_first, was_noticed).await;
        }
        if !is_first {
            // A server that did not notice the end of the previous writer takes both for one, and misses nothing if this one
            // repeats all objects.
            let begin = if was_noticed { begin } else { &everything };
            let has_end = self.repeat(begin);
            if has_end {
                self.counts.count("end of initial events");
                self.pipe.end_initial_events();
            } else {
                // The last of its first events, before a quiet time.
                self.pipe.mark();
            }
            if self.pipe.longest_gap() > self.confirm_after / 2 {
                return Err(Stop::TooSlow);
            }
            if self.confirms {
                self.pipe.delete_unconfirmed();
            }
            self.rest(Expected::Truth).await?;
        }
        for piece in &writer.events {
            self.counts.count(piece.kind());
            self.pipe.piece(piece);
            if matches!(piece, Piece::Error) && self.confirms {
                self.confirm_again().await?;
            }
            if matches!(piece, Piece::Quiet) {
                self.rest(Expected::Truth).await?;
            }
        }
        self.quiet().await?;
        let is_torn = matches!(writer.end, End::Torn(_));
        if let End::Torn(percent) = writer.end {
            self.counts.count("end within an event");
            self.pipe.tear(percent);
        }
        self.pipe.close();
        let is_next_silent = next.is_some_and(|next| matches!(next.begin, Begin::Silent(_)));
        if writer.is_noticed || is_last || is_torn || is_next_silent {
            self.rest(Expected::Kept).await?;
            return Ok(true);
        }
        self.counts.count("end that is not waited for");
        Ok(false)
    }

    /// Repeats some of the objects after an ERROR, which leaves all of them unconfirmed.
    async fn confirm_again(&mut self) -> Result<(), Stop> {
        for name in self.pipe.names().iter().step_by(2) {
            self.pipe.repeat(name, false);
        }
        self.pipe.mark();
        if self.pipe.longest_gap() > self.confirm_after / 2 {
            return Err(Stop::TooSlow);
        }
        self.pipe.delete_unconfirmed();
        Ok(self.rest(Expected::Truth).await?)
    }

    /// Runs a writer that writes no event of an object.
    async fn silent(&mut self, silence: Silence, is_first: bool, was_noticed: bool) -> Result<bool, Stop> {
        self.counts.count("writer without an event");
        match silence {
            Silence::Nothing => {}
            Silence::Error => self.pipe.error(),
            Silence::Garbage(garbage) => self.pipe.garbage(garbage),
        }
        if self.confirms && !is_first && was_noticed && !self.pipe.names().is_empty() {
            if matches!(silence, Silence::Garbage(garbage) if garbage.is_event()) {
                // It may be of any object, so the writer confirms nothing, however long it is quiet.
                pause(2 * self.confirm_after);
                self.rest(Expected::Kept).await?;
            } else {
                self.pipe.delete_unconfirmed();
                self.rest(Expected::Truth).await?;
            }
        }
        self.pipe.close();
        // The resource may be STALE already: nothing shows that the server has noticed the end. If the next writer came before that,
        // both would be one writer, whose unreadable event may be of any object.
        pause(self.confirm_after);
        self.rest(Expected::Kept).await?;
        Ok(true)
    }

    /// Writes initial events. Returns true if the bookmark that ends them follows.
    fn repeat(&mut self, begin: &Begin) -> bool {
        self.counts.count(begin.kind());
        let (has_end, changed, kept): (_, &[bool], &[bool]) = match begin {
            Begin::All { has_end, changed } => (*has_end, changed, &[]),
            Begin::Part { has_end, kept } => (*has_end, &[], kept),
            Begin::None { has_end } => return *has_end,
            Begin::Silent(_) => return false,
        };
        let is_set = |flags: &[bool], at: usize, default| flags.get(at).copied().unwrap_or(default);
        for (at, name) in self.pipe.names().into_iter().enumerate() {
            if is_set(kept, at, true) {
                self.pipe.repeat(&name, is_set(changed, at, false));
            }
        }
        has_end
    }
}

/// Runs one history.
fn run(script: &Script, excluded: &Excluded, slower: u32, counts: &mut Counts) -> Result<(), Stop> {
    let runtime = real_time();
    let confirm_after = CONFIRM_AFTER * slower;
    let pipe = match script.input {
        Input::Pipe => Pipe::new_pipe(),
        Input::File => file(&script.writers[0]),
    };
    let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
    let config = StreamConfig {
        confirm_after: script.confirms.then_some(confirm_after),
        ..StreamConfig::new(StreamPath::Path(pipe.path()), "things")
    };
    let live = {
        let _inside = runtime.enter();
        let source = StreamSource::new(config, health.clone());
        Live::start(source, health, 0, script.seed, slower, Path::new(""))
    };
    let mut run = Run { pipe, live, confirms: script.confirms, confirm_after, excluded, counts };
    // The script blocks this thread; the server has another one.
    let outcome = runtime.block_on(run.all(script));
    run.live.count(run.counts);
    drop(run);
    runtime.shutdown_background();
    outcome
}

/// Writes the file of a writer.
fn file(writer: &Writer) -> Pipe {
    let mut file = Pipe::new_file();
    file.open(&writer.pace);
    for piece in writer.events.iter().filter(|piece| !matches!(piece, Piece::Pause(_))) {
        file.piece(piece);
    }
    if let End::Torn(percent) = writer.end {
        file.tear(percent);
    }
    file.close();
    file
}

const CHECKER: Checker = Checker { name: "stream", cases: 200, required: REQUIRED, not_yet: NOT_YET };

/// Checks the source with drawn histories.
pub(crate) fn check() {
    CHECKER.check(any_script, run);
}
