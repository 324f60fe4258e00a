//! Outages of the directory as a whole: it is removed, and restored unchanged, changed, or as another one.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use rustix::mount::{UnmountFlags, unmount};

use super::{Directory, Patience, TooSlow};
use crate::source_checker::{
    files::script::{Back, Content, Document, Outage, PATHS},
    live::pause,
};

impl Directory {
    /// Removes the directory.
    pub(crate) fn leave(&mut self, outage: &Outage, patience: &Patience) -> Result<(), TooSlow> {
        let (root, aside) = (self.root(), self.base.path().join("aside"));
        let began = Instant::now();
        self.is_away = true;
        if self.mounted.is_some() {
            unmount(&root, UnmountFlags::DETACH).unwrap();
        } else if outage.is_removed {
            fs::remove_dir_all(&root).unwrap();
            self.is_removed_in_parts();
        } else {
            fs::rename(&root, aside).unwrap();
        }
        if outage.is_empty_between && self.mounted.is_none() {
            fs::create_dir(&root).unwrap();
        }
        if outage.is_removed && began.elapsed() > patience.remove { Err(TooSlow) } else { Ok(()) }
    }

    /// Adds to the truth that a scan amid the removal may have found any of the files of an object that is in several.
    fn is_removed_in_parts(&mut self) {
        let objects = self.truth.current().clone();
        let mut claims = self.claims();
        claims.retain(|_, files| files.len() == 1);
        self.truth.are_claimed(&claims, objects);
    }

    /// Puts a directory in the place of the removed one.
    pub(crate) fn come_back(&mut self, outage: &Outage, patience: &Patience) -> Result<(), TooSlow> {
        (self.is_unsettled, self.is_another) = (true, true);
        let (root, aside) = (self.root(), self.base.path().join("aside"));
        let kept = self.mounted.take().or_else(|| aside.exists().then(|| aside.clone()));
        let was_mounted = kept.as_ref().is_some_and(|kept| *kept != aside);
        let is_timely = match (&outage.back, kept) {
            (Back::Same | Back::Changed(_), Some(kept)) => {
                if let Back::Changed(contents) = &outage.back {
                    self.write_all(&kept, contents);
                }
                self.put(&kept, was_mounted);
                true
            }
            (Back::Prepared(contents) | Back::Changed(contents), _) => {
                self.clear();
                let prepared = self.new_directory();
                self.write_all(&prepared, contents);
                self.put(&prepared, was_mounted);
                true
            }
            (Back::Dealt(gap), _) => {
                let contents = self.dealt();
                self.clear();
                self.fill(&root, &contents, Duration::from_millis(*gap)) <= patience.fill
            }
            (Back::Cloned(contents, gap), _) => {
                self.clear();
                self.fill(&root, contents, Duration::from_millis(*gap)) <= patience.fill
            }
            (Back::Same, None) => {
                self.volumes.clear();
                let began = Instant::now();
                fs::create_dir_all(&root).unwrap();
                for (path, file) in &mut self.files {
                    file.is_damaged = false;
                    write(&root, path, &file.text(path));
                }
                if self.files.is_empty() {
                    self.write_all(&root, &[new_file()]);
                }
                began.elapsed() <= patience.fill
            }
        };
        if aside.exists() {
            fs::remove_dir_all(aside).unwrap();
        }
        self.is_away = false;
        self.becomes();
        if is_timely { Ok(()) } else { Err(TooSlow) }
    }

    /// Clears the expected files: the next directory shares nothing with the previous one.
    fn clear(&mut self) {
        self.files.clear();
        self.volumes.clear();
    }

    fn write_all(&mut self, directory: &Path, contents: &[Content]) {
        for content in contents {
            let path = PATHS[content.file];
            let model = self.model(content);
            write(directory, path, &model.text(path));
            self.files.insert(path.to_owned(), model);
        }
    }

    /// Writes these files where the source can see each at once, with this pause between them. Returns the longest time between
    /// two of them.
    fn fill(&mut self, root: &Path, contents: &[Content], gap: Duration) -> Duration {
        let before = self.truth.current().clone();
        let (mut began, mut longest) = (Instant::now(), Duration::ZERO);
        fs::create_dir_all(root).unwrap();
        for (at, content) in contents.iter().enumerate() {
            if at > 0 {
                pause(gap);
            }
            self.write_all(root, std::slice::from_ref(content));
            // The server keeps objects that are in no file yet, until it has read the directory.
            self.becomes_with(before.clone());
            longest = longest.max(began.elapsed());
            began = Instant::now();
        }
        self.becomes();
        longest
    }

    fn put(&mut self, directory: &Path, is_mounted: bool) {
        let root = self.root();
        if is_mounted {
            return self.mount(directory);
        }
        if root.exists() {
            fs::remove_dir(&root).unwrap();
        }
        fs::rename(directory, root).unwrap();
    }

    /// Fills the directory that was empty or missing.
    pub(crate) fn appear(&mut self, contents: &[Content]) {
        let root = self.root();
        self.fill(&root, contents, Duration::ZERO);
    }

    /// Removes the empty directory.
    pub(crate) fn vanish(&mut self) {
        fs::remove_dir(self.root()).unwrap();
    }

    /// Returns the current files, with the first object of each in the next one, if it has several. The last one is in a new
    /// file. If all files are in volumes, returns a single new file.
    fn dealt(&self) -> Vec<Content> {
        let document = |(name, _): &(String, String)| Document { object: name[1..].parse().unwrap(), is_new: false };
        let (mut dealt, mut moved) = (Vec::new(), None);
        for (file, path) in PATHS.iter().enumerate() {
            let Some(model) = self.files.get(*path) else { continue };
            let mut documents: Vec<_> = model.objects.iter().map(document).collect();
            let next = (documents.len() > 1).then(|| documents.remove(0));
            documents.extend(std::mem::replace(&mut moved, next));
            dealt.push(Content { file, documents, is_list: model.is_list });
        }
        let unused = (0..PATHS.len()).find(|file| !self.files.contains_key(PATHS[*file]));
        if let (Some(file), Some(document)) = (unused, moved) {
            dealt.push(Content { file, documents: vec![document], is_list: false });
        }
        if dealt.is_empty() {
            dealt.push(new_file());
        }
        dealt
    }
}

/// Returns the single file of a directory without others: a directory without files counts as unavailable.
fn new_file() -> Content {
    Content { file: 0, documents: vec![Document { object: 0, is_new: true }], is_list: false }
}

fn write(directory: &Path, path: &str, text: &str) {
    let path = directory.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}
