//! File that is parsed at the start, and again whenever it changes.

use std::{
    fmt, fs,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use ring::digest::{SHA256, digest};

/// Values of a file. While the file cannot be read or parsed, the last good values are used.
pub(super) struct ReloadedFile<T> {
    path: PathBuf,
    parse: Parse<T>,
    /// Digest of the content and its values.
    loaded: ArcSwap<(Vec<u8>, T)>,
}

/// Error of a file that is parsed again when it changes; of credentials and keys it shows nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}", path = path.display())]
pub struct FileError {
    path: PathBuf,
    problem: String,
}

/// Parser of the content. Its errors must not quote credentials.
pub(super) type Parse<T> = fn(&[u8]) -> Result<T, String>;

/// Largest file, in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Interval at which the file is checked for changes.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

// === impl ReloadedFile ===

impl<T: Send + Sync + 'static> ReloadedFile<T> {
    /// Reads the file.
    ///
    /// # Errors
    ///
    /// If it cannot be read or parsed.
    pub(super) fn load(path: &Path, parse: Parse<T>) -> Result<Arc<Self>, FileError> {
        let loaded = read(path).and_then(|content| Ok((hash(&content), parse(&content)?)));
        let loaded = loaded.map_err(|problem| FileError { path: path.to_owned(), problem })?;
        Ok(Arc::new(Self { path: path.to_owned(), parse, loaded: ArcSwap::from_pointee(loaded) }))
    }

    /// Calls a function with the current values.
    pub(super) fn with<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.loaded.load().1)
    }

    /// Reads the file again whenever it has changed, and calls a function then; never returns. It logs the error of a file that
    /// cannot be used once.
    pub(super) async fn reload(self: Arc<Self>, on_change: impl Fn()) {
        let mut last = None;
        loop {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            let this = Arc::clone(&self);
            // The read would block a thread of the runtime, on a network file system for long.
            let reloaded = tokio::task::spawn_blocking(move || this.reload_once()).await;
            let problem = match reloaded {
                Ok(Ok(true)) => {
                    tracing::info!(file = %self.path.display(), "file reloaded");
                    on_change();
                    None
                }
                Ok(Ok(false)) => {
                    if last.is_some() {
                        tracing::info!(file = %self.path.display(), "file valid again, unchanged");
                    }
                    None
                }
                Ok(Err(problem)) => Some(problem),
                Err(error) => Some(error.to_string()),
            };
            if let Some(error) = problem.as_ref().filter(|_| problem != last) {
                tracing::warn!(file = %self.path.display(), %error, "file not reloaded, last good content in use");
            }
            last = problem;
        }
    }

    /// Reads the file if it has changed. Returns true if it had.
    fn reload_once(&self) -> Result<bool, String> {
        let content = read(&self.path)?;
        let digest = hash(&content);
        if digest == self.loaded.load().0 {
            return Ok(false);
        }
        self.loaded.store(Arc::new((digest, (self.parse)(&content)?)));
        Ok(true)
    }
}

impl<T> fmt::Debug for ReloadedFile<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReloadedFile").field("path", &self.path).finish_non_exhaustive()
    }
}

fn hash(content: &[u8]) -> Vec<u8> {
    digest(&SHA256, content).as_ref().to_vec()
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut content = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut content));
    read.map_err(|error| format!("cannot be read: {error}"))?;
    if content.len() as u64 > MAX_BYTES {
        return Err(format!("is larger than {MAX_BYTES} bytes"));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_throttle::test_log::TestLog;

    fn parse(content: &[u8]) -> Result<usize, String> {
        if content == b"bad" { Err("is bad".to_owned()) } else { Ok(content.len()) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_changes_is_read_again_and_a_bad_one_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "a").unwrap();
        let file = ReloadedFile::load(&path, parse).unwrap();
        let _reloading = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(Arc::clone(&file).reload(|| {})));
        let after = async |content: Option<&str>| {
            match content {
                Some(content) => fs::write(&path, content).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            // The time stands still while the file is read.
            tokio::time::sleep(RELOAD_INTERVAL * 2).await;
            file.with(|length| *length)
        };
        assert_eq!(after(Some("abc")).await, 3);
        assert_eq!(after(Some("bad")).await, 3);
        assert_eq!(after(None).await, 3);
        assert_eq!(after(Some("ab")).await, 2);
        let (log, _guard) = TestLog::start(tracing::Level::INFO);
        assert_eq!(after(Some("bad")).await, 2);
        assert_eq!(log.take().len(), 0);
        assert_eq!(after(Some("ab")).await, 2);
        let logged = log.take();
        assert!(logged.len() == 1 && logged[0].contains("file valid again, unchanged"), "{logged:?}");
        assert_eq!((after(Some("ab")).await, log.take().len()), (2, 0));
    }

    #[test]
    fn a_file_that_cannot_be_used_is_an_error_at_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let error = || ReloadedFile::load(&path, parse).unwrap_err().to_string();
        assert!(error().contains("file: cannot be read: No such file"), "{}", error());
        fs::write(&path, "bad").unwrap();
        assert!(error().ends_with("file: is bad"), "{}", error());
        fs::write(&path, vec![b'x'; MAX_BYTES as usize + 1]).unwrap();
        assert!(error().ends_with("file: is larger than 1048576 bytes"), "{}", error());
    }
}
