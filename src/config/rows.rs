//! Syntax of the table: the parts of a row, and the code that is generated from it.

use std::fmt;

/// Row of the configuration reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Path in the file, such as `watch.queue_length`; `<name>` stands for any name.
    pub path: &'static str,
    /// Form of the value and its bounds, such as `duration, 100ms to 5m`.
    pub form: &'static str,
    /// Default as it would be written; `None` if no value is equivalent to omitting the key.
    pub default: Option<&'static str>,
    /// Meaning, in a few words.
    pub meaning: &'static str,
    /// Flag that takes precedence over the key.
    pub flag: Option<KeyFlag>,
}

/// Flag for a key, and its environment variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyFlag {
    /// Name after `--`.
    pub name: &'static str,
    /// Placeholder of the value in the help.
    pub value: &'static str,
    /// Environment variable.
    pub variable: &'static str,
}

/// Row of the table.
#[derive(Debug, Clone, Copy)]
pub(super) enum Row {
    /// Key with a value.
    Key(Key),
    /// Rows of a section.
    Section(&'static [Row]),
}

/// Declares the keys of a section: each is a row of the reference, a field of the struct, and perhaps a flag.
///
/// A row is `field: type = default, reader, "meaning";`. Its optional parts, in this order:
///
/// | | |
/// |---|---|
/// | `field ("key"): …` | the key, if its name differs from the field's |
/// | `reader in 1..=100` | the minimum and the maximum of the value |
/// | `reader or none` | `none` is also a value, and makes the field an `Option` |
/// | `text where check` | a check of the text, which returns a `ValueError` |
/// | `"meaning", flag("name", "VALUE", "VARIABLE")` | a flag and an environment variable that take precedence over the key |
///
/// - The reader is a `fn(&Value) -> Result<type, ValueError>`; the reference uses its name for the form of a value.
/// - Defaults and bounds are texts as in the file, for the same reader.
/// - In place of a default: `empty`, for a text or list; `(required "is missing; …")`, the problem of a missing required key;
///   or nothing, for an optional key whose field is an `Option`.
/// - `..Struct;` stands for the rows of a subsection, which is read separately.
/// - `impl Type at …` reads the keys into fields of a type that is declared elsewhere, such as a source's. Its rows have no types, and
///   `field.part ("key")` is a field of a field.
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
            /// Rows of the table.
            pub(super) const ROWS: &'static [$crate::config::rows::Row] = &[$(
                $(rows!(
                    @row $at, $field $(($key))? $(= $default)?, $read $(in $least ..= $most)? $(or $none)?, $meaning
                    $(, $($flag),+)?
                ),)?
                $($crate::config::rows::Row::Section($section::ROWS),)?
            )*];

            /// Reads the keys; replaces an invalid or missing value by a default, and adds the problem.
            pub(super) fn read(section: &$crate::config::section::Section<'_>) -> Self {
                Self {$($(
                    $field: rows!(
                        @value section, $field $(($key))? $(= $default)?,
                        $read $(in $least ..= $most)? $(or $none)? $(where $check)?
                    ),
                )?)*}
            }
        }

        impl Default for $name {
            fn default() -> Self {
                $crate::config::section::Input::none(|section| Self::read(section))
            }
        }
    };
    (
        impl $name:ident at $at:literal {
            $(
                $field:ident $(.$part:ident)? $(($key:literal))? $(= $default:tt)?,
                $read:ident $(in $least:literal ..= $most:literal)? $(or $none:ident)? $(where $check:path)?,
                $meaning:literal
            ;)*
        }
    ) => {
        impl $name {
            /// Rows of the table.
            pub(super) const ROWS: &'static [$crate::config::rows::Row] = &[$(rows!(
                @row $at, $field $(($key))? $(= $default)?, $read $(in $least ..= $most)? $(or $none)?, $meaning
            )),*];

            /// Reads the keys into their fields; replaces an invalid or missing value by a default, and adds the problem.
            pub(super) fn read(mut self, section: &$crate::config::section::Section<'_>) -> Self {
                $(self.$field$(.$part)? = rows!(
                    @value section, $field $(($key))? $(= $default)?,
                    $read $(in $least ..= $most)? $(or $none)? $(where $check)?
                );)*
                self
            }
        }
    };
    // Expansion of the parts of a row.
    (
        @row $at:literal, $field:ident $(($key:literal))? $(= $default:tt)?,
        $read:ident $(in $least:literal ..= $most:literal)? $(or $none:ident)?, $meaning:literal $(, $($flag:literal),+)?
    ) => {
        $crate::config::rows::Row::Key($crate::config::rows::Key {
            path: concat!($at, rows!(@key $field $($key)?)),
            form: rows!(@form $read $(in $least $most)? $(or $none)?),
            default: rows!(@shown $($default)?),
            meaning: $meaning,
            flag: rows!(@flag $($($flag),+)?),
        })
    };
    (
        @value $section:ident, $field:ident $(($key:literal))? $(= $default:tt)?,
        $read:ident $(in $least:literal ..= $most:literal)? $(or $none:ident)? $(where $check:path)?
    ) => {{
        let read = rows!(@reader $read $(in $least $most)? $(or $none)? $(where $check)?);
        rows!(@read $section, rows!(@key $field $($key)?), read, $($default)?)
    }};
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
    /// Writes the name for errors, with the variable, because the user may have set that.
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
