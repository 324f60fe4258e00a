//! Open files of this process: as many as the system allows, divided between connections and everything else.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files kept free of connections: for the listeners, the admin port, logs and snapshot files.
const RESERVED_FILES: usize = 64;
/// Open files kept free in addition for each resource: the runtime of its thread, and the connections or files of its source.
const RESERVED_FILES_PER_RESOURCE: usize = 8;
/// Most connections, however many files may be open: the default number of watches.
pub(crate) const MAX_CONNECTIONS: usize = 100_000;

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

/// Returns the bound of connections: as many as the limit on open files allows.
pub(super) fn connections(open_files: usize, resources: usize) -> usize {
    let reserved = RESERVED_FILES + RESERVED_FILES_PER_RESOURCE * resources;
    open_files.saturating_sub(reserved).clamp(1, MAX_CONNECTIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_open_files_for_everything_else() {
        for (open_files, resources, expected) in [(256, 1, 184), (1024, 5, 920), (1 << 30, 1, 100_000), (50, 1, 1)] {
            assert_eq!(connections(open_files, resources), expected, "of {open_files}");
        }
    }

    #[test]
    fn the_open_files_limit_is_raised_to_the_hard_limit() {
        raise();
        let limits = getrlimit(Resource::Nofile);
        assert_eq!(limits.current, limits.maximum);
    }
}
