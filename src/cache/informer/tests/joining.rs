//! Joining watches get every later event, and none twice.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_watch_before_the_first_list_is_rejected_as_not_synced() {
    let running = Running::start();
    assert_eq!(running.handle.join(&Start::Now, replay()).unwrap_err(), JoinError::NotSynced);
    assert!(running.handle.snapshot().is_none() && running.handle.distributed().is_none());
    // A bookmark or an event before the first list has no state to apply to.
    running.push(put("a", 1)).await;
    settle().await;
    assert_eq!(running.handle.join(&Start::Now, replay()).unwrap_err(), JoinError::NotSynced);
    running.list(vec![object("a", 3)], version(5)).await;
    let joined = running.watch();
    assert_eq!((joined.snapshot.len(), joined.snapshot.version()), (1, &version(5)));
    assert_eq!(joined.cursor.version(), &version(5));
}

#[tokio::test(start_paused = true)]
async fn a_watch_starts_after_any_version_of_the_history_and_no_other() {
    let running = Running::start();
    running.list(Vec::new(), version(5)).await;
    running.apply(put("a", 7)).await;
    running.apply(put("a", 9)).await;
    let after = |number| running.handle.join(&Start::After(version(number)), replay());
    for (number, missed) in [(5, "+a 7 ~a 9"), (6, "+a 7 ~a 9"), (7, "~a 9"), (8, "~a 9"), (9, "")] {
        let mut cursor = after(number).unwrap().cursor;
        assert_eq!(taken(&mut cursor).await.join(" "), missed, "{number}");
    }
    let expired = JoinError::Expired { oldest: version(5), current: version(9) };
    assert_eq!(after(4).unwrap_err(), expired);
    assert_eq!(after(10).unwrap_err(), JoinError::TooLarge { current: version(9) });
    let foreign = Start::After("abc.7".parse().unwrap());
    assert_eq!(running.handle.join(&foreign, replay()).unwrap_err(), expired);
    assert_eq!(running.handle.oldest(), Some(version(5)));
    let mut cursor = after(7).unwrap().cursor;
    running.apply(put("a", 11)).await;
    assert_eq!(taken(&mut cursor).await, ["~a 9", "~a 11"]);
}

/// The gap of a relist expires the versions inside it; the history survives the relist.
#[tokio::test(start_paused = true)]
async fn a_watch_resumes_from_before_a_relist_and_not_from_inside_it() {
    let running = Running::start();
    running.list(vec![object("a", 1)], version(5)).await;
    running.apply(put("b", 6)).await;
    running.list(vec![object("b", 6), object("c", 9)], version(10)).await;
    let after = |number| running.handle.join(&Start::After(version(number)), replay());
    let changes = async |joined: Joined<Deliveries>| taken(&mut { joined.cursor }).await.len();
    assert_eq!(changes(after(5).unwrap()).await, 3);
    assert_eq!(changes(after(6).unwrap()).await, 2);
    for inside in 7..10 {
        assert!(matches!(after(inside), Err(JoinError::Expired { .. })), "{inside}");
    }
    assert_eq!(changes(after(10).unwrap()).await, 0);
}

/// At any moment the snapshot of a join plus the events of its cursor are the state of the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_watch_that_joins_at_any_moment_gets_every_later_event_and_none_twice() {
    const DEADLINE: Duration = Duration::from_secs(60);
    let running = Running::start();
    running.list(Vec::new(), version(1)).await;
    let handle = running.handle.clone();
    let writer = tokio::spawn(async move {
        let names: Vec<String> = (0..30).map(|at| format!("object-{at}")).collect();
        for number in 2..6000_u128 {
            let name = &names[(number * 7 % 30) as usize];
            let delta = match number % 10 {
                0 if number % 500 == 0 => {
                    let objects = names.iter().skip((number % 7) as usize).map(|name| object(name, number)).collect();
                    Delta::Replace(List::new(objects, version(number)))
                }
                1..4 => Delta::event(Event::Deleted(object(name, number))),
                4 => Delta::event(Event::Bookmark(version(number))),
                _ => Delta::event(put(name, number)),
            };
            running.fifo.push(delta).await;
        }
        running.fifo.close();
        running.task.await.unwrap();
    });
    let mut readers = Vec::new();
    for at in 0..60_usize {
        let policy = if at % 2 == 0 { FullChannelPolicy::Block } else { FullChannelPolicy::Replay };
        let Ok(joined) = handle.join(&Start::Now, subscribe(policy, at % 5)) else { break };
        readers.push(tokio::spawn(fold(joined, 1 + at)));
        for _ in 0..at {
            tokio::task::yield_now().await;
        }
    }
    tokio::time::timeout(DEADLINE, writer).await.expect("nobody hangs").unwrap();
    let last = handle.snapshot().unwrap();
    assert_eq!(last.version(), &version(5999));
    assert!(readers.len() > 10);
    for reader in readers {
        let state = tokio::time::timeout(DEADLINE, reader).await.expect("nobody hangs").unwrap();
        let expected = last.objects(None, None).map(|object| (object.key().clone(), Arc::clone(object)));
        assert_eq!(state, expected.collect());
    }
}

/// Follows a watch to its end, and checks that every event fits the state before it.
async fn fold(joined: Joined<Deliveries>, max_size: usize) -> BTreeMap<ObjectKey, Arc<Object>> {
    let Joined { snapshot, mut cursor, .. } = joined;
    let mut state: BTreeMap<_, _> =
        snapshot.objects(None, None).map(|object| (object.key().clone(), Arc::clone(object))).collect();
    let mut reached = snapshot.version().clone();
    assert_eq!(cursor.version(), &reached);
    loop {
        match cursor.take(max_size).await {
            Taken::Frames(frames) => {
                for Delivery { event_type, object, version, .. } in frames.iter().flat_map(Deliveries::as_slice) {
                    assert!(*version >= reached, "versions never go back");
                    reached = version.clone();
                    let key = object.key().clone();
                    let old = match event_type {
                        EventType::Deleted => state.remove(&key),
                        _ => state.insert(key, Arc::clone(object)),
                    };
                    match event_type {
                        EventType::Added => assert_eq!(old, None),
                        EventType::Modified => assert!(old.is_some_and(|old| old != *object)),
                        EventType::Deleted => assert_eq!(old.as_ref(), Some(object)),
                    }
                }
            }
            Taken::Ended(End::Stopped) => return state,
            other => panic!("{other:?}"),
        }
    }
}

/// A bookmark is never ahead of the events that a cursor at its head has received.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_distributed_version_is_never_ahead_of_what_a_cursor_can_take() {
    let running = Running::start();
    running.list(Vec::new(), version(1)).await;
    let mut cursor = running.watch().cursor;
    let handle = running.handle.clone();
    let is_done = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&is_done);
    let reader = tokio::task::spawn_blocking(move || {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        while !done.load(Ordering::SeqCst) {
            let distributed = handle.distributed().unwrap().version.clone();
            let snapshot = handle.snapshot().unwrap();
            while cursor.poll_take(&mut context, 1).is_ready() {}
            assert!(*cursor.version() >= distributed);
            assert!(*snapshot.version() >= distributed, "a snapshot shows a change no later than a watch");
        }
    });
    for number in 2..5000 {
        running.push(put("a", number)).await;
    }
    let reached = async {
        while running.handle.distributed().unwrap().version != version(4999) {
            tokio::task::yield_now().await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(60), reached).await;
    is_done.store(true, Ordering::SeqCst);
    reader.await.unwrap();
    in_time.expect("everything is distributed");
}

#[tokio::test(start_paused = true)]
async fn a_command_that_is_pushed_while_the_informer_ends_is_not_waited_for() {
    let running = Running::start();
    let [early, late] =
        [running.handle.commands.reserve().await.unwrap(), running.handle.commands.reserve().await.unwrap()];
    let ((reply, early_answer), (late_reply, late_answer)) = (oneshot::channel(), oneshot::channel());
    early.send(Command::AddIndexers { functions: Vec::new(), reply });
    settle().await;
    running.fifo.close();
    running.task.await.unwrap();
    late.send(Command::AddIndexers { functions: Vec::new(), reply: late_reply });
    assert!(running.handle.answer(early_answer).await.unwrap().is_ok());
    let answer = tokio::time::timeout(Duration::from_secs(60), running.handle.answer(late_answer)).await;
    assert_eq!(answer.expect("it is not waited for").unwrap_err(), Stopped);
}

/// A history begins together with its first state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_joins_while_histories_are_rewritten() {
    const HISTORIES: u128 = 2000;
    let running = Running::start();
    running.list(Vec::new(), version(HISTORIES)).await;
    running.handle.wait_for(0, |_| true).await;
    let (handle, is_done) = (running.handle.clone(), Arc::new(AtomicBool::new(false)));
    let is_over = Arc::clone(&is_done);
    let joins = std::thread::spawn(move || {
        while !is_over.load(Ordering::SeqCst) {
            let joined = handle.join(&Start::Complete, replay()).unwrap();
            assert_eq!(joined.cursor.version(), joined.snapshot.safe_version());
        }
    });
    let rewritten = async {
        for number in (1..HISTORIES).rev() {
            running.list(Vec::new(), version(number)).await;
        }
        running.handle.wait_for(0, |state| *state.version() == version(1)).await;
    };
    let in_time = tokio::time::timeout(Duration::from_secs(60), rewritten).await;
    is_done.store(true, Ordering::SeqCst);
    joins.join().unwrap();
    in_time.expect("all histories begin");
}
