//! Files that are parsed at the start, and again whenever they change.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;

use super::{
    connection_files::{Digest, hash},
    small_file::read_at_most,
};

/// Values of files. While one cannot be read or they cannot be parsed, the last good values are used.
pub(crate) struct ReloadedFiles<T> {
    kind: FileKind,
    /// The first is in the log.
    paths: Vec<PathBuf>,
    parse: Parse<T>,
    /// Digest of the contents and their values.
    loaded: ArcSwap<(Digest, T)>,
}

/// Kind of files.
pub(crate) struct FileKind {
    /// Name in the log.
    pub(crate) name: &'static str,
    /// Interval at which the files are checked for changes.
    pub(crate) interval: Duration,
    /// Reads a file.
    pub(crate) read: fn(&Path) -> Result<Vec<u8>, String>,
}

/// Error of a file that is parsed again when it changes; of credentials and keys it shows nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}", path = path.display())]
pub struct FileError {
    path: PathBuf,
    problem: String,
}

/// Parser of the contents. Its errors must not quote credentials.
type Parse<T> = Box<dyn Fn(&[Vec<u8>]) -> Result<T, FileError> + Send + Sync>;

/// File alone.
const FILE: FileKind = FileKind { name: "file", interval: Duration::from_secs(5), read };
/// Largest file that is alone, in bytes.
const MAX_BYTES: u64 = 1 << 20;

// === impl ReloadedFiles ===

impl<T: Send + Sync + 'static> ReloadedFiles<T> {
    /// Reads a file. The errors of `parse` must not quote credentials.
    ///
    /// # Errors
    ///
    /// If it cannot be read or parsed.
    pub(crate) fn load_one(path: &Path, parse: fn(&[u8]) -> Result<T, String>) -> Result<Arc<Self>, FileError> {
        let of = path.to_owned();
        let parse = move |contents: &[Vec<u8>]| parse(&contents[0]).map_err(|problem| FileError::new(&of, problem));
        Self::load(FILE, vec![path.to_owned()], parse)
    }

    /// Reads files, of which there is at least one, and whose contents are parsed together. The errors of `parse` must not quote
    /// credentials.
    ///
    /// # Errors
    ///
    /// If one cannot be read, or they cannot be parsed.
    pub(crate) fn load(
        kind: FileKind,
        paths: Vec<PathBuf>,
        parse: impl Fn(&[Vec<u8>]) -> Result<T, FileError> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, FileError> {
        let (digest, contents) = kind.read(&paths)?;
        let loaded = ArcSwap::from_pointee((digest, parse(&contents)?));
        Ok(Arc::new(Self { kind, paths, parse: Box::new(parse), loaded }))
    }

    /// Calls a function with the current values.
    pub(crate) fn with<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.loaded.load().1)
    }

    /// Reads the files again whenever they have changed, and calls a function then; never returns. It logs the error of files that
    /// cannot be used once.
    pub(crate) async fn reload(self: Arc<Self>, on_change: impl Fn()) {
        let (kind, mut last) = (self.kind.name, None);
        loop {
            tokio::time::sleep(self.kind.interval).await;
            let this = Arc::clone(&self);
            // The read would block a thread of the runtime, on a network file system for long.
            let reloaded = tokio::task::spawn_blocking(move || this.reload_once()).await;
            let file = &self.paths[0];
            let reloaded = reloaded.unwrap_or_else(|error| Err(FileError::new(file, error.to_string())));
            match &reloaded {
                Ok(true) => {
                    tracing::info!(file = %file.display(), "{kind} reloaded");
                    on_change();
                }
                Ok(false) if last.is_some() => tracing::info!(file = %file.display(), "{kind} valid again, unchanged"),
                Err(error) if last.as_ref() != Some(error) => {
                    let FileError { path, problem } = error;
                    tracing::warn!(file = %path.display(), error = %problem, "{kind} not reloaded, last good content in use");
                }
                Ok(false) | Err(_) => {}
            }
            last = reloaded.err();
        }
    }

    /// Reads the files if they have changed. Returns true if they had.
    pub(crate) fn reload_once(&self) -> Result<bool, FileError> {
        let (digest, contents) = self.kind.read(&self.paths)?;
        if digest == self.loaded.load().0 {
            return Ok(false);
        }
        self.loaded.store(Arc::new((digest, (self.parse)(&contents)?)));
        Ok(true)
    }
}

debug_fields!([T] ReloadedFiles<T> { paths });

// === impl FileKind ===

impl FileKind {
    /// Returns the digest of the contents, and the contents.
    fn read(&self, paths: &[PathBuf]) -> Result<(Digest, Vec<Vec<u8>>), FileError> {
        let contents = paths.iter().map(|path| (self.read)(path).map_err(|problem| FileError::new(path, problem)));
        let contents = contents.collect::<Result<Vec<_>, _>>()?;
        Ok((contents.iter().flat_map(|content| hash(content)).collect(), contents))
    }
}

// === impl FileError ===

impl FileError {
    pub(crate) fn new(path: &Path, problem: String) -> Self {
        Self { path: path.to_owned(), problem }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let content = read_at_most(path, MAX_BYTES).map_err(|error| format!("cannot be read: {error}"))?;
    if content.len() as u64 > MAX_BYTES {
        return Err(format!("is larger than {MAX_BYTES} bytes"));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        let file = ReloadedFiles::load_one(&path, parse).unwrap();
        let _reloading = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(Arc::clone(&file).reload(|| {})));
        let after = async |content: Option<&str>| {
            match content {
                Some(content) => fs::write(&path, content).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            // The time stands still while the file is read.
            tokio::time::sleep(FILE.interval * 2).await;
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
        let error = || ReloadedFiles::load_one(&path, parse).unwrap_err().to_string();
        assert!(error().contains("file: cannot be read: No such file"), "{}", error());
        fs::write(&path, "bad").unwrap();
        assert!(error().ends_with("file: is bad"), "{}", error());
        fs::write(&path, vec![b'x'; MAX_BYTES as usize + 1]).unwrap();
        assert!(error().ends_with("file: is larger than 1048576 bytes"), "{}", error());
    }
}
