//! Messages and services of etcd's API, generated from `proto/etcd` by the build script.

#![allow(dead_code, unreachable_pub, clippy::pedantic, missing_docs, reason = "generated")]

pub(super) mod etcdserverpb {
    tonic::include_proto!("etcdserverpb");
}

pub(super) mod mvccpb {
    tonic::include_proto!("mvccpb");
}
