//! Watch that measures the latency of events while the load client is busy, with its own client and thread.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use super::{client::Client, error::BenchError, stats::Histogram};

/// Watch that is being read.
#[derive(Debug)]
pub(super) struct Witness {
    thread: JoinHandle<Result<Client, BenchError>>,
    /// Expected number of changes, once it is known.
    expected: Arc<AtomicU64>,
}

// === impl Witness ===

impl Witness {
    /// Reads with a client whose only watch has joined.
    pub(super) fn new(mut client: Client) -> Self {
        let expected = Arc::new(AtomicU64::new(u64::MAX));
        let until = Arc::clone(&expected);
        client.begin_latencies(1);
        let thread = thread::spawn(move || {
            client.run(|client| client.tally.changes + client.tally.missed >= until.load(Ordering::Relaxed))?;
            Ok(client)
        });
        Self { thread, expected }
    }

    /// Waits until it has received this many changes; returns its client.
    pub(super) fn finish(self, expected: u64) -> Result<Client, BenchError> {
        self.expected.store(expected, Ordering::Relaxed);
        // The only failure is a panic, a bug that was already reported.
        let joined = self.thread.join().map_err(|_| BenchError::Connection("the witness has ended".to_owned()))?;
        let client = joined?;
        let got = client.tally.changes + client.tally.missed;
        if got == expected { Ok(client) } else { Err(BenchError::Miscounted { stream: 0, expected, got }) }
    }

    /// Waits until it has received this many changes; returns their latencies, and the witness to continue with.
    pub(super) fn pause(self, expected: u64) -> Result<(Histogram, Self), BenchError> {
        let client = self.finish(expected)?;
        Ok((client.latencies().clone(), Self::new(client)))
    }
}
