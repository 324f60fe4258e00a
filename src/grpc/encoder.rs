//! Encoding of large objects, which bulk threads do: one of them takes as long as thousands of small ones, and no task of a runtime
//! waits behind it.
//!
//! A response has at most one object or message in work. Peers take turns, and so do the connections of each peer.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::call::Caller;
use crate::{
    model::Object,
    proto::{EncodedObject, ObjectFormat, PayloadFormat, Structs},
    turns::FairQueue,
    watch::{BulkThreads, BulkWork},
};

/// Encoder of all responses of a server.
pub(super) struct Encoder {
    waiting: Mutex<FairQueue<Job>>,
    is_queued: AtomicBool,
    /// None if callers do the work.
    threads: Option<Arc<BulkThreads>>,
}

/// Outcome of a piece of work.
#[derive(Debug)]
pub(super) struct Encoding<T>(oneshot::Receiver<T>);

/// The work has panicked, which is a bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Failed;

/// Large object that is next in a response, until it is sent.
#[derive(Debug, Default)]
pub(super) struct NextObject(Option<(Arc<Object>, Stage)>);

#[derive(Debug)]
enum Stage {
    Encoding(Encoding<Bytes>),
    Encoded(Bytes),
}

/// Object as a field of a response.
pub(super) enum ObjectField<'a> {
    /// Object, and the number of its field.
    Small(EncodedObject<'a>, u32),
    Large(Bytes),
}

type Job = Box<dyn FnOnce() + Send>;

/// Bytes of bodies that one poll of a response may project, convert or compress.
pub(super) const SLICE_BYTES: usize = 128 << 10;

/// Returns true if the body of an object is projected or converted, and not only copied.
pub(super) fn is_costly(format: &ObjectFormat) -> bool {
    let is_converted = format.view.is_some() || format.payload == PayloadFormat::Struct || format.lines.is_some();
    format.payload != PayloadFormat::Metadata && is_converted
}

// === impl Encoder ===

impl Encoder {
    pub(super) fn new(threads: Option<Arc<BulkThreads>>) -> Arc<Self> {
        Arc::new(Self { waiting: Mutex::default(), is_queued: AtomicBool::new(false), threads })
    }

    /// Does work for a caller on a bulk thread.
    pub(super) fn encode<T: Send + 'static>(
        self: &Arc<Self>,
        caller: Caller,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Encoding<T> {
        let (sender, receiver) = oneshot::channel();
        let job = move || {
            // Otherwise the response has ended.
            if !sender.is_closed() {
                drop(sender.send(work()));
            }
        };
        match &self.threads {
            None => job(),
            Some(threads) => {
                self.waiting.lock().push(caller.party(), Box::new(job));
                self.notify(threads);
            }
        }
        Encoding(receiver)
    }

    fn notify(self: &Arc<Self>, threads: &BulkThreads) {
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            threads.push(Arc::<Self>::clone(self));
        }
    }
}

impl BulkWork for Encoder {
    fn run(self: Arc<Self>) {
        // Reset before looking for work, so that later work is not missed.
        self.is_queued.store(false, Ordering::Release);
        let (job, has_more) = {
            let mut waiting = self.waiting.lock();
            (waiting.pop(), !waiting.is_empty())
        };
        if let Some(threads) = self.threads.as_ref().filter(|_| has_more) {
            // Another thread may do the next one meanwhile.
            self.notify(threads);
        }
        if let Some(job) = job {
            // A panic drops the sender: who waits for the outcome gets its end.
            job();
        }
    }
}

debug_fields!(Encoder {});

// === impl Encoding ===

impl<T> Encoding<T> {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, Failed>> {
        Pin::new(&mut self.0).poll(cx).map_err(|_| Failed)
    }
}

// === impl NextObject ===

impl NextObject {
    /// Returns an object as the field `tag` of a response: a large one that is not only copied from a bulk thread.
    pub(super) fn field<'a>(
        &mut self,
        cx: &mut Context<'_>,
        object: &'a Arc<Object>,
        format: &ObjectFormat,
        structs: &Arc<Structs>,
        (encoder, caller, tag): (&Arc<Encoder>, Caller, u32),
    ) -> Poll<Result<ObjectField<'a>, Failed>> {
        if object.body().len() <= SLICE_BYTES || !is_costly(format) {
            let field = EncodedObject::shared(object, object.version(), format, structs);
            return Poll::Ready(Ok(ObjectField::Small(field, tag)));
        }
        let encode = || {
            let (object, format, structs) = (Arc::clone(object), format.clone(), Arc::clone(structs));
            encoder.encode(caller, move || {
                let field = EncodedObject::shared(&object, object.version(), &format, &structs);
                let mut buffer = BytesMut::with_capacity(field.field_len(tag));
                field.write(tag, &mut buffer);
                buffer.freeze()
            })
        };
        self.poll(cx, object, encode).map_ok(ObjectField::Large)
    }

    /// Returns the encoded object, which `encode` begins to encode; until the next object is polled, the same again.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        object: &Arc<Object>,
        encode: impl FnOnce() -> Encoding<Bytes>,
    ) -> Poll<Result<Bytes, Failed>> {
        let (_, stage) = match &mut self.0 {
            Some(next) if Arc::ptr_eq(&next.0, object) => next,
            next => next.insert((Arc::clone(object), Stage::Encoding(encode()))),
        };
        if let Stage::Encoding(encoding) = stage {
            match ready!(encoding.poll(cx)) {
                Ok(bytes) => *stage = Stage::Encoded(bytes),
                Err(failed) => {
                    self.0 = None;
                    return Poll::Ready(Err(failed));
                }
            }
        }
        match stage {
            Stage::Encoded(bytes) => Poll::Ready(Ok(bytes.clone())),
            Stage::Encoding(_) => Poll::Pending,
        }
    }

    /// Forgets the object: it is sent.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }

    /// Returns the bytes that it holds, or about so many while it is encoded.
    pub(super) fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |(object, stage)| match stage {
            Stage::Encoding(_) => object.body().len(),
            Stage::Encoded(bytes) => bytes.len(),
        })
    }
}

// === impl ObjectField ===

impl ObjectField<'_> {
    /// Returns its size, in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Small(encoded, tag) => encoded.field_len(*tag),
            Self::Large(field) => field.len(),
        }
    }

    /// Appends the field.
    pub(super) fn write(&self, buffer: &mut impl BufMut) {
        match self {
            Self::Small(encoded, tag) => encoded.write(*tag, buffer),
            Self::Large(field) => buffer.put_slice(field),
        }
    }
}

#[cfg(test)]
mod tests;
