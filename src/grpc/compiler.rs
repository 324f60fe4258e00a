//! Expressions of requests, compiled away from the threads that serve, and kept by their text.
//!
//! To compile takes a stack of its own and up to some 15 ms, for a text of the client's choice. So it is done one text at a
//! time on a thread that may block, while the call waits, and peers take turns, and their connections; and of the texts that came last, the
//! outcome is kept, for clients that come back or are many.

mod line;

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use quick_cache::{Weighter, unsync::Cache};

use self::line::Line;
use crate::{
    model::{ExpressionError, MAX_EXPRESSION_BYTES},
    transport::Peer,
};

/// Compiles texts into what `T` is.
pub(super) struct Compiler<T> {
    parse: fn(&str) -> Result<T, ExpressionError>,
    recent: Mutex<Recent<T>>,
    line: Arc<Line>,
}

/// The outcomes that are asked for most and last.
type Recent<T> = Cache<Box<str>, Result<T, ExpressionError>, Weight>;

#[derive(Clone)]
struct Weight;

const MAX_TEXTS: usize = 256;
/// Of the texts. What they are compiled into was seen to be up to 75 times as large.
const MAX_BYTES: usize = 64 << 10;

// === impl Compiler ===

impl<T: Clone + Send + 'static> Compiler<T> {
    pub(super) fn new(parse: fn(&str) -> Result<T, ExpressionError>) -> Self {
        let recent = Cache::with_weighter(MAX_TEXTS, MAX_BYTES as u64, Weight);
        Self { parse, recent: Mutex::new(recent), line: Arc::default() }
    }

    /// Returns the outcome of a text that came lately.
    pub(super) fn known(&self, text: &str) -> Option<Result<T, ExpressionError>> {
        self.recent.lock().get(text).cloned()
    }

    /// Compiles a text of a connection.
    ///
    /// # Cancel safety
    ///
    /// A text whose turn has come is compiled to its end all the same.
    pub(super) async fn compile(&self, text: &str, connection: Option<Peer>) -> Result<T, ExpressionError> {
        if let Some(known) = self.known(text) {
            return known;
        }
        let turn = self.line.turn(connection).await;
        // Those who waited for the same text need no turn each.
        if let Some(known) = self.known(text) {
            return known;
        }
        let (parse, owned) = (self.parse, text.to_owned());
        // The turn goes with the work, and comes back with the outcome: if nobody waits for that any more, it ends there.
        let compiled = tokio::task::spawn_blocking(move || (parse(&owned), turn));
        let (outcome, turn) = match compiled.await {
            Ok(compiled) => compiled,
            // It does not panic, and the runtime ends after the calls.
            Err(error) => return Err(ExpressionError::NotParsed(error.to_string())),
        };
        // What is longer is refused at once, and not worth the others' place; what was not parsed may be the next time.
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
    /// Its bytes, and at least as many as make [`MAX_TEXTS`] of them [`MAX_BYTES`].
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

    /// A parser that refuses what begins with `!`.
    fn parsed(text: &str) -> Outcome {
        if text.starts_with('!') { Err(SyntaxError::new(text, 0, "no").into()) } else { Ok(text.to_uppercase()) }
    }

    #[tokio::test]
    async fn a_text_is_compiled_once_until_it_is_forgotten() {
        static TIMES: AtomicUsize = AtomicUsize::new(0);
        let compiler = Compiler::new(|text| {
            TIMES.fetch_add(1, Ordering::Relaxed);
            parsed(text)
        });
        for _ in 0..3 {
            assert_eq!(compiler.compile("a", None).await, Ok("A".to_owned()));
            assert_eq!(compiler.compile("!", None).await, Err(SyntaxError::new("!", 0, "no").into()));
        }
        assert_eq!(TIMES.load(Ordering::Relaxed), 2);
        for other in 0..MAX_TEXTS - 1 {
            compiler.compile(&other.to_string(), None).await.unwrap();
            compiler.compile("a", None).await.unwrap();
        }
        assert_eq!(TIMES.load(Ordering::Relaxed), MAX_TEXTS + 1, "what is asked for again stays");
        // Which of the others has gone for the last one is the cache's choice.
        for other in 0..MAX_TEXTS - 1 {
            compiler.compile(&other.to_string(), None).await.unwrap();
        }
        compiler.compile("!", None).await.unwrap_err();
        assert!(TIMES.load(Ordering::Relaxed) > MAX_TEXTS + 1, "what was not has gone");
    }

    #[tokio::test]
    async fn what_failed_for_a_moment_is_tried_again() {
        static TIMES: AtomicUsize = AtomicUsize::new(0);
        let compiler = Compiler::new(|text| match TIMES.fetch_add(1, Ordering::Relaxed) {
            0 => Err(ExpressionError::NotParsed("no thread".to_owned())),
            _ => parsed(text),
        });
        assert_eq!(compiler.compile("a", None).await, Err(ExpressionError::NotParsed("no thread".to_owned())));
        assert_eq!(compiler.compile("a", None).await, Ok("A".to_owned()));
    }

    #[tokio::test]
    async fn what_is_kept_is_bounded() {
        let compiler = Compiler::new(parsed);
        for n in 0..MAX_TEXTS + 50 {
            compiler.compile(&n.to_string(), None).await.unwrap();
        }
        // A part of the room is for what is new.
        let kept = compiler.recent.lock().len();
        assert!((MAX_TEXTS * 9 / 10..=MAX_TEXTS).contains(&kept), "{kept}");
        for n in 100..120 {
            compiler.compile(&n.to_string().repeat(MAX_EXPRESSION_BYTES / 3), None).await.unwrap();
        }
        let kept = compiler.recent.lock().len();
        compiler.compile(&"x".repeat(MAX_EXPRESSION_BYTES + 1), None).await.unwrap();
        let recent = compiler.recent.lock();
        assert_eq!(recent.len(), kept, "none that is too long");
        assert!(recent.iter().map(|(text, _)| text.len()).sum::<usize>() <= MAX_BYTES);
        assert!(recent.iter().any(|(text, _)| text.len() > MAX_EXPRESSION_BYTES - 3), "but as long as it may be");
    }

    /// On a runtime of one thread, which goes on serving.
    #[tokio::test]
    async fn texts_wait_for_each_other_and_nothing_waits_for_them() {
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
            tokio::spawn(async move { compiler.compile(&text, None).await })
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
