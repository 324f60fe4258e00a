//! Lines about denied calls in the audit log: one in a second for each caller and reason, with the number of calls. Otherwise whoever
//! reaches the port could fill the disk.

use std::{collections::HashMap, fmt::Write, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{audit::AuditLog, transport::Origin};

/// Audit log, with the lines about denied calls that are held back.
#[derive(Debug)]
pub(super) struct Denials {
    log: AuditLog,
    state: Mutex<HashMap<Key, Denied>>,
}

/// Caller whose calls are denied.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum DeniedCaller {
    /// Authenticated user.
    User(String),
    /// Peer without one.
    Peer(Option<Origin>),
}

/// Caller and reason. Callers beyond [`MAX_KEYS`] count as one.
type Key = (DeniedCaller, String);

/// Denied calls of one caller for one reason.
#[derive(Debug)]
struct Denied {
    /// Time of the last line.
    written: Instant,
    /// Calls since then.
    held_back: u64,
    /// Line of the last of them: a map in JSON.
    line: String,
}

/// Least time between two lines about one caller and reason.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of callers and reasons that have lines of their own.
const MAX_KEYS: usize = 4096;

// === impl Denials ===

impl Denials {
    pub(super) fn new(log: AuditLog) -> Self {
        Self { log, state: Mutex::default() }
    }

    /// Returns the log, for other lines.
    pub(super) fn log(&self) -> &AuditLog {
        &self.log
    }

    /// Adds a line about a call, or holds it back.
    pub(super) fn add(&self, caller: DeniedCaller, reason: String, line: String) {
        let (now, mut state) = (Instant::now(), self.state.lock());
        let mut key = (caller, reason);
        if state.len() >= MAX_KEYS && !state.contains_key(&key) {
            key.0 = DeniedCaller::Peer(None);
        }
        if let Some(denied) = state.get_mut(&key) {
            denied.held_back += 1;
            denied.line = line;
            denied.write(&self.log, now);
        } else {
            state.insert(key, Denied { written: now, held_back: 0, line: String::new() });
            self.log.add(line);
        }
    }

    /// Writes all lines that are held back, before the log is closed.
    pub(super) fn finish(&self) {
        for denied in self.state.lock().values_mut() {
            denied.write(&self.log, denied.written + INTERVAL);
        }
    }

    /// Writes the lines that were held back, each when it is due; never returns.
    ///
    /// # Cancel safety
    ///
    /// Safe. Lines are held back until the next call of the same caller while it does not run.
    pub(super) async fn run(&self) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            let now = Instant::now();
            self.state.lock().retain(|_, denied| {
                let is_idle = denied.held_back == 0 && now - denied.written >= INTERVAL;
                denied.write(&self.log, now);
                !is_idle
            });
        }
    }
}

impl Drop for Denials {
    fn drop(&mut self) {
        self.finish();
    }
}

// === impl Denied ===

impl Denied {
    /// Writes the line with the number of calls, if it is due.
    fn write(&mut self, log: &AuditLog, now: Instant) {
        if self.held_back == 0 || now.duration_since(self.written) < INTERVAL {
            return;
        }
        let mut line = std::mem::take(&mut self.line);
        if self.held_back > 1 && line.ends_with('}') {
            line.pop();
            // Writing to a text does not fail.
            write!(line, ",\"calls\":{}}}", self.held_back).unwrap_or_default();
        }
        log.add(line);
        (self.written, self.held_back) = (now, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Arc};

    use super::*;

    fn lines(log: &AuditLog, file: &Path) -> Vec<String> {
        log.flush(Duration::from_secs(60));
        std::fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_has_one_line_in_a_second_for_each_reason_with_the_number_of_calls() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let log = AuditLog::open(&path).unwrap();
        let denials = Arc::new(Denials::new(log.clone()));
        let running = tokio::spawn({
            let denials = Arc::clone(&denials);
            async move { denials.run().await }
        });
        let user = |number: u64| DeniedCaller::User(number.to_string());
        let (one, two) = (user(1), user(2));
        let denied = |caller: &DeniedCaller, reason: &str, call: u64| {
            denials.add(caller.clone(), reason.to_owned(), format!("{{\"reason\":\"{reason}\",\"call\":{call}}}"));
        };
        (0..1000).for_each(|call| denied(&one, "A", call));
        denied(&one, "B", 1);
        denied(&two, "A", 1);
        let first = [r#"{"reason":"A","call":0}"#, r#"{"reason":"B","call":1}"#, r#"{"reason":"A","call":1}"#];
        assert_eq!(lines(&log, &path), first);
        tokio::time::sleep(INTERVAL * 3).await;
        assert_eq!(lines(&log, &path)[3..], [r#"{"reason":"A","call":999,"calls":999}"#]);
        assert!(denials.state.lock().is_empty(), "who has gone is forgotten");
        // A single call that was held back has the line of any other.
        (0..2).for_each(|call| denied(&two, "A", call));
        tokio::time::sleep(INTERVAL * 3).await;
        assert_eq!(lines(&log, &path)[4..], [r#"{"reason":"A","call":0}"#, r#"{"reason":"A","call":1}"#]);
        running.abort();
        // The server shuts down within that second, and others still have the log.
        (0..3).for_each(|call| denied(&one, "C", call));
        denials.finish();
        let last = [r#"{"reason":"C","call":0}"#, r#"{"reason":"C","call":2,"calls":2}"#];
        assert_eq!(lines(&log, &path)[6..], last);
    }

    #[tokio::test(start_paused = true)]
    async fn callers_beyond_the_limit_share_their_lines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let log = AuditLog::open(&path).unwrap();
        let denials = Denials::new(log.clone());
        let callers = MAX_KEYS as u64 + 100;
        for caller in 0..callers {
            denials.add(DeniedCaller::Peer(Some(Origin::Identity(caller))), "A".to_owned(), "{\"call\":1}".to_owned());
            if caller % 1000 == 0 {
                log.flush(Duration::from_secs(60));
            }
        }
        assert_eq!(denials.state.lock().len(), MAX_KEYS + 1);
        drop(denials);
        assert_eq!(lines(&log, &path).last().unwrap(), r#"{"call":1,"calls":99}"#);
    }
}
