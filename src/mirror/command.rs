//! Command that runs after each settled batch.

use std::process::Stdio;

use tokio::process::Command;

use super::writer::Notes;

/// Runs a command line in the shell and waits for its end. A failure is noted.
pub(super) async fn run(command_line: &str, notes: &Notes) {
    match Command::new("sh").args(["-c", command_line]).stdin(Stdio::null()).status().await {
        Ok(status) if status.success() => {}
        Ok(status) => notes(&format_args!("# warning: {command_line:?} failed: {status}")),
        Err(error) => notes(&format_args!("# warning: {command_line:?} not started: sh: {error}")),
    }
}
