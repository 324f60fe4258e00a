//! Checks of what the server starts without, or finds out later: for `informerd check`.

use super::{error::AppError, sources::configured};
use crate::{
    audit::AuditLog,
    cache::SnapshotDirectory,
    config::{Config, SourceConfig},
    source::files::FilesSource,
};

/// Opens the paths of the configuration that are written to, and looks for the kinds of its directories. Blocks.
///
/// # Errors
///
/// Each problem.
pub fn check_paths(config: &Config) -> Result<(), Vec<AppError>> {
    let audit = config.audit.file.iter().filter_map(|path| {
        let error = AuditLog::check(path).err()?;
        Some(AppError::audit(path, &error))
    });
    let state = config.general.state_dir.iter().filter_map(|path| {
        let error = SnapshotDirectory::check_path(path).err()?;
        Some(AppError::of("state_dir", error))
    });
    let kinds = config.resources.values().filter_map(|resource| {
        let SourceConfig::Files(files) = configured(resource) else { return None };
        let problem = FilesSource::check_kind(files).err()?;
        Some(AppError::of_resource(&resource.name, problem))
    });
    let problems: Vec<AppError> = audit.chain(state).chain(kinds).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}
