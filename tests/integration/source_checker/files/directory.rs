//! Directory under test: executes a script on a real directory, and computes the objects from the script alone.
//!
//! The rules are those of the documentation: of several objects with one name the first by path, then by position in the file, is
//! served; a file of which a part becomes unreadable keeps the objects of that part; a missing
//! directory keeps everything; otherwise objects are deleted only with the deletion or replacement of their file. While there is an
//! unreadable part that nobody has read before, nothing is deleted.

mod outage;
mod volume;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, Permissions},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::mount::{UnmountFlags, mount_bind, unmount};
use tempfile::TempDir;

use super::{
    content::{FileModel, format, object},
    script::{Content, DIRECTORIES, Damage, How, PATHS, Shape, Target},
};
use crate::source_checker::{
    live::pause,
    timeline::{Claim, Objects, Timeline},
};

/// Directory on disk, and its truth.
pub(crate) struct Directory {
    base: TempDir,
    pub(crate) truth: Timeline,
    /// Files by path below the root.
    files: BTreeMap<String, FileModel>,
    volumes: BTreeMap<Shape, Volume>,
    /// Objects of each file, and the directories, at the last quiet point.
    known: BTreeMap<String, BTreeSet<String>>,
    known_directories: BTreeSet<PathBuf>,
    next_value: u64,
    created: u64,
    /// Directory that is mounted at the root.
    mounted: Option<PathBuf>,
    is_away: bool,
    /// Set when another directory is in place, and the server may not have read it yet.
    pub(crate) is_unsettled: bool,
    /// The same, and files of the previous one may wait for their deletion.
    pub(crate) is_another: bool,
}

#[derive(Debug, Clone)]
struct Volume {
    number: u64,
    objects: Vec<(String, String)>,
}

/// Error of a step that took so long that a server which reads meanwhile may see it half done. The history is not judged then.
#[derive(Debug)]
pub(crate) struct TooSlow;

/// Longest times for steps that the server must see as one: less than the time in which it reads twice.
pub(crate) struct Patience {
    /// Time to empty the directory.
    pub(crate) remove: Duration,
    /// Time between two files of another directory, and between two parts of a file.
    pub(crate) fill: Duration,
    /// Time to write a file in pieces, and to move an object back and forth.
    pub(crate) write: Duration,
    /// Time between two pieces, in a directory that the server may not watch yet.
    pub(crate) piece: Duration,
}

// === impl Directory ===

impl Directory {
    /// Returns an empty directory; a mount point if that is requested and permitted.
    pub(crate) fn new(is_mounted: bool) -> Self {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir(base.path().join("root")).unwrap();
        let mut directory = Self {
            base,
            truth: Timeline::default(),
            files: BTreeMap::new(),
            volumes: BTreeMap::new(),
            known: BTreeMap::new(),
            known_directories: BTreeSet::new(),
            next_value: 10,
            created: 0,
            mounted: None,
            is_away: false,
            is_unsettled: false,
            is_another: false,
        };
        if is_mounted {
            let backing = directory.new_directory();
            directory.mount(&backing);
        }
        directory
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.base.path().join("root")
    }

    pub(crate) fn is_mounted(&self) -> bool {
        self.mounted.is_some()
    }

    fn new_directory(&mut self) -> PathBuf {
        self.created += 1;
        let path = self.base.path().join(format!("directory-{}", self.created));
        fs::create_dir(&path).unwrap();
        path
    }

    /// Mounts a directory at the root, if that is permitted.
    fn mount(&mut self, directory: &Path) {
        if mount_bind(directory, self.root()).is_ok() {
            self.mounted = Some(directory.to_owned());
        }
    }

    /// Adds the current state to the truth.
    fn becomes(&mut self) {
        self.becomes_with(Objects::new());
    }

    /// The same, with these objects served as well while they are in no file.
    fn becomes_with(&mut self, mut objects: Objects) {
        let claims = self.claims();
        objects.extend(claims.iter().map(|(name, bodies)| (name.clone(), bodies[0].1.clone())));
        self.truth.are_claimed(&claims, objects);
    }

    /// Records that the server has read everything.
    pub(crate) fn settle(&mut self) {
        self.is_unsettled = false;
        self.known = self.files.iter().map(|(path, file)| (path.clone(), file.names())).collect();
        self.known_directories = self.directories();
    }

    /// Returns the parent directories of all files.
    fn directories(&self) -> BTreeSet<PathBuf> {
        self.files.keys().flat_map(|path| Path::new(path).ancestors().skip(1).map(Path::to_owned)).collect()
    }

    /// Returns true if a content's file is in a directory that the server may not have read yet.
    pub(crate) fn is_in_new_directory(&self, content: &Content) -> bool {
        let parent = Path::new(PATHS[content.file]).parent();
        self.is_unsettled || parent.is_some_and(|parent| !self.known_directories.contains(parent))
    }

    /// Returns true if this content removes an object from a file while another file has it, and the server may not have read
    /// that yet.
    pub(crate) fn moves_an_object(&self, content: &Content) -> bool {
        let path = PATHS[content.file];
        let Some(file) = self.files.get(path) else { return false };
        let stays = |name: &String| content.documents.iter().any(|document| document.name() == *name);
        let is_news = |name: &String| {
            let elsewhere = self.files.iter().filter(|(other, file)| *other != path && file.names().contains(name));
            let mut elsewhere = elsewhere.map(|(other, _)| self.known.get(other));
            elsewhere.any(|known| known.is_none_or(|known| !known.contains(name)))
        };
        file.names().iter().any(|name| !stays(name) && is_news(name))
    }

    /// Returns true if a file of the current directory loses an object, and another of the contents has it.
    pub(crate) fn moves_objects(&self, contents: &[Content]) -> bool {
        contents.iter().any(|content| {
            let Some(file) = self.files.get(PATHS[content.file]) else { return false };
            let has =
                |content: &Content, name: &String| content.documents.iter().any(|document| document.name() == *name);
            file.names().iter().any(|name| !has(content, name) && contents.iter().any(|other| has(other, name)))
        })
    }

    /// Returns true if there is no object at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.claims().is_empty()
    }

    /// Returns the bodies of each object and their files, by path.
    fn claims(&self) -> BTreeMap<String, Vec<Claim>> {
        let mut by_path: BTreeMap<String, &[(String, String)]> = BTreeMap::new();
        for (path, file) in &self.files {
            by_path.insert(path.clone(), &file.objects);
        }
        let mut claims: BTreeMap<String, Vec<Claim>> = BTreeMap::new();
        let in_volumes = self.volumes.iter().flat_map(|(shape, volume)| {
            let at = |(at, object)| (format!("{}/{at:03}.json", shape.link()), std::slice::from_ref(object));
            volume.objects.iter().enumerate().map(at)
        });
        by_path.extend(in_volumes);
        for (path, objects) in by_path {
            for (name, body) in objects {
                claims.entry(name.clone()).or_default().push((path.clone(), body.clone()));
            }
        }
        claims
    }

    fn value(&mut self) -> u64 {
        self.next_value += 1;
        self.next_value
    }

    /// Returns the objects of a content, with bodies.
    fn model(&mut self, content: &Content) -> FileModel {
        let objects = content.documents.iter().map(|document| {
            let name = document.name();
            let known = self.truth.current().get(&name).filter(|_| !document.is_new).cloned();
            let body = known.unwrap_or_else(|| {
                let value = self.value();
                object(&name, value)
            });
            (name, body)
        });
        FileModel { objects: objects.collect(), is_list: content.is_list, is_damaged: false }
    }

    /// Writes one file.
    pub(crate) fn write(&mut self, content: &Content, how: &How, patience: &Patience) -> Result<(), TooSlow> {
        let path = PATHS[content.file];
        let is_watched = !self.is_in_new_directory(content);
        let model = self.model(content);
        let text = model.text(path);
        let target = self.root().join(path);
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        let mut is_timely = true;
        match how {
            How::InPlace => fs::write(&target, &text).unwrap(),
            How::Replace => {
                let beside = target.with_extension("tmp");
                fs::write(&beside, &text).unwrap();
                fs::rename(&beside, &target).unwrap();
            }
            How::Slowly(cuts, gap) => {
                let mut cuts: Vec<usize> = cuts.iter().map(|cut| text.len() * cut / 100).collect();
                cuts.sort_unstable();
                // An empty piece modifies nothing, so no notification shows that the file is being written.
                cuts.dedup();
                let mut file = File::create(&target).unwrap();
                let gap = Duration::from_millis(*gap);
                let gap = if is_watched { gap } else { gap.min(patience.piece / 2) };
                let (began, mut written) = (Instant::now(), 0);
                for cut in cuts {
                    let began = Instant::now();
                    file.write_all(&text.as_bytes()[written..cut]).unwrap();
                    written = cut;
                    pause(gap);
                    is_timely &= is_watched || began.elapsed() <= patience.piece;
                }
                file.write_all(&text.as_bytes()[written..]).unwrap();
                is_timely &= began.elapsed() <= patience.write;
            }
        }
        self.files.insert(path.to_owned(), model);
        self.becomes();
        if is_timely { Ok(()) } else { Err(TooSlow) }
    }

    /// Writes a file anew, object by object, if it has several.
    pub(crate) fn write_parts(&mut self, file: usize, gap: u64, patience: &Patience) -> Result<(), TooSlow> {
        let path = PATHS[file];
        let Some(mut model) = self.files.get(path).filter(|file| !file.is_damaged && file.objects.len() > 1).cloned()
        else {
            return Ok(());
        };
        model.is_list = false;
        let mut is_timely = true;
        let mut file = File::create(self.root().join(path)).unwrap();
        for at in 0..model.objects.len() {
            let began = Instant::now();
            if at > 0 {
                drop(file);
                pause(Duration::from_millis(gap));
                file = File::options().append(true).open(self.root().join(path)).unwrap();
                file.write_all(if format(path) == "json" { b"\n" } else { b"---\n" }).unwrap();
            }
            let value = self.value();
            let (name, body) = &mut model.objects[at];
            *body = object(name, value);
            let one = FileModel { objects: vec![model.objects[at].clone()], ..model };
            file.write_all(one.text(path).as_bytes()).unwrap();
            is_timely &= began.elapsed() <= patience.fill;
        }
        self.files.insert(path.to_owned(), model);
        self.becomes();
        if is_timely { Ok(()) } else { Err(TooSlow) }
    }

    pub(crate) fn remove(&mut self, file: usize) {
        if self.files.remove(PATHS[file]).is_some() {
            fs::remove_file(self.root().join(PATHS[file])).unwrap();
            self.becomes();
        }
    }

    pub(crate) fn remove_all(&mut self) {
        for file in self.files.keys().cloned().collect::<Vec<_>>() {
            self.files.remove(&file);
            fs::remove_file(self.root().join(file)).unwrap();
            self.becomes();
        }
    }

    /// Renames a usable file.
    pub(crate) fn rename(&mut self, from: usize, to: usize) {
        let (from, to) = (PATHS[from], PATHS[to]);
        if from == to || self.files.get(from).is_none_or(|file| file.is_damaged) || format(from) != format(to) {
            return;
        }
        let target = self.root().join(to);
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::rename(self.root().join(from), target).unwrap();
        let file = self.files.remove(from).unwrap();
        self.files.insert(to.to_owned(), file);
        self.becomes();
    }

    /// Renames a directory whose files are usable, back and forth.
    pub(crate) fn rename_directory(&mut self, from: usize, to: usize, times: u64) {
        let (mut from, mut to) = (format!("{}/", DIRECTORIES[from]), format!("{}/", DIRECTORIES[to]));
        for _ in 0..times {
            let within = |path: &String| path.starts_with(&from);
            let (source, target) = (self.root().join(&from), self.root().join(&to));
            let is_damaged = self.files.iter().any(|(path, file)| within(path) && file.is_damaged);
            if is_damaged || !source.exists() || target.exists() {
                return;
            }
            fs::rename(source, target).unwrap();
            self.known_directories.retain(|known| !known.starts_with(&from));
            for path in self.files.keys().filter(|path| within(path)).cloned().collect::<Vec<_>>() {
                let file = self.files.remove(&path).unwrap();
                self.files.insert(path.replacen(&from, &to, 1), file);
            }
            self.becomes();
            std::mem::swap(&mut from, &mut to);
            pause(Duration::from_millis(self.next_value % 4));
        }
    }

    /// Moves the first object of a file to the end of another one, back and forth.
    pub(crate) fn move_objects(
        &mut self,
        from: usize,
        to: usize,
        times: u64,
        patience: &Patience,
    ) -> Result<(), TooSlow> {
        let (mut from, mut to) = (PATHS[from], PATHS[to]);
        let began = Instant::now();
        for _ in 0..times {
            self.move_object(from, to);
            std::mem::swap(&mut from, &mut to);
        }
        if began.elapsed() <= patience.write { Ok(()) } else { Err(TooSlow) }
    }

    fn move_object(&mut self, from: &str, to: &str) {
        let is_usable = |path| self.files.get(path).is_some_and(|file: &FileModel| !file.is_damaged);
        if from == to || !is_usable(from) || !is_usable(to) {
            return;
        }
        let object = self.files[from].objects[0].clone();
        self.files.get_mut(to).unwrap().objects.push(object);
        fs::write(self.root().join(to), self.files[to].text(to)).unwrap();
        self.becomes();
        let source = self.files.get_mut(from).unwrap();
        source.objects.remove(0);
        if source.objects.is_empty() {
            self.files.remove(from);
            fs::remove_file(self.root().join(from)).unwrap();
        } else {
            fs::write(self.root().join(from), self.files[from].text(from)).unwrap();
        }
        self.becomes();
    }

    /// Makes a part of a file unreadable, if there is one: the last object, or all of them.
    pub(crate) fn damage(&mut self, file: usize, damage: Damage) {
        let path = PATHS[file];
        let Some(file) = self.files.get_mut(path).filter(|file| file.is_unique() && !file.is_damaged) else { return };
        let (text, last) = (file.text(path), file.objects.len() - 1);
        let bytes = match damage {
            Damage::Label => file.mistaken(path).into_bytes(),
            // A cut within the last object, because the objects before it may be the whole of another file.
            Damage::Cut if path.ends_with("json") => text.trim_end().as_bytes()[..text.trim_end().len() - 1].to_vec(),
            Damage::Cut if file.is_list => [text.as_bytes(), b"- {"].concat(),
            Damage::Cut => {
                let readable = FileModel { objects: file.objects[..last].to_vec(), ..file.clone() }.text(path);
                [readable.as_bytes(), b"---\nmetadata: {name: ["].concat()
            }
            Damage::Binary => (0..=255).cycle().take(1000).collect(),
            Damage::Text => b"apiVersi".to_vec(),
            Damage::Blank => b" \n".to_vec(),
        };
        file.is_damaged = true;
        fs::write(self.root().join(path), bytes).unwrap();
    }

    /// Renames a file with a mistake in its last object, so that nobody has read that under the new name; returns false if
    /// that is not possible.
    pub(crate) fn spoil(&mut self, from: usize, to: usize) -> bool {
        let (from, to) = (PATHS[from], PATHS[to]);
        let usable = self.files.get(from).filter(|file| file.is_unique() && !file.is_damaged);
        let Some(file) = usable.filter(|_| !self.files.contains_key(to)).cloned() else { return false };
        if self.shares_an_object(&file) {
            return false;
        }
        let (target, beside) = (self.root().join(to), self.root().join(".beside"));
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::write(&beside, file.mistaken(to)).unwrap();
        fs::rename(beside, target).unwrap();
        fs::remove_file(self.root().join(from)).unwrap();
        self.files.remove(from);
        self.files.insert(to.to_owned(), FileModel { is_damaged: true, ..file });
        self.becomes();
        true
    }

    /// Returns true if another file has one of these objects: it is served once this one cannot be read, or is gone.
    fn shares_an_object(&self, file: &FileModel) -> bool {
        let claims = self.claims();
        file.objects.iter().any(|(name, _)| claims[name].len() > 1)
    }

    /// Returns true if another file has one of the objects of this one. A snapshot has only the one that is served, so that a file
    /// that cannot be read after a restart keeps no other.
    pub(crate) fn shares(&self, file: usize) -> bool {
        self.files.get(PATHS[file]).is_some_and(|file| self.shares_an_object(file))
    }

    /// Returns true if a damaged file does.
    pub(crate) fn shares_damage(&self) -> bool {
        self.files.values().any(|file| file.is_damaged && self.shares_an_object(file))
    }

    /// Removes a usable file, if there is one, while no deletion may be served.
    pub(crate) fn remove_held(&mut self, file: usize) {
        let path = PATHS[file];
        if self.files.get(path).is_some_and(|file| !file.is_damaged && !self.shares_an_object(file)) {
            self.files.remove(path);
            fs::remove_file(self.root().join(path)).unwrap();
        }
    }

    /// Writes every damaged file as it was meant. Now the removed objects may be deleted.
    pub(crate) fn mend(&mut self) {
        for (path, file) in self.files.iter_mut().filter(|(_, file)| file.is_damaged) {
            file.is_damaged = false;
            fs::write(self.base.path().join("root").join(path), file.text(path)).unwrap();
        }
        self.becomes();
    }

    /// Returns true if a file is damaged.
    pub(crate) fn has_damage(&self) -> bool {
        self.files.values().any(|file| file.is_damaged)
    }

    /// Sets the permissions of existing files; returns false if there are none.
    pub(crate) fn set_mode(&self, target: Target, mode: Option<u32>) -> bool {
        let (path, usual) = match target {
            Target::Root => (self.root(), 0o755),
            Target::Directory(at) => (self.root().join(DIRECTORIES[at]), 0o755),
            Target::File(at) => (self.root().join(PATHS[at]), 0o644),
        };
        fs::set_permissions(path, Permissions::from_mode(mode.unwrap_or(usual))).is_ok()
    }

    /// Returns true if this process can read only what permissions allow.
    pub(crate) fn obeys_permissions(&self) -> bool {
        let path = self.base.path().join("forbidden");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o000)).unwrap();
        let opened = File::open(&path);
        fs::remove_file(path).unwrap();
        opened.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    }

    /// Makes the kernel's queue of notifications overflow.
    pub(crate) fn flood(&self) {
        let path = self.root().join(".flood");
        for _ in 0..6000 {
            fs::write(&path, "x").unwrap();
            fs::remove_file(&path).unwrap();
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        drop(fs::set_permissions(self.root(), Permissions::from_mode(0o755)));
        for directory in DIRECTORIES {
            drop(fs::set_permissions(self.root().join(directory), Permissions::from_mode(0o755)));
        }
        // A mounted directory cannot be removed.
        if self.mounted.is_some() && !self.is_away {
            unmount(self.root(), UnmountFlags::DETACH).unwrap_or_default();
        }
    }
}
