//! Credentials in a header: a fixed token, or a file with one.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use http::HeaderValue;
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::net::small_file::read_text;

pub(super) enum Bearer {
    Fixed(Option<HeaderValue>),
    /// Token file, read for each request. While it cannot be read, its last content is used (kubernetes/kubernetes#68164).
    File {
        path: PathBuf,
        last: Mutex<Option<HeaderValue>>,
    },
}

/// Timeout of reading files, which may be on a server that does not answer.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(10);

// === impl Bearer ===

impl Bearer {
    pub(super) async fn get(&self) -> Result<Option<HeaderValue>, String> {
        let (path, last) = match self {
            Self::Fixed(token) => return Ok(token.clone()),
            Self::File { path, last } => (path, last),
        };
        let reading = path.clone();
        let read = tokio::task::spawn_blocking(move || read_token(&reading));
        let read = match timeout(READ_TIMEOUT, read).await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("{} cannot be read within {READ_TIMEOUT:?}", path.display())),
        };
        let mut last = last.lock();
        match read {
            Ok(token) => *last = Some(token),
            Err(problem) if last.is_none() => return Err(problem),
            Err(problem) => tracing::warn!(problem, "token file not read"),
        }
        Ok(last.clone())
    }
}

/// Reads a token as client-go does: without surrounding white space, such as a final newline.
fn read_token(path: &Path) -> Result<HeaderValue, String> {
    let text = read_text(path).map_err(|problem| format!("the token file {problem}"))?;
    let token = text.trim();
    if token.is_empty() {
        return Err(format!("the token file {} is empty; write a token into it", path.display()));
    }
    secret(&format!("Bearer {token}"), &format!("the token in {}", path.display()))
}

pub(super) fn bearer(token: &str) -> Result<HeaderValue, String> {
    secret(&format!("Bearer {}", token.trim()), "the token of the kubeconfig")
}

/// Returns a sensitive header value, which no log shows.
pub(super) fn secret(text: &str, name: &str) -> Result<HeaderValue, String> {
    let value = HeaderValue::from_str(text);
    let mut value = value.map_err(|_| format!("{name} contains a line break or another control character"))?;
    value.set_sensitive(true);
    Ok(value)
}
