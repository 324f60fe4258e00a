//! informerd
pub mod cache;
pub mod grpc;
pub mod model;
pub mod proto;
pub mod watch;
