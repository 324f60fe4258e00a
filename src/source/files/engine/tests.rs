//! Results of each scan, step by step: the directory changes between two of them, or between a walk and its end.

use std::{fs, path::PathBuf, time::Duration};

use tempfile::TempDir;
use tokio::time::advance;

use super::*;
use crate::source::files::{DEFAULT_QUIET, MAX_RESCANS};

/// Directory, and its engine after a first scan.
struct Rig {
    dir: TempDir,
    engine: Engine,
}

const RESCAN: Duration = Duration::from_secs(5);
const QUIET: Duration = DEFAULT_QUIET;

impl Rig {
    fn new(files: &[&str]) -> Self {
        Self::with_quiet(QUIET, files)
    }

    fn with_quiet(quiet: Duration, files: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        let config = FilesConfig::new(root, "test");
        assert_eq!((config.rescan, config.quiet), (RESCAN, QUIET));
        let config = Arc::new(FilesConfig { quiet, ..config });
        let engine = Engine::new(config, "abc".into(), SourceHealth::new(RESCAN, RESCAN));
        let mut rig = Self { dir, engine };
        for file in files {
            rig.write(file);
        }
        assert_eq!(rig.scan(), "");
        rig
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// Writes a file with one object of its name.
    fn write(&self, path: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let name = path.file_stem().unwrap().to_str().unwrap();
        fs::write(&path, format!(r#"{{"metadata":{{"name":"{name}"}}}}"#)).unwrap();
    }

    /// Writes a file with these objects.
    fn write_all(&self, path: &str, names: &[&str]) {
        let objects = names.iter().map(|name| format!("{{\"metadata\":{{\"name\":\"{name}\"}}}}\n"));
        fs::write(self.root().join(path), objects.collect::<String>()).unwrap();
    }

    /// Replaces a file by a new one with these objects.
    fn replace_all(&self, path: &str, names: &[&str]) {
        self.write_all("new.tmp", names);
        fs::rename(self.root().join("new.tmp"), self.root().join(path)).unwrap();
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.root().join(path)).unwrap();
    }

    /// Returns the events of a scan, with a `?` if a deletion is not certain yet, or the outage.
    fn scan(&mut self) -> String {
        self.scan_with(None)
    }

    fn scan_with(&mut self, notices: Option<&mut Notices>) -> String {
        match self.engine.scan(notices, &CancellationToken::new()) {
            Ok(scanned) => shown(&scanned),
            Err(error) => error.to_string(),
        }
    }
}

fn shown(scanned: &Scanned) -> String {
    let show = |event: &Event| match event {
        Event::Added(object) => Some(format!("+{}", object.key())),
        Event::Modified(object) => Some(format!("~{}", object.key())),
        Event::Deleted(object) => Some(format!("-{}", object.key())),
        Event::Bookmark(_) => None,
        Event::NotServed(_) | Event::Removed(_, _) => unreachable!("the engine makes none"),
    };
    let again = scanned.again_at.map(|_| "?".to_owned());
    scanned.events.iter().filter_map(show).chain(again).collect::<Vec<_>>().join(" ")
}

#[tokio::test(start_paused = true)]
async fn a_single_deletion_is_certain_after_the_quiet_period() {
    let mut rig = Rig::new(&["a.json", "b.json"]);
    rig.remove("a.json");
    assert_eq!(rig.scan(), "?");
    assert_eq!(rig.scan(), "?", "too soon");
    advance(QUIET).await;
    assert_eq!(rig.scan(), "-a", "what a walk has missed is deleted by another one");
    // A path that exists again meanwhile is no deletion.
    rig.remove("b.json");
    assert_eq!(rig.scan(), "?");
    rig.write("b.json");
    advance(QUIET).await;
    assert_eq!(rig.scan(), "");
}

/// A scan in the middle of `rm -rf DIRECTORY` finds the same directory with fewer and fewer files.
#[tokio::test(start_paused = true)]
async fn a_directory_that_is_being_removed_and_is_created_again_changes_by_the_difference() {
    let mut rig = Rig::new(&["a.json", "b.json", "sub/c.json", "d.json"]);
    rig.remove("a.json");
    assert_eq!(rig.scan(), "?");
    advance(QUIET / 2).await;
    rig.remove("b.json");
    assert_eq!(rig.scan(), "?");
    advance(QUIET / 2).await;
    assert_eq!(rig.scan(), "?", "it goes on");
    fs::remove_dir_all(rig.root()).unwrap();
    advance(QUIET).await;
    assert!(rig.scan().ends_with("does not exist; create it, or correct the path"));
    // The clone: its files appear one after the other.
    fs::create_dir(rig.root()).unwrap();
    assert!(rig.scan().contains("without manifests, as when a volume is unmounted"), "kept for ever");
    rig.write("sub/new.json");
    assert_eq!(rig.scan(), "+new ?");
    advance(RESCAN).await;
    rig.write("a.json");
    assert_eq!(rig.scan(), "?", "it is not the same as a rescan ago");
    rig.write("sub/c.json");
    advance(RESCAN / 2).await;
    assert_eq!(rig.scan(), "?");
    advance(RESCAN).await;
    assert_eq!(rig.scan(), "-b -d");
    rig.remove("a.json");
    assert_eq!(rig.scan(), "?");
    advance(QUIET).await;
    assert_eq!(rig.scan(), "-a", "the new directory is the one that is served now");
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_changes_all_the_time_delays_deletions_for_a_bounded_time() {
    let mut rig = Rig::new(&["a.json", "b.json"]);
    rig.remove("a.json");
    assert_eq!(rig.scan(), "?");
    for _ in 0..11 * MAX_RESCANS {
        advance(RESCAN / 11).await;
        rig.engine.disturb(Instant::now());
        assert!(rig.scan().ends_with('?'));
    }
    advance(QUIET / 2).await;
    rig.engine.disturb(Instant::now());
    assert!(rig.scan().ends_with("-a"));

    fs::rename(rig.root(), rig.dir.path().join("old")).unwrap();
    rig.write("0.json");
    assert_eq!(rig.scan(), "+0 ?");
    for n in 1..MAX_RESCANS {
        advance(RESCAN).await;
        rig.write(&format!("{n}.json"));
        assert_eq!(rig.scan(), format!("+{n} ?"));
    }
    advance(RESCAN).await;
    assert_eq!(rig.scan(), "-b");
}

/// A log that is written beside the manifests: the directory is never quiet.
#[tokio::test(start_paused = true)]
async fn an_uncertain_deletion_withholds_bookmarks_for_a_rescan_at_most() {
    let mut rig = Rig::new(&["a.json", "b.json"]);
    rig.remove("a.json");
    let mut bookmarks = Vec::new();
    for _ in 0..3 {
        rig.engine.disturb(Instant::now());
        let scanned = rig.engine.scan(None, &CancellationToken::new()).unwrap();
        bookmarks.push(matches!(scanned.events[..], [Event::Bookmark(_)]));
        advance(RESCAN / 2).await;
    }
    assert_eq!(bookmarks, [false, false, true]);
}

/// A walk over many files, or one that waits for the disk: what it has found first is old at its end.
#[tokio::test(start_paused = true)]
async fn the_time_of_a_walk_makes_no_deletion_certain() {
    let cancelled = CancellationToken::new();
    let mut rig = Rig::new(&["a.json", "b.json"]);
    rig.remove("a.json");
    assert_eq!(rig.scan(), "?");
    for lasts in [QUIET, RESCAN * (MAX_RESCANS + 1)] {
        let (began, walked) = (Instant::now(), rig.engine.walk(None, &cancelled));
        advance(lasts).await;
        let scanned = rig.engine.apply(walked, began, &cancelled).unwrap();
        assert_eq!(shown(&scanned), "?", "{lasts:?}");
        // A file appears during the walk, in a directory that it has read before.
        rig.write("a.json");
        assert_eq!(rig.scan(), "");
        rig.remove("a.json");
        assert_eq!(rig.scan(), "?");
    }
    advance(QUIET).await;
    assert_eq!(rig.scan(), "-a");
}

/// A clone in which a scan finds a part of the files, after the directory was missing for a while.
#[tokio::test(start_paused = true)]
async fn the_time_of_an_outage_makes_no_deletion_certain() {
    for outage in [RESCAN, RESCAN * (MAX_RESCANS + 1)] {
        let mut rig = Rig::new(&["a.json", "b.json"]);
        rig.remove("a.json");
        assert_eq!(rig.scan(), "?");
        fs::rename(rig.root(), rig.dir.path().join("old")).unwrap();
        advance(outage).await;
        assert!(rig.scan().contains("does not exist"));
        rig.write("b.json");
        assert_eq!(rig.scan(), "?", "{outage:?}");
        advance(RESCAN).await;
        assert_eq!(rig.scan(), "-a");
    }
}

/// At the boot of a machine the server may come before a volume below its directory.
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_not_mounted_after_a_restart_keeps_its_objects() {
    let mut rig = Rig::new(&["a.json", "volume/b.json"]);
    rig.engine.mounts.insert("volume/".to_owned(), Root::open(rig.dir.path()).unwrap().id);
    let (mut list, proof) =
        (List::new(rig.engine.catalog.objects(), rig.engine.version()), rig.engine.proof().unwrap());
    rig.engine = Engine::new(Arc::clone(&rig.engine.config), "def".into(), SourceHealth::new(RESCAN, RESCAN));
    rig.engine.resume(&mut list, &proof).unwrap();
    rig.remove("volume/b.json");
    for _ in 0..2 * MAX_RESCANS {
        assert_eq!(rig.scan(), "");
        advance(RESCAN).await;
    }
    rig.write("volume/c.json");
    assert_eq!(rig.scan(), "+c ?", "there are files again");
}

/// The file that loses the object is applied at once, the one that gains it a rescan later.
#[tokio::test(start_paused = true)]
async fn an_object_that_moves_into_a_file_with_fewer_objects_is_not_deleted() {
    let mut rig = Rig::new(&[]);
    rig.write_all("a.json", &["x", "y", "z"]);
    rig.write_all("b.json", &["o", "p"]);
    assert_eq!(rig.scan(), "+o +p +x +y +z");
    rig.write_all("a.json", &["x", "o"]);
    rig.replace_all("b.json", &["p", "q"]);
    assert_eq!(rig.scan(), "+q");
    for _ in 0..2 {
        advance(RESCAN / 2).await;
        assert!(!rig.scan().contains("-o"));
    }
    advance(QUIET).await;
    assert_eq!(rig.scan(), "-y -z", "what is in no file");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_taken_out_of_a_file_is_deleted_when_nothing_has_changed_for_a_while() {
    let mut rig = Rig::new(&[]);
    rig.write_all("a.json", &["x", "y", "z"]);
    assert_eq!(rig.scan(), "+x +y +z");
    rig.replace_all("a.json", &["x"]);
    assert_eq!(rig.scan(), "?");
    advance(QUIET / 2).await;
    rig.write("y.json");
    assert_eq!(rig.scan(), "?", "it has only moved");
    advance(QUIET / 2).await;
    assert_eq!(rig.scan(), "?", "the directory was changing");
    advance(QUIET / 2).await;
    assert_eq!(rig.scan(), "-z");
}

/// `rm -rf DIRECTORY && git clone`: every earlier file exists again, and the objects appear one after the other.
#[tokio::test(start_paused = true)]
async fn an_object_that_moves_within_a_directory_that_is_created_again_is_not_deleted() {
    let mut rig = Rig::new(&[]);
    rig.write_all("a.json", &["o", "x", "y"]);
    assert_eq!(rig.scan(), "+o +x +y");
    fs::remove_dir_all(rig.root()).unwrap();
    fs::create_dir(rig.root()).unwrap();
    rig.write_all("a.json", &["x", "m", "n"]);
    assert_eq!(rig.scan(), "+m +n ?");
    advance(QUIET).await;
    assert_eq!(rig.scan(), "?", "longer than in a directory that is known");
    rig.write("o.json");
    advance(RESCAN / 2).await;
    assert_eq!(rig.scan(), "?");
    advance(RESCAN).await;
    assert_eq!(rig.scan(), "-y");
}

/// A directory is watched only after it was created, so that its first files have no notice; and a notice may be late.
#[tokio::test(start_paused = true)]
async fn a_file_without_a_notice_is_applied_once_unmodified_for_a_while() {
    let mut rig = Rig::with_quiet(RESCAN, &["a.json"]);
    let mut notices = Notices::new(|_, _| Ok(Box::new(())));
    rig.write("new/b.json");
    rig.write_all("a.json", &["a", "c"]);
    assert_eq!(rig.scan_with(Some(&mut notices)), "?");
    assert_eq!(rig.scan_with(Some(&mut notices)), "?", "not yet");
    let modified = |path: &str, ago: Duration| {
        let file = fs::File::options().write(true).open(rig.root().join(path)).unwrap();
        file.set_modified(std::time::SystemTime::now() - ago).unwrap();
    };
    modified("new/b.json", RESCAN * 6);
    notices.dirty().note(rig.root().join("a.json"), false);
    assert_eq!(rig.scan_with(Some(&mut notices)), "+b +c");
    // A writer creates a link when its target is complete.
    rig.write("..1/d.json");
    std::os::unix::fs::symlink("..1", rig.root().join("link")).unwrap();
    assert_eq!(rig.scan_with(Some(&mut notices)), "+d");
}

/// It is open at one scan and has fewer objects than before at the next.
#[tokio::test(start_paused = true)]
async fn a_file_with_fewer_objects_that_is_written_again_and_again_is_applied_in_the_end() {
    let mut rig = Rig::new(&[]);
    rig.write_all("a.json", &["x", "y", "z"]);
    assert_eq!(rig.scan(), "+x +y +z");
    let mut notices = Notices::new(|_, _| Ok(Box::new(())));
    let path = rig.root().join("a.json");
    let mut seen = Vec::new();
    for at in 0..=2 * MAX_RESCANS {
        notices.dirty().note(path.clone(), true);
        assert_eq!(rig.scan_with(Some(&mut notices)), "");
        fs::write(&path, format!(r#"{{"metadata":{{"name":"x"}},"at":{at}}}"#)).unwrap();
        notices.dirty().note(path.clone(), false);
        seen.push(rig.scan_with(Some(&mut notices)));
        advance(RESCAN / 2).await;
    }
    assert_eq!((seen.pop().as_deref(), seen.concat().as_str()), (Some("~x ?"), ""), "after six rescans");
}

/// Its content before it was deleted is older than that of another file since.
#[tokio::test(start_paused = true)]
async fn a_file_that_is_written_again_is_not_the_one_that_was_deleted() {
    for is_unusable in [false, true] {
        let mut rig = Rig::new(&["a.json"]);
        let mut notices = Notices::new(|_, _| Ok(Box::new(())));
        rig.remove("a.json");
        fs::write(rig.root().join("b.json"), r#"{"metadata":{"name":"a"},"x":2}"#).unwrap();
        assert_eq!(rig.scan(), "~a");
        fs::write(rig.root().join("a.json"), "{").unwrap();
        if is_unusable {
            notices.dirty().note(rig.root().join("a.json"), false);
        }
        assert_eq!(rig.scan_with(Some(&mut notices)).replace('?', ""), "", "unusable {is_unusable}");
        rig.write("a.json");
        notices.dirty().note(rig.root().join("a.json"), false);
        assert_eq!(rig.scan_with(Some(&mut notices)), "~a", "of two the first by path");
    }
}

/// The walk meets a link before it is swapped, and reads its target after that has been deleted.
#[tokio::test(start_paused = true)]
async fn a_linked_directory_that_is_swapped_during_the_walk_deletes_nothing() {
    let mut rig = Rig::new(&["..1/sub/a.json", "..1/sub/b.json", "..2/sub/a.json", "..2/sub/b.json"]);
    let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, rig.root().join(name)).unwrap();
    link("..1", "..data");
    link("..data/sub", "sub");
    assert_eq!(rig.scan(), "+a +b");
    let cancelled = CancellationToken::new();
    let root = Root::open(&rig.root()).unwrap();
    fs::remove_file(rig.root().join("..data/sub/b.json")).unwrap();
    let (engine, pending) = (&rig.engine, Pending::new());
    let walk = || Scanner::new(&root, &engine.catalog, &engine.config, &pending, None, &cancelled).walk().unwrap();
    let (mut first, mut second) = (walk(), walk());
    assert_eq!(first.seen.len(), 1);
    let absent = |scan: &mut Scan| {
        engine.find_absent(&root, scan, &cancelled).unwrap();
        let paths = scan.changes.iter().filter(|change| matches!(change.content, Content::Absent));
        (paths.map(|change| change.path.to_string()).collect::<Vec<_>>(), scan.is_torn)
    };
    fs::remove_file(rig.root().join("..data")).unwrap();
    std::os::unix::fs::symlink("..2", rig.root().join("..data")).unwrap();
    assert_eq!(absent(&mut first), (vec![], true));
    // A file of neither version is absent.
    fs::remove_file(rig.root().join("..2/sub/b.json")).unwrap();
    assert_eq!(absent(&mut second), (vec!["sub/b.json".to_owned()], false));
}
