//! The form of the table: what a row may have, and what becomes of it.

use std::fmt;

/// A row of the configuration reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Its path in the file, such as `watch.queue_length`; `<name>` stands for any name.
    pub path: &'static str,
    /// The form of its value and its bounds, such as `duration, 100ms to 5m`.
    pub form: &'static str,
    /// The default as it would be written; `None` when no value stands for leaving it out.
    pub default: Option<&'static str>,
    /// The meaning, in a few words.
    pub meaning: &'static str,
    /// The flag that wins over it.
    pub flag: Option<KeyFlag>,
}

/// A flag that stands for a key, and its environment variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyFlag {
    /// The name after `--`.
    pub name: &'static str,
    /// The value, as help shows it.
    pub value: &'static str,
    /// The environment variable.
    pub variable: &'static str,
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub(super) enum Row {
    /// A key with a value.
    Key(Key),
    /// The rows of a section.
    Section(&'static [Row]),
}

/// Declares the keys of a section: each is a row of the reference, a field of the struct, and perhaps a flag.
///
/// A row is `field: type = default, reader, "meaning";`. What it may have besides, in this order:
///
/// | | |
/// |---|---|
/// | `field ("key"): …` | the key, if it has another name than the field |
/// | `reader in 1..=100` | the least and the most that the key may have |
/// | `reader or none` | `none` may stand for a value, and makes the field an `Option` |
/// | `text where check` | a check of the text, which returns a `ValueError` |
/// | `"meaning", flag("name", "VALUE", "VARIABLE")` | a flag and an environment variable that win over the key |
///
/// - The reader is a `fn(&Value) -> Result<type, ValueError>`; the reference calls the form of a value by its name.
/// - Defaults and bounds are texts as they would be written in the file, for the same reader.
/// - In place of a default: `empty`, for a text or list; `(required "is missing; …")`, the problem of a key that has to be
///   written; or nothing, for a key that may be left out and whose field is an `Option`.
/// - `..Struct;` stands for the rows of a section below, which is read by itself.
macro_rules! rows {
    (
        $(#[$attr:meta])*
        $vis:vis struct $name:ident at $at:literal {
            $(
                $(
                    $field:ident $(($key:literal))? : $type:ty $(= $default:tt)?,
                    $read:ident $(in $least:literal ..= $most:literal)? $(or $none:ident)? $(where $check:path)?,
                    $meaning:literal $(, flag($($flag:literal),+))?
                )?
                $(..$section:ident)?
            ;)*
        }
    ) => {
        $(#[$attr])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[allow(rustdoc::bare_urls, rustdoc::broken_intra_doc_links, reason = "meanings are texts, not markdown")]
        $vis struct $name {
            $($(
                #[doc = concat!(
                    "`", $at, rows!(@key $field $($key)?), "`, ", rows!(@form $read $(in $least $most)? $(or $none)?),
                    rows!(@by_default $($default)?), ": ", $meaning, "."
                )]
                $vis $field: $type,
            )?)*
        }

        impl $name {
            /// Its rows of the table.
            pub(super) const ROWS: &'static [$crate::config::rows::Row] = &[$(
                $($crate::config::rows::Row::Key($crate::config::rows::Key {
                    path: concat!($at, rows!(@key $field $($key)?)),
                    form: rows!(@form $read $(in $least $most)? $(or $none)?),
                    default: rows!(@shown $($default)?),
                    meaning: $meaning,
                    flag: rows!(@flag $($($flag),+)?),
                }),)?
                $($crate::config::rows::Row::Section($section::ROWS),)?
            )*];

            /// Reads its keys; replaces what is wrong or missing by a default, and adds the problem.
            pub(super) fn read(section: &$crate::config::section::Section<'_>) -> Self {
                Self {$($(
                    $field: {
                        let read = rows!(@reader $read $(in $least $most)? $(or $none)? $(where $check)?);
                        rows!(@read section, rows!(@key $field $($key)?), read, $($default)?)
                    },
                )?)*}
            }
        }

        impl Default for $name {
            fn default() -> Self {
                $crate::config::section::Input::none(|section| Self::read(section))
            }
        }
    };
    // What the parts of a row become.
    (@key $field:ident) => { stringify!($field) };
    (@key $field:ident $key:literal) => { $key };
    (@form $read:ident $(in $least:literal $most:literal)? $(or $none:ident)?) => {
        concat!(stringify!($read), $(", ", $least, " to ", $most,)? $(" or ", stringify!($none))?)
    };
    (@shown $default:literal) => { Some($default) };
    (@shown $($default:tt)?) => { None };
    (@by_default $default:literal) => { concat!(", by default `", $default, "`") };
    (@by_default $($default:tt)?) => { "" };
    (@flag) => { None };
    (@flag $name:literal, $value:literal, $variable:literal) => {
        Some($crate::config::rows::KeyFlag { name: $name, value: $value, variable: $variable })
    };
    (@reader $read:ident) => { $read };
    (@reader $read:ident in $least:literal $most:literal) => {
        value::within(stringify!($read), concat!($least), concat!($most), $read)
    };
    (@reader $read:ident $(in $least:literal $most:literal)? or $none:ident) => {
        value::or_none(rows!(@reader $read $(in $least $most)?))
    };
    (@reader $read:ident where $check:path) => { value::checked($read, $check) };
    (@read $section:ident, $key:expr, $read:ident, empty) => { $section.optional($key, $read).unwrap_or_default() };
    (@read $section:ident, $key:expr, $read:ident, (required $problem:literal)) => {
        $section.required($key, $problem, $read)
    };
    (@read $section:ident, $key:expr, $read:ident, $default:literal) => { $section.or_default($key, $default, $read) };
    (@read $section:ident, $key:expr, $read:ident,) => { $section.optional($key, $read) };
}
pub(super) use rows;

// === impl KeyFlag ===

impl fmt::Display for KeyFlag {
    /// As errors name it: the user may have set the variable.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--{} (or {})", self.name, self.variable)
    }
}

// === impl Row ===

impl Row {
    /// Adds the keys of these rows.
    pub(super) fn flatten(rows: &[Self], keys: &mut Vec<Key>) {
        for row in rows {
            match row {
                Self::Key(key) => keys.push(*key),
                Self::Section(rows) => Self::flatten(rows, keys),
            }
        }
    }
}
