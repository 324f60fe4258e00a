//! The Subscribe call: any number of watches on one stream. Like Watch it bypasses the generated trait.
//!
//! ```text
//!   requests ──▶ opening ──▶ WatchBody, one for each watch that is apart ──┐
//!                               │  ▲                                       ├──▶ deliveries ──▶ one SubscribeResponse
//!                               ▼  │                                       │
//!                   lanes of the attached watches, by resource ────────────┘
//! ```
//!
//! A watch begins apart: as the body of a Watch call (`watch/body.rs`), with its own cursor, policy, timers, rights and end. The stream
//! polls those that were woken, in turn, and puts what they hand out into one response. What several of them hand out alike is sent once,
//! with all their ids.
//!
//! A live watch under REPLAY with a cheap selection and format is attached (`lanes.rs`): the stream reads the past of the resource, and
//! evaluates each selection once for all watches that have it. It is apart again while it is paused, or its rights change, and at its end.

mod body;
mod deliveries;
mod lanes;
mod ready_list;
mod requests;

use std::sync::atomic::{AtomicU64, Ordering};

use self::{body::SubscribeBody, requests::Requests};
use super::{call::Call, request::Messages, service::Service, status::ApiError};

/// Opens a stream without watches.
pub(super) fn open(service: &Service, body: Messages, call: Call) -> Result<SubscribeBody, ApiError> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let permit = service.quotas().subscription(&call)?;
    let stream_id = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    Ok(SubscribeBody::new(service.clone(), Requests::new(body), call, stream_id, permit))
}
