//! Cache of the index values of a publish cycle's objects, so that each is computed once.
//!
//! A change is looked up in an index by its states before and after, then routed by the same values, then selected by them.
//! Each step walks a body from end to end, independently of the others. So the publisher marks the beginning and the end of
//! a cycle, and the thread caches the values in between.

use std::{cell::RefCell, collections::HashMap, sync::Arc};

use foldhash::fast::RandomState;

use crate::model::{Object, Path, expression};

/// Values by the addresses of the object's text and of the path, which cannot be reused while the entry holds both.
type Found = HashMap<(usize, usize), (Arc<[u8]>, Path, Vec<String>), RandomState>;

#[derive(Default)]
struct Wake {
    /// Number of nested cycles.
    depth: usize,
    found: Found,
}

/// Guard that clears the cache at the end of the work, also after a panic.
struct Guard;

/// Maximum number of entries. A cycle has at most 64 events, each with a state before and after it; of a relist of very
/// many objects only the first are cached.
const MAX_FOUND: usize = 1024;

thread_local! {
    static WAKE: RefCell<Wake> = RefCell::default();
}

/// Does some work that computes the values of the same objects more than once, with the cache.
pub fn in_one_wake<T>(work: impl FnOnce() -> T) -> T {
    WAKE.with_borrow_mut(|wake| wake.depth += 1);
    let _guard = Guard;
    work()
}

/// Returns true if this thread does the work of a cycle.
#[cfg(feature = "cel")]
pub(in crate::model) fn is_in_wake() -> bool {
    WAKE.with_borrow(|wake| wake.depth > 0)
}

/// Passes the values at a path, sorted and each once, to `look`.
pub(super) fn with_values<T>(path: &Path, object: &Object, look: impl FnOnce(&[String]) -> T) -> T {
    let compute = || super::as_set(object.json().map(|json| path.values(json)).unwrap_or_default());
    WAKE.with_borrow_mut(|Wake { depth, found }| {
        if *depth == 0 {
            return look(&compute());
        }
        let place = (object.text().as_ptr().addr(), path.as_str().as_ptr().addr());
        if found.len() >= MAX_FOUND && !found.contains_key(&place) {
            return look(&compute());
        }
        let (_, _, values) = found.entry(place).or_insert_with(|| (Arc::clone(object.text()), path.clone(), compute()));
        look(values)
    })
}

// === impl Guard ===

impl Drop for Guard {
    fn drop(&mut self) {
        WAKE.with_borrow_mut(|Wake { depth, found }| {
            *depth -= 1;
            if *depth == 0 {
                found.clear();
                expression::end_wake();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::model::{IndexFunc, ResourceVersion};

    fn object(name: &str, value: u8) -> Object {
        let json = format!(r#"{{"metadata":{{"name":"{name}"}},"a":"{value}","b":[{value},"x"]}}"#);
        Object::from_json(json, "", ResourceVersion::decimal(1)).unwrap()
    }

    fn held() -> (usize, usize) {
        WAKE.with_borrow(|wake| (wake.depth, wake.found.len()))
    }

    #[test]
    fn nothing_is_remembered_outside_of_a_wake_and_nothing_stays() {
        let (object, path) = (object("x", 7), Path::parse(".a").unwrap());
        let by_path = IndexFunc::Path(path);
        assert_eq!(by_path.values(&object), ["7"]);
        assert_eq!((held(), Arc::strong_count(object.text())), ((0, 0), 1));
        in_one_wake(|| {
            assert_eq!(by_path.values(&object), ["7"]);
            in_one_wake(|| assert_eq!(by_path.clone().values(&object.clone()), ["7"]));
            assert_eq!(held(), (1, 1), "a clone has the same text");
        });
        assert_eq!((held(), Arc::strong_count(object.text())), ((0, 0), 1));
        let panicked = std::panic::catch_unwind(|| in_one_wake(|| std::panic::resume_unwind(Box::new(()))));
        assert!(panicked.is_err() && held() == (0, 0));
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let by_path = IndexFunc::Path(Path::parse(".a").unwrap());
        let objects: Vec<Object> = (0..=MAX_FOUND + 9).map(|at| object(&at.to_string(), (at % 200) as u8)).collect();
        in_one_wake(|| {
            for (at, object) in objects.iter().enumerate() {
                assert_eq!(by_path.values(object), [(at % 200).to_string()]);
            }
            assert_eq!(held(), (1, MAX_FOUND));
        });
    }

    proptest! {
        #![proptest_config(crate::property_config())]

        #[test]
        fn what_is_remembered_is_what_is_there(asked in vec((0_usize..6, 0_usize..3), 0..40)) {
            let objects: Vec<Object> = (0..6).map(|at| object("x", at / 2)).collect();
            let paths = [".a", ".b", ".b[*]"].map(|text| IndexFunc::Path(Path::parse(text).unwrap()));
            let expected: Vec<_> = asked.iter().map(|(object, path)| paths[*path].values(&objects[*object])).collect();
            let found: Vec<_> =
                in_one_wake(|| asked.iter().map(|(object, path)| paths[*path].values(&objects[*object])).collect());
            prop_assert_eq!(found, expected);
        }
    }
}
