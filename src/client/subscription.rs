//! One stream for all watches of a client and its clones, by Subscribe.
//!
//! ```text
//!                              ┌─▶ inbox of watch 1 ─▶ SubscribedWatch
//!   SubscribeResponse ─▶ task ─┼─▶ inbox of watch 2 ─▶ SubscribedWatch
//!                              └─▶ …                        │ opened, dropped, paused, resumed
//!   SubscribeRequest  ◀────────── waiting requests ◀────────┘
//! ```
//!
//! A task reads the stream all the time, so that a watch that is not read holds up no other: once its inbox is full, it is paused,
//! and resumed when half of that is read; the rest is up to its queue and policy in the server. What all inboxes have together has a
//! bound, too, above which the task waits, at most for as long as watches that are not read are not closed.
//!
//! The stream ends with its last watch. A watch whose server drains or is silent leaves it: the next one opens another stream, on
//! another connection.

mod inboxes;
#[cfg(test)]
mod tests;

use std::{
    future::poll_fn,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use futures_util::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use prost::Message;
use tokio::{runtime::Handle, sync::Semaphore, time::timeout_at};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Status, transport::Endpoint};

use self::inboxes::{Inboxes, MAX_REQUEST_BYTES};
use super::{
    ClientError,
    channel::{Connection, service},
};
use crate::{
    net::ServerAddress,
    proto::pb::{SubscribeResponse, WatchRequest, WatchResponse, informer_service_client::InformerServiceClient},
};

/// The stream that the watches of a client and its clones share, while there are any.
pub(super) struct Subscriptions {
    address: ServerAddress,
    endpoint: Endpoint,
    /// Runtime of the stream's task: that of a watch may end before the others.
    runtime: Handle,
    /// Turn to open a stream: watches that begin together wait for the one that the first of them opens.
    turn: Semaphore,
    current: Mutex<Current>,
}

struct Current {
    service: InformerServiceClient<Connection>,
    connection: SharedConnection,
    subscription: Weak<Subscription>,
}

/// Connection of the stream: true once a watch has left it to those that are open.
#[derive(Clone, Default)]
pub(super) struct SharedConnection(Arc<AtomicBool>);

/// One stream, and the task that reads it.
struct Subscription {
    inboxes: Arc<Mutex<Inboxes>>,
    connection: SharedConnection,
    _reading: AbortOnDropHandle<()>,
}

/// Watch of a stream. Dropping it closes the watch.
pub(super) struct SubscribedWatch {
    subscription: Arc<Subscription>,
    id: u32,
}

// === impl Subscriptions ===

impl Subscriptions {
    /// Returns an opener of streams, whose tasks run on the current runtime. The first is over the connection of this service.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub(super) fn new(address: ServerAddress, endpoint: Endpoint, service: InformerServiceClient<Connection>) -> Self {
        let current =
            Mutex::new(Current { service, connection: SharedConnection::default(), subscription: Weak::new() });
        Self { address, endpoint, runtime: Handle::current(), turn: Semaphore::new(1), current }
    }

    /// Opens a watch on the stream, and returns the connection of that as soon as it is chosen. None if the watch has to be opened by
    /// Watch.
    pub(super) async fn open(
        &self,
        request: &WatchRequest,
        chosen: &mut Option<SharedConnection>,
    ) -> Result<Option<SubscribedWatch>, ClientError> {
        if request.encoded_len() > MAX_REQUEST_BYTES {
            return Ok(None);
        }
        let Some(subscription) = self.subscription(chosen).await? else { return Ok(None) };
        let id = subscription.inboxes.lock().open(request.clone());
        Ok(Some(SubscribedWatch { subscription, id }))
    }

    /// Returns the stream; none if the server has no Subscribe.
    async fn subscription(
        &self,
        chosen: &mut Option<SharedConnection>,
    ) -> Result<Option<Arc<Subscription>>, ClientError> {
        let _turn = self.turn.acquire().await;
        let usable = self.usable();
        let (mut service, connection) = {
            let current = self.current.lock();
            (current.service.clone(), current.connection.clone())
        };
        *chosen = Some(connection.clone());
        if usable.is_some() {
            return Ok(usable);
        }
        let inboxes = Arc::<Mutex<Inboxes>>::default();
        let requested = Arc::clone(&inboxes);
        let requests = stream::poll_fn(move |cx| requested.lock().poll_request(cx));
        // A connection belongs to the runtime of its first call.
        let opening = AbortOnDropHandle::new(self.runtime.spawn(async move { service.subscribe(requests).await }));
        let opened = opening.await.map_err(|_| self.error(&Status::cancelled("the runtime of the client ends")))?;
        let responses = match opened {
            Ok(opened) => opened.into_inner(),
            Err(status) if status.code() == Code::Unimplemented => return Ok(None),
            Err(status) => return Err(self.error(&status)),
        };
        let reading = AbortOnDropHandle::new(self.runtime.spawn(read(Arc::clone(&inboxes), responses)));
        let subscription = Arc::new(Subscription { inboxes, connection, _reading: reading });
        self.current.lock().subscription = Arc::downgrade(&subscription);
        Ok(Some(subscription))
    }

    /// Returns the present stream, unless it has ended. If a watch has left its connection, the next stream has another one.
    fn usable(&self) -> Option<Arc<Subscription>> {
        let mut current = self.current.lock();
        if current.connection.is_left() {
            let _entered = self.runtime.enter();
            let service = service(Connection::new(self.endpoint.connect_lazy(), &self.address));
            *current = Current { service, connection: SharedConnection::default(), subscription: Weak::new() };
            return None;
        }
        current.subscription.upgrade().filter(|subscription| !subscription.inboxes.lock().has_ended())
    }

    fn error(&self, status: &Status) -> ClientError {
        ClientError::from_status(&self.address, status)
    }
}

// === impl SharedConnection ===

impl SharedConnection {
    /// Leaves the connection: the next watch takes another one.
    pub(super) fn leave(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_left(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Reads the stream to its end.
async fn read(
    inboxes: Arc<Mutex<Inboxes>>,
    mut responses: impl Stream<Item = Result<SubscribeResponse, Status>> + Unpin,
) {
    loop {
        loop {
            let Some(check_at) = inboxes.lock().next_check() else { break };
            // Either is a reason to check again.
            drop(timeout_at(check_at, poll_fn(|cx| inboxes.lock().poll_room(cx))).await);
        }
        match responses.next().await {
            Some(Ok(response)) => inboxes.lock().deliver(response),
            None => return inboxes.lock().end(Status::ok("")),
            Some(Err(status)) => return inboxes.lock().end(status),
        }
    }
}

// === impl SubscribedWatch ===

impl SubscribedWatch {
    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Result<WatchResponse, Status>>> {
        self.subscription.inboxes.lock().poll_next(self.id, cx)
    }

    /// Leaves the stream and its connection to the watches that are open.
    pub(super) fn leave_connection(&self) {
        self.subscription.connection.leave();
    }
}

impl Drop for SubscribedWatch {
    fn drop(&mut self) {
        self.subscription.inboxes.lock().close(self.id);
    }
}

debug_fields!(SubscribedWatch { id });

debug_fields!(Subscriptions {});
