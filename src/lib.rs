//! informerd
pub mod cache;
pub mod model;
pub mod watch;
