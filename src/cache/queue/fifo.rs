//! Queue of the newest objects: client-go's `FIFO`.

use std::collections::BTreeSet;

use super::{
    PopError, ProcessError, Queue,
    key_queue::{KeyQueue, State, pops, reads},
};
use crate::{
    cache::{KeyError, KeyFunc, Store, Stored, StoredKey},
    model::ObjectKey,
};

/// Queue that hands out the newest object of each key.
///
/// - A key keeps its place while its object changes, and gets one at the end after it was handed out.
/// - A deletion is silent: the place remains and is passed over, and counts for the first batch.
/// - [`Store::replace`] makes the queue exactly the list.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use informerd::cache::{Fifo, KeyFunc, ProcessError, Queue, Store};
///
/// let words = Fifo::new(KeyFunc::infallible(|word: &&str| word.len()));
/// words.replace(vec!["one", "three"]).await?;
/// words.add("two").await?;
/// let print = async |word: &str, is_in_initial_list| Ok::<_, ProcessError<&str>>(println!("{word} {is_in_initial_list}"));
/// assert_eq!(words.pop(print).await, Ok("two"));
/// # Ok(())
/// # }
/// ```
#[doc(alias = "FIFO")]
#[derive(Debug)]
pub struct Fifo<T, K = ObjectKey> {
    key_func: KeyFunc<T, K>,
    queue: KeyQueue<K, T>,
}

impl<T: Stored, K: StoredKey> Fifo<T, K> {
    /// Makes an empty queue.
    pub fn new(key_func: KeyFunc<T, K>) -> Self {
        Self { key_func, queue: KeyQueue::new(|_, newer| newer) }
    }
}

impl<T: Stored, K: StoredKey> Store for Fifo<T, K> {
    type Object = T;
    type Key = K;
    type Item = T;

    fn key_of(&self, object: &T) -> Result<K, KeyError> {
        self.key_func.key_of(object)
    }

    async fn add(&self, object: T) -> Result<(), KeyError> {
        let key = self.key_of(&object)?;
        self.queue.add(key, |state, key| state.put(key, object)).await;
        Ok(())
    }

    async fn delete(&self, object: T) -> Result<(), KeyError> {
        let key = self.key_of(&object)?;
        self.queue.change(|state| {
            state.delete(&key);
            state.begin_first_batch(BTreeSet::new());
        });
        Ok(())
    }

    async fn replace_except(&self, list: Vec<T>, keep: impl Fn(&K, Option<&T>) -> bool + Send) -> Result<(), KeyError> {
        let list = self.key_func.with_keys(list)?;
        self.queue.change(|state| state.replace(list, |key, object| keep(key, Some(object))));
        Ok(())
    }

    reads!(T);
}

impl<T: Stored, K: StoredKey> Queue for Fifo<T, K> {
    pops!(T);

    async fn add_if_not_present(&self, object: T) -> Result<(), KeyError> {
        let key = self.key_of(&object)?;
        self.queue.add(key, |state, key| state.put_if_not_present(key, object)).await;
        Ok(())
    }

    fn key_of_item(&self, item: &T) -> Result<K, KeyError> {
        self.key_of(item)
    }
}
