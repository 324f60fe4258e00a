//! Tests of the source from the Reflector's side, over real files and pipes.

mod expiry;
mod recorded;
mod writers;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    os::fd::AsRawFd,
    path::PathBuf,
    process::Command,
};

use proptest::{collection::vec, prelude::*};
use tempfile::TempDir;
use tokio::time::timeout;
use tokio_stream::StreamExt;

use super::*;
use crate::{
    cache::{Delta, ListVersion, ListerWatcher, ProblemReason, SourceError, SourceHealth, SyncState, Watch},
    model::{Cause, Event, MAX_OBJECT_BYTES, ResourceVersion},
    source::tests::sole_event,
    watch::EmptyWatch,
};

/// Limit of every wait in a test.
const DEADLINE: Duration = Duration::from_secs(20);

/// Time without an event that shows that none comes.
const A_WHILE: Duration = Duration::from_millis(50);

/// Source that has been listed, with an open watch.
struct Rig {
    source: StreamSource,
    health: SourceHealth,
    watch: Watch,
    version: ResourceVersion,
}

impl Rig {
    async fn open(path: impl Into<PathBuf>) -> Self {
        Self::with(path, |_| {}).await
    }

    async fn with(path: impl Into<PathBuf>, change: impl FnOnce(&mut StreamConfig)) -> Self {
        let health = SourceHealth::new(HEARTBEAT, Duration::from_secs(15));
        let mut config = StreamConfig::new(StreamPath::Path(path.into()), "test");
        change(&mut config);
        let source = StreamSource::new(config, health.clone());
        let list = source.list(ListVersion::MostRecent).await.unwrap();
        assert!(list.objects.is_empty());
        // As the Reflector and the informer do.
        health.record_contact();
        let watch = source.watch(list.version.clone()).await.unwrap();
        Self { source, health, watch, version: list.version }
    }

    async fn next(&mut self) -> String {
        let delta = timeout(DEADLINE, self.watch.next()).await.expect("an event in time").unwrap().unwrap();
        self.health.record_contact();
        let event = match delta {
            Delta::Relist(events, cause) => {
                assert_eq!(cause, Cause::Inferred);
                self.version = self.version.next();
                assert!(events.iter().all(|event| *event.version() == self.version), "one batch");
                let deleted = events.iter().map(|event| match event {
                    Event::Deleted(object) => format!(" -{}", object.key()),
                    other => panic!("{other:?}"),
                });
                return format!("relist{}", deleted.collect::<String>());
            }
            delta => sole_event(delta),
        };
        let sign = match &event {
            Event::Added(object) => format!("+{} {}", object.key(), String::from_utf8_lossy(object.body())),
            Event::Modified(object) => format!("~{} {}", object.key(), String::from_utf8_lossy(object.body())),
            Event::Deleted(object) => format!("-{}", object.key()),
            Event::Removed(object, _) => format!("^{}", object.key()),
            Event::NotServed(object) => panic!("nothing tells that {} still exists", object.key()),
            Event::Bookmark(_) => "bookmark".to_owned(),
        };
        let expected = if matches!(event, Event::Bookmark(_)) { self.version.clone() } else { self.version.next() };
        assert_eq!(*event.version(), expected, "one version for each event");
        self.version = expected;
        sign
    }

    /// Returns the events that are available.
    async fn all(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        while self.health.state() == SyncState::Synced {
            match timeout(A_WHILE, self.next()).await {
                Ok(event) => all.push(event),
                Err(_) => tokio::task::yield_now().await,
            }
        }
        all
    }

    /// Polls the watch until the source is in a state, and no event comes.
    async fn until(&mut self, state: SyncState) {
        let changed = async {
            while self.health.state() != state {
                if let Ok(event) = timeout(Duration::from_millis(5), self.watch.next()).await {
                    panic!("nothing should come: {event:?}");
                }
            }
        };
        timeout(DEADLINE, changed).await.expect("the state is reached in time");
    }

    async fn objects(&self) -> BTreeMap<String, String> {
        let list = self.source.list(ListVersion::MostRecent).await.unwrap();
        assert_eq!(list.version, self.version);
        let text = |object: &crate::model::Object| String::from_utf8(object.body().to_vec()).unwrap();
        list.objects.iter().map(|object| (object.key().to_string(), text(object))).collect()
    }

    fn problems(&self) -> (usize, String) {
        let report = self.health.report();
        (report.problems, report.last_error.unwrap_or_default())
    }
}

fn event(event_type: &str, name: &str, at: usize) -> String {
    format!(r#"{{"type":"{event_type}","object":{}}}"#, body(name, at))
}

fn body(name: &str, at: usize) -> String {
    format!(r#"{{"metadata":{{"name":"{name}"}},"n":{at}}}"#)
}

fn file(text: impl AsRef<[u8]>) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.jsonl");
    fs::write(&path, text).unwrap();
    (directory, path)
}

pub(super) fn fifo() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    (directory, path)
}

/// Opens a pipe for writing, which has a reader.
pub(super) fn writer(path: &std::path::Path) -> File {
    File::options().write(true).open(path).unwrap()
}

#[tokio::test]
async fn a_file_is_replayed_to_its_end_and_then_stale() {
    let text = [event("ADDED", "a", 1), event("ADDED", "b", 1), event("MODIFIED", "a", 2), event("DELETED", "b", 1)];
    let (_directory, path) = file(text.join("\n"));
    let mut rig = Rig::open(&path).await;
    let expected =
        [format!("+a {}", body("a", 1)), format!("+b {}", body("b", 1)), format!("~a {}", body("a", 2)), "-b".into()];
    assert_eq!(rig.all().await, expected);
    assert_eq!(rig.health.state(), SyncState::Stale, "at once");
    assert_eq!(rig.problems(), (1, "stream ended".to_owned()));
    rig.until(SyncState::Stale).await;
    fs::write(&path, "").unwrap();
    fs::remove_file(&path).unwrap();
    assert!(timeout(A_WHILE, rig.watch.next()).await.is_err(), "the watch stays open for ever");
    assert_eq!(rig.objects().await, [("a".to_owned(), body("a", 2))].into());
}

/// Nothing is lost or deleted when the Reflector lists and watches again.
#[tokio::test]
async fn a_second_watch_continues_where_the_first_ended() {
    let (_directory, path) = fifo();
    let mut rig = Rig::open(&path).await;
    let mut writer = writer(&path);
    let cut = event("ADDED", "b", 1);
    let (one, two) = cut.split_at(20);
    write!(writer, "{}{}{}", event("ADDED", "a", 1), event("ADDED", "c", 1), one).unwrap();
    rig.next().await;
    assert!(matches!(rig.source.watch(rig.version.clone()).await.err(), Some(SourceError::Busy(_))));
    rig.watch = Box::pin(EmptyWatch::new());
    let expired = rig.source.watch(rig.version.next()).await.err();
    assert!(matches!(expired, Some(SourceError::Expired(_))), "{expired:?}");
    rig.watch = rig.source.watch(rig.version.clone()).await.unwrap();
    assert!(rig.next().await.starts_with("+c"), "from the chunk that had been read");
    assert!(timeout(A_WHILE, rig.watch.next()).await.is_err());
    rig.watch = Box::pin(EmptyWatch::new());
    write!(writer, "{two}").unwrap();
    assert_eq!(rig.objects().await.len(), 2, "what was handed out");
    rig.watch = rig.source.watch(rig.version.clone()).await.unwrap();
    assert!(rig.next().await.starts_with("+b"), "from the half that had been read");
    assert_eq!(rig.objects().await.len(), 3);
    drop(writer);
    rig.until(SyncState::Stale).await;
    rig.health.record_contact();
    rig.watch = Box::pin(EmptyWatch::new());
    rig.watch = rig.source.watch(rig.version.clone()).await.unwrap();
    assert!(timeout(A_WHILE, rig.watch.next()).await.is_err());
}

#[tokio::test]
async fn a_pipe_is_live_whether_it_has_a_writer_or_not_and_goes_on_with_the_next_one() {
    let (_directory, path) = fifo();
    let mut rig = Rig::open(&path).await;
    assert!(timeout(A_WHILE, rig.watch.next()).await.is_err());
    assert_eq!(rig.health.state(), SyncState::Synced, "open, and not lost");
    for at in 1..=3 {
        let mut writer = writer(&path);
        let text = event("MODIFIED", "a", at);
        for piece in text.as_bytes().chunks(30) {
            writer.write_all(piece).unwrap();
            writer.flush().unwrap();
            tokio::task::yield_now().await;
        }
        assert_eq!(rig.next().await, format!("~a {}", body("a", at)));
        assert!(timeout(A_WHILE, rig.watch.next()).await.is_err());
        assert_eq!(rig.health.state(), SyncState::Synced, "silent, but not lost");
        drop(writer);
        rig.until(SyncState::Stale).await;
    }
    // The next writer opens and closes the pipe before the source looks.
    writer(&path).write_all(event("ADDED", "b", 1).as_bytes()).unwrap();
    assert!(rig.next().await.starts_with("+b"));
    rig.until(SyncState::Stale).await;
    assert_eq!(rig.objects().await.len(), 2);
}

/// A shell makes such a pipe for `<(…)`.
#[tokio::test]
async fn the_end_of_a_pipe_whose_writer_had_gone_before_it_was_opened_is_noticed() {
    let (reader, mut writer) = io::pipe().unwrap();
    writer.write_all(event("ADDED", "a", 1).as_bytes()).unwrap();
    drop(writer);
    let mut rig = Rig::open(format!("/dev/fd/{}", reader.as_raw_fd())).await;
    assert!(rig.next().await.starts_with("+a"));
    rig.until(SyncState::Stale).await;
}

#[tokio::test]
async fn a_truncated_event_is_reported_and_the_next_writer_begins_a_new_one() {
    let (_directory, path) = fifo();
    let mut rig = Rig::open(&path).await;
    let cut = event("ADDED", "a", 1);
    writer(&path).write_all(&cut.as_bytes()[..25]).unwrap();
    rig.until(SyncState::Stale).await;
    assert_eq!(rig.problems(), (2, "stream ended".to_owned()));
    let cut = rig.health.problems().remove(0);
    assert_eq!((cut.reason, cut.subject.as_str()), (ProblemReason::ObjectInvalid, "line 1 (byte 0)"));
    assert_eq!(cut.message, "stream ended inside the event");
    writer(&path).write_all(event("ADDED", "b", 1).as_bytes()).unwrap();
    assert!(rig.next().await.starts_with("+b"));
    assert_eq!(rig.problems(), (1, "line 1 (byte 0): stream ended inside the event".to_owned()));
}

#[tokio::test]
async fn events_that_cannot_be_applied_are_skipped_and_reported_with_their_position() {
    let huge = event("ADDED", &"x".repeat(MAX_OBJECT_BYTES + (2 << 20)), 1);
    let lines = [
        event("ADDED", "a", 1),
        "W0512 warning: something".to_owned(),
        event("ADDED", "b", 1),
        r#"{"type":"ADDED","object":{"kind":"Pod"}}"#.to_owned(),
        huge,
        event("ADDED", "c", 1)[..30].to_owned(),
        event("BOOKMARK", "", 0),
        r#"{"kind":"Pod","metadata":{"name":"raw"}}"#.to_owned(),
        event("DELETED", "never-there", 1),
        event("MODIFIED", "a", 2),
    ];
    let (_directory, path) = file(lines.join("\n"));
    let mut rig = Rig::open(path).await;
    let all = rig.all().await;
    let seen: Vec<&str> = all.iter().map(|event| event.split(' ').next().unwrap()).collect();
    assert_eq!(seen, ["+a", "+b", "bookmark", "-never-there", "~a"]);
    let problems = rig.health.problems();
    assert_eq!(problems.len(), 5 + 1, "and the end: {problems:?}");
    assert!(problems[0].subject.starts_with("line 2 (byte "), "the oldest first");
    let newest = problems[4].to_string();
    assert!(
        newest.starts_with("line 8 (byte ") && newest.contains("run kubectl with --output-watch-events"),
        "{newest}"
    );
    assert_eq!(rig.objects().await.keys().collect::<Vec<_>>(), ["a", "b"]);
}

#[tokio::test]
async fn an_error_of_the_upstream_is_a_failure_and_not_the_end() {
    let (_directory, path) = fifo();
    let mut rig = Rig::open(&path).await;
    let mut writer = writer(&path);
    let error =
        r#"{"type":"ERROR","object":{"kind":"Status","message":"too old resource version","reason":"Expired"}}"#;
    writer.write_all(format!("\n{error}\n").as_bytes()).unwrap();
    assert!(timeout(A_WHILE, rig.watch.next()).await.is_err());
    let expected = "line 2 (byte 1): ERROR: too old resource version (Expired)";
    assert_eq!(rig.problems(), (1, expected.to_owned()));
    assert_eq!(rig.health.state(), SyncState::Synced);
    writer.write_all(event("ADDED", "a", 1).as_bytes()).unwrap();
    assert!(rig.next().await.starts_with("+a"));
    assert_eq!(rig.problems().1, "", "alive again");
    writer.write_all(format!("\n{error}\n").as_bytes()).unwrap();
    drop(writer);
    rig.until(SyncState::Stale).await;
    assert!(rig.problems().1.contains("too old resource version"), "why it ended");
}

#[tokio::test]
async fn paths_that_are_no_streams_are_rejected_with_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("none");
    for (path, hint) in
        [(missing.as_path(), "none does not exist; create it"), (directory.path(), "name the file or pipe")]
    {
        let path = StreamPath::Path(path.to_owned());
        let checked = StreamSource::check(&path).unwrap_err().to_string();
        assert!(checked.contains(hint), "{checked}");
        let health = SourceHealth::new(HEARTBEAT, Duration::ZERO);
        let source = StreamSource::new(StreamConfig::new(path, "test"), health);
        let Err(SourceError::Unavailable(error)) = source.list(ListVersion::Any).await else { panic!("not listed") };
        assert_eq!(error, checked);
        assert!(source.watch("a.1".parse().unwrap()).await.is_err());
    }
    // A file that appears later is read.
    let health = SourceHealth::new(HEARTBEAT, Duration::ZERO);
    let config = StreamConfig::new(StreamPath::Path(missing.clone()), "test");
    let source = StreamSource::new(config, health);
    source.list(ListVersion::Any).await.unwrap_err();
    fs::write(&missing, "").unwrap();
    assert!(source.list(ListVersion::Any).await.is_ok());
    assert_eq!(StreamSource::check(&StreamPath::Stdin), Ok(()));
}

/// A check must not make a writer that waits for a reader fail when it closes the pipe.
#[tokio::test]
async fn checking_a_pipe_does_not_open_it() {
    let (_directory, path) = fifo();
    let opening = std::thread::spawn({
        let path = path.clone();
        move || writer(&path).write_all(event("ADDED", "a", 1).as_bytes())
    });
    for _ in 0..10 {
        StreamSource::check(&StreamPath::Path(path.clone())).unwrap();
    }
    let mut rig = Rig::open(&path).await;
    assert!(rig.next().await.starts_with("+a"));
    opening.join().unwrap().unwrap();
}

#[derive(Debug, Clone)]
enum Part {
    Put(usize, usize),
    Delete(usize),
    Noise(&'static str),
}

fn any_part() -> impl Strategy<Value = Part> {
    prop_oneof![
        4 => (0..4_usize, 0..3_usize).prop_map(|(name, at)| Part::Put(name, at)),
        2 => (0..4_usize).prop_map(Part::Delete),
        1 => prop::sample::select(vec!["garbage\n", "{\"cut\":1\n", "{}", "\n\n", "{\"type\":\"ADDED\",\"object\":\"x\n"])
            .prop_map(Part::Noise),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..crate::property_config() })]

    /// Independent of the pieces and of the bytes between events, the result is the state that was written.
    #[test]
    fn the_events_of_a_stream_fold_to_the_written_state(parts in vec(any_part(), 0..20), size in 1..100_usize) {
        let names = ["a", "b", "c", "d"];
        let (mut text, mut expected) = (String::new(), BTreeMap::new());
        for part in parts {
            match part {
                Part::Put(name, at) => {
                    text.push_str(&event("ADDED", names[name], at));
                    expected.insert(names[name].to_owned(), body(names[name], at));
                }
                Part::Delete(name) => {
                    text.push_str(&event("DELETED", names[name], 0));
                    expected.remove(names[name]);
                }
                Part::Noise(noise) => text.push_str(noise),
            }
            text.push('\n');
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (_directory, path) = fifo();
            let mut rig = Rig::open(&path).await;
            let mut writer = writer(&path);
            for piece in text.as_bytes().chunks(size) {
                writer.write_all(piece).unwrap();
                // Some pieces are read by themselves and some together.
                if piece.len() % 2 == 0 && let Ok(event) = timeout(Duration::ZERO, rig.watch.next()).await {
                    rig.version = event.unwrap().unwrap().version().unwrap().clone();
                }
            }
            drop(writer);
            rig.all().await;
            assert_eq!(rig.objects().await, expected);
        });
    }
}
