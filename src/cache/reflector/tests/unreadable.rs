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
    fn of(name: &str) -> Arc<Object> {
        let body = format!(r#"{{"metadata":{{"name":"{name}","uid":"u-{name}"}}}}"#);
        Arc::new(Object::from_json(body, "", version(1)).unwrap())
    }
    /// Returns the names after a list of `b`.
    async fn after<S: Store<Object = Arc<Object>, Key = ObjectKey>>(store: S, unreadable: &UnreadableItem) -> String {
        let list = List { unreadable: vec![unreadable.clone()], ..List::new(vec![of("b")], version(5)) };
        for delta in [Delta::Replace(list.clone()), Delta::HistoryRewritten(list)] {
            store.apply(delta).await.unwrap();
        }
        store.list_keys().iter().map(ObjectKey::name).collect()
    }
    let key = |name: &str| ObjectKey::new("", name).ok();
    let item = |key, uid: &str| UnreadableItem { key, uid: uid.to_owned() };
    let key_func = KeyFunc::<Arc<Object>>::default;
    let queue =
        |known| DeltaFifo::new(DeltaFifoOptions { known_objects: Some(known), ..DeltaFifoOptions::new(key_func()) });
    for (item, kept) in [
        (item(key("a"), ""), "ab"),
        (item(key("a"), "u-a"), "ab"),
        (item(key("a"), "another"), "b"),
        (item(None, "u-c"), "bc"),
        (item(None, ""), "abc"),
        (item(key("z"), ""), "b"),
    ] {
        let [plain, pushing, expiring, fifo, known] = [(); 5].map(|()| ["a", "b", "c"].map(of).to_vec());
        let store = MapStore::new(key_func());
        store.replace(plain).await.unwrap();
        assert_eq!(after(store, &item).await, kept, "{item:?}");
        let store = UndeltaStore::new(key_func(), |_| {});
        store.replace(pushing).await.unwrap();
        assert_eq!(after(store, &item).await, kept, "{item:?}");
        let store = ExpirationCache::new(key_func(), Duration::from_secs(60));
        store.replace(expiring).await.unwrap();
        assert_eq!(after(store, &item).await, kept, "{item:?}");
        let store = Fifo::new(key_func());
        store.replace(fifo).await.unwrap();
        assert_eq!(after(store, &item).await, kept, "{item:?}");
        // What is queued here is the list, and the deletions.
        let queued: String = "abc".chars().filter(|name| *name == 'b' || !kept.contains(*name)).collect();
        let store = MapStore::new(key_func());
        store.replace(known).await.unwrap();
        assert_eq!(after(queue(Arc::new(store)), &item).await, queued, "{item:?}");
    }
    // Of a key alone it may be any object with it, or of a uid.
    let keys = || queue(Arc::new(Keys(["a", "b", "c"])));
    assert_eq!(after(keys(), &item(key("a"), "another")).await, "bc");
    assert_eq!(after(keys(), &item(None, "u-c")).await, "b");
    assert_eq!(after(keys(), &item(key("z"), "")).await, "abc");
}
