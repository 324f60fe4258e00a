//! Files that a connection is made from, and their changes.

use std::{path::PathBuf, time::Duration};

use ring::digest::SHA256;

use super::small_file::read;

/// Digest of the contents of files.
pub(crate) type Digest = Vec<u8>;

/// Interval of the checks for other contents, as that of the configuration.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

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
    let digests =
        move || paths.iter().map(|path| read(path).map(|content| hash(&content))).collect::<Result<Vec<_>, _>>();
    reading(digests).await.ok().map(|digests| digests.concat())
}

/// Returns the digest of one content.
pub(super) fn hash(content: &[u8]) -> Digest {
    ring::digest::digest(&SHA256, content).as_ref().to_vec()
}
