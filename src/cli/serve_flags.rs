//! Flags of the commands about a configuration: those of `serve`, and the file as an argument.

use std::{env, path::PathBuf};

use clap::Args;

use super::failure::Failure;
use crate::config::ServeFlags;

/// Flags of a command about a configuration.
#[derive(Debug, Clone, Args)]
pub(super) struct ConfigFlags {
    /// Read the configuration from this YAML file, as with --config
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    serve: ServeFlags,
}

// === impl ConfigFlags ===

impl ConfigFlags {
    /// Returns the flags of `serve`, with the file. It overrides the environment variable, as --config does.
    pub(super) fn serve_flags(&self) -> Result<ServeFlags, Failure> {
        self.with_variable(env::var_os("INFORMERD_CONFIG").map(PathBuf::from).as_ref())
    }

    fn with_variable(&self, variable: Option<&PathBuf>) -> Result<ServeFlags, Failure> {
        let Some(file) = &self.file else { return Ok(self.serve.clone()) };
        match &self.serve.config {
            Some(config) if Some(config) != variable => Err(Failure::usage(format!(
                "--config {} and {} are two configurations; leave out one of them",
                config.display(),
                file.display()
            ))),
            _ => Ok(ServeFlags { config: Some(file.clone()), ..self.serve.clone() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_an_argument_or_a_flag() {
        let with = |file: Option<&str>, config: Option<&str>, variable: Option<&str>| {
            let serve = ServeFlags { config: config.map(PathBuf::from), ..ServeFlags::default() };
            let flags = ConfigFlags { file: file.map(PathBuf::from), serve };
            let flags = flags.with_variable(variable.map(PathBuf::from).as_ref());
            flags.map(|flags| flags.config.map(|path| path.display().to_string())).map_err(|failure| failure.exit_code)
        };
        let some = |path: &str| Ok(Some(path.to_owned()));
        assert_eq!(with(Some("a"), None, None), some("a"));
        assert_eq!(with(None, Some("b"), None), some("b"));
        assert_eq!(with(None, None, None), Ok(None));
        assert_eq!(with(Some("a"), Some("b"), Some("b")), some("a"), "the variable is overridden");
        assert_eq!(with(Some("a"), Some("b"), Some("c")), Err(2));
    }
}
