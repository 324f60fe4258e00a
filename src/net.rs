//! Addresses of servers, connections to them, and the files that connections need: certificates, keys, tokens, rules.

#[cfg(feature = "client")]
pub(crate) mod connection_files;
#[cfg(any(feature = "kube", feature = "server"))]
mod dial;
#[cfg(feature = "client")]
mod endpoint;
#[cfg(feature = "server")]
mod reloaded_files;
#[cfg_attr(not(any(feature = "kube", feature = "server")), expect(dead_code, reason = "a relay needs a part of it"))]
pub(crate) mod small_file;

#[cfg(feature = "client")]
pub use endpoint::{AddressError, ServerAddress, TlsOptions};
#[cfg(feature = "server")]
pub use reloaded_files::FileError;

#[cfg(any(feature = "kube", feature = "server"))]
pub(crate) use self::dial::Dialer;
#[cfg(feature = "server")]
pub(crate) use self::{
    endpoint::without_credentials,
    reloaded_files::{FileKind, ReloadedFiles},
};
