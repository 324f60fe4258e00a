//! `informerd completion`.

use std::io::Write;

use clap::{Args, Command};
use clap_complete::{Shell, generate};

use super::{failure::Failure, print::stdout};

pub(super) const EXAMPLES: &str = "\
Examples:
  source <(informerd completion bash)
  informerd completion zsh > \"${fpath[1]}/_informerd\"
  informerd completion fish > ~/.config/fish/completions/informerd.fish
  informerd completion powershell | Out-String | Invoke-Expression";

/// Flags of `informerd completion`.
#[derive(Debug, Clone, Args)]
pub(super) struct CompletionFlags {
    /// Shell that the script is for
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Prints the script for a command.
pub(super) fn run(flags: &CompletionFlags, mut command: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    generate(flags.shell, &mut command, "informerd", &mut script);
    let mut out = stdout();
    out.write_all(&script)?;
    Ok(out.flush()?)
}
