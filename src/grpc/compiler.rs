//! Compiler for the expressions of requests, with a cache by text. It runs outside of the serving threads.
//!
//! Compiling a client's text needs a stack of its own and takes up to about 15 ms. So one text at a time is compiled on a
//! blocking thread, while the call waits, in [turns](crate::turns): all compilers of a server share these. The outcomes of recent texts
//! are cached for clients that reconnect, and for clients that send the same text.

use std::sync::Arc;

use parking_lot::Mutex;
use quick_cache::{Weighter, unsync::Cache};

use super::{
    call::Caller,
    exceeded_limit::{ExceededLimit, Limited},
};
use crate::{
    model::{ExpressionError, MAX_EXPRESSION_BYTES},
    transport::Exceeded,
    turns::{Class, FairSemaphore, Full, QueueBounds},
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

/// Returns the turns of compilers, of which at most `calls` wait, and `percent` of them of one caller.
pub(super) fn turns(calls: usize, percent: u32) -> Arc<FairSemaphore> {
    FairSemaphore::new(1, QueueBounds { calls, bytes: usize::MAX }, percent)
}

// === impl Compiler ===

impl<T: Clone + Send + 'static> Compiler<T> {
    pub(super) fn new(parse: fn(&str) -> Result<T, ExpressionError>, turns: Arc<FairSemaphore>) -> Self {
        let recent = Cache::with_weighter(MAX_TEXTS, MAX_BYTES as u64, Weight);
        Self { parse, recent: Mutex::new(recent), turns }
    }

    /// Returns the cached outcome of a text.
    fn known(&self, text: &str) -> Option<Result<T, ExpressionError>> {
        self.recent.lock().get(text).cloned()
    }

    /// Compiles a text for a caller.
    ///
    /// # Errors
    ///
    /// If too many calls wait, of all callers or of this one.
    ///
    /// # Cancel safety
    ///
    /// Safe. A compilation that has begun runs to its end.
    pub(super) async fn compile(
        &self,
        text: &str,
        caller: Caller,
    ) -> Result<Result<T, ExpressionError>, ExceededLimit> {
        if let Some(known) = self.known(text) {
            return Ok(known);
        }
        let turn = self.turns.acquire(caller.party(), Class::New, text.len()).await.map_err(exceeded)?;
        // Another call may have compiled the same text meanwhile.
        if let Some(known) = self.known(text) {
            return Ok(known);
        }
        let (parse, owned) = (self.parse, text.to_owned());
        // The turn moves into the closure and returns with the outcome; if this call is cancelled, it ends with the closure.
        let compiled = tokio::task::spawn_blocking(move || (parse(&owned), turn));
        let (outcome, turn) = match compiled.await {
            Ok(compiled) => compiled,
            // Unreachable: the closure does not panic, and the runtime outlives the calls.
            Err(error) => return Ok(Err(ExpressionError::NotParsed(error.to_string()))),
        };
        // A longer text is rejected quickly, so it is not worth a cache entry; a text that was not parsed may parse next time.
        if text.len() <= MAX_EXPRESSION_BYTES && !matches!(outcome, Err(ExpressionError::NotParsed(_))) {
            self.recent.lock().insert(text.into(), outcome.clone());
        }
        drop(turn);
        Ok(outcome)
    }
}

fn exceeded(full: Full) -> ExceededLimit {
    let exceeded = match full {
        Full::All(limit) => Exceeded::All(limit),
        Full::Share(limit) => Exceeded::Share(limit),
    };
    ExceededLimit::new(Limited::Compilations, exceeded)
}

debug_fields!([T] Compiler<T>, this => { kept: this.recent.lock().len() });

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

    use futures_util::future::join_all;
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;
    use crate::{grpc::status::ApiError, model::SyntaxError, transport::Peer};

    type Outcome = Result<String, ExpressionError>;

    /// Parses a text, and rejects those that begin with `!`.
    fn parsed(text: &str) -> Outcome {
        if text.starts_with('!') { Err(SyntaxError::new(text, 0, "no").into()) } else { Ok(text.to_uppercase()) }
    }

    fn compiler(parse: fn(&str) -> Outcome) -> Compiler<String> {
        Compiler::new(parse, turns(4096, 25))
    }

    /// Calls that wait are bounded, for each peer to its share; one whose text is known waits for nobody.
    #[tokio::test]
    async fn a_peer_has_its_share_of_waiting_compilations() {
        static GATE: AtomicBool = AtomicBool::new(false);
        let parse = |text: &str| {
            while !GATE.load(Ordering::SeqCst) && text != "known" {
                std::thread::yield_now();
            }
            parsed(text)
        };
        let compiler = Compiler::new(parse, turns(3, 67));
        let compile = |text: &'static str, host: u8| {
            let caller = Caller::new(Some(Peer::Tcp(([10, 0, 0, host], 1).into())), None);
            task::spawn(Box::pin(compiler.compile(text, caller)))
        };
        compile("known", 1).await.unwrap().unwrap();
        let mut calls = [compile("begun", 3), compile("a", 1), compile("b", 1), compile("c", 2)];
        for call in &mut calls {
            assert_pending!(call.poll());
        }
        let refused = |text, host| ApiError::from(assert_ready!(compile(text, host).poll()).unwrap_err());
        for (host, bound) in [(1, "peer_compilations"), (2, "compilations")] {
            let refusal = refused("d", host);
            assert_eq!(refusal.bound(), Some(bound));
            assert!(refusal.to_status().message().contains("wait to be compiled"), "{refusal:?}");
        }
        let known = assert_ready!(compile("known", 1).poll()).unwrap();
        assert_eq!(known, Ok("KNOWN".to_owned()), "it waits for nobody");
        GATE.store(true, Ordering::SeqCst);
        for compiled in join_all(calls).await {
            compiled.unwrap().unwrap();
        }
        compile("d", 1).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_text_is_compiled_once_until_it_is_evicted() {
        static TIMES: AtomicUsize = AtomicUsize::new(0);
        let compiler = compiler(|text| {
            TIMES.fetch_add(1, Ordering::Relaxed);
            parsed(text)
        });
        for _ in 0..3 {
            assert_eq!(compiler.compile("a", Caller::default()).await.unwrap(), Ok("A".to_owned()));
            assert_eq!(
                compiler.compile("!", Caller::default()).await.unwrap(),
                Err(SyntaxError::new("!", 0, "no").into())
            );
        }
        assert_eq!(TIMES.load(Ordering::Relaxed), 2);
        for other in 0..MAX_TEXTS - 1 {
            compiler.compile(&other.to_string(), Caller::default()).await.unwrap().unwrap();
            compiler.compile("a", Caller::default()).await.unwrap().unwrap();
        }
        assert_eq!(TIMES.load(Ordering::Relaxed), MAX_TEXTS + 1, "what is asked for again stays");
        // The cache chooses the other text that it evicted for the last one.
        for other in 0..MAX_TEXTS - 1 {
            compiler.compile(&other.to_string(), Caller::default()).await.unwrap().unwrap();
        }
        compiler.compile("!", Caller::default()).await.unwrap().unwrap_err();
        assert!(TIMES.load(Ordering::Relaxed) > MAX_TEXTS + 1, "what was not has gone");
    }

    #[tokio::test]
    async fn transient_failures_are_not_cached() {
        static TIMES: AtomicUsize = AtomicUsize::new(0);
        let compiler = compiler(|text| match TIMES.fetch_add(1, Ordering::Relaxed) {
            0 => Err(ExpressionError::NotParsed("no thread".to_owned())),
            _ => parsed(text),
        });
        assert_eq!(
            compiler.compile("a", Caller::default()).await.unwrap(),
            Err(ExpressionError::NotParsed("no thread".to_owned()))
        );
        assert_eq!(compiler.compile("a", Caller::default()).await.unwrap(), Ok("A".to_owned()));
    }

    #[tokio::test]
    async fn the_cache_is_bounded() {
        let compiler = compiler(parsed);
        for n in 0..MAX_TEXTS + 50 {
            compiler.compile(&n.to_string(), Caller::default()).await.unwrap().unwrap();
        }
        // The cache reserves a part of its capacity for new entries.
        let kept = compiler.recent.lock().len();
        assert!((MAX_TEXTS * 9 / 10..=MAX_TEXTS).contains(&kept), "{kept}");
        for n in 100..120 {
            compiler
                .compile(&n.to_string().repeat(MAX_EXPRESSION_BYTES / 3), Caller::default())
                .await
                .unwrap()
                .unwrap();
        }
        let kept = compiler.recent.lock().len();
        compiler.compile(&"x".repeat(MAX_EXPRESSION_BYTES + 1), Caller::default()).await.unwrap().unwrap();
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
        let compiler = Arc::new(compiler(|text| {
            MOST.fetch_max(RUNNING.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            while !GATE.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            RUNNING.fetch_sub(1, Ordering::SeqCst);
            parsed(text)
        }));
        let compile = |text: String| {
            let compiler = Arc::clone(&compiler);
            tokio::spawn(async move { compiler.compile(&text, Caller::default()).await.unwrap() })
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
