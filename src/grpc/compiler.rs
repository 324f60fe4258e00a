//! Compiler for the expressions of requests, with a cache by text. It runs outside of the serving threads.
//!
//! Compiling a client's text needs a stack of its own and takes up to about 15 ms. So one text at a time is compiled on a
//! blocking thread, while the call waits; peers take turns, and so do the connections of each peer. The outcomes of recent texts
//! are cached for clients that reconnect, and for clients that send the same text.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use quick_cache::{Weighter, unsync::Cache};

use super::call::Caller;
use crate::{
    model::{ExpressionError, MAX_EXPRESSION_BYTES},
    turns::{Class, FairSemaphore, QueueBounds},
};

/// Compiler from texts to `T`.
pub(super) struct Compiler<T> {
    parse: fn(&str) -> Result<T, ExpressionError>,
    recent: Mutex<Recent<T>>,
    turns: Arc<FairSemaphore>,
}

/// Cache of the most frequent and most recent outcomes.
type Recent<T> = Cache<Box<str>, Result<T, ExpressionError>, Weight>;

#[derive(Clone)]
struct Weight;

const MAX_TEXTS: usize = 256;
/// Maximum size of the cached texts. Their compiled forms were measured at up to 75 times that size.
const MAX_BYTES: usize = 64 << 10;

// === impl Compiler ===

impl<T: Clone + Send + 'static> Compiler<T> {
    pub(super) fn new(parse: fn(&str) -> Result<T, ExpressionError>) -> Self {
        let recent = Cache::with_weighter(MAX_TEXTS, MAX_BYTES as u64, Weight);
        // `limits.compilations` bounds the queue.
        let bounds = QueueBounds { calls: usize::MAX, bytes: usize::MAX };
        Self { parse, recent: Mutex::new(recent), turns: FairSemaphore::new(1, bounds) }
    }

    /// Returns the cached outcome of a text.
    pub(super) fn known(&self, text: &str) -> Option<Result<T, ExpressionError>> {
        self.recent.lock().get(text).cloned()
    }

    /// Compiles a text for a caller.
    ///
    /// # Cancel safety
    ///
    /// Safe. A compilation that has begun runs to its end.
    pub(super) async fn compile(&self, text: &str, caller: Caller) -> Result<T, ExpressionError> {
        if let Some(known) = self.known(text) {
            return known;
        }
        let turn = self.turns.acquire(caller.party(), Class::New, text.len()).await;
        let turn = turn.map_err(|full| ExpressionError::NotParsed(full.to_string()))?;
        // Another call may have compiled the same text meanwhile.
        if let Some(known) = self.known(text) {
            return known;
        }
        let (parse, owned) = (self.parse, text.to_owned());
        // The turn moves into the closure and returns with the outcome; if this call is cancelled, it ends with the closure.
        let compiled = tokio::task::spawn_blocking(move || (parse(&owned), turn));
        let (outcome, turn) = match compiled.await {
            Ok(compiled) => compiled,
            // Unreachable: the closure does not panic, and the runtime outlives the calls.
            Err(error) => return Err(ExpressionError::NotParsed(error.to_string())),
        };
        // A longer text is rejected quickly, so it is not worth a cache entry; a text that was not parsed may parse next time.
        if text.len() <= MAX_EXPRESSION_BYTES && !matches!(outcome, Err(ExpressionError::NotParsed(_))) {
            self.recent.lock().insert(text.into(), outcome.clone());
        }
        drop(turn);
        outcome
    }
}

impl<T> fmt::Debug for Compiler<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiler").field("kept", &self.recent.lock().len()).finish_non_exhaustive()
    }
}

// === impl Weight ===

impl<T> Weighter<Box<str>, Result<T, ExpressionError>> for Weight {
    /// Returns the size of the text, and at least so much that [`MAX_TEXTS`] texts fill [`MAX_BYTES`].
    fn weight(&self, text: &Box<str>, _: &Result<T, ExpressionError>) -> u64 {
        text.len().max(MAX_BYTES / MAX_TEXTS) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, AtomicUsize, Ordering},
        time::Duration,
    };

    use super::*;
    use crate::model::SyntaxError;

    type Outcome = Result<String, ExpressionError>;

    /// Parses a text, and rejects those that begin with `!`.
    fn parsed(text: &str) -> Outcome {
        if text.starts_with('!') { Err(SyntaxError::new(text, 0, "no").into()) } else { Ok(text.to_uppercase()) }
    }

    #[tokio::test]
    async fn a_text_is_compiled_once_until_it_is_evicted() {
        static TIMES: AtomicUsize = AtomicUsize::new(0);
        let compiler = Compiler::new(|text| {
            TIMES.fetch_add(1, Ordering::Relaxed);
            parsed(text)
        });
        for _ in 0..3 {
            assert_eq!(compiler.compile("a", Caller::default()).await, Ok("A".to_owned()));
            assert_eq!(compiler.compile("!", Caller::default()).await, Err(SyntaxError::new("!", 0, "no").into()));
        }
        assert_eq!(TIMES.load(Ordering::Relaxed), 2);
        for other in 0..MAX_TEXTS - 1 {
            compiler.compile(&other.to_string(), Caller::default()).await.unwrap();
            compiler.compile("a", Caller::default()).await.unwrap();
        }
        assert_eq!(TIMES.load(Ordering::Relaxed), MAX_TEXTS + 1, "what is asked for again stays");
        // The cache chooses the other text that it evicted for the last one.
        for other in 0..MAX_TEXTS - 1 {
            compiler.compile(&other.to_string(), Caller::default()).await.unwrap();
        }
        compiler.compile("!", Caller::default()).await.unwrap_err();
        assert!(TIMES.load(Ordering::Relaxed) > MAX_TEXTS + 1, "what was not has gone");
    }

    #[tokio::test]
    async fn transient_failures_are_not_cached() {
        static TIMES: AtomicUsize = AtomicUsize::new(0);
        let compiler = Compiler::new(|text| match TIMES.fetch_add(1, Ordering::Relaxed) {
            0 => Err(ExpressionError::NotParsed("no thread".to_owned())),
            _ => parsed(text),
        });
        assert_eq!(
            compiler.compile("a", Caller::default()).await,
            Err(ExpressionError::NotParsed("no thread".to_owned()))
        );
        assert_eq!(compiler.compile("a", Caller::default()).await, Ok("A".to_owned()));
    }

    #[tokio::test]
    async fn the_cache_is_bounded() {
        let compiler = Compiler::new(parsed);
        for n in 0..MAX_TEXTS + 50 {
            compiler.compile(&n.to_string(), Caller::default()).await.unwrap();
        }
        // The cache reserves a part of its capacity for new entries.
        let kept = compiler.recent.lock().len();
        assert!((MAX_TEXTS * 9 / 10..=MAX_TEXTS).contains(&kept), "{kept}");
        for n in 100..120 {
            compiler.compile(&n.to_string().repeat(MAX_EXPRESSION_BYTES / 3), Caller::default()).await.unwrap();
        }
        let kept = compiler.recent.lock().len();
        compiler.compile(&"x".repeat(MAX_EXPRESSION_BYTES + 1), Caller::default()).await.unwrap();
        let recent = compiler.recent.lock();
        assert_eq!(recent.len(), kept, "none that is too long");
        assert!(recent.iter().map(|(text, _)| text.len()).sum::<usize>() <= MAX_BYTES);
        assert!(recent.iter().any(|(text, _)| text.len() > MAX_EXPRESSION_BYTES - 3), "but as long as it may be");
    }

    /// Runs on a runtime of one thread, which continues to serve.
    #[tokio::test]
    async fn compilations_run_one_at_a_time_and_block_nothing_else() {
        static GATE: AtomicBool = AtomicBool::new(false);
        static RUNNING: AtomicUsize = AtomicUsize::new(0);
        static MOST: AtomicUsize = AtomicUsize::new(0);
        let compiler = Arc::new(Compiler::new(|text| {
            MOST.fetch_max(RUNNING.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            while !GATE.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            RUNNING.fetch_sub(1, Ordering::SeqCst);
            parsed(text)
        }));
        let compile = |text: String| {
            let compiler = Arc::clone(&compiler);
            tokio::spawn(async move { compiler.compile(&text, Caller::default()).await })
        };
        // Each text twice.
        let calls: Vec<_> = (0..100).map(|n| (n / 2).to_string()).map(|text| (text.clone(), compile(text))).collect();
        let cancelled = compile("cancelled".to_owned());
        while RUNNING.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        cancelled.abort();
        assert!(cancelled.await.unwrap_err().is_cancelled());
        assert!(calls.iter().all(|(_, call)| !call.is_finished()));
        GATE.store(true, Ordering::SeqCst);
        for (text, call) in calls {
            let call = tokio::time::timeout(Duration::from_secs(60), call);
            assert_eq!(call.await.expect("its turn comes").unwrap(), Ok(text));
        }
        assert_eq!(MOST.load(Ordering::SeqCst), 1);
        assert_eq!(compiler.recent.lock().len(), 50, "each once, and not what was given up");
    }
}
