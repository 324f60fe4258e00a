//! Generated types and clients of the parts of etcd's API that the source calls, from `proto/etcd`.

pub(super) use self::{
    etcdserverpb::{
        AuthenticateRequest, RangeRequest, RangeResponse, RangeStreamResponse, ResponseHeader, StatusRequest,
        WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse, auth_client::AuthClient,
        kv_client::KvClient, maintenance_client::MaintenanceClient, watch_client::WatchClient,
        watch_request::RequestUnion,
    },
    mvccpb::{Event, KeyValue, event::EventType},
};

// Each package is a module, because the generated code refers to the other as a sibling.
#[allow(unreachable_pub, clippy::pedantic, reason = "generated")]
pub(super) mod etcdserverpb {
    include!("../../../proto/generated/etcdserverpb.rs");
}

#[allow(unreachable_pub, clippy::pedantic, reason = "generated")]
pub(super) mod mvccpb {
    include!("../../../proto/generated/mvccpb.rs");
}
