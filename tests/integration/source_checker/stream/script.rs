//! Script of one stream: its consecutive writers, what they write, and how their bytes are cut.

use proptest::{collection::vec, prelude::*, sample::select};

/// One history.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) seed: u64,
    pub(crate) input: Input,
    /// True if each writer begins with all objects; otherwise it writes changes only.
    pub(crate) confirms: bool,
    pub(crate) writers: Vec<Writer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    Pipe,
    /// File that is complete when the source starts, with what the first writer writes.
    File,
}

/// Process that writes to the pipe.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    pub(crate) begin: Begin,
    pub(crate) events: Vec<Piece>,
    pub(crate) end: End,
    /// True if the next writer waits until the server has noticed the end.
    pub(crate) is_noticed: bool,
    pub(crate) pace: Pace,
}

/// Initial events of a writer, about the objects that exist when it begins.
#[derive(Debug, Clone)]
pub(crate) enum Begin {
    /// All objects, as `kubectl get --watch` writes them, and perhaps the bookmark that ends the initial events. Some of the
    /// objects have other bodies.
    All { has_end: bool, changed: Vec<bool> },
    /// The objects that still exist: the others were deleted meanwhile.
    Part { has_end: bool, kept: Vec<bool> },
    /// No objects. The bookmark that ends the initial events shows that all were deleted meanwhile; without it, the first event
    /// that is not one of them shows it.
    None { has_end: bool },
    /// No event of an object; then the writer ends.
    Silent(Silence),
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Silence {
    /// Open and close of the pipe only.
    Nothing,
    Error,
    Garbage(Garbage),
}

#[derive(Debug, Clone)]
pub(crate) enum Piece {
    /// ADDED or MODIFIED.
    Put {
        object: usize,
        is_added: bool,
        is_new: bool,
        shape: Shape,
    },
    Delete {
        object: usize,
        shape: Shape,
    },
    Bookmark,
    Error,
    Garbage(Garbage),
    /// Event that breaks off at this percentage, and a new line.
    Torn(usize),
    Pause(u64),
    Quiet,
}

// === impl Begin ===

impl Begin {
    /// Returns the kind under which it is counted.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::All { .. } => "writer that repeats everything",
            Self::Part { .. } => "writer that repeats a part",
            Self::None { .. } => "writer that repeats nothing",
            Self::Silent(_) => "writer without an event",
        }
    }
}

// === impl Piece ===

impl Piece {
    /// Returns the kind under which it is counted.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Put { .. } => "put",
            Self::Delete { .. } => "deletion",
            Self::Bookmark => "bookmark",
            Self::Error => "error",
            Self::Garbage(_) => "garbage",
            Self::Torn(_) => "torn event",
            Self::Pause(_) => "pause",
            Self::Quiet => "quiet",
        }
    }
}

/// Layout of an event.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape {
    /// One per line.
    Line,
    /// Directly between its neighbours.
    Joined,
    /// Over several lines.
    Pretty,
}

/// Lines that are no event.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Garbage {
    Text,
    Binary,
    List,
    NoType,
    UnknownType,
    NoName,
    /// Event whose text is not UTF-8.
    NotUtf8,
    /// Brackets that are never closed.
    Deep,
    /// Event larger than the limit of an object.
    Huge,
}

impl Garbage {
    /// Returns true for what may be an event of an object.
    pub(crate) fn is_event(self) -> bool {
        !matches!(self, Self::Text | Self::Binary | Self::List)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Clean,
    /// Inside an event, at this percentage.
    Torn(usize),
}

/// Cuts of the bytes into writes.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    /// Sizes in bytes, used in turn and then again.
    pub(crate) sizes: Vec<usize>,
    /// Pause between writes, in microseconds.
    pub(crate) gap: u64,
}

/// Number of objects of a history.
pub(crate) const OBJECTS: usize = 6;

fn garbage() -> impl Strategy<Value = Garbage> {
    prop_oneof![
        8 => select(vec![
            Garbage::Text,
            Garbage::Binary,
            Garbage::List,
            Garbage::NoType,
            Garbage::UnknownType,
            Garbage::NoName,
            Garbage::NotUtf8,
            Garbage::Deep,
        ]),
        1 => Just(Garbage::Huge),
    ]
}

fn piece() -> impl Strategy<Value = Piece> {
    let shape = || select(vec![Shape::Line, Shape::Line, Shape::Joined, Shape::Pretty]);
    prop_oneof![
        12 => (0..OBJECTS, any::<bool>(), prop::bool::weighted(0.8), shape())
            .prop_map(|(object, is_added, is_new, shape)| Piece::Put { object, is_added, is_new, shape }),
        4 => (0..OBJECTS, shape()).prop_map(|(object, shape)| Piece::Delete { object, shape }),
        1 => Just(Piece::Bookmark),
        1 => Just(Piece::Error),
        2 => garbage().prop_map(Piece::Garbage),
        2 => (1_usize..100).prop_map(Piece::Torn),
        1 => (1_u64..40).prop_map(Piece::Pause),
        2 => Just(Piece::Quiet),
    ]
}

fn writer() -> impl Strategy<Value = Writer> {
    let flags = || vec(any::<bool>(), OBJECTS + 1);
    let begin = prop_oneof![
        3 => (any::<bool>(), flags()).prop_map(|(has_end, changed)| Begin::All { has_end, changed }),
        3 => (any::<bool>(), flags()).prop_map(|(has_end, kept)| Begin::Part { has_end, kept }),
        1 => any::<bool>().prop_map(|has_end| Begin::None { has_end }),
        1 => Just(Begin::Silent(Silence::Nothing)),
        1 => Just(Begin::Silent(Silence::Error)),
        1 => garbage().prop_map(|garbage| Begin::Silent(Silence::Garbage(garbage))),
    ];
    let end = prop_oneof![2 => Just(End::Clean), 1 => (1_usize..100).prop_map(End::Torn)];
    let pace = prop_oneof![
        2 => Just((vec![1 << 20], 0)),
        2 => (vec(1_usize..200, 1..8), 0_u64..500),
        1 => (vec(1_usize..4, 1..4), Just(0)),
    ];
    (begin, vec(piece(), 0..10), end, prop::bool::weighted(0.8), pace).prop_map(
        |(begin, events, end, is_noticed, (sizes, gap))| Writer {
            begin,
            events,
            end,
            is_noticed,
            pace: Pace { sizes, gap },
        },
    )
}

/// Returns any history.
pub(crate) fn any_script() -> impl Strategy<Value = Script> {
    let input = prop_oneof![6 => Just(Input::Pipe), 1 => Just(Input::File)];
    let confirms = prop::bool::weighted(0.85);
    (any::<u64>(), input, confirms, vec(writer(), 1..5)).prop_map(|(seed, input, confirms, writers)| Script {
        seed,
        input,
        confirms,
        writers,
    })
}
