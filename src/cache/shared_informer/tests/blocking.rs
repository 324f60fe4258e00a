//! Handlers that block.

use std::sync::mpsc;

use tokio::time::timeout;

use super::*;

const LIMIT: Duration = Duration::from_secs(60);

/// The runtime has one thread, which serves the informer meanwhile.
#[tokio::test]
async fn a_call_that_blocks_holds_up_nothing_and_its_queue_merges() {
    let source = FakeSource::new();
    source.add(&json!({ "metadata": { "name": "a" } }));
    let informer = SharedInformer::<Object>::start(source.clone(), InformerOptions::default());
    let ((begun, mut has_begun), (end, may_end)) = (tokio::sync::mpsc::channel(1), mpsc::channel());
    let versions = Arc::new(Mutex::new(Vec::new()));
    let updated = Arc::clone(&versions);
    let handler = ResourceEventHandlerFuncs::new().on_update(move |_, new: Entry<Object>| {
        if new.version().number() == 3 {
            begun.try_send(()).unwrap();
            may_end.recv_timeout(LIMIT).unwrap();
        }
        updated.lock().push(new.version().clone());
    });
    let queue = QueueOptions { policy: FullChannelPolicy::Coalesce, length: 4 };
    let options = HandlerOptions { queue, ..HandlerOptions::default() };
    let registration = informer.add_handler(BlockingEventHandler::new(handler), options).unwrap();
    assert!(timeout(LIMIT, registration.wait_for_sync()).await.unwrap());
    let modify = |count| source.modify(&json!({ "metadata": { "name": "a" }, "count": count }));
    assert_eq!(modify(0).number(), 3);
    timeout(LIMIT, has_begun.recv()).await.unwrap().unwrap();
    let mut last = source.version();
    for count in 1..100 {
        last = modify(count);
        timeout(LIMIT, informer.wait_for(&last)).await.unwrap().unwrap();
    }
    assert!(versions.lock().is_empty());
    end.send(()).unwrap();
    timeout(LIMIT, informer.stop()).await.unwrap();
    let versions = versions.lock();
    assert!(versions.len() <= 10 && versions.last() == Some(&last), "{versions:?}");
}

#[tokio::test]
async fn a_panic_is_reported_with_its_message_and_the_next_call_follows() {
    let source = FakeSource::new();
    source.add(&json!({ "metadata": { "name": "a" } }));
    source.add(&json!({ "metadata": { "name": "b" } }));
    let informer = SharedInformer::<Object>::start(source.clone(), InformerOptions::default());
    let reports = Arc::new(Mutex::new(Vec::new()));
    let (calls, panics) = (Arc::clone(&reports), Arc::clone(&reports));
    let handler = ResourceEventHandlerFuncs::new().on_add(move |object: Entry<Object>, _| {
        calls.lock().push(format!("add {}", object.key()));
        assert!(object.key().name() != "a", "of {}", object.key());
    });
    let handler = BlockingEventHandler::new(handler).on_panic(move |message| panics.lock().push(message.to_owned()));
    let registration = informer.add_handler(handler, HandlerOptions::default()).unwrap();
    assert!(timeout(LIMIT, registration.wait_for_sync()).await.unwrap());
    assert_eq!(*reports.lock(), ["add a", "of a", "add b"]);
    assert_eq!(registration.failures(), 1);
}
