//! Script of one directory: its writes and its faults.

use super::directory::Directory;
use proptest::{collection::vec, prelude::*, sample::select};

/// One history.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) seed: u64,
    /// True if the root is a mount point, where mounting is permitted.
    pub(crate) is_mounted: bool,
    pub(crate) begin: Begin,
    pub(crate) first: Vec<Content>,
    pub(crate) steps: Vec<Step>,
}

/// Directory when the source starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    Full,
    Empty,
    Missing,
}

/// File, and its objects from now on.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    /// Index into [`PATHS`].
    pub(crate) file: usize,
    pub(crate) documents: Vec<Document>,
    /// True for one `kind: List`, false for a document per object.
    pub(crate) is_list: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Document {
    pub(crate) object: usize,
    /// True if the object gets a new body; otherwise it keeps its body, if it has one.
    pub(crate) is_new: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Write(Content, How),
    /// Write of the same objects with new bodies one by one, with the file closed after each, so that it has fewer objects
    /// meanwhile. The pause is in milliseconds.
    Parts(usize, u64),
    Remove(usize),
    /// Removal of every file that is no link, one after the other.
    RemoveAll,
    /// Rename of a file over another one, if there is one.
    Rename(usize, usize),
    /// Rename of a directory to an unused name, back and forth so many times.
    RenameDirectory(usize, usize, u64),
    /// Move of one object from a file to another, back and forth so many times; the new copy is written first.
    Move(usize, usize, u64),
    /// Fault that makes a part of a file unreadable: it keeps its objects.
    Damage(usize, Damage),
    /// Rename of a file with a mistake in it, then the removal of another one, and the correction.
    Spoil(usize, usize, usize),
    /// Restart of the server, which is killed.
    Restart(Restart),
    /// Write of a volume as kubelet does: a new directory, a link that is swapped, and the removal of the old directory.
    Swap(Swap),
    Unlink(Shape),
    Outage(Outage),
    Forbid(Target, u32),
    /// Overflow of the kernel's queue of notifications.
    Flood,
    Pause(u64),
    Quiet,
}

// === impl Document ===

impl Document {
    pub(crate) fn name(self) -> String {
        format!("o{}", self.object)
    }
}

// === impl Step ===

impl Step {
    /// Returns the kinds under which it is counted.
    pub(crate) fn kinds(&self, directory: &Directory) -> Vec<&'static str> {
        match self {
            Self::Write(content, _) if directory.moves_an_object(content) => vec!["object that moves"],
            Self::Write(content, How::Slowly(..)) if directory.is_in_new_directory(content) => {
                vec!["slow write in a new directory"]
            }
            Self::Parts(..) => vec!["write in parts"],
            Self::Write(_, How::InPlace) => vec!["write"],
            Self::Write(_, How::Replace) => vec!["rename over a file"],
            Self::Write(_, How::Slowly(..)) => vec!["slow write"],
            Self::Remove(_) => vec!["deletion"],
            Self::RemoveAll => vec!["deletion of all files"],
            Self::Rename(..) => vec!["renamed file"],
            Self::RenameDirectory(..) => vec!["renamed directory"],
            Self::Move(..) => vec!["object that moves"],
            Self::Damage(_, Damage::Label) => vec!["unreadable document"],
            Self::Damage(..) => vec!["unusable file"],
            Self::Spoil(..) => vec!["renamed with a mistake"],
            Self::Restart(Restart { has_snapshot: true, .. }) => vec!["restart with a snapshot"],
            Self::Restart(_) => vec!["restart"],
            Self::Swap(_) => vec!["swapped link"],
            Self::Unlink(_) => vec!["removed link"],
            Self::Outage(outage) => outage.kinds(directory),
            Self::Flood => vec!["too many notifications"],
            Self::Forbid(..) | Self::Pause(_) | Self::Quiet => Vec::new(),
        }
    }
}

// === impl Outage ===

impl Outage {
    fn kinds(&self, directory: &Directory) -> Vec<&'static str> {
        let is_mounted = directory.is_mounted();
        let gone = match (is_mounted, self.is_removed) {
            (true, _) => "unmounted",
            (false, true) => "rm -rf",
            (false, false) => "moved away",
        };
        let back = match &self.back {
            Back::Same => "comes back",
            Back::Changed(_) => "comes back changed",
            Back::Dealt(_) => "clone in which objects move",
            Back::Cloned(contents, _) if directory.moves_objects(contents) => "clone in which objects move",
            Back::Cloned(..) => "clone",
            Back::Prepared(_) => "another directory",
        };
        let mut kinds = vec![gone, back];
        if self.is_empty_between && !is_mounted {
            kinds.push("empty directory in its place");
        }
        kinds
    }
}

#[derive(Debug, Clone)]
pub(crate) enum How {
    InPlace,
    /// Write of a file next to it, and a rename over it.
    Replace,
    /// Write in pieces, cut at these percentages of the text, with this pause between them, in milliseconds.
    Slowly(Vec<usize>, u64),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Restart {
    /// True if the server has written a snapshot before, and its next start uses it.
    pub(crate) has_snapshot: bool,
    /// Damage while it does not run, of a file.
    pub(crate) damage: Option<(usize, Damage)>,
    /// File that is removed while the state is incomplete.
    pub(crate) removed: usize,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Damage {
    /// Value of the wrong type in the last object.
    Label,
    Cut,
    Binary,
    Text,
    Blank,
}

/// Path to the files of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shape {
    /// `sub -> ..data/sub`: `items` with a path.
    Sub,
    /// `current -> ..7`.
    Direct,
    /// A directory with a link for each file.
    Each,
}

#[derive(Debug, Clone)]
pub(crate) struct Swap {
    pub(crate) shape: Shape,
    pub(crate) files: usize,
    pub(crate) repeats: u64,
    /// Pause between two of them, in milliseconds.
    pub(crate) gap: u64,
    pub(crate) is_new: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Outage {
    /// True for `rm -rf`; otherwise the directory is moved away, or unmounted.
    pub(crate) is_removed: bool,
    /// True if there is an empty directory meanwhile.
    pub(crate) is_empty_between: bool,
    /// True if it lasts until the resource is STALE.
    pub(crate) is_noticed: bool,
    pub(crate) back: Back,
}

#[derive(Debug, Clone)]
pub(crate) enum Back {
    Same,
    /// The same directory, with these changes.
    Changed(Vec<Content>),
    /// Another directory with these files, written one after the other in the served place, with this pause between them, in
    /// milliseconds.
    Cloned(Vec<Content>, u64),
    /// The same with the files from before and one more; the first object of each is in the next one.
    Dealt(u64),
    /// Another directory with these files, moved there as a whole.
    Prepared(Vec<Content>),
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    Root,
    Directory(usize),
    File(usize),
}

pub(crate) const PATHS: [&str; 9] =
    ["a.json", "b.yaml", "c.yml", "d0/a.json", "d0/b.yaml", "d1/a.json", "d1/b.yaml", "d1/deep/er/c.yaml", "d2/z.json"];

pub(crate) const DIRECTORIES: [&str; 3] = ["d0", "d1", "d2"];

/// Number of objects in ordinary files.
const OBJECTS: usize = 7;

fn content() -> impl Strategy<Value = Content> {
    let document = (0..OBJECTS, prop::bool::weighted(0.7)).prop_map(|(object, is_new)| Document { object, is_new });
    (0..PATHS.len(), vec(document, 1..4), prop::bool::weighted(0.3)).prop_map(|(file, documents, is_list)| Content {
        file,
        documents,
        is_list,
    })
}

fn how() -> impl Strategy<Value = How> {
    prop_oneof![
        4 => Just(How::InPlace),
        3 => Just(How::Replace),
        2 => (vec(1_usize..100, 1..3), 20_u64..260).prop_map(|(cuts, gap)| How::Slowly(cuts, gap)),
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    select(vec![Shape::Sub, Shape::Direct, Shape::Each])
}

fn swap() -> impl Strategy<Value = Swap> {
    (shape(), prop_oneof![2 => 1_usize..8, 1 => 60_usize..160], 1_u64..12, 0_u64..15, prop::bool::weighted(0.3))
        .prop_map(|(shape, files, repeats, gap, is_new)| Swap { shape, files, repeats, gap, is_new })
}

fn outage() -> impl Strategy<Value = Outage> {
    let back = prop_oneof![
        2 => Just(Back::Same),
        1 => vec(content(), 1..4).prop_map(Back::Changed),
        2 => (vec(content(), 1..6), prop_oneof![Just(0), 20_u64..80]).prop_map(|(files, gap)| Back::Cloned(files, gap)),
        3 => (40_u64..80).prop_map(Back::Dealt),
        1 => vec(content(), 1..6).prop_map(Back::Prepared),
    ];
    (any::<bool>(), any::<bool>(), prop::bool::weighted(0.7), back).prop_map(
        |(is_removed, is_empty_between, is_noticed, back)| Outage { is_removed, is_empty_between, is_noticed, back },
    )
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        Just(Target::Root),
        (0..DIRECTORIES.len()).prop_map(Target::Directory),
        (0..PATHS.len()).prop_map(Target::File),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let file = || 0..PATHS.len();
    let directory = || 0..DIRECTORIES.len();
    let times = || prop_oneof![2 => Just(1_u64), 1 => 2_u64..30];
    let damage = || {
        let whole = vec![Damage::Cut, Damage::Binary, Damage::Text, Damage::Blank];
        prop_oneof![1 => Just(Damage::Label), 2 => select(whole)]
    };
    let restart = (any::<bool>(), proptest::option::of((file(), damage())), file())
        .prop_map(|(has_snapshot, damage, removed)| Restart { has_snapshot, damage, removed });
    prop_oneof![
        20 => (content(), how()).prop_map(|(content, how)| Step::Write(content, how)),
        4 => (file(), 50_u64..90).prop_map(|(file, gap)| Step::Parts(file, gap)),
        6 => file().prop_map(Step::Remove),
        1 => Just(Step::RemoveAll),
        5 => (file(), file()).prop_map(|(from, to)| Step::Rename(from, to)),
        3 => (directory(), directory(), times()).prop_map(|(from, to, times)| Step::RenameDirectory(from, to, times)),
        4 => (file(), file(), times()).prop_map(|(from, to, times)| Step::Move(from, to, times)),
        4 => (file(), damage()).prop_map(|(file, damage)| Step::Damage(file, damage)),
        3 => (file(), file(), file()).prop_map(|(from, to, removed)| Step::Spoil(from, to, removed)),
        4 => restart.prop_map(Step::Restart),
        5 => swap().prop_map(Step::Swap),
        1 => shape().prop_map(Step::Unlink),
        4 => outage().prop_map(Step::Outage),
        3 => (target(), select(vec![0o000, 0o444, 0o111])).prop_map(|(target, mode)| Step::Forbid(target, mode)),
        1 => Just(Step::Flood),
        8 => (1_u64..120).prop_map(Step::Pause),
        10 => Just(Step::Quiet),
    ]
}

/// Returns any history.
pub(crate) fn any_script() -> impl Strategy<Value = Script> {
    let begin = prop_oneof![6 => Just(Begin::Full), 1 => Just(Begin::Empty), 1 => Just(Begin::Missing)];
    (any::<u64>(), prop::bool::weighted(0.4), begin, vec(content(), 1..6), vec(step(), 4..16))
        .prop_map(|(seed, is_mounted, begin, first, steps)| Script { seed, is_mounted, begin, first, steps })
}
