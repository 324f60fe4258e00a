//! Volumes as kubelet writes them: symbolic links that are swapped.

use std::{fs, os::unix::fs::symlink, path::Path, time::Duration};

use super::{Directory, Volume};
use crate::source_checker::{
    files::{
        content::object,
        script::{Shape, Swap},
    },
    live::pause,
};

impl Directory {
    /// Writes a volume anew, as often as the step says.
    pub(crate) fn swap(&mut self, swap: &Swap) {
        for _ in 0..swap.repeats {
            self.swap_once(swap);
            pause(Duration::from_millis(swap.gap));
        }
    }

    fn swap_once(&mut self, swap: &Swap) {
        let (shape, root) = (swap.shape, self.root());
        let old = self.volumes.get(&shape).cloned();
        let number = old.as_ref().map_or(1, |old| old.number + 1);
        let count = old.as_ref().map_or(swap.files, |old| old.objects.len());
        let mut objects = Vec::new();
        for at in 0..count {
            let known = old.as_ref().filter(|_| !swap.is_new).map(|old| old.objects[at].clone());
            let name = format!("{}-{at:03}", shape.link());
            objects.push(match known {
                Some(known) => known,
                None => (name.clone(), object(&name, self.value())),
            });
        }
        let directory = format!("..{}-{number}", shape.link());
        let below = if shape == Shape::Sub { root.join(&directory).join("sub") } else { root.join(&directory) };
        fs::create_dir_all(&below).unwrap();
        for (at, (_, body)) in objects.iter().enumerate() {
            fs::write(below.join(format!("{at:03}.json")), body).unwrap();
        }
        // In the order of kubelet's AtomicWriter: a new link, a rename, and the removal of the old directory.
        let data = root.join(shape.data());
        let beside = root.join(format!("..{}_tmp", shape.link()));
        symlink(&directory, &beside).unwrap();
        fs::rename(&beside, &data).unwrap();
        self.volumes.insert(shape, Volume { number, objects });
        if let Some(old) = old {
            fs::remove_dir_all(root.join(format!("..{}-{}", shape.link(), old.number))).unwrap();
        } else {
            shape.create_links(&root, count);
        }
        self.becomes();
    }

    /// Removes a volume.
    pub(crate) fn unlink(&mut self, shape: Shape) {
        let Some(volume) = self.volumes.remove(&shape) else { return };
        let root = self.root();
        match shape {
            Shape::Each => fs::remove_dir_all(root.join(shape.link())).unwrap(),
            Shape::Sub | Shape::Direct => fs::remove_file(root.join(shape.link())).unwrap(),
        }
        if shape != Shape::Direct {
            fs::remove_file(root.join(shape.data())).unwrap();
        }
        fs::remove_dir_all(root.join(format!("..{}-{}", shape.link(), volume.number))).unwrap();
        self.becomes();
    }
}

// === impl Shape ===

impl Shape {
    pub(super) fn link(self) -> &'static str {
        match self {
            Self::Sub => "sub",
            Self::Direct => "current",
            Self::Each => "volume",
        }
    }

    /// Returns the link that is swapped.
    fn data(self) -> &'static str {
        match self {
            Self::Sub => "..data",
            Self::Direct => "current",
            Self::Each => "..volume",
        }
    }

    fn create_links(self, root: &Path, files: usize) {
        match self {
            Self::Sub => symlink("..data/sub", root.join("sub")).unwrap(),
            Self::Direct => {}
            Self::Each => {
                fs::create_dir_all(root.join("volume")).unwrap();
                for at in 0..files {
                    let target = format!("../..volume/{at:03}.json");
                    symlink(target, root.join(format!("volume/{at:03}.json"))).unwrap();
                }
            }
        }
    }
}
