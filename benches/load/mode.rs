//! Modes: what is measured, of which subjects, how often.

use super::{
    compressed::Compressed,
    error::BenchError,
    fan_out::FanOut,
    idle::Idle,
    report::Report,
    run::Bench,
    stopped::Stopped,
    storm::{Lists, Storm},
    subject::Subject,
    views::Views,
};

/// Benchmark to run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Mode {
    /// W1, W2 and W3.
    FanOut(FanOut),
    /// Memory of watchers without events.
    Idle(Idle),
    /// One client that has stopped reading; each run is compared with one without it.
    Stopped(Stopped),
    /// Many clients that request everything at once.
    Storm(Storm),
    /// Lists of everything.
    Lists(Lists),
    /// Subscribers of a small view; each run is compared with one of whole objects.
    Views(Views),
    /// Clients that receive everything compressed; each run is compared with one without compression.
    Compressed(Compressed),
}

/// Runs the mode as often as requested, alternating the subjects; reports the name of each run before it.
///
/// # Errors
///
/// The error of the first run that fails or is miscounted.
pub(super) fn run(bench: &Bench, mode: &Mode, mut say: impl FnMut(&str)) -> Result<Report, BenchError> {
    let mut report = Report::default();
    for repetition in 1..=bench.repetitions {
        for (name, subject, is_control) in mode.runs(&bench.subjects) {
            say(&format!("run {repetition} of {}: {name}", bench.repetitions));
            let measured = match mode {
                Mode::FanOut(fan_out) => fan_out.run(bench, subject)?,
                Mode::Idle(idle) => idle.run(bench, subject)?,
                Mode::Stopped(stopped) => stopped.run(bench, subject, !is_control)?,
                Mode::Storm(storm) => storm.run(bench, subject)?,
                Mode::Lists(lists) => lists.run(bench, subject)?,
                Mode::Views(views) => views.run(bench, subject, !is_control)?,
                Mode::Compressed(compressed) => compressed.run(bench, subject, is_control)?,
            };
            report.add(name, measured);
        }
    }
    Ok(report)
}

// === impl Mode ===

impl Mode {
    /// Returns the runs of one repetition, with their names in the report: each subject that supports the mode, and as a control
    /// the first one again.
    fn runs<'a>(&self, subjects: &'a [Subject]) -> Vec<(&'static str, &'a Subject, bool)> {
        let has = |subject: &&Subject| match subject {
            Subject::Local { .. } | Subject::Remote(_) => true,
            Subject::Naive { .. } => matches!(self, Self::FanOut(_) | Self::Idle(_)),
            Subject::Floor { .. } => matches!(self, Self::FanOut(_)),
        };
        let mut runs: Vec<_> = subjects.iter().filter(has).map(|subject| (subject.name(), subject, false)).collect();
        let names = match self {
            Self::Stopped(_) => Some(["one stopped", "nobody stopped"]),
            Self::Views(_) => Some(["a view", "whole objects"]),
            Self::Compressed(Compressed { compression, .. }) => Some([*compression, "uncompressed"]),
            Self::FanOut(_) | Self::Idle(_) | Self::Storm(_) | Self::Lists(_) => None,
        };
        if let (Some([name, control]), Some((_, subject, _))) = (names, runs.first().copied()) {
            runs = vec![(name, subject, false), (control, subject, true)];
        }
        runs
    }
}
