//! Reads of the small files that a connection needs: credentials, certificates, kubeconfigs.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use ring::digest::SHA256;

/// Digest of the contents of files.
pub(crate) type Digest = Vec<u8>;

/// Interval of the checks for other contents, as that of the configuration.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Largest of these files.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Reads files on a thread that may block: on a network file system, that takes long.
///
/// # Cancel safety
///
/// Safe. A read that has begun goes on to its end.
pub(crate) async fn reading<T: Send + 'static>(
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
pub(crate) async fn changed(paths: Vec<PathBuf>, known: Option<Digest>) {
    let Some(known) = known.filter(|_| !paths.is_empty()) else { return std::future::pending().await };
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        if digest(paths.clone()).await.is_some_and(|digest| digest != known) {
            return;
        }
    }
}

/// Returns a digest of the contents of files, which it reads on a thread that may block; `None` if one cannot be read.
///
/// # Cancel safety
///
/// May be dropped at any time.
pub(crate) async fn digest(paths: Vec<PathBuf>) -> Option<Digest> {
    reading(move || digest_of(&paths)).await.ok()
}

/// Returns a digest of the contents of files.
///
/// # Errors
///
/// The first file that cannot be read.
pub(crate) fn digest_of(paths: &[PathBuf]) -> Result<Digest, String> {
    let digests = paths.iter().map(|path| read(path).map(|content| hash(&content)));
    digests.collect::<Result<Vec<_>, _>>().map(|digests| digests.concat())
}

/// Returns the digest of one content.
pub(super) fn hash(content: &[u8]) -> Digest {
    ring::digest::digest(&SHA256, content).as_ref().to_vec()
}

/// Reads a text file.
pub(crate) fn read_text(path: &Path) -> Result<String, String> {
    String::from_utf8(read(path)?).map_err(|_| format!("{} is not UTF-8", path.display()))
}

/// Reads a file.
///
/// # Errors
///
/// The path and the problem, in one line.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
    let bytes = read_at_most(path, MAX_FILE_BYTES);
    let bytes = bytes.map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("{} is too large (limit: {MAX_FILE_BYTES} bytes)", path.display()));
    }
    Ok(bytes)
}

/// Reads a file of at most `max_bytes`; of a larger one, its begin with one byte more.
pub(crate) fn read_at_most(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(max_bytes + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
