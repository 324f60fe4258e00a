//! Tests of the writer, and of the state of a running mirror.

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::FutureExt;
use parking_lot::Mutex;

use super::*;
use crate::{
    admin::Probes,
    cache::{Deltas, KnownObjects, ObjectDelta, ProcessError, Queue, ReflectorError, SourceError, Store},
    client::{Query, TlsOptions},
    mirror::{Mirror, MirrorConfig, MirrorState, Notes, Probe, writer::Writer},
    model::{Object, ResourceVersion},
};

fn object(name: &str, body: &str) -> Arc<Object> {
    let key = ObjectKey::new("shop", name).unwrap();
    Arc::new(Object::from_json_of(key, "", body, ResourceVersion::decimal(1)).unwrap())
}

fn deltas(delta: ObjectDelta<Arc<Object>>) -> Deltas<Arc<Object>> {
    Deltas::new(delta.object().unwrap().key().clone(), delta)
}

#[test]
fn a_full_disk_is_reported_once_and_a_deletion_meanwhile_is_not_lost() {
    use ObjectDelta::{Added, Deleted, Replaced};
    let root = TempDir::new().unwrap();
    // The marker is written in two operations; then the disk is full for a while.
    let full = Faulty { operations: 0, fails: |operation| (3..10).contains(&operation) };
    let (directory, keys) = MirrorDirectory::open(root.path(), "things", Layout::Objects, false, full).unwrap();
    let noted = Arc::new(Mutex::new(Vec::new()));
    let output: Notes = {
        let noted = Arc::clone(&noted);
        Arc::new(move |note| noted.lock().push(note.to_string()))
    };
    let writer = Writer::new(directory, keys, Layout::Objects, output);
    let (web, db) = (deltas(Replaced(object("web", "{}"))), deltas(Added(object("db", "[]"))));
    writer.process(&web).unwrap_err();
    writer.process(&db).unwrap_err();
    assert_eq!(writer.failed(), 2);
    assert!(writer.known().is_known(db.key()), "its deletion must be processed");
    writer.process(&deltas(Deleted(object("db", "[]")))).unwrap();
    assert_eq!(writer.failed(), 1);
    while writer.process(&web).is_err() {}
    assert_eq!((writer.failed(), writer.changes(), writer.known().len()), (0, 1, 1));
    assert_eq!(
        mirrored(root.path()),
        [("shop/".to_owned(), vec![]), ("shop/web.json".to_owned(), b"{}".to_vec())].into()
    );
    let expected = ["# cannot write shop/web.json: no storage space; retrying", "# all files are written again"];
    assert_eq!(*noted.lock(), expected);
}

#[test]
fn an_object_that_cannot_have_files_is_reported_once_and_keeps_those_that_it_has() {
    let root = TempDir::new().unwrap();
    let (directory, keys) = MirrorDirectory::open(root.path(), "things", Layout::Keys, false, SystemFiles).unwrap();
    let noted = Arc::new(Mutex::new(0));
    let output: Notes = {
        let noted = Arc::clone(&noted);
        Arc::new(move |_| *noted.lock() += 1)
    };
    let writer = Writer::new(directory, keys, Layout::Keys, output);
    let process = |body| writer.process(&deltas(ObjectDelta::Updated(object("web", body)))).unwrap();
    process(r#"{"data": {"a": "1"}}"#);
    process(r#"{"data": {"a": 2}}"#);
    process(r#"{"kind": "Pod"}"#);
    assert_eq!((*noted.lock(), writer.failed()), (1, 0));
    assert_eq!(mirrored(root.path())["shop/web/a"], b"1");
    process(r#"{"data": {}}"#);
    assert_eq!(mirrored(root.path()), Tree::new());
}

#[test]
fn an_object_that_was_not_written_and_can_have_no_files_is_not_waited_for() {
    let root = TempDir::new().unwrap();
    let full = Faulty { operations: 0, fails: |operation| operation == 3 };
    let (directory, keys) = MirrorDirectory::open(root.path(), "things", Layout::Keys, false, full).unwrap();
    let writer = Writer::new(directory, keys, Layout::Keys, Arc::new(|_| {}));
    writer.process(&deltas(ObjectDelta::Added(object("web", r#"{"data": {"a": "1"}}"#)))).unwrap_err();
    assert_eq!(writer.failed(), 1);
    writer.process(&deltas(ObjectDelta::Updated(object("web", r#"{"kind": "Pod"}"#)))).unwrap();
    assert_eq!(writer.failed(), 0);
}

/// Returns the state of a mirror that has not begun.
fn opened(path: &Path, layout: Layout, notes: Notes) -> MirrorState {
    let config = MirrorConfig {
        address: "127.0.0.1:1".parse().unwrap(),
        tls: TlsOptions::default(),
        query: Query::of("things"),
        directory: path.to_owned(),
        layout,
        replace: false,
        once: false,
        resync: Duration::ZERO,
        then: None,
        notes,
    };
    Mirror::open(config).unwrap().state
}

#[test]
fn an_error_of_the_upstream_that_stays_the_same_is_noted_once() {
    let root = TempDir::new().unwrap();
    let noted = Arc::new(Mutex::new(Vec::new()));
    let output: Notes = {
        let noted = Arc::clone(&noted);
        Arc::new(move |note| noted.lock().push(note.to_string()))
    };
    let on_error = opened(root.path(), Layout::Objects, Arc::clone(&output)).error_notes("things", &output);
    for error in ["refused", "refused", "reset", "refused"] {
        on_error(&ReflectorError::Watch(SourceError::Unavailable(error.to_owned())));
    }
    assert_eq!(
        *noted.lock(),
        ["refused", "reset", "refused"].map(|error| format!("# things: watch failed: {error}; retrying"))
    );
}

/// The set of rejected objects does not grow, and the next one is noted.
#[tokio::test]
async fn a_deletion_ends_the_problem_with_an_object_that_never_had_files() {
    let root = TempDir::new().unwrap();
    let noted = Arc::new(Mutex::new(Vec::new()));
    let output: Notes = {
        let noted = Arc::clone(&noted);
        Arc::new(move |note| noted.lock().push(note.to_string().split(':').next().unwrap().to_owned()))
    };
    let state = opened(root.path(), Layout::Keys, output);
    let process = async |deltas: Deltas<Arc<Object>>, _| state.writer.process(&deltas).map_err(ProcessError::Failed);
    for name in ["one", "two"] {
        let bad = object(name, r#"{"kind": "Pod"}"#);
        state.queue.add(Arc::clone(&bad)).await.unwrap();
        state.queue.pop(process).await.unwrap();
        state.queue.delete(bad).await.unwrap();
        state.queue.pop(process).now_or_never().expect("the deletion is queued").unwrap();
        assert_eq!(state.writer.known().len(), 0);
    }
    assert_eq!(*noted.lock(), ["# shop/one", "# shop/two"]);
}

#[tokio::test]
async fn a_batch_of_which_an_object_is_being_written_is_not_settled() {
    let root = TempDir::new().unwrap();
    let state = opened(root.path(), Layout::Objects, Arc::new(|_| {}));
    let process = async |deltas: Deltas<Arc<Object>>, _| state.writer.process(&deltas).map_err(ProcessError::Failed);
    state.queue.replace(vec![object("web", "{}")]).await.unwrap();
    assert!(!state.is_settled());
    state.queue.pop(process).await.unwrap();
    assert!(state.is_settled());
    state.queue.add(object("db", "{}")).await.unwrap();
    {
        let slow = state.queue.pop(async |_, _| std::future::pending::<Result<(), ProcessError<()>>>().await);
        let mut slow = pin!(slow);
        assert!(slow.as_mut().now_or_never().is_none());
        assert!(!state.is_settled(), "nothing is queued, and its file is not written");
    }
    assert!(!state.is_settled());
    state.queue.pop(process).await.unwrap();
    assert!(state.is_settled());
}

#[tokio::test(start_paused = true)]
async fn the_probe_fails_before_the_directory_is_complete_and_while_it_is_stale() {
    let root = TempDir::new().unwrap();
    let state = opened(root.path(), Layout::Objects, Arc::new(|_| {}));
    let probe = |path| {
        let probed = state.clone();
        let (status, text) = Probe(move || probed.problem()).answer(path, "").unwrap();
        format!("{} {text}", status.as_u16())
    };
    assert_eq!(probe("/readyz"), "503 not synced: no contact with the upstream since the start\n");
    state.health.record_failure("connection refused");
    assert_eq!(probe("/"), "503 not synced: connection refused\n");
    assert_eq!(probe("/livez"), "200 ok\n");
    state.health.record_contact();
    state.queue.replace(vec![object("web", "{}")]).await.unwrap();
    assert_eq!(probe("/readyz"), "503 not synced\n");

    // A file cannot be written.
    fs::create_dir_all(root.path().join("shop/web.json/directory")).unwrap();
    let process = async |deltas: Deltas<Arc<Object>>, _| state.writer.process(&deltas).map_err(ProcessError::Failed);
    state.queue.pop(process).await.unwrap_err();
    assert_eq!(probe("/readyz"), "503 not written: 1 object\n");
    fs::remove_dir_all(root.path().join("shop")).unwrap();
    state.queue.resync().await.unwrap();
    state.queue.pop(process).await.unwrap();
    assert_eq!(probe("/readyz"), "200 ok\n");

    tokio::time::advance(Duration::from_secs(10)).await;
    state.health.record_failure("connection refused");
    assert_eq!(probe("/readyz"), "200 ok\n");
    tokio::time::advance(Duration::from_secs(15)).await;
    assert_eq!(probe("/readyz"), "503 stale: connection refused\n");
    assert_eq!(probe("/livez"), "200 ok\n");
    state.health.record_contact();
    assert_eq!(probe("/readyz"), "200 ok\n");
}
