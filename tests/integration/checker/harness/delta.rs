//! Messages of the upstream, as the server's sources make them.

use std::{rc::Rc, sync::Arc};

use informerd::{
    cache::{Delta, List},
    model::{Cause, Event, Object, ResourceVersion},
};

use crate::checker::{
    pod::Held,
    truth::{Truth, Upstream},
};

/// Converts a message of the upstream as a source does.
pub(super) fn delta(truth: &Truth, upstream: Upstream) -> Delta {
    let epoch = truth.epochs.len() - 1;
    let version = |number| truth.text(epoch, number).parse::<ResourceVersion>().unwrap();
    let object = |held: &Held, at| {
        let body = bytes::Bytes::from(held.body.clone());
        Arc::new(Object::from_json(body, "unnamed", version(at)).unwrap())
    };
    let list = |held: Vec<Rc<Held>>, not_served: Vec<Rc<Held>>, at| {
        let objects = |held: Vec<Rc<Held>>| held.iter().map(|held| object(held, held.version)).collect();
        List { not_served: objects(not_served), ..List::new(objects(held), version(at)) }
    };
    let event = |upstream| match upstream {
        Upstream::Put(held) => Event::Modified(object(&held, held.version)),
        Upstream::Deleted(held, at) => Event::Deleted(object(&held, at)),
        Upstream::NotServed(held) => Event::NotServed(object(&held, held.version)),
        Upstream::Bookmark(at) => Event::Bookmark(version(at)),
        _ => unreachable!("it is not one event"),
    };
    match upstream {
        Upstream::Put(_) | Upstream::Deleted(..) | Upstream::NotServed(_) | Upstream::Bookmark(_) => {
            Delta::event(event(upstream))
        }
        Upstream::Open(said) => Delta::Changes { events: [event(*said)].into_iter().collect(), closes: false },
        Upstream::Transaction(told) => Delta::transaction(told.into_iter().map(event)),
        Upstream::List(held, not_served, at) => Delta::Replace(list(held, not_served, at)),
        Upstream::Rewritten(held, not_served, at) => Delta::HistoryRewritten(list(held, not_served, at)),
        Upstream::Relisted(told) => Delta::Relist(told.into_iter().map(event).collect(), Cause::Inferred),
    }
}
