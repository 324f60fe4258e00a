//! Tests of the directory: ended at every operation, foreign files, and what others change meanwhile.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    os::{
        fd::BorrowedFd,
        unix::fs::{MetadataExt, symlink},
    },
    path::Path,
};

use rustix::io::Errno;
use tempfile::TempDir;

use super::{
    directory::{FileError, Files, MirrorDirectory, OpenError},
    file_name::{Layout, data_file, object_file},
    file_system::{FileSystem, SystemFiles},
};
use crate::model::ObjectKey;

mod running;

/// Objects by namespace and name, each with its data.
type State = BTreeMap<(&'static str, &'static str), &'static [(&'static str, &'static str)]>;

/// File system that fails at some of its operations, by their numbers. A write that fails does so at its end, and has written half.
struct Faulty<P> {
    operations: usize,
    fails: P,
}

/// File system with a directory that cannot be removed, for this reason.
struct Stuck(&'static str, Errno);

/// Contents by path, with the directories, whose paths end with a slash.
type Tree = BTreeMap<String, Vec<u8>>;

impl<P: FnMut(usize) -> bool> Faulty<P> {
    fn step(&mut self) -> io::Result<()> {
        self.operations += 1;
        if (self.fails)(self.operations) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl<P: FnMut(usize) -> bool> FileSystem for Faulty<P> {
    fn make_directory(&mut self, parent: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        self.step()?;
        SystemFiles.make_directory(parent, name)
    }

    fn create(&mut self, parent: BorrowedFd<'_>, name: &str) -> io::Result<File> {
        SystemFiles.create(parent, name)
    }

    fn close(&mut self, file: File) -> io::Result<()> {
        let step = self.step();
        if step.is_err() {
            file.set_len(file.metadata()?.len() / 2)?;
        }
        SystemFiles.close(file)?;
        step
    }

    fn rename(&mut self, from: BorrowedFd<'_>, name: &str, to: BorrowedFd<'_>, new_name: &str) -> io::Result<()> {
        self.step()?;
        SystemFiles.rename(from, name, to, new_name)
    }

    fn remove_file(&mut self, parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        self.step()?;
        SystemFiles.remove_file(parent, name)
    }

    fn remove_directory(&mut self, parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        self.step()?;
        SystemFiles.remove_directory(parent, name)
    }
}

impl FileSystem for Stuck {
    fn make_directory(&mut self, parent: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        SystemFiles.make_directory(parent, name)
    }

    fn create(&mut self, parent: BorrowedFd<'_>, name: &str) -> io::Result<File> {
        SystemFiles.create(parent, name)
    }

    fn close(&mut self, file: File) -> io::Result<()> {
        SystemFiles.close(file)
    }

    fn rename(&mut self, from: BorrowedFd<'_>, name: &str, to: BorrowedFd<'_>, new_name: &str) -> io::Result<()> {
        SystemFiles.rename(from, name, to, new_name)
    }

    fn remove_file(&mut self, parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        SystemFiles.remove_file(parent, name)
    }

    fn remove_directory(&mut self, parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        if name == self.0.as_bytes() { Err(self.1.into()) } else { SystemFiles.remove_directory(parent, name) }
    }
}

/// States that a mirror takes on, one after the other.
fn states() -> [State; 4] {
    let first: State = [
        (("shop", "web"), &[("a", "first"), ("b", "1")][..]),
        (("shop", "db"), &[("a", "database")]),
        (("", "node"), &[("a", "of no namespace")]),
        (("x/y", LONG), &[("a", "long"), (LONG, "longer")]),
    ]
    .into();
    let second: State = [
        (("shop", "web"), &[("a", "second, which is longer"), ("c", "1")][..]),
        (("", "node"), &[("a", "of no namespace")]),
        (("new", "web"), &[("a", "new")]),
    ]
    .into();
    [first.clone(), second, State::new(), first]
}

const LONG: &str = "../a-name-that-does-not-fit-into-one-part-of-a-path-\
    ....................................................................................................................\
    ....................................................................................................................";

fn files(layout: Layout, key: &ObjectKey, data: &[(&'static str, &'static str)]) -> Files<'static> {
    match layout {
        Layout::Objects => [(object_file(key, true), Cow::Owned(format!("{data:?}").into_bytes()))].into(),
        Layout::Keys => data.iter().map(|(name, value)| (data_file(key, name), value.as_bytes().into())).collect(),
    }
}

fn key((namespace, name): &(&str, &str)) -> ObjectKey {
    ObjectKey::new(namespace, name).unwrap()
}

/// Starts a mirror, and brings its directory to each state.
fn run(path: &Path, layout: Layout, fails: impl FnMut(usize) -> bool, states: &[State]) -> Result<(), ()> {
    let opened = MirrorDirectory::open(path, "things", layout, true, Faulty { operations: 0, fails });
    let (mut directory, mut known) =
        opened.map_err(|error| assert!(matches!(error, OpenError::Io { .. }), "{error}"))?;
    for state in states {
        apply(&mut directory, layout, &mut known, state).map_err(drop)?;
    }
    Ok(())
}

fn apply<F: FileSystem>(
    directory: &mut MirrorDirectory<F>,
    layout: Layout,
    known: &mut BTreeSet<ObjectKey>,
    state: &State,
) -> Result<(), FileError> {
    for (object, data) in state {
        known.insert(key(object));
        directory.apply(&key(object), &files(layout, &key(object), data))?;
    }
    for gone in known.clone() {
        if !state.keys().any(|object| key(object) == gone) {
            directory.apply(&gone, &Files::new())?;
            known.remove(&gone);
        }
    }
    Ok(())
}

fn read(path: &Path) -> Tree {
    let mut tree = Tree::new();
    for entry in fs::read_dir(path).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() {
            tree.insert(format!("{name}/"), Vec::new());
            tree.extend(read(&entry.path()).into_iter().map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)));
        } else {
            // A link may lead to a directory.
            tree.insert(name, fs::read(entry.path()).unwrap_or_default());
        }
    }
    tree
}

/// Returns the tree without the mirror's own file.
fn mirrored(path: &Path) -> Tree {
    let mut tree = read(path);
    assert!(
        tree.remove(".informerd-mirror").is_some_and(|marker| marker.starts_with(b"informerd mirror of \"things\""))
    );
    tree
}

fn expected(layout: Layout, state: &State) -> Tree {
    let mut tree = Tree::new();
    for (object, data) in state {
        for (path, bytes) in files(layout, &key(object), data) {
            tree.extend(path.match_indices('/').map(|(at, _)| (path[..=at].to_owned(), Vec::new())));
            tree.insert(path, bytes.into_owned());
        }
    }
    tree
}

fn open(path: &Path, replace: bool) -> Result<(MirrorDirectory, BTreeSet<ObjectKey>), OpenError> {
    let (mut directory, keys) = MirrorDirectory::open(path, "things", Layout::Objects, replace, SystemFiles)?;
    directory.prepare().unwrap();
    Ok((directory, keys))
}

fn foreign(path: &Path) -> String {
    let before = read(path);
    let Err(error) = open(path, false) else { panic!("the files are foreign") };
    assert!(matches!(error, OpenError::Foreign { .. }), "{error}");
    assert_eq!(read(path), before, "untouched");
    error.to_string().split_once(": ").unwrap().1.split_once(';').unwrap().0.to_owned()
}

#[test]
fn a_mirror_killed_at_any_operation_is_made_right_by_the_next_start() {
    for layout in [Layout::Objects, Layout::Keys] {
        let states = states();
        let contents: BTreeSet<_> = states.iter().flat_map(|state| expected(layout, state)).collect();
        for killed_at in 1.. {
            let root = TempDir::new().unwrap();
            fs::create_dir(root.path().join("foreign")).unwrap();
            fs::write(root.path().join("foreign/file"), "to be removed").unwrap();
            let is_whole = run(root.path(), layout, |operation| operation >= killed_at, &states).is_ok();
            for (path, bytes) in read(root.path()) {
                let is_own = path.starts_with(".informerd-mirror") || path.starts_with("foreign");
                assert!(is_own || contents.contains(&(path.clone(), bytes)), "{path}: neither old nor new bytes");
            }
            run(root.path(), layout, |_| false, &states[1..2]).unwrap();
            assert_eq!(mirrored(root.path()), expected(layout, &states[1]), "{layout:?}, killed at {killed_at}");
            if is_whole {
                assert!(killed_at > 30, "{killed_at} operations");
                break;
            }
        }
    }
}

#[test]
fn an_operation_that_fails_is_repeated_and_leaves_nothing_behind() {
    for layout in [Layout::Objects, Layout::Keys] {
        for failing in 1.. {
            let root = TempDir::new().unwrap();
            let files = Faulty { operations: 0, fails: |operation| operation == failing };
            let opened = MirrorDirectory::open(root.path(), "things", layout, false, files);
            let Ok((mut directory, mut known)) = opened else {
                assert!(failing <= 2, "the marker");
                assert_eq!(read(root.path()), Tree::new());
                continue;
            };
            let mut failures = 0;
            for state in &states() {
                while let Err(FileError { error, .. }) = apply(&mut directory, layout, &mut known, state) {
                    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
                    failures += 1;
                }
                assert_eq!(mirrored(root.path()), expected(layout, state), "{layout:?}, {failing}");
            }
            if failures == 0 {
                assert!(failing > 30, "{failing} operations");
                break;
            }
        }
    }
}

/// A mount point for one namespace, or a directory that belongs to somebody else.
#[test]
fn a_directory_that_cannot_be_removed_holds_up_no_other_object() {
    for errno in [Errno::BUSY, Errno::ACCESS, Errno::PERM, Errno::EXIST, Errno::IO] {
        let root = TempDir::new().unwrap();
        let open = || MirrorDirectory::open(root.path(), "things", Layout::Objects, false, Stuck("shop", errno));
        let (mut directory, mut known) = open().unwrap();
        let [first, second, ..] = states();
        apply(&mut directory, Layout::Objects, &mut known, &first).unwrap();
        let mut removed = apply(&mut directory, Layout::Objects, &mut known, &State::new());
        let stays = errno != Errno::IO;
        assert_eq!(removed.is_ok(), stays, "{errno:?}: {removed:?}");
        while removed.is_err() && !known.is_empty() {
            known.pop_first();
            removed = apply(&mut directory, Layout::Objects, &mut known, &State::new());
        }
        assert_eq!(mirrored(root.path()).keys().collect::<Vec<_>>(), ["shop/"]);
        let new = second.into_iter().filter(|((namespace, _), _)| *namespace == "new").collect();
        let applied = apply(&mut directory, Layout::Objects, &mut known, &new);
        assert_eq!(applied.is_ok(), stays, "{errno:?}: {applied:?}");
        assert_eq!(mirrored(root.path()).keys().collect::<Vec<_>>(), ["new/", "new/web.json", "shop/"]);
        drop(directory);
        assert_eq!(open().is_ok(), stays, "an empty directory from an earlier run");
    }
}

#[test]
fn equal_bytes_are_not_written() {
    let root = TempDir::new().unwrap();
    let [state, ..] = states();
    let (mut directory, mut known) = open(root.path(), false).unwrap();
    apply(&mut directory, Layout::Objects, &mut known, &state).unwrap();
    assert_eq!(directory.changes(), 4);
    let inode = || fs::metadata(root.path().join("shop/web.json")).unwrap().ino();
    let before = inode();
    drop(directory);
    let (mut directory, mut known) = open(root.path(), false).unwrap();
    assert_eq!(known, state.keys().map(key).collect());
    apply(&mut directory, Layout::Objects, &mut known, &state).unwrap();
    assert_eq!((directory.changes(), inode()), (0, before));
}

#[test]
fn files_that_others_change_are_repaired() {
    let (root, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let [state, ..] = states();
    let (mut directory, mut known) = open(root.path(), false).unwrap();
    let mut repaired = |files: u64| {
        let before = directory.changes();
        apply(&mut directory, Layout::Objects, &mut known, &state).unwrap();
        assert_eq!(directory.changes() - before, files);
        assert_eq!(mirrored(root.path()), expected(Layout::Objects, &state));
    };
    repaired(4);
    let web = root.path().join("shop/web.json");
    let text = fs::read(&web).unwrap();
    fs::write(&web, text.to_ascii_uppercase()).unwrap();
    repaired(1);
    fs::remove_dir_all(root.path().join("shop")).unwrap();
    repaired(2);
    fs::remove_file(&web).unwrap();
    // Same bytes, but not in the directory.
    let target = elsewhere.path().join("web.json");
    fs::write(&target, &text).unwrap();
    symlink(&target, &web).unwrap();
    repaired(1);
    assert!(fs::symlink_metadata(&web).unwrap().is_file() && fs::read(&target).unwrap() == text);
}

#[test]
fn a_link_in_the_place_of_a_directory_leads_nowhere() {
    let (root, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let [state, ..] = states();
    let (mut directory, mut known) = open(root.path(), false).unwrap();
    symlink(elsewhere.path(), root.path().join("shop")).unwrap();
    let error = apply(&mut directory, Layout::Objects, &mut known, &state).unwrap_err();
    assert!(error.path.starts_with("shop/"), "{error}");
    // The name of the file that is being written is taken by a link.
    let victim = elsewhere.path().join("victim");
    fs::write(&victim, "kept").unwrap();
    symlink(&victim, root.path().join(".informerd-mirror.tmp")).unwrap();
    fs::remove_file(root.path().join("shop")).unwrap();
    apply(&mut directory, Layout::Objects, &mut known, &state).unwrap();
    assert_eq!(fs::read(&victim).unwrap(), b"kept");
    assert_eq!(read(elsewhere.path()).len(), 1);
    assert_eq!(mirrored(root.path()), expected(Layout::Objects, &state));
}

#[test]
fn a_foreign_directory_is_refused_and_untouched() {
    let root = TempDir::new().unwrap();
    let write = |path: &str| fs::write(root.path().join(path), "x").unwrap();
    for directory in ["shop", "empty", "lost+found"] {
        fs::create_dir(root.path().join(directory)).unwrap();
    }
    assert_eq!(foreign(root.path()), r#""empty/", "shop/""#);
    // Names as a mirror writes them are no proof.
    write("shop/web.json");
    assert_eq!(foreign(root.path()), r#""empty/", "shop/web.json""#);
    write("b.txt");
    write("c.txt");
    assert_eq!(foreign(root.path()), r#""b.txt", "c.txt", "empty/" and more"#);
    symlink("/", root.path().join("a")).unwrap();
    assert_eq!(foreign(root.path()), r#""a", "b.txt", "c.txt" and more"#);
    let before = read(root.path());
    drop(MirrorDirectory::open(root.path(), "things", Layout::Objects, true, SystemFiles).unwrap());
    assert_eq!(read(root.path()), before, "nothing is removed yet");
    let (directory, known) = open(root.path(), true).unwrap();
    assert!(known.is_empty() && directory.changes() == 0);
    assert_eq!(mirrored(root.path()), [("lost+found/".to_owned(), Vec::new())].into());
}

#[test]
fn foreign_files_in_the_directory_of_a_mirror_are_refused_too() {
    let root = TempDir::new().unwrap();
    let [state, ..] = states();
    let (mut directory, mut known) = open(root.path(), false).unwrap();
    apply(&mut directory, Layout::Objects, &mut known, &state).unwrap();
    drop(directory);
    for path in ["notes.txt", "shop/.web.json.swp", "shop/web.yaml", "shop/w%65b.json"] {
        fs::write(root.path().join(path), "x").unwrap();
    }
    fs::create_dir_all(root.path().join("left/over")).unwrap();
    assert_eq!(foreign(root.path()), r#""notes.txt", "shop/.web.json.swp", "shop/w%65b.json" and more"#);
    let (_directory, known) = open(root.path(), true).unwrap();
    assert_eq!(known, state.keys().map(key).collect());
    assert_eq!(mirrored(root.path()), expected(Layout::Objects, &state));
}

#[test]
fn a_directory_of_another_mirror_is_foreign() {
    let root = TempDir::new().unwrap();
    let as_of = |resource: &str, layout| MirrorDirectory::open(root.path(), resource, layout, false, SystemFiles);
    let [state, ..] = states();
    let (mut directory, mut known) = open(root.path(), false).unwrap();
    let error = open(root.path(), true).unwrap_err().to_string();
    assert!(error.ends_with("is in use by another informerd mirror; give each its own directory"), "{error}");
    apply(&mut directory, Layout::Objects, &mut known, &state).unwrap();
    drop(directory);
    assert!(matches!(as_of("others", Layout::Objects), Err(OpenError::Foreign { .. })));
    assert!(matches!(as_of("things", Layout::Keys), Err(OpenError::Foreign { .. })));
    let (mut directory, mut known) = open(root.path(), false).unwrap();
    apply(&mut directory, Layout::Objects, &mut known, &State::new()).unwrap();
    drop(directory);
    as_of("others", Layout::Keys).unwrap();
}

#[test]
fn files_have_the_permissions_of_the_umask() {
    let root = TempDir::new().unwrap();
    let [state, ..] = states();
    let (mut directory, mut known) = open(root.path(), false).unwrap();
    apply(&mut directory, Layout::Objects, &mut known, &state).unwrap();
    let reference = root.path().join("reference");
    fs::write(&reference, "").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&root.path().join("shop/web.json")), mode(&reference));
}
