//! Configuration: from flags, environment and a YAML file to a validated [`Config`].
//!
//! ```text
//!   ServeFlags (clap: flag, then environment) ──┐
//!                                               ├──▶ table ──▶ resolve ──▶ Config, or every problem (ConfigErrors)
//!   file ──▶ YAML ──▶ map, unknown keys ────────┘
//! ```
//!
//! `app` reads it at the start, and again for a reload, which changes `resources` and `authorization.rules` alone.
//!
//! - Precedence: flag, then environment (`INFORMERD_…`), then file, then default.
//! - [`Config::load`] checks all values, alone and against each other. [`Config::default`] is for programs that serve resources of
//!   their own.
//! - Nothing is ignored: an unknown key is an error that names the nearest one, and so is a planned key that this version does
//!   not support. A key without a value (`listen:`) counts as omitted.
//! - `table` has a row for each key, with its type, default, bounds and meaning; [`reference()`] lists them. A new key is a
//!   row there and its use.
//!
//! Not part of this module: checks that paths exist and ports are free, which the code that opens them does.

mod authentication;
mod authorization;
mod error;
mod etcd;
mod file;
mod flags;
mod keys;
mod kube;
mod kubernetes;
mod lines;
mod listen;
mod origin;
mod relay;
mod resolve;
mod resolved;
mod rows;
mod schema;
mod section;
mod table;
mod upstream;
mod value;
mod variables;
mod views;

use std::{cell::RefCell, path::Path};

use serde_json::{Map, Value};

pub use self::{
    authorization::parse_rules,
    error::{ConfigError, ConfigErrors},
    flags::{LogFormat, ServeFlags},
    keys::reference,
    listen::ListenAddr,
    origin::{Origin, Setting, settings},
    resolved::{AuthenticationConfig, AuthorityConfig, AuthorizationConfig, Config, ResourceConfig, SourceConfig},
    rows::{Key, KeyFlag},
    schema::json_schema,
    section::KeyFlags,
    table::{
        AdminConfig, AuditConfig, DrainConfig, GeneralConfig, KubernetesConfig, LimitsConfig, QuotasConfig,
        ResourceOptions, SubjectAccessReviewConfig, TlsConfig, TokenReviewConfig, WatchConfig,
    },
    value::kubernetes::KubernetesName,
    value::{MAX_DURATION, ValueError, parse_duration, parse_size},
};
use self::{file::ConfigFile, section::Input};
pub(crate) use self::{
    file::{changed_keys, content},
    keys::nearest,
};

// === impl Config ===

impl Config {
    /// Reads the file that the flags name, if any, and combines it with the flags.
    ///
    /// # Errors
    ///
    /// All problems of flags and file. Of a file that is not YAML, only the first.
    pub fn load(flags: &ServeFlags) -> Result<Self, ConfigErrors> {
        Self::load_with_file(flags).map(|(config, _)| config)
    }

    /// Does the same, and returns the keys of the file, too.
    pub(crate) fn load_with_file(flags: &ServeFlags) -> Result<(Self, Map<String, Value>), ConfigErrors> {
        let mut errors = ConfigErrors::default();
        let file = match &flags.config {
            None => Some(ConfigFile::default()),
            Some(path) => file::read(path, &mut errors),
        };
        let keys = file.as_ref().map(|file| &file.keys);
        let directory = flags.config.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
        let input = Input { directory, flags: &flags.keys, errors: RefCell::new(errors) };
        let config = resolve::resolve(&input.file(keys), file.is_some(), flags);
        let mut errors = input.errors.into_inner();
        if errors.is_empty() {
            return Ok((config, file.unwrap_or_default().keys));
        }
        if let Some((path, file)) = flags.config.as_ref().zip(file) {
            errors.locate(path, &lines::lines(&file.bytes));
        }
        Err(errors)
    }
}

#[cfg(test)]
mod tests;
