//! Places of values in a YAML document.

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Options, Spanned};

/// Step from a value to one inside of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Key(String),
    Item(usize),
}

/// Returns the line and the column of the value at the end of these steps; `None` if it is not found.
pub(super) fn find(document: &str, options: Options, steps: &[Step]) -> Option<(usize, usize)> {
    let found =
        serde_saphyr::with_deserializer_from_str_with_options(document, options, |yaml| Seek(steps).deserialize(yaml));
    found.ok().flatten()
}

/// Returns the scalar that begins at a place, as it is written; empty if it is none in one word.
pub(super) fn word_at(text: &str, (line, column): (usize, usize)) -> &str {
    let line = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    let begin = line.char_indices().nth(column.saturating_sub(1)).map_or(line.len(), |(at, _)| at);
    let rest = &line[begin..];
    let end = rest.find(|c: char| c.is_whitespace() || ",]}".contains(c)).unwrap_or(rest.len());
    &rest[..end]
}

struct Seek<'s>(&'s [Step]);

impl<'de> DeserializeSeed<'de> for Seek<'_> {
    type Value = Option<(usize, usize)>;

    fn deserialize<D: Deserializer<'de>>(self, yaml: D) -> Result<Self::Value, D::Error> {
        if self.0.is_empty() {
            let spanned = <Spanned<IgnoredAny> as serde::Deserialize>::deserialize(yaml)?;
            let (line, column) = (spanned.referenced.line(), spanned.referenced.column());
            return Ok(usize::try_from(line).ok().zip(usize::try_from(column).ok()));
        }
        yaml.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seek<'_> {
    type Value = Option<(usize, usize)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a map or a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            match self.0 {
                [Step::Key(wanted), rest @ ..] if *wanted == key => found = map.next_value_seed(Seek(rest))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let [Step::Item(wanted), rest @ ..] = self.0 else {
            while items.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(None);
        };
        for _ in 0..*wanted {
            items.next_element::<IgnoredAny>()?;
        }
        let found = items.next_element_seed(Seek(rest))?.flatten();
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(found)
    }
}
