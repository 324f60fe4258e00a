//! Part of a manifest file that cannot be read, for a message in the words of the file's author.

use serde_json::value::RawValue;
use serde_saphyr::Options;

use super::{
    list::ListHead,
    place::{Step, find, word_at},
    text::Document,
};
use crate::{model::FieldError, source::text::one_line};

/// Part that cannot be read.
pub(super) struct Fault {
    /// Way to the part from its document or value.
    steps: Vec<Step>,
    problem: Problem,
    /// Line and column, once it is known.
    pub(super) place: Option<(usize, usize)>,
    /// Name of the document or value, if it is not the only one.
    pub(super) within: String,
}

pub(super) enum Problem {
    Field(FieldError),
    Other(String),
}

// === impl Fault ===

impl Fault {
    pub(super) fn new(steps: &[Step], problem: Problem) -> Self {
        Self { steps: steps.to_vec(), problem, place: None, within: String::new() }
    }

    /// Returns the offset of the value in a JSON text.
    pub(super) fn offset_in(&self, json: &str) -> Option<usize> {
        let mut inner = json;
        for step in &self.steps {
            inner = match step {
                Step::Key(_) => serde_json::from_str::<ListHead<'_>>(inner).ok()?.items?.get(),
                Step::Item(at) => serde_json::from_str::<Vec<&RawValue>>(inner).ok()?.get(*at)?.get(),
            };
        }
        let begin = inner.as_ptr().addr().checked_sub(json.as_ptr().addr())?;
        match &self.problem {
            Problem::Field(error) => Some(begin + error.offset_in(inner)?),
            Problem::Other(_) => Some(begin),
        }
    }

    /// Finds the place in a YAML document, and how the value is written there.
    pub(super) fn find_in(&mut self, document: &Document<'_>, options: Options) {
        let mut steps = self.steps.clone();
        if let Problem::Field(error) = &self.problem {
            steps.extend(error.keys().iter().cloned().map(Step::Key));
        }
        let Some((line, column)) = find(document.text, options, &steps) else { return };
        self.place = Some((line + document.lines_before, column));
        if let Problem::Field(error) = &self.problem {
            self.problem = Problem::Field(error.clone().written_as(word_at(document.text, (line, column))));
        }
    }

    /// Returns the place and the problem in one line, such as `document 2, line 7, column 12: items[3]: not UTF-8`.
    pub(super) fn to_line(&self) -> String {
        let Self { steps, problem, place, within } = self;
        let name = |step: &Step| match step {
            Step::Key(key) => key.clone(),
            Step::Item(at) => format!("[{at}]: "),
        };
        let way: String = steps.iter().map(name).collect();
        let place = place.map(|(line, column)| format!("line {line}, column {column}: ")).unwrap_or_default();
        match problem {
            Problem::Field(error) => one_line(&format!("{within}{place}{way}{error}")),
            Problem::Other(problem) => one_line(&format!("{within}{place}{way}{problem}")),
        }
    }
}
