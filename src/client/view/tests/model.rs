//! View against a model of a server. Whatever breaks off, is repeated, expires or is renumbered: the fold of the updates is the
//! server's state, and each change is delivered once.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

use super::{super::*, Following, bookmark, object};

/// uid, body, version.
type State = BTreeMap<String, (String, Bytes, String)>;
/// Type, name, uid, version of the object.
type Word = (pb::EventType, String, String, String);

/// Resource with its history.
#[derive(Default)]
struct Server {
    lineage: u64,
    number: u64,
    state: State,
    /// Every event of this lineage, with its version.
    events: Vec<pb::WatchResponse>,
    /// Index of the oldest event that can be resumed from.
    oldest: usize,
    /// State at each version.
    states: BTreeMap<String, State>,
}

#[derive(Debug, Clone)]
enum Action {
    Put(u8),
    Replace(u8),
    Delete,
}

#[derive(Debug, Clone)]
enum Step {
    /// One atomic batch: an object and its change for each entry. Several may concern the same object.
    Batch(Vec<(u8, Action)>),
    Bookmark,
    Deliver(usize),
    /// The stream breaks, and the messages in flight are lost.
    Cut,
    /// DROP: removes this many messages in flight.
    Drop(usize),
    /// The history expires.
    Expire,
    /// Another lineage: every version is new.
    Restart,
    /// Another replica, which published each event of a batch separately.
    Split,
    /// Another replica, which published the objects of a batch in another order.
    Reorder,
}

/// Watch without IO, and its user.
struct Client {
    watch: Following,
    keep_objects: bool,
    /// True if replays have the original order.
    is_exact: bool,
    stream: Option<VecDeque<pb::WatchResponse>>,
    held: State,
    /// Events since the last list, which ended before the event at `synced_at`.
    told: Vec<Word>,
    synced_at: usize,
}

fn word(event_type: pb::EventType, object: &pb::Object) -> Word {
    (event_type, object.name.clone(), object.uid.clone(), object.resource_version.clone())
}

/// Returns the parts of a state that are equal across lineages.
fn contents(state: &State) -> BTreeMap<&str, (&str, &Bytes)> {
    state.iter().map(|(name, (uid, body, _))| (name.as_str(), (uid.as_str(), body))).collect()
}

// === impl Server ===

impl Server {
    fn new() -> Self {
        let mut server = Self::default();
        server.states.insert(server.version(), State::new());
        server
    }

    fn version(&self) -> String {
        format!("l{}.{}", self.lineage, self.number)
    }

    fn batch(&mut self, actions: &[(u8, Action)]) {
        let before = self.version();
        let first = self.events.len();
        for (at, action) in actions {
            let name = format!("p{at}");
            // Every other object has no uid, like those of files.
            let uid = |number: u64| if at % 2 == 0 { String::new() } else { format!("u{number}") };
            let held = self.state.get(&name).cloned();
            match action {
                Action::Put(body) => {
                    self.number += 1;
                    let uid = held.as_ref().map_or_else(|| uid(self.number), |(uid, ..)| uid.clone());
                    let event_type = if held.is_some() { pb::EventType::Modified } else { pb::EventType::Added };
                    self.put(event_type, &name, uid, *body, &before);
                }
                Action::Delete => self.delete(&name, &before),
                Action::Replace(body) => {
                    self.delete(&name, &before);
                    self.number += 1;
                    self.put(pb::EventType::Added, &name, uid(self.number), *body, &before);
                }
            }
        }
        let version = self.version();
        if self.events.len() > first {
            self.events.last_mut().unwrap().resource_version.clone_from(&version);
        }
        self.states.insert(version, self.state.clone());
    }

    fn put(&mut self, event_type: pb::EventType, name: &str, uid: String, body: u8, before: &str) {
        let new = (uid, Bytes::from(vec![body]), self.version());
        self.push(event_type, object(name, &new), before);
        self.state.insert(name.to_owned(), new);
    }

    fn delete(&mut self, name: &str, before: &str) {
        let Some(mut last) = self.state.remove(name) else { return };
        self.number += 1;
        last.2 = self.version();
        self.push(pb::EventType::Deleted, object(name, &last), before);
    }

    fn push(&mut self, event_type: pb::EventType, object: pb::Object, before: &str) {
        self.events.push(pb::WatchResponse {
            r#type: event_type.into(),
            resource_version: before.to_owned(),
            object: Some(object),
            ..Default::default()
        });
    }

    /// Returns the events after a version; none if it cannot be resumed from.
    fn after(&self, version: &str) -> Option<VecDeque<pb::WatchResponse>> {
        let (lineage, number) = version.split_once('.').unwrap();
        if lineage != format!("l{}", self.lineage) {
            return None;
        }
        let first = self.first_after(number.parse().unwrap());
        (first >= self.oldest).then(|| self.events[first..].iter().cloned().collect())
    }

    /// Returns the index of the first event after a number of this lineage.
    fn first_after(&self, number: u64) -> usize {
        self.events.partition_point(|event| number_of(event) <= number)
    }

    fn initial_events(&self) -> VecDeque<pb::WatchResponse> {
        let added = |(name, held): (&String, &_)| pb::WatchResponse {
            r#type: pb::EventType::Added.into(),
            cause: pb::Cause::Initial.into(),
            object: Some(object(name, held)),
            ..Default::default()
        };
        self.state.iter().map(added).chain([bookmark(self.version(), true)]).collect()
    }

    fn restart(&mut self) {
        self.lineage += 1;
        self.number = 0;
        for held in self.state.values_mut() {
            self.number += 1;
            held.2 = format!("l{}.{}", self.lineage, self.number);
        }
        self.events.clear();
        self.oldest = 0;
        self.states.insert(self.version(), self.state.clone());
    }

    fn split(&mut self) {
        self.events.sort_by_key(number_of);
        for event in &mut self.events {
            event.resource_version.clone_from(&event.object.as_ref().unwrap().resource_version);
        }
    }

    fn reorder(&mut self) {
        let mut first = 0;
        while first < self.events.len() {
            let before = self.events[first].resource_version.clone();
            let same = self.events[first..].iter().take_while(|event| event.resource_version == before).count();
            // The last event of a batch has another version; a batch of one has only its last.
            let end = (first + same + 1).min(self.events.len());
            let batch = &mut self.events[first..end];
            let is_batch = batch.iter().all(|event| event.object.as_ref().unwrap().resource_version != before);
            if is_batch {
                let after = batch[batch.len() - 1].resource_version.clone();
                batch.reverse();
                // The events of one object stay in order.
                batch.sort_by_key(|event| std::cmp::Reverse(event.object.as_ref().unwrap().name.clone()));
                let by_object = batch.chunk_by_mut(|one, other| name_of(one) == name_of(other));
                by_object.for_each(<[_]>::reverse);
                for event in batch.iter_mut() {
                    event.resource_version.clone_from(&before);
                }
                batch[batch.len() - 1].resource_version = after;
            }
            first = if is_batch { end } else { first + 1 };
        }
    }
}

fn number_of(event: &pb::WatchResponse) -> u64 {
    event.object.as_ref().unwrap().resource_version.split_once('.').unwrap().1.parse().unwrap()
}

fn name_of(event: &pb::WatchResponse) -> &str {
    &event.object.as_ref().unwrap().name
}

// === impl Client ===

impl Client {
    fn new(keep_objects: bool, is_exact: bool) -> Self {
        Self {
            watch: Following::new(keep_objects, true),
            keep_objects,
            is_exact,
            stream: None,
            held: State::new(),
            told: Vec::new(),
            synced_at: 0,
        }
    }

    fn connect(&mut self, server: &Server) {
        if self.stream.is_some() {
            return;
        }
        let resumed = self.watch.follower.position.as_deref().and_then(|version| server.after(version));
        if resumed.is_none() {
            self.watch.follower.expire();
        }
        self.watch.begin();
        self.stream = Some(resumed.unwrap_or_else(|| server.initial_events()));
    }

    fn deliver(&mut self, server: &Server, count: usize) {
        self.connect(server);
        for _ in 0..count {
            let Some(message) = self.stream.as_mut().and_then(VecDeque::pop_front) else { return };
            let is_list = self.watch.follower.is_listing;
            let mut updates = VecDeque::new();
            let has_hole = self.watch.apply(message, &mut updates).unwrap();
            for update in updates {
                self.update(update, is_list, server);
            }
            if has_hole {
                self.stream = None;
                return;
            }
            self.check(server);
        }
    }

    fn update(&mut self, update: Update, is_list: bool, server: &Server) {
        match update {
            Update::Event { event_type, cause, object, resource_version } => {
                assert_eq!(resource_version.is_empty(), is_list);
                assert!(cause != pb::Cause::Initial || !self.watch.view.has_synced);
                self.told.push(word(event_type, &object));
                self.fold(event_type, object);
            }
            Update::Synced(progress) => {
                assert_eq!(contents(&self.held), contents(&server.states[&progress.resource_version]));
                let number = progress.resource_version.split_once('.').unwrap().1;
                self.synced_at = server.first_after(number.parse().unwrap());
                self.told.clear();
            }
            Update::Bookmark(_) | Update::Note(_) => {}
            Update::Dropped { .. } => panic!("drops are healed"),
        }
    }

    /// Folds an event as any user does, and checks that it changes the state.
    fn fold(&mut self, event_type: pb::EventType, object: pb::Object) {
        let body = match object.body {
            Some(pb::object::Body::Raw(bytes)) => bytes,
            _ => Bytes::new(),
        };
        let new = (object.uid, body, object.resource_version);
        if event_type == pb::EventType::Deleted {
            let last = self.held.remove(&object.name).expect("DELETED of what is held");
            assert_eq!(last.0, new.0);
            assert!(!new.1.is_empty() || !self.keep_objects);
            assert!(new.1.is_empty() || !self.is_exact || last.1 == new.1, "with the last state");
            return;
        }
        match self.held.insert(object.name, new.clone()) {
            None => assert_eq!(event_type, pb::EventType::Added),
            Some(last) => {
                assert_eq!(event_type, pb::EventType::Modified);
                assert_eq!(last.0, new.0, "another uid is another object");
                assert!(last.1 != new.1 || last.2 != new.2, "nothing has changed");
            }
        }
    }

    fn check(&self, server: &Server) {
        let Some(position) =
            self.watch.follower.position.as_deref().filter(|_| self.is_exact && !self.watch.follower.is_listing)
        else {
            return;
        };
        if self.watch.view.open.is_empty() {
            assert_eq!(contents(&self.held), contents(&server.states[position]), "the state at {position}");
        }
        let events = &server.events[self.synced_at..];
        let events: Vec<Word> =
            events.iter().map(|event| word(event.r#type(), event.object.as_ref().unwrap())).collect();
        assert_eq!(self.told[..], events[..self.told.len()], "each change once, in order");
    }

    /// Replaces messages in flight by a hole, as the server does under DROP; never the initial events.
    fn drop_in_flight(&mut self, count: usize) {
        let Some(stream) = &mut self.stream else { return };
        let is_initial = |message: &pb::WatchResponse| message.resource_version.is_empty();
        let last_initial = stream.iter().rposition(is_initial).map_or(0, |at| at + 2);
        let first = (last_initial.max(1)).min(stream.len());
        let count = count.min(stream.len() - first);
        let Some(after) = first.checked_sub(1).and_then(|at| stream.get(at)).map(|last| last.resource_version.clone())
        else {
            return;
        };
        if count == 0 || after.is_empty() {
            return;
        }
        let version = stream[first + count - 1].resource_version.clone();
        let dropped = pb::Dropped { count: count as u64, after_resource_version: after };
        let hole = pb::WatchResponse {
            r#type: pb::EventType::Dropped.into(),
            resource_version: version,
            dropped: Some(dropped),
            ..Default::default()
        };
        stream.drain(first..first + count);
        stream.insert(first, hole);
    }
}

fn run(steps: &[Step], keep_objects: bool, is_exact: bool) {
    let (mut server, mut client) = (Server::new(), Client::new(keep_objects, is_exact));
    for step in steps {
        match step {
            Step::Batch(actions) => {
                let known = server.events.len();
                server.batch(actions);
                if let Some(stream) = &mut client.stream {
                    stream.extend(server.events[known..].iter().cloned());
                }
            }
            Step::Bookmark => {
                if let Some(stream) = &mut client.stream {
                    stream.push_back(bookmark(server.version(), false));
                }
            }
            Step::Deliver(count) => client.deliver(&server, *count),
            Step::Cut => client.stream = None,
            Step::Drop(count) => client.drop_in_flight(*count),
            Step::Expire => server.oldest = server.events.len(),
            Step::Restart => {
                client.stream = None;
                server.restart();
            }
            Step::Split => {
                client.stream = None;
                server.split();
            }
            Step::Reorder => {
                client.stream = None;
                server.reorder();
            }
        }
    }
    // A drop needs another stream to be healed.
    for _ in 0..8 {
        client.deliver(&server, usize::MAX);
    }
    assert_eq!(contents(&client.held), contents(&server.state));
    assert_eq!(client.watch.view.len(), server.state.len());
}

fn steps(is_exact: bool) -> impl Strategy<Value = Vec<Step>> {
    let action = prop_oneof![
        4 => (0..3_u8).prop_map(Action::Put),
        2 => Just(Action::Delete),
        1 => (0..3_u8).prop_map(Action::Replace),
    ];
    let batch = prop::collection::vec((0..4_u8, action), 1..6).prop_map(Step::Batch);
    let step = prop_oneof![
        6 => batch,
        8 => (1..6_usize).prop_map(Step::Deliver),
        1 => Just(Step::Bookmark),
        4 => Just(Step::Cut),
        1 => (1..4_usize).prop_map(Step::Drop),
        1 => Just(Step::Expire),
        1 => Just(Step::Restart),
        u32::from(!is_exact) => Just(Step::Split),
        u32::from(!is_exact) => Just(Step::Reorder),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, ..crate::property_config() })]

    #[test]
    fn folding_the_updates_gives_the_state_and_each_change_comes_once(steps in steps(true), keep_objects: bool) {
        run(&steps, keep_objects, true);
    }

    #[test]
    fn replicas_that_batch_differently_lead_to_the_same_state(steps in steps(false), keep_objects: bool) {
        run(&steps, keep_objects, false);
    }
}
