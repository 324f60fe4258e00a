//! Handlers that are added more than once, or while others come and go.

use super::*;

/// client-go `TestSharedInformerMultipleRegistration`.
#[tokio::test(start_paused = true)]
async fn a_handler_added_twice_is_called_twice_and_a_registration_removes_only_its_own() {
    let source = FakeSource::new();
    let informer: SharedInformer<Object> = synced(&source).await;
    let calls = Arc::new(Mutex::new(Vec::new()));
    let [first, second] = ["first", "second"].map(|name| {
        let calls = Arc::clone(&calls);
        let handler = ResourceEventHandlerFuncs::<Object>::new()
            .on_add(move |object, _| calls.lock().push(format!("{name} {}", object.key())));
        informer.add_handler(handler, named("the same")).unwrap()
    });
    let calls = async |name: &str| {
        source.add(&pod(name, ""));
        pass(1).await;
        let mut calls = std::mem::take(&mut *calls.lock());
        calls.sort();
        calls
    };
    pass(1).await;
    assert_eq!(calls("pod1").await, ["first pod1", "second pod1"]);
    first.remove();
    assert_eq!(calls("pod2").await, ["second pod2"]);
    second.remove();
    assert_eq!(calls("pod3").await, [""; 0]);
}

/// client-go `TestSharedInformerHandlerAbuse`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_come_and_go_while_objects_change_until_the_informer_stops() {
    let source = FakeSource::new();
    let informer: Arc<SharedInformer<Object>> = Arc::new(synced(&source).await);
    let adding = |seed| {
        let (informer, mut random) = (Arc::clone(&informer), fastrand::Rng::with_seed(seed));
        async move {
            let mut added = Vec::new();
            loop {
                if added.len() < 8 && random.bool() {
                    let listener = TestListener::default();
                    let Ok(registration) = informer.add_handler(listener.clone(), resynced(1)) else { return added };
                    added.push((registration, listener));
                } else if !added.is_empty() {
                    drop(added.swap_remove(random.usize(..added.len())));
                }
                tokio::task::yield_now().await;
            }
        }
    };
    let tasks: Vec<_> = (0..8).map(|seed| tokio::spawn(adding(seed))).collect();
    let (mut random, mut present) = (fastrand::Rng::with_seed(8), std::collections::BTreeSet::new());
    for at in 0..500 {
        let name = random.u8(..20);
        let object = pod(&name.to_string(), &format!("at={at}"));
        if present.insert(name) {
            source.add(&object);
        } else if random.bool() {
            source.modify(&object);
        } else {
            present.remove(&name);
            source.delete("", &name.to_string());
        }
        tokio::task::yield_now().await;
    }
    informer.wait_for(&source.version()).await.unwrap();
    drop(informer.stop());
    for task in tasks {
        let added = task.await.unwrap();
        // Also for the tasks of handlers that were added just before the stop.
        tokio::time::timeout(Duration::from_secs(60), informer.stop()).await.expect("nothing waits for the informer");
        for (registration, listener) in added {
            let calls = listener.calls.lock();
            assert_eq!((registration.has_synced(), &*calls.contradictions), (true, &[][..]));
            assert_eq!(calls.held.values().cloned().collect::<Vec<_>>(), objects(&informer));
        }
    }
}
