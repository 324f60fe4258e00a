//! Reads of the small files that a connection needs: credentials, certificates, kubeconfigs.

use std::{
    fs,
    io::{self, Read},
    path::Path,
};

/// Largest of these files.
const MAX_FILE_BYTES: u64 = 16 << 20;

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
