//! Cells that kubectl prints of an object, for the tables of the command line and of the Kubernetes API.

pub(crate) mod age;
#[cfg(feature = "cli")]
pub(crate) mod kinds;
pub(crate) mod pod;
pub(crate) mod values;
