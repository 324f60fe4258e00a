//! Uids of a source whose objects bring them along: a copied manifest, or two kinds in one recording, may repeat one.
//!
//! A uid identifies one object of a resource: clients key and shard by it. The object that has it first keeps it. Another one with the
//! same uid has its key after it (`u1/shop/web`), for as long as it exists.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use foldhash::fast::RandomState;

use crate::model::{Object, ObjectKey};

/// Uids of the objects that a source serves.
#[derive(Debug, Default)]
pub(super) struct Uids {
    /// Object of each uid.
    of: HashMap<Box<str>, ObjectKey, RandomState>,
    /// Objects with another uid than their own.
    repeated: BTreeMap<ObjectKey, Box<str>>,
}

// === impl Uids ===

impl Uids {
    /// Records an object in place of the one that is served under its key. Returns it with another uid if its own is that of another
    /// object.
    pub(super) fn claim(&mut self, object: &Object, served: Option<&Object>) -> Option<Object> {
        let (key, own) = (object.key(), object.uid());
        let with_key = |uid: &str| format!("{uid}/{key}");
        // The object keeps its uid when the other one is gone: it is no other object then.
        let was_repeated =
            served.is_some_and(|served| self.repeated.contains_key(key) && served.uid() == with_key(own));
        if let Some(served) = served {
            self.release(served);
        }
        if own.is_empty() {
            return None;
        }
        let mut uid = if was_repeated { with_key(own) } else { own.to_owned() };
        while self.of.contains_key(&*uid) {
            uid = with_key(&uid);
        }
        let is_other = uid != own;
        let other = is_other.then(|| object.with_uid(&uid));
        if is_other {
            self.repeated.insert(key.clone(), own.into());
        }
        self.of.insert(uid.into(), key.clone());
        other
    }

    /// Begins with the objects of an earlier run, whose uids differ.
    pub(super) fn resume<'a>(&mut self, served: impl Iterator<Item = &'a Arc<Object>>) {
        for object in served.filter(|object| !object.uid().is_empty()) {
            if let Some(own) = object.uid().strip_suffix(&*format!("/{}", object.key())) {
                self.repeated.insert(object.key().clone(), own.into());
            }
            self.of.insert(object.uid().into(), object.key().clone());
        }
    }

    /// Records the deletion of a served object.
    pub(super) fn release(&mut self, served: &Object) {
        if self.of.get(served.uid()) == Some(served.key()) {
            self.of.remove(served.uid());
        }
        self.repeated.remove(served.key());
    }

    /// Returns true if a served object may be the one with this uid: its own, or that with which it is served.
    pub(super) fn may_be(&self, served: &Object, uid: &str) -> bool {
        let own = self.repeated.get(served.key()).map_or("", |own| own);
        served.uid().is_empty() || ["", served.uid(), own].contains(&uid)
    }

    /// Returns the objects with another uid than their own, with the object that has it, if there still is one.
    pub(super) fn repeated(&self) -> impl Iterator<Item = (&ObjectKey, &str, Option<&ObjectKey>)> {
        self.repeated.iter().map(|(key, own)| (key, &**own, self.of.get(own)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use bytes::Bytes;
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::model::ResourceVersion;

    fn object(name: &str, uid: &str) -> Object {
        let body = format!(r#"{{"metadata":{{"name":"{name}","uid":"{uid}"}}}}"#);
        Object::from_json(Bytes::from(body), "", ResourceVersion::decimal(1)).unwrap()
    }

    #[test]
    fn the_first_object_keeps_a_uid_and_others_have_their_key_after_it() {
        let mut uids = Uids::default();
        let (a, b) = (object("a", "u"), object("b", "u"));
        assert_eq!(uids.claim(&a, None), None);
        let served = uids.claim(&b, None).unwrap();
        assert_eq!((served.uid(), served.body(), served.key()), ("u/b", b.body(), b.key()));
        assert_eq!(uids.repeated().collect::<Vec<_>>(), [(b.key(), "u", Some(a.key()))]);
        assert_eq!(uids.claim(&a, Some(&a)), None, "a change of it");
        uids.release(&a);
        let again = uids.claim(&b, Some(&served)).unwrap();
        assert_eq!(again.uid(), "u/b", "it is still the same object");
        assert_eq!(uids.claim(&object("b", "v"), Some(&again)), None);
        assert_eq!(uids.repeated().count(), 0);
        assert_eq!(uids.claim(&a, None), None);
        assert_eq!(uids.claim(&object("c", ""), None), None, "no uid is no repeated one");
        assert_eq!(uids.claim(&object("d", ""), None), None);
    }

    proptest! {
        #![proptest_config(crate::property_config())]

        #[test]
        fn no_two_served_objects_have_one_uid(
            steps in vec((0..4_usize, prop::option::of(prop::sample::select(vec!["", "u", "u/a", "v"]))), 0..40),
        ) {
            let (mut uids, mut served) = (Uids::default(), HashMap::new());
            for (name, uid) in steps {
                let name = ["a", "b", "c", "d"][name];
                match uid {
                    None => {
                        if let Some(old) = served.remove(name) {
                            uids.release(&old);
                        }
                    }
                    Some(uid) => {
                        let new = object(name, uid);
                        let new = uids.claim(&new, served.get(name)).unwrap_or(new);
                        prop_assert!(new.uid().starts_with(uid) && new.uid().is_empty() == uid.is_empty());
                        served.insert(name, new);
                    }
                }
                let with_uid: Vec<&str> = served.values().map(Object::uid).filter(|uid| !uid.is_empty()).collect();
                prop_assert_eq!(with_uid.iter().collect::<HashSet<_>>().len(), with_uid.len());
            }
        }
    }
}
