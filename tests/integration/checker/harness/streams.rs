//! Subscribe streams: opening, reading and closing of watches that share one.
//!
//! A stream is polled without room after each request that opens or closes, so the server reads it at once and hands out nothing; a
//! join is seen in the server's list of watches. Whoever reads, reads for all clients of the stream: the others are paused, or
//! receive their messages too.

use std::sync::atomic::Ordering;

use informerd::{
    cache::InformerHandle,
    proto::pb::{self, WatcherState},
    transport::Room,
};

use super::{Harness, MANY};
use crate::checker::{
    client::{Client, Shared, Stage},
    record::{Moment, Plan, Share, Start, Status},
    subscription::{Piece, Subscription, User},
};

/// No room: nothing is handed out.
const SHUT: Room = Room { bytes: 0, is_strict: true };
/// Port of the first stream.
const FIRST_PORT: u16 = 40_001;

/// Result of a poll of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Polled {
    Nothing,
    /// Something, and true if it was for the client that reads.
    Something(bool),
}

impl Harness {
    /// Opens a watch on the stream that the client's host has to the current server, or on a new one.
    pub(super) async fn share(
        &mut self,
        place: usize,
        client: &mut Client,
        share: Share,
        (start, min, asked): (Start, Option<String>, Moment),
    ) {
        let (server, peer) = (self.current, client.record.plan.peer);
        let is_its = |stream: &Subscription| {
            (stream.server, stream.peer) == (server, peer) && !stream.is_over() && !stream.is_half_closed()
        };
        let at = if let Some(at) = self.streams.iter().position(is_its) {
            at
        } else {
            let port = FIRST_PORT + self.streams.len() as u16;
            self.streams.push(Subscription::open(&mut self.servers[server].routes, server, peer, port).await);
            self.stream_tally.streams += 1;
            self.streams.len() - 1
        };
        let (id, was_in_use) = self.streams[at].take_id(place, share.has_new_ids);
        let watch = client.share((at, id), start, min, asked);
        let open = vec![pb::OpenWatch { id, watch: Some(watch) }];
        self.streams[at].send(&pb::SubscribeRequest { open, ..Default::default() });
        let resource = client.record.resource;
        let is_other =
            |other: &usize| self.places[*other].as_ref().is_some_and(|other| other.record.resource != resource);
        self.stream_tally.mixed += u64::from(self.clients_of(at).iter().any(is_other));
        self.stream_tally.watches += 1;
        self.stream_tally.reused_ids += u64::from(was_in_use);
    }

    /// Returns the plan of a client that is to be opened: that of another one on a stream, if it is to be its twin.
    pub(super) fn twin(&self, plan: &Plan) -> Plan {
        let is_twin = plan.share.is_some_and(|share| share.is_twin);
        let shared = |client: &&Client| client.record.plan.share.is_some() && client.record.resource == self.resource;
        let other = self.places.iter().flatten().filter(|_| is_twin).find(shared);
        other.map_or_else(|| plan.clone(), |other| plan.twin_of(&other.record.plan))
    }

    /// Counts the servers at which watches of a stream are served as one: there are fewer cursors than watches. Verifies that each of
    /// the watches is counted, and that the server lists for each as many events as its client has received: all were read.
    async fn count_served_as_one(&mut self) {
        for (at, server) in self.servers.iter_mut().enumerate() {
            let watchers = server.watchers().await;
            for client in self.places.iter().flatten() {
                let Some(Shared { stream, id, stage: Stage::Joined, .. }) = client.shared() else { continue };
                let Subscription { server, peer, port, .. } = self.streams[stream];
                let peer = format!("10.0.0.{peer}:{port}");
                let its = |watcher: &&pb::Watcher| server == at && (&*watcher.peer, watcher.watch_id) == (&*peer, id);
                if let (Some(watcher), Some(segment)) = (watchers.iter().find(its), client.record.segments.last()) {
                    let events = segment.messages.iter().filter(|received| received.message.object.is_some()).count();
                    assert_eq!(watcher.sent, events as u64, "the events of {watcher:?}");
                }
            }
            let listed = watchers.into_iter().filter(|watcher| !watcher.parked).count() as u64;
            let (mut cursors, mut watchers) = (0, 0);
            for stats in server.informers().filter_map(InformerHandle::watch_stats) {
                cursors += stats.cursors.load(Ordering::Relaxed);
                watchers += stats.watchers.load(Ordering::Relaxed);
            }
            assert_eq!(watchers, listed, "watches of {cursors} cursors");
            self.stream_tally.served_as_one += u64::from(cursors < watchers);
        }
    }

    /// Polls for the joins of a stream.
    pub(super) async fn answer_shared(&mut self, at: usize) {
        let mut before = None;
        for _ in 0..MANY {
            let moments = self.moments_of(at);
            if !moments.iter().any(|(place, _)| self.stage_of(*place) == Some(Stage::Opening)) {
                return;
            }
            self.poll_shared(at, SHUT, &moments, None);
            // The server joins a watch after the poll that has requested it. That poll may have freed the writer, which waited for
            // another watch of the stream: then the watch has the state before.
            self.look_for_joins(at, before.as_deref().unwrap_or(&moments)).await;
            self.rest().await;
            if !self.streams[at].is_woken() {
                for (place, moment) in moments {
                    if self.stage_of(place) == Some(Stage::Opening)
                        && let Some(client) = &mut self.places[place]
                    {
                        client.waits(moment);
                    }
                }
                return;
            }
            before = Some(moments);
        }
    }

    /// Records which of the watches that are being opened have joined, and which were refused.
    async fn look_for_joins(&mut self, at: usize, moments: &[(usize, Moment)]) {
        let Subscription { server, peer, port, .. } = self.streams[at];
        let watchers = self.servers[server].watchers().await;
        let peer = format!("10.0.0.{peer}:{port}");
        for (place, moment) in moments {
            let Some(client) = &mut self.places[*place] else { continue };
            let Some(Shared { id, stage: Stage::Opening, .. }) = client.shared() else { continue };
            match watchers.iter().find(|watcher| (&*watcher.peer, watcher.watch_id) == (&*peer, id)) {
                Some(watcher) if watcher.state() == WatcherState::Unspecified => {}
                Some(_) => client.is_answered(false, *moment),
                None => {
                    client.is_answered(true, *moment);
                    self.stream_tally.refusals += 1;
                }
            }
        }
    }

    /// Reads the stream of a client, until that has received so many deliveries.
    pub(super) async fn read_shared(&mut self, place: usize, pieces: usize) {
        let Some(Shared { stream: at, .. }) = self.shared_of(place) else { return };
        self.answer_shared(at).await;
        self.pause(at, |reader| reader == place);
        let (room, mut left) = (Room { bytes: self.config.room, is_strict: false }, pieces);
        for _ in 0..MANY {
            let is_open = |shared: Shared| shared.stream == at && shared.stage != Stage::Opening;
            if left == 0 || !self.shared_of(place).is_some_and(is_open) {
                return;
            }
            let moments = self.moments_of(at);
            let polled = self.poll_shared(at, room, &moments, Some(place));
            left -= usize::from(polled == Polled::Something(true));
            self.rest().await;
            if polled == Polled::Nothing && !self.streams[at].is_woken() {
                return self.waits_shared(at, &moments);
            }
            self.answer_shared(at).await;
        }
    }

    /// Reads everything of all streams; nobody is paused.
    pub(super) async fn read_all_shared(&mut self) {
        for at in 0..self.streams.len() {
            self.answer_shared(at).await;
            self.pause(at, |_| true);
            for _ in 0..MANY {
                let moments = self.moments_of(at);
                if self.streams[at].is_over() {
                    break;
                }
                let polled = self.poll_shared(at, Room { bytes: self.config.room, is_strict: false }, &moments, None);
                self.rest().await;
                if polled == Polled::Nothing && !self.streams[at].is_woken() {
                    self.waits_shared(at, &moments);
                    break;
                }
                self.answer_shared(at).await;
            }
        }
        self.count_served_as_one().await;
    }

    /// Resumes the clients of a stream that read now, and pauses those that do not read with others.
    fn pause(&mut self, at: usize, reads: impl Fn(usize) -> bool) {
        if self.streams[at].is_half_closed() {
            // Nobody is paused.
            return;
        }
        let (mut pause, mut resume) = (Vec::new(), Vec::new());
        for place in self.clients_of(at) {
            let Some(client) = &mut self.places[place] else { continue };
            let Some(Shared { id, is_paused, stage, .. }) = client.shared() else { continue };
            let is_to_pause = !reads(place) && client.record.plan.pauses();
            if is_to_pause != is_paused && (reads(place) || is_to_pause) && stage != Stage::Refused {
                client.set_paused(is_to_pause);
                (if is_to_pause { &mut pause } else { &mut resume }).push(id);
            }
        }
        self.stream_tally.pauses += pause.len() as u64;
        if !pause.is_empty() || !resume.is_empty() {
            self.streams[at].send(&pb::SubscribeRequest { pause, resume, ..Default::default() });
        }
    }

    /// Polls a stream once, and gives its clients what they receive.
    fn poll_shared(&mut self, at: usize, room: Room, moments: &[(usize, Moment)], reader: Option<usize>) -> Polled {
        let (piece, was_woken) = self.streams[at].poll(room);
        let (mut polled, mut received) = (Polled::Something(false), Vec::new());
        match piece {
            Piece::Nothing => polled = Polled::Nothing,
            Piece::TooLarge => {}
            Piece::Deliveries(deliveries) => {
                let open = self.clients_of(at).len();
                for delivery in &deliveries {
                    received.extend(self.deliver(at, delivery, moments, was_woken));
                }
                polled = Polled::Something(received.iter().any(|place| Some(*place) == reader));
                let left = self.clients_of(at).len();
                self.stream_tally.single_ends += if left > 0 { (open - left) as u64 } else { 0 };
            }
            Piece::Over(status) => {
                let Subscription { server, ref ids, .. } = self.streams[at];
                let is_draining = self.servers[server].is_draining();
                let has_bad_id = self.streams[at].has_bad_id;
                let is_completed = self.streams[at].is_half_closed() && !has_bad_id && !is_draining;
                let expected = match (has_bad_id, is_completed) {
                    (true, _) => ("SUBSCRIBE_INVALID", 3),
                    (false, true) => ("", 0),
                    (false, false) => ("DRAINING", 14),
                };
                let is_due = has_bad_id || is_completed || is_draining;
                let is_right = |status: &Status| is_due && (&*status.reason, status.code) == expected;
                if !status.as_ref().is_ok_and(is_right) || !ids.is_empty() {
                    let what = format!("a stream ended with {status:?}, and these watches had not: {ids:?}");
                    self.is_wrong(what);
                }
                self.stream_tally.drains += u64::from(is_draining && !has_bad_id);
                self.stream_tally.completed += u64::from(is_completed);
                self.stream_tally.bad_ids += u64::from(has_bad_id);
            }
        }
        for (place, moment) in moments.iter().filter(|(place, _)| !received.contains(place)) {
            if let Some(client) = &mut self.places[*place] {
                client.was_polled(*moment);
            }
        }
        polled
    }

    /// Gives a delivery to its clients; returns their places.
    fn deliver(
        &mut self,
        at: usize,
        delivery: &pb::Delivery,
        moments: &[(usize, Moment)],
        was_woken: bool,
    ) -> Vec<usize> {
        let pb::Delivery { watch_ids, responses, ended } = delivery;
        if watch_ids.is_empty() || responses.is_empty() && !ended {
            self.is_wrong(format!("a delivery without a watch or a message: {delivery:?}"));
        }
        if watch_ids.len() > 1 && !responses.is_empty() {
            let has_events = responses.iter().any(|response| response.object.is_some());
            *(if has_events {
                &mut self.stream_tally.shared_events
            } else {
                &mut self.stream_tally.shared_bookmarks
            }) += 1;
        }
        let mut places = Vec::new();
        for id in watch_ids {
            match self.streams[at].ids.get(id).copied() {
                None => self.is_wrong(format!("the id {id} is not in use, and receives {delivery:?}")),
                Some(User::Closed { was_refused }) => {
                    let is_refusal = was_refused && responses.len() == 1 && responses[0].error.is_some();
                    let is_right = *ended && (is_refusal || responses.is_empty());
                    if !is_right {
                        self.is_wrong(format!("the watch {id} was closed, and receives {delivery:?}"));
                    }
                    self.stream_tally.closes += u64::from(!was_refused);
                }
                Some(User::Client(place)) => {
                    let moment = moments.iter().find(|(other, _)| *other == place);
                    let (Some((_, moment)), Some(client)) = (moment, &mut self.places[place]) else { continue };
                    let is_paused = client.shared().is_some_and(|shared| shared.is_paused);
                    client.receive(responses, *ended, *moment, was_woken);
                    self.stream_tally.paused_ends += u64::from(is_paused && *ended);
                    // A server that drains resumes all watches, so that none holds up its end.
                    if is_paused && !ended && !moment.is_draining {
                        self.is_wrong(format!("the watch {id} is paused, and receives {delivery:?}"));
                    }
                    places.push(place);
                }
            }
            if *ended {
                self.streams[at].ids.remove(id);
            }
        }
        places
    }

    /// Records that there is nothing to read on a stream, and that it was not woken.
    fn waits_shared(&mut self, at: usize, moments: &[(usize, Moment)]) {
        for (place, moment) in moments {
            if let Some(client) = &mut self.places[*place] {
                client.waits(*moment);
            }
        }
        let is_half_closed = self.streams[at].is_half_closed();
        let Subscription { server, has_bad_id, ref ids, .. } = self.streams[at];
        let is_untold = |(_, user): &(&u32, &User)| match user {
            User::Closed { .. } => true,
            User::Client(place) => has_bad_id || self.stage_of(*place) == Some(Stage::Refused),
        };
        if let Some((id, user)) = ids.iter().find(is_untold) {
            self.is_wrong(format!("there is nothing to read, and the watch {id} was not ended: {user:?}"));
        } else if ids.is_empty()
            && (self.servers[server].is_draining() || is_half_closed)
            && !self.streams[at].is_over()
        {
            self.is_wrong(
                "the server drains or the stream is half closed, and without watches it has not ended".to_owned(),
            );
        }
    }

    /// Resumes the clients of a stream, and ends its requests: who is paused then remains so.
    pub(super) async fn half_close_shared(&mut self, place: usize) {
        let Some(Shared { stream: at, .. }) = self.shared_of(place) else { return };
        if self.streams[at].is_half_closed() {
            return;
        }
        self.pause(at, |_| true);
        self.streams[at].half_closes();
        self.stream_tally.half_closed += 1;
        self.answer_shared(at).await;
        let moments = self.moments_of(at);
        self.poll_shared(at, SHUT, &moments, None);
    }

    /// Sends a request with a bad id on the stream of a client, the last one that the server reads.
    pub(super) async fn send_bad_id(&mut self, place: usize, is_zero: bool) {
        let Some(Shared { stream: at, id, stage, .. }) = self.shared_of(place) else { return };
        if self.streams[at].is_half_closed() {
            return;
        }
        // For the server, the id of a watch that it has refused is free.
        let id = if is_zero || stage == Stage::Refused { 0 } else { id };
        let open = vec![pb::OpenWatch { id, watch: None }];
        self.streams[at].send(&pb::SubscribeRequest { open, ..Default::default() });
        self.streams[at].half_closes();
        self.streams[at].has_bad_id = true;
        for place in self.clients_of(at) {
            if let Some(client) = &mut self.places[place] {
                client.has_bad_id();
            }
        }
        self.answer_shared(at).await;
        let moments = self.moments_of(at);
        self.poll_shared(at, SHUT, &moments, None);
    }

    /// Closes the watch of a client that leaves; of a stream that is half closed, the stream.
    pub(super) fn close_shared(&mut self, place: usize, lost: usize, moment: Moment) {
        if self.shared_of(place).is_some_and(|shared| self.streams[shared.stream].is_half_closed()) {
            return self.break_shared(place, lost);
        }
        let (Some(Shared { stream: at, id, stage, .. }), Some(client)) =
            (self.shared_of(place), &mut self.places[place])
        else {
            return;
        };
        client.leave(lost, moment);
        self.streams[at].ids.insert(id, User::Closed { was_refused: stage == Stage::Refused });
        self.streams[at].send(&pb::SubscribeRequest { close: vec![id], ..Default::default() });
        let moments = self.moments_of(at);
        self.poll_shared(at, SHUT, &moments, None);
    }

    /// Breaks the stream of a client.
    pub(super) fn break_shared(&mut self, place: usize, lost: usize) {
        let Some(Shared { stream: at, .. }) = self.shared_of(place) else { return };
        let moments = self.moments_of(at);
        self.stream_tally.breaks += u64::from(moments.len() > 1);
        for (place, moment) in moments {
            if let Some(client) = &mut self.places[place] {
                client.leave(lost, moment);
            }
        }
        self.streams[at].breaks();
    }

    /// Verifies that all streams have ended.
    pub(super) fn verify_streams_ended(&mut self) {
        if let Some(stream) = self.streams.iter().find(|stream| !stream.is_over()) {
            let what = format!("the server was drained, and a stream of host {} has not ended", stream.peer);
            self.is_wrong(what);
        }
    }

    fn clients_of(&self, at: usize) -> Vec<usize> {
        let users = self.streams[at].ids.values();
        users.filter_map(|user| if let User::Client(place) = user { Some(*place) } else { None }).collect()
    }

    /// Returns the clients of a stream, each with the present moment of its resource.
    fn moments_of(&self, at: usize) -> Vec<(usize, Moment)> {
        let moment = |place: usize| Some((place, self.moment(self.places[place].as_ref()?.served())));
        self.clients_of(at).into_iter().filter_map(moment).collect()
    }

    pub(super) fn shared_of(&self, place: usize) -> Option<Shared> {
        self.places[place].as_ref().and_then(Client::shared)
    }

    fn stage_of(&self, place: usize) -> Option<Stage> {
        self.shared_of(place).map(|shared| shared.stage)
    }

    /// Records the first error of a stream.
    fn is_wrong(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }
}
