//! Addresses of servers, connections to them, and the files that connections need: certificates, keys, tokens, rules.

#[cfg(feature = "server")]
mod dial;
mod endpoint;
#[cfg(feature = "server")]
mod reloaded_files;
#[cfg(feature = "server")]
pub(crate) mod small_file;

pub use endpoint::{AddressError, ServerAddress, TlsOptions};
#[cfg(feature = "server")]
pub use reloaded_files::FileError;

#[cfg(feature = "server")]
pub(crate) use self::{
    dial::Dialer,
    endpoint::without_credentials,
    reloaded_files::{FileKind, ReloadedFiles},
};
