//! Lists among the values of a manifest file.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// Fields by which a list differs from an object. Only a list is read this way; objects are read by
/// [`Object::from_json`](crate::model::Object::from_json).
#[derive(Deserialize)]
struct ListHead<'a> {
    #[serde(rename = "apiVersion", borrow, default)]
    api_version: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    metadata: Option<ListMeta<'a>>,
    #[serde(borrow, default)]
    items: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ListMeta<'a> {
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
}

/// Type of the items of a `PodList`, for example: the API server omits it in them.
#[derive(Default)]
pub(super) struct Implied {
    pub(super) api_version: String,
    pub(super) kind: String,
}

// === impl Implied ===

impl Implied {
    fn of(list_kind: &str, api_version: &str) -> Self {
        match list_kind.strip_suffix("List") {
            None | Some("") => Self::default(),
            Some(kind) => Self { api_version: api_version.to_owned(), kind: kind.to_owned() },
        }
    }
}

/// Returns the type of a list's items, and their text; `None` if the value is not a list.
pub(super) fn list_head(json: &[u8]) -> Option<(Implied, &str)> {
    // A search for the word costs far less than parsing every object, nearly none of which is a list.
    if json.first() != Some(&b'{') || memchr::memmem::find(json, b"List\"").is_none() {
        return None;
    }
    let head: ListHead<'_> = serde_json::from_slice(json).ok()?;
    let kind = head.kind.unwrap_or_default();
    let named = head.metadata.and_then(|metadata| metadata.name).is_some_and(|name| !name.is_empty());
    let items = head.items.map_or("null", RawValue::get);
    if !is_list(&kind, named, items.starts_with('[')) {
        return None;
    }
    let items = if items == "null" { "[]" } else { items };
    Some((Implied::of(&kind, &head.api_version.unwrap_or_default()), items))
}

/// Returns true for a list. Kubernetes' lists have no name, and objects do: a custom `AllowList` with `items` stays one object.
fn is_list(kind: &str, named: bool, has_items: bool) -> bool {
    kind == "List" || (kind.ends_with("List") && has_items && !named)
}
