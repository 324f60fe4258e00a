//! Any interleaving of the operations of a queue, and of the ends of its processing, against a model: nothing is lost, and
//! nothing is handed out twice.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    task::Poll,
};

use futures_util::{FutureExt, future::BoxFuture};
use parking_lot::Mutex;
use proptest::{collection::vec, prelude::*, sample::Index};
use tokio::sync::oneshot;
use tokio_test::task::{self, Spawn};

use super::*;
use crate::cache::MapStore;

type Key = u8;
/// Key, and a number that is new in each operation.
type Numbered = (Key, u32);

/// Sign and number of a delta.
type Text = (char, u32);

#[derive(Debug, Clone)]
enum Operation {
    Add(Key),
    Update(Key),
    Delete(Key),
    AddIfNotPresent(Key),
    Replace(Vec<Key>),
    Resync,
    Pop,
    End(Index, End),
    Close,
}

/// End of the processing of an item.
#[derive(Debug, Clone, Copy)]
enum End {
    Done,
    Failed,
    Requeued,
    Cancelled,
    Panicked,
}

fn operation() -> impl Strategy<Value = Operation> {
    let key = || 0..4u8;
    let end = || {
        prop_oneof![
            3 => Just(End::Done),
            1 => Just(End::Failed),
            1 => Just(End::Requeued),
            1 => Just(End::Cancelled),
            1 => Just(End::Panicked),
        ]
    };
    prop_oneof![
        4 => key().prop_map(Operation::Add),
        2 => key().prop_map(Operation::Update),
        3 => key().prop_map(Operation::Delete),
        2 => key().prop_map(Operation::AddIfNotPresent),
        2 => vec(key(), 0..5).prop_map(Operation::Replace),
        1 => Just(Operation::Resync),
        6 => Just(Operation::Pop),
        5 => (any::<Index>(), end()).prop_map(|(index, end)| Operation::End(index, end)),
        1 => Just(Operation::Close),
    ]
}

/// Queue under test, with the text of its items.
trait Tested: Queue<Object = Numbered, Key = Key> {
    const HAS_DELTAS: bool;

    fn text(item: Self::Item) -> Vec<Text>;

    fn item(object: Numbered) -> Self::Item;
}

impl Tested for Fifo<Numbered, Key> {
    const HAS_DELTAS: bool = false;

    fn text((_, number): Numbered) -> Vec<Text> {
        vec![('+', number)]
    }

    fn item(object: Numbered) -> Numbered {
        object
    }
}

impl Tested for DeltaFifo<Numbered, Key> {
    const HAS_DELTAS: bool = true;

    fn text(deltas: Deltas<Numbered, Key>) -> Vec<Text> {
        let text = |delta| match delta {
            ObjectDelta::Added((_, number)) => ('+', number),
            ObjectDelta::Updated((_, number)) => ('~', number),
            ObjectDelta::Deleted((_, number)) => ('-', number),
            ObjectDelta::Replaced((_, number)) => ('=', number),
            ObjectDelta::Sync((_, number)) => ('s', number),
            ObjectDelta::DeletedFinalStateUnknown(tombstone) => ('x', tombstone.last_known.unwrap().1),
        };
        deltas.into_iter().map(text).collect()
    }

    fn item(object: Numbered) -> Self::Item {
        Deltas::new(object.0, ObjectDelta::Added(object))
    }
}

/// State that a queue should have. Items are the deltas of a key, of which a `Fifo` has the last one only; none if they were
/// deleted, and the place remains.
#[derive(Default)]
struct Model {
    has_deltas: bool,
    line: Vec<(Key, Vec<Text>)>,
    processing: Vec<(Key, Vec<Text>)>,
    first_batch: Option<BTreeSet<Key>>,
    known: BTreeMap<Key, u32>,
    is_closed: bool,
}

fn is_deletion((sign, _): Text) -> bool {
    "-x".contains(sign)
}

impl Model {
    fn queued(&mut self, key: Key) -> Option<&mut Vec<Text>> {
        self.line.iter_mut().find(|(queued, _)| *queued == key).map(|(_, item)| item)
    }

    fn put(&mut self, key: Key, delta: Text) {
        let has_deltas = self.has_deltas;
        match self.queued(key) {
            Some(item) => append(item, &[delta], has_deltas),
            None => self.line.push((key, vec![delta])),
        }
    }

    /// Returns the newest delta of a key that is queued or in processing.
    fn newest(&self, key: Key) -> Option<Text> {
        let queued = self.line.iter().chain(&self.processing).filter(|(of, item)| *of == key && !item.is_empty());
        queued.map(|(_, item)| *item.last().unwrap()).next()
    }

    fn added(&mut self) {
        self.first_batch.get_or_insert_default();
    }

    fn delete(&mut self, object: Numbered) {
        let (key, number) = object;
        if self.has_deltas {
            if self.newest(key).is_some() || self.known.contains_key(&key) {
                self.put(key, ('-', number));
            }
        } else if let Some(item) = self.queued(key) {
            item.clear();
        } else if self.processing.iter().any(|(of, _)| *of == key) {
            self.line.push((key, vec![]));
        }
        self.added();
    }

    fn replace(&mut self, list: &[Numbered]) {
        let listed: BTreeSet<Key> = list.iter().map(|(key, _)| *key).collect();
        let mut batch = listed.clone();
        let mut deleted = Vec::new();
        if self.has_deltas {
            for key in (0..4).filter(|key| !listed.contains(key)) {
                let last_known = match self.newest(key) {
                    Some(newest) => Some(newest.1).filter(|_| !is_deletion(newest)),
                    None => self.known.get(&key).copied(),
                };
                deleted.extend(last_known.map(|number| (self.newest(key).is_none(), key, number)));
            }
            // What is queued or in processing comes before what is only known.
            deleted.sort_unstable();
            batch.extend(deleted.iter().map(|(_, key, _)| *key));
        } else {
            self.line.clear();
        }
        for (key, number) in list {
            self.put(*key, (if self.has_deltas { '=' } else { '+' }, *number));
        }
        for (_, key, number) in deleted {
            self.put(key, ('x', number));
        }
        if !self.has_deltas {
            for key in self.processing.iter().map(|(key, _)| *key).collect::<BTreeSet<_>>() {
                if self.queued(key).is_none() {
                    self.line.push((key, vec![]));
                }
            }
        }
        let batch = self.first_batch.get_or_insert(batch);
        batch.retain(|key| self.has_deltas || self.line.iter().any(|(queued, _)| queued == key));
    }

    fn pop(&mut self) -> Option<(Key, Vec<Text>, bool)> {
        loop {
            let is_free = |(key, _): &(Key, _)| self.processing.iter().all(|(of, _)| of != key);
            let (key, item) = self.line.remove(self.line.iter().position(is_free)?);
            let is_initial = self.first_batch.as_ref().is_none_or(|batch| batch.contains(&key));
            if !item.is_empty() {
                self.processing.push((key, item.clone()));
                return Some((key, item, is_initial));
            }
            self.first_batch.as_mut().unwrap().remove(&key);
        }
    }

    fn end(&mut self, index: usize, end: End) {
        let (key, item) = self.processing.remove(index);
        let has_newer = self.queued(key).is_some();
        if let End::Cancelled | End::Panicked = end {
            let newer = self.line.iter().position(|(of, _)| *of == key).map(|at| self.line.remove(at).1);
            let mut all = item;
            match newer {
                Some(newer) if newer.is_empty() => all.clear(),
                newer => append(&mut all, &newer.unwrap_or_default(), self.has_deltas),
            }
            self.line.insert(0, (key, all));
            return;
        }
        if let Some(batch) = &mut self.first_batch {
            batch.remove(&key);
        }
        if matches!(end, End::Requeued) && !has_newer {
            self.line.push((key, item));
        }
    }

    fn list(&self) -> Vec<Vec<Text>> {
        let sorted: BTreeMap<Key, Vec<Text>> = self.line.iter().filter(|(_, item)| !item.is_empty()).cloned().collect();
        sorted.into_values().collect()
    }
}

/// Appends deltas to those of a key. A deletion that the queue finds has less of the object than one that it received.
fn append(item: &mut Vec<Text>, deltas: &[Text], has_deltas: bool) {
    for delta in deltas {
        match item.last_mut().filter(|last| is_deletion(**last) && is_deletion(*delta)) {
            Some(last) if last.0 == '-' && delta.0 == 'x' => {}
            Some(last) => *last = *delta,
            None => item.push(*delta),
        }
    }
    if !has_deltas {
        item.drain(..item.len().saturating_sub(1));
    }
}

/// Item in processing.
struct Processing {
    end: oneshot::Sender<End>,
    pop: Spawn<BoxFuture<'static, Result<(), PopError<(), ()>>>>,
    key: Key,
    item: Vec<Text>,
}

struct Run<Q> {
    queue: Arc<Q>,
    known: Arc<MapStore<Numbered, Key>>,
    model: Model,
    processing: Vec<Processing>,
    /// Numbers of the changes whose processing is over.
    processed: BTreeSet<Text>,
    next: u32,
}

impl<Q: Tested> Run<Q> {
    fn object(&mut self, key: Key) -> Numbered {
        self.next += 1;
        (key, self.next)
    }

    fn apply(&mut self, operation: Operation) {
        let queue = Arc::clone(&self.queue);
        let ready = |write: Option<Result<(), KeyError>>| write.expect("it is not full").unwrap();
        match operation {
            Operation::Add(key) => {
                let object = self.object(key);
                ready(queue.add(object).now_or_never());
                self.model.put(key, ('+', object.1));
                self.model.added();
            }
            Operation::Update(key) => {
                let object = self.object(key);
                ready(queue.update(object).now_or_never());
                self.model.put(key, (if Q::HAS_DELTAS { '~' } else { '+' }, object.1));
                self.model.added();
            }
            Operation::Delete(key) => {
                let object = self.object(key);
                ready(queue.delete(object).now_or_never());
                self.model.delete(object);
            }
            Operation::AddIfNotPresent(key) => {
                let object = self.object(key);
                ready(queue.add_if_not_present(Q::item(object)).now_or_never());
                if self.model.queued(key).is_none_or(|item| item.is_empty()) {
                    self.model.put(key, ('+', object.1));
                }
                self.model.added();
            }
            Operation::Replace(keys) => {
                let list: Vec<Numbered> = keys.into_iter().map(|key| self.object(key)).collect();
                ready(queue.replace(list.clone()).now_or_never());
                self.model.replace(&list);
            }
            Operation::Resync => {
                ready(queue.resync().now_or_never());
                for (key, number) in self.model.known.clone() {
                    if Q::HAS_DELTAS && self.model.newest(key).is_none() {
                        self.model.put(key, ('s', number));
                    }
                }
            }
            Operation::Pop => drop(self.pop()),
            Operation::End(index, end) if !self.processing.is_empty() => {
                self.end(index.index(self.processing.len()), end);
            }
            Operation::End(..) => {}
            Operation::Close => {
                queue.close();
                self.model.is_closed = true;
            }
        }
    }

    /// Pops once. Returns true if an item was handed out.
    fn pop(&mut self) -> bool {
        let (end, ended) = oneshot::channel();
        let handed_out = Arc::new(Mutex::new(None));
        let (queue, record) = (Arc::clone(&self.queue), Arc::clone(&handed_out));
        let process = move |item, is_initial| async move {
            *record.lock() = Some((Q::text(item), is_initial));
            match ended.await.unwrap() {
                End::Failed => Err(ProcessError::Failed(())),
                End::Requeued => Err(ProcessError::Requeue(None)),
                End::Panicked => resume_unwind(Box::new(())),
                End::Done | End::Cancelled => Ok(()),
            }
        };
        let pop = async move {
            queue.pop(process).await.map(drop).map_err(|error| match error {
                PopError::Failed { error, .. } => PopError::Failed { item: (), error },
                PopError::Requeued(error) => PopError::Requeued(error),
                PopError::Closed => PopError::Closed,
            })
        };
        let mut pop = task::spawn(pop.boxed());
        let polled = pop.poll();
        let expected = self.model.pop();
        let handed_out = handed_out.lock().take();
        assert_eq!(handed_out, expected.clone().map(|(_, item, is_initial)| (item, is_initial)));
        let Some((key, item, _)) = expected else {
            let is_over = self.model.is_closed && self.processing.is_empty();
            assert_eq!(polled, if is_over { Poll::Ready(Err(PopError::Closed)) } else { Poll::Pending });
            return false;
        };
        assert!(self.processing.iter().all(|other| other.key != key), "a key is in processing once");
        // Known objects are queued again.
        let mut changes = item.iter().filter(|(sign, _)| !"sx".contains(*sign));
        assert!(changes.all(|change| !self.processed.contains(change)), "handed out twice");
        self.processing.push(Processing { end, pop, key, item });
        true
    }

    fn end(&mut self, index: usize, end: End) {
        let Processing { end: sender, mut pop, key, item } = self.processing.remove(index);
        if let End::Done = end {
            let (sign, number) = *item.last().unwrap();
            let object = (key, number);
            if is_deletion((sign, number)) {
                self.model.known.remove(&key);
                self.known.remove(&object).unwrap();
            } else {
                self.model.known.insert(key, number);
                self.known.insert(object).unwrap();
            }
        }
        if let End::Done | End::Failed = end {
            self.processed.extend(item);
        }
        if let End::Cancelled = end {
            drop(pop);
        } else {
            sender.send(end).unwrap();
            let polled = catch_unwind(AssertUnwindSafe(|| pop.poll()));
            match (end, polled) {
                (End::Panicked, Err(_)) => {}
                (End::Failed, Ok(polled)) => {
                    assert_eq!(polled, Poll::Ready(Err(PopError::Failed { item: (), error: () })));
                }
                (_, polled) => assert_eq!(polled.unwrap(), Poll::Ready(Ok(()))),
            }
        }
        self.model.end(index, end);
    }

    fn check(&self) {
        let list: Vec<_> = self.queue.list().into_iter().map(Q::text).collect();
        assert_eq!(list, self.model.list());
        assert_eq!(self.queue.has_synced(), self.model.first_batch.as_ref().is_some_and(BTreeSet::is_empty));
        assert_eq!(self.queue.is_closed(), self.model.is_closed);
    }
}

fn run<Q: Tested>(operations: Vec<Operation>, new: impl FnOnce(Arc<MapStore<Numbered, Key>>) -> Q) {
    let known = Arc::new(MapStore::new(by_number()));
    let model = Model { has_deltas: Q::HAS_DELTAS, ..Model::default() };
    let queue = Arc::new(new(Arc::clone(&known)));
    let mut run = Run { queue, known, model, processing: Vec::new(), processed: BTreeSet::new(), next: 0 };
    for operation in operations {
        run.apply(operation);
        run.check();
    }
    // Everything that remains is handed out, and then nothing.
    run.apply(Operation::Close);
    loop {
        while !run.processing.is_empty() {
            run.end(0, End::Done);
            run.check();
        }
        if !run.pop() {
            break;
        }
    }
    assert!(run.queue.list().is_empty() && run.model.line.is_empty());
}

fn by_number() -> KeyFunc<Numbered, Key> {
    KeyFunc::infallible(|(key, _): &Numbered| *key)
}

proptest! {
    #![proptest_config(crate::property_config())]

    #[test]
    fn a_fifo_loses_nothing_and_hands_out_nothing_twice(operations in vec(operation(), 0..60)) {
        run(operations, |_| Fifo::new(by_number()));
    }

    #[test]
    fn a_delta_fifo_loses_nothing_and_hands_out_nothing_twice(operations in vec(operation(), 0..60)) {
        let options = |known| DeltaFifoOptions { known_objects: Some(known), ..DeltaFifoOptions::new(by_number()) };
        run(operations, |known| DeltaFifo::new(options(known)));
    }
}
