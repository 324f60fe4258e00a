//! Watches of the scripted API, from a watch cache that may stand still.

use tokio::time::{Instant, interval_at};
use tokio_stream::wrappers::IntervalStream;

use super::*;

/// As of kube-apiserver.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);

impl FakeApi {
    pub(super) fn watch(&self, query: &Query) -> Response {
        let (initial, from) = {
            let store = self.store.lock();
            let asked = store.number(query.get("resourceVersion").map_or("", String::as_str));
            if query.contains_key("sendInitialEvents") {
                (store.initial(query), store.revision)
            } else {
                (String::new(), asked)
            }
        };
        if is_probe(query) {
            let store = self.store.lock();
            let mark = match store.bookmarks {
                Bookmarks::None => String::new(),
                _ => bookmark(&store.reached(query).to_string(), None) + "\n",
            };
            return success(store.events_after(from, query) + &mark);
        }
        let mut told = from;
        let fake = self.clone();
        let query = query.clone();
        let changes = WatchStream::new(self.head.subscribe()).map(|_| false);
        let marks =
            IntervalStream::new(interval_at(Instant::now() + BOOKMARK_INTERVAL, BOOKMARK_INTERVAL)).map(|_| true);
        let lines = changes.merge(marks).map(move |is_mark| {
            let store = fake.store.lock();
            let mut lines = store.events_after(told, &query);
            told = told.max(store.reached(&query));
            if is_mark && store.bookmarks == Bookmarks::All {
                lines += &(bookmark(&format!("{}{told}", store.prefix), None) + "\n");
            }
            lines
        });
        let lines = tokio_stream::once(initial).chain(lines).filter(|lines| !lines.is_empty());
        Response::new(Body::from_stream(lines.map(|lines| Ok::<_, Infallible>(Bytes::from(lines)))))
    }
}

impl Store {
    /// Returns the revision that the watch cache has reached.
    fn reached(&self, query: &Query) -> u64 {
        match self.stands_still {
            Some((namespace, revision))
                if namespace.is_empty() || query.get(NAMESPACE).is_some_and(|name| name == namespace) =>
            {
                revision
            }
            _ => self.revision,
        }
    }

    fn initial(&self, query: &Query) -> String {
        let state = self.state_of(self.revision);
        let added = state
            .iter()
            .filter(|(key, _)| selects(query, key))
            .map(|(key, change)| event("ADDED", &typed(&partial(query, self.object(key, change)))));
        let version = format!("{}{}", self.prefix, self.revision);
        added.chain([bookmark(&version, Some("true"))]).map(|line| line + "\n").collect()
    }

    pub(super) fn events_after(&self, revision: u64, query: &Query) -> String {
        let reached = self.reached(query);
        let is_sent =
            |change: &&Change| (revision + 1..=reached).contains(&change.revision) && selects(query, &change.key);
        let after = self.history.iter().filter(is_sent);
        let line = |change: &Change| {
            let is_new = !self.state_at(change.revision - 1).contains_key(&change.key);
            let event_type = match &change.state {
                None => "DELETED",
                Some(_) if is_new => "ADDED",
                Some(_) => "MODIFIED",
            };
            format!("{}\n", event(event_type, &typed(&partial(query, self.object(&change.key, change)))))
        };
        after.map(line).collect()
    }
}
