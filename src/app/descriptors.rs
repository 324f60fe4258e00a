//! Open files of this process: as many as the system allows, divided between connections and everything else.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::error::AppError;

/// Open files kept free of connections: for the listeners, the admin port, logs and snapshot files.
const RESERVED_FILES: usize = 64;
/// Open files kept free in addition for each resource: the runtime of its thread, and the connections or files of its source.
const RESERVED_FILES_PER_RESOURCE: usize = 8;
/// Default bound of connections, however many files may be open: the bound of watches.
const MAX_DEFAULT: usize = 100_000;

/// Raises the limit on open files as far as the system lets this process, and returns it.
pub(super) fn raise() -> usize {
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: before.maximum, ..before };
    let limit = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => before.maximum,
        Err(error) => {
            tracing::warn!(%error, limit = before.current, "limit on open files not raised");
            before.current
        }
    };
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// Returns the bound of connections: as configured, or as the limit on open files allows.
///
/// # Errors
///
/// If more connections are configured than that limit allows.
pub(super) fn connections(configured: Option<usize>, open_files: usize, resources: usize) -> Result<usize, AppError> {
    let reserved = RESERVED_FILES + RESERVED_FILES_PER_RESOURCE * resources;
    let left = open_files.saturating_sub(reserved).max(1);
    match configured {
        None => Ok(left.min(MAX_DEFAULT)),
        Some(connections) if connections <= left => Ok(connections),
        Some(connections) => Err(AppError::OpenFiles { connections, left, open_files, reserved }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_open_files_for_everything_else() {
        for (configured, open_files, resources, expected) in [
            (None, 256, 1, Some(184)),
            (None, 1024, 5, Some(920)),
            (None, 1 << 30, 1, Some(100_000)),
            (None, 50, 1, Some(1)),
            (Some(10), 256, 1, Some(10)),
            (Some(200_000), 1 << 30, 1, Some(200_000)),
            (Some(185), 256, 1, None),
        ] {
            assert_eq!(connections(configured, open_files, resources).ok(), expected, "{configured:?} of {open_files}");
        }
        let error = connections(Some(500), 256, 2).unwrap_err().to_string();
        for part in ["limits.connections: 500 ", "176", "256", "80", "ulimit -n"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn the_open_files_limit_is_raised_to_the_hard_limit() {
        raise();
        let limits = getrlimit(Resource::Nofile);
        assert_eq!(limits.current, limits.maximum);
    }
}
