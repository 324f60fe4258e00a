//! Notes about a watch for its user.

use tonic::Code;

use crate::{
    cli::client_flags::{expression_failed, limited},
    client::{Note, Progress, Update},
    proto::pb,
};

/// Notes about a watch for its user.
#[derive(Debug, Default)]
pub(crate) struct WatchNotes {
    pub(super) is_synced: bool,
    objects: u64,
    /// Namespaces that the watch is limited to.
    namespaces: Vec<String>,
}

// === impl WatchNotes ===

impl WatchNotes {
    /// Returns the note for an update, if there is one.
    pub(crate) fn of(&mut self, update: &Update) -> Option<String> {
        match update {
            Update::Event { event_type: pb::EventType::Added, .. } => self.objects += 1,
            Update::Event { event_type: pb::EventType::Deleted, .. } => self.objects = self.objects.saturating_sub(1),
            Update::Synced(progress) if !std::mem::replace(&mut self.is_synced, true) => {
                let Self { objects: count, .. } = self;
                let objects = if *count == 1 { "object" } else { "objects" };
                let failed = progress.expression_errors.as_ref().map(expression_failed);
                let failed = failed.map(|failed| format!("; {failed}")).unwrap_or_default();
                return Some(format!("# synced: {count} {objects} at {}{failed}", progress.resource_version));
            }
            Update::Event { .. } | Update::Bookmark(_) | Update::Synced(_) => {}
            Update::Dropped { count, after } => return Some(format!("# {count} events missing after {after}")),
            Update::Note(note) => return Some(describe(note)),
        }
        None
    }

    /// Returns the note about the namespaces that the watch is limited to, if they have changed.
    pub(crate) fn limit(&mut self, resource: &str, progress: &Progress) -> Option<String> {
        if self.namespaces == progress.namespaces {
            return None;
        }
        self.namespaces.clone_from(&progress.namespaces);
        limited(resource, &self.namespaces)
    }
}

fn describe(note: &Note) -> String {
    match note {
        // A new history, or an old version, is nothing to act on: the client lists again.
        Note::Reconnecting { error, .. } if error.code() == Code::OutOfRange => {
            "# cannot resume from the last version: listing again, and comparing".to_owned()
        }
        Note::Reconnecting { error, delay } => format!("# reconnecting in {:.1}s: {error}", delay.as_secs_f64()),
        Note::Resumed { resource_version } => format!("# resumed at {resource_version}"),
        Note::Relisted { changes, .. } => {
            format!("# relisted: {changes} {}", if *changes == 1 { "change" } else { "changes" })
        }
        Note::Healing { count, delay, .. } => {
            format!("# {count} events dropped: resuming before them in {:.1}s", delay.as_secs_f64())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::client::ClientError;

    #[test]
    fn notes_are_one_line() {
        let error = ClientError::Request { problem: "x".to_owned() };
        let note = Note::Reconnecting { error, delay: Duration::from_millis(812) };
        assert_eq!(describe(&note), "# reconnecting in 0.8s: x");
        let relisted = |changes| describe(&Note::Relisted { resource_version: "a.1".to_owned(), changes });
        assert_eq!((relisted(0), relisted(1)), ("# relisted: 0 changes".to_owned(), "# relisted: 1 change".to_owned()));
    }
}
