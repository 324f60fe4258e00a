//! Messages and services of etcd's API, generated from `proto/etcd` by the build script.

#![allow(dead_code, unreachable_pub, clippy::pedantic, missing_docs, reason = "generated")]

pub(super) mod etcdserverpb {
    include!("../../../../proto/generated/etcdserverpb.rs");
}

pub(super) mod mvccpb {
    include!("../../../../proto/generated/mvccpb.rs");
}
