//! Lists with items that cannot be read, in each store of the library.

use super::*;
use crate::{
    cache::{
        DeltaFifo, DeltaFifoOptions, ExpirationCache, Fifo, KeyFunc, KnownObjects, MapStore, Store, UndeltaStore,
        UnreadableItem,
    },
    model::ObjectKey,
};

/// Objects of which only the keys are known, as those of a directory of files.
struct Keys([&'static str; 3]);

impl KnownObjects<Arc<Object>> for Keys {
    fn known_keys(&self) -> Vec<ObjectKey> {
        self.0.map(|name| ObjectKey::new("", name).unwrap()).to_vec()
    }

    fn known(&self, _: &ObjectKey) -> Option<Arc<Object>> {
        None
    }
}

/// An object that cannot be read exists, also after the history was rewritten.
#[tokio::test]
async fn what_an_unreadable_item_of_a_list_may_be_stays_in_any_store() {
    fn of(name: &str, at: u128) -> Arc<Object> {
        let body = format!(r#"{{"metadata":{{"name":"{name}","uid":"u-{name}"}}}}"#);
        Arc::new(Object::from_json(body, "", version(at)).unwrap())
    }
    /// Returns the names after a list of a later `b`.
    async fn after<S: Store<Object = Arc<Object>, Key = ObjectKey>>(store: &S, unreadable: &UnreadableItem) -> String {
        let list = List { unreadable: vec![unreadable.clone()], ..List::new(vec![of("b", 5)], version(5)) };
        for delta in [Delta::Replace(list.clone()), Delta::HistoryRewritten(list)] {
            store.apply(delta).await.unwrap();
        }
        store.list_keys().iter().map(ObjectKey::name).collect()
    }
    /// Returns the names that an earlier list of `a`, `b` and `c` leaves.
    async fn kept<S>(store: S, unreadable: &UnreadableItem) -> String
    where
        S: Store<Object = Arc<Object>, Key = ObjectKey, Item = Arc<Object>>,
    {
        store.replace(["a", "b", "c"].map(|name| of(name, 1)).to_vec()).await.unwrap();
        let names = after(&store, unreadable).await;
        let listed = store.get(&of("b", 1)).unwrap().unwrap();
        assert_eq!(listed.version(), &version(5), "the listed state is the newer one: {unreadable:?}");
        names
    }
    let key = |name: &str| ObjectKey::new("", name).ok();
    let item = |key, uid: &str| UnreadableItem { key, uid: uid.to_owned() };
    let key_func = KeyFunc::<Arc<Object>>::default;
    let queue =
        |known| DeltaFifo::new(DeltaFifoOptions { known_objects: Some(known), ..DeltaFifoOptions::new(key_func()) });
    for (item, names) in [
        (item(key("a"), ""), "ab"),
        (item(key("a"), "u-a"), "ab"),
        (item(key("a"), "another"), "b"),
        (item(None, "u-c"), "bc"),
        (item(None, ""), "abc"),
        (item(key("z"), ""), "b"),
    ] {
        assert_eq!(kept(MapStore::new(key_func()), &item).await, names, "{item:?}");
        assert_eq!(kept(UndeltaStore::new(key_func(), |_| {}), &item).await, names, "{item:?}");
        let expiring = ExpirationCache::new(key_func(), Duration::from_secs(60));
        assert_eq!(kept(expiring, &item).await, names, "{item:?}");
        assert_eq!(kept(Fifo::new(key_func()), &item).await, names, "{item:?}");
        // What is queued here is the list, and the deletions.
        let queued: String = "abc".chars().filter(|name| *name == 'b' || !names.contains(*name)).collect();
        let store = MapStore::new(key_func());
        store.replace(["a", "b", "c"].map(|name| of(name, 1)).to_vec()).await.unwrap();
        assert_eq!(after(&queue(Arc::new(store)), &item).await, queued, "{item:?}");
    }
    // Of a key alone it may be any object with it, or of a uid.
    let keys = || queue(Arc::new(Keys(["a", "b", "c"])));
    assert_eq!(after(&keys(), &item(key("a"), "another")).await, "bc");
    assert_eq!(after(&keys(), &item(None, "u-c")).await, "b");
    assert_eq!(after(&keys(), &item(key("z"), "")).await, "abc");
}
