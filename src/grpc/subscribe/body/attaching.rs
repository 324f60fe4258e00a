//! Attaching and detaching of watches: those in a lane have no body of their own.

use std::{collections::btree_map::Entry, task::Context};

use smallvec::SmallVec;
use tonic::Code;

use super::{SubscribeBody, Subscribed, open_watch::TURN_BYTES};
use crate::grpc::subscribe::lanes::{Lanes, LanesTurn};

// === impl SubscribeBody ===

impl SubscribeBody {
    /// Attaches a watch that has nothing to hand out to the lanes of its resource, if it can be.
    pub(super) fn attach(&mut self, key: usize) {
        let Some(watch) = self.bodies.get_mut(key).filter(|watch| watch.may_attach) else { return };
        watch.may_attach = watch.body.is_attachable();
        if !watch.may_attach || self.is_draining || self.end.is_some() || self.paused.contains(&watch.id) {
            return;
        }
        let Some((lane, standing)) = watch.body.standing() else { return };
        let resource = watch.body.resource();
        let id = resource.calls.id();
        let mut lanes = match self.lanes.entry(id) {
            Entry::Occupied(lanes) => lanes,
            Entry::Vacant(vacant) => {
                let Some(lanes) = Lanes::new(&self.service, resource, &standing, self.began) else { return };
                vacant.insert(lanes);
                let Entry::Occupied(lanes) = self.lanes.entry(id) else { return };
                lanes
            }
        };
        if lanes.get_mut().admits(&lane, &standing) {
            let watch = *self.bodies.remove(key);
            self.encoded_bytes -= watch.encoded_bytes;
            let lane = lanes.get_mut().attach(&lane, standing, watch.id, watch.body.attach());
            self.watches.insert(watch.id, Subscribed::Attached(id, lane));
            self.has_attached = true;
        } else if lanes.get().is_empty() {
            lanes.remove();
        }
    }

    /// Gives an attached watch a body of its own.
    pub(super) fn detach(&mut self, id: u32) {
        let Some(Subscribed::Attached(resource, lane)) = self.watches.get(&id) else { return };
        let (resource, lane) = (*resource, *lane);
        let Some(lanes) = self.lanes.get_mut(&resource) else { return };
        let body = lanes.detach(lane, id);
        if lanes.is_empty() {
            self.lanes.remove(&resource);
        }
        if let Some(body) = body {
            let audited = body.audited().cloned();
            self.insert(id, body, audited);
        }
    }

    /// Removes a closed watch from its lane.
    pub(super) fn leave(&mut self, id: u32, resource: u64, lane: usize) {
        let Some(lanes) = self.lanes.get_mut(&resource) else { return };
        if let Some(audited) = lanes.close(lane, id).as_ref().and_then(|watch| watch.audited()) {
            audited.ends(Code::Ok);
        }
        if lanes.is_empty() {
            self.lanes.remove(&resource);
        }
    }

    /// Gives all watches of a resource bodies of their own.
    pub(super) fn detach_resource(&mut self, resource: u64) {
        let watches = self.lanes.get_mut(&resource).map(Lanes::watches).unwrap_or_default();
        for (_, id) in watches {
            self.detach(id);
        }
    }

    /// Gives all watches bodies of their own.
    pub(super) fn detach_all(&mut self) {
        let resources: Vec<u64> = self.lanes.keys().copied().collect();
        for resource in resources {
            self.detach_resource(resource);
        }
    }

    /// Gives the watches whose rights have changed bodies of their own, which act on that.
    pub(super) fn detach_changed(&mut self) {
        let changed: Vec<(usize, u32)> = self.lanes.values_mut().flat_map(Lanes::changed).collect();
        for (_, id) in changed {
            self.detach(id);
        }
    }

    /// Collects what the attached watches have; as much as one turn of another watch if such have their turn as well.
    pub(super) fn poll_lanes(&mut self, cx: &mut Context<'_>, most: usize, is_strict: bool) -> LanesTurn {
        self.detach_changed();
        let lanes_most = if self.turns.is_empty() { most } else { most.min(self.deliveries.bytes() + TURN_BYTES) };
        let mut full = LanesTurn::Nothing;
        let (before, after) = (self.lanes.range(..self.next_lanes), self.lanes.range(self.next_lanes..));
        let resources: SmallVec<[u64; 4]> = after.chain(before).map(|(id, _)| *id).collect();
        for resource in resources {
            let Some(lanes) = self.lanes.get_mut(&resource) else { continue };
            let before = self.deliveries.bytes();
            let mut turn = lanes.poll(cx, &mut self.deliveries, lanes_most, true);
            if let LanesTurn::TooLarge(bytes) = turn
                && (bytes <= most || !is_strict)
            {
                turn = lanes.poll(cx, &mut self.deliveries, most, false);
            }
            match turn {
                LanesTurn::Nothing => {}
                LanesTurn::Full => {
                    if let LanesTurn::Nothing = full {
                        self.next_lanes = resource + u64::from(self.deliveries.bytes() > before);
                    }
                    full = LanesTurn::Full;
                }
                LanesTurn::Stopped if self.deliveries.is_empty() => self.detach_resource(resource),
                LanesTurn::TooLarge(_) | LanesTurn::Stopped => return turn,
            }
        }
        full
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, task::Waker, time::Duration};

    use http::{Extensions, HeaderMap};

    use super::*;
    use crate::grpc::{
        call::Call,
        request::{RequestBounds, RequestMessages},
        subscribe::{
            lanes::tests::{attached, messages},
            requests::Requests,
        },
        watch::tests::World,
    };

    /// Returns a stream without watches, whose client sends nothing.
    fn stream(world: &World) -> SubscribeBody {
        let bounds = RequestBounds { bytes: 0, timeout: Duration::MAX, is_stream: true, waits: true };
        let requests = Requests::new(Box::new(RequestMessages::new(tonic::body::Body::empty(), bounds, None)));
        let call = Call::new(&HeaderMap::new(), &Extensions::new());
        SubscribeBody::new(world.service().clone(), requests, call, 1, None)
    }

    #[tokio::test(start_paused = true)]
    async fn watches_of_each_resource_have_their_turn() {
        let mut world = World::of(Vec::new(), |_| ()).await;
        let mut body = stream(&world);
        for id in 1..=3 {
            body.lanes.insert(id.into(), attached(&mut world, id, Duration::from_secs(60)).await);
        }
        for app in [0, 1].into_iter().cycle().take(6) {
            world.put(&[(1, 0, Some(app))], false).await;
        }
        for _ in 0..2 {
            let mut ids = BTreeSet::new();
            for _ in 0..3 {
                body.poll_lanes(&mut Context::from_waker(Waker::noop()), 300, false);
                ids.extend(messages(&mut body.deliveries).into_iter().flat_map(|(ids, _)| ids));
            }
            assert_eq!(ids, [1, 2, 3].into());
        }
    }

    /// Until the client has read it.
    #[tokio::test(start_paused = true)]
    async fn what_attached_watches_have_encoded_is_charged() {
        let mut world = World::of(Vec::new(), |_| ()).await;
        let mut body = stream(&world);
        body.lanes.insert(1, attached(&mut world, 1, Duration::from_secs(60)).await);
        world.put(&[(1, 0, Some(0))], false).await;
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(matches!(body.poll_lanes(cx, 0, true), LanesTurn::TooLarge(_)));
        assert!(crate::transport::BoundedBody::encoded_bytes(&body) > 100);
        body.poll_lanes(cx, 1000, true);
        body.deliveries.take();
        assert_eq!(crate::transport::BoundedBody::encoded_bytes(&body), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn ends_that_wait_for_the_client_are_charged_to_its_requests() {
        let world = World::of(Vec::new(), |_| ()).await;
        let mut body = stream(&world);
        assert_eq!(body.kept_of_requests(), 0);
        body.watches.insert(1, Subscribed::Queued(0));
        body.close(1);
        assert!(body.kept_of_requests() > 0);
    }
}
