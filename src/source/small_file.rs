//! Reads of the small files that a connection needs: credentials, certificates, kubeconfigs.

use std::{fs, io::Read, path::Path};

/// Largest of these files.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Reads files on a thread that may block: on a network file system, that takes long.
///
/// # Cancel safety
///
/// Safe. A read that has begun goes on to its end.
pub(super) async fn reading<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| Err(error.to_string()))
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
