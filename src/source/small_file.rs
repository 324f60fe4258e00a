//! Reads of the small files that a connection needs: credentials, certificates, kubeconfigs.

use std::{fs, io::Read, path::Path};
#[cfg(feature = "server")]
use std::{path::PathBuf, time::Duration};

#[cfg(feature = "server")]
use super::digest;

/// Interval of the checks for other contents, as that of the configuration.
#[cfg(feature = "server")]
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Largest of these files.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Reads files on a thread that may block: on a network file system, that takes long.
///
/// # Cancel safety
///
/// Safe. A read that has begun goes on to its end.
#[cfg(feature = "server")]
pub(super) async fn reading<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| Err(error.to_string()))
}

/// Waits until files have other contents than those of a digest; for ever without files. Files that cannot be read have not changed: they
/// may be replaced just now.
///
/// # Cancel safety
///
/// May be dropped at any time.
#[cfg(feature = "server")]
pub(super) async fn changed(paths: Vec<PathBuf>, known: Option<String>) {
    let Some(known) = known.filter(|_| !paths.is_empty()) else { return std::future::pending().await };
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let paths = paths.clone();
        if reading(move || digest_of(&paths)).await.is_ok_and(|digest| digest != known) {
            return;
        }
    }
}

/// Returns a digest of the contents of files.
///
/// # Errors
///
/// The first file that cannot be read.
#[cfg(feature = "server")]
pub(super) fn digest_of(paths: &[PathBuf]) -> Result<String, String> {
    let contents = paths.iter().map(|path| read(path).map(|bytes| digest::of(&bytes)));
    contents.collect::<Result<Vec<_>, _>>().map(|digests| digests.join(" "))
}

/// Reads a text file.
pub(super) fn read_text(path: &Path) -> Result<String, String> {
    String::from_utf8(read(path)?).map_err(|_| format!("{} is not UTF-8", path.display()))
}

/// Reads a file.
///
/// # Errors
///
/// The path and the problem, in one line.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, String> {
    let problem = |error: std::io::Error| format!("{} cannot be read: {error}", path.display());
    let mut bytes = Vec::new();
    fs::File::open(path).map_err(problem)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(problem)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("{} is too large (limit: {MAX_FILE_BYTES} bytes)", path.display()));
    }
    Ok(bytes)
}
