//! List of a whole resource, in pages.

use std::{
    borrow::Cow,
    sync::{Arc, atomic::Ordering},
};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    object::{ItemType, ObjectDecoder},
    shared::{KubeShared, ListFailure, ObjectList},
};
use crate::{
    cache::{ListVersion, SourceError},
    model::{JsonText, ObjectError},
    source::{text::one_line, watch_event::describe},
};

/// One page.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page<'a> {
    #[serde(borrow, default)]
    kind: Option<JsonText<'a>>,
    #[serde(borrow, default)]
    api_version: Option<JsonText<'a>>,
    #[serde(borrow)]
    metadata: ListMetadata<'a>,
    /// Go writes null for an empty list.
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ListMetadata<'a> {
    #[serde(borrow)]
    resource_version: Option<JsonText<'a>>,
    #[serde(rename = "continue", borrow)]
    next: Option<JsonText<'a>>,
}

/// client-go's page size.
const PAGE_SIZE: u32 = 500;

/// Reads all pages, at the version of the first.
pub(super) async fn read(shared: &KubeShared, at: &ListVersion) -> Result<ObjectList, ListFailure> {
    read_at(shared, VersionQuery::of(shared, at)).await
}

/// Reads all pages at exactly this version, if the API still has it and supports the parameter: the reading has its version.
pub(super) async fn read_exact(shared: &KubeShared, version: String) -> Result<ObjectList, ListFailure> {
    read_at(shared, VersionQuery { text: version.into(), is_exact: true }).await
}

async fn read_at(shared: &KubeShared, at: VersionQuery) -> Result<ObjectList, ListFailure> {
    // Without a limit the API can answer from its cache unless the most recent state is requested.
    let is_paged = at.is_exact || at.is_empty() || at.is_any() || shared.pages.load(Ordering::Relaxed);
    let limit = shared.config.page_size.or(is_paged.then_some(PAGE_SIZE));
    let limit = limit.map(|limit| limit.to_string());
    let mut first: Vec<(&str, &str)> = at.pairs();
    first.extend(limit.as_deref().map(|limit| ("limit", limit)));
    let mut reading = ObjectList::default();
    let mut next = take(shared, &first, &mut reading).await?;
    if at.is_any() && next.is_some() {
        // The API has no cache: every list is paged.
        shared.pages.store(true, Ordering::Relaxed);
    }
    while let Some(token) = next {
        let mut query = vec![("continue", &*token)];
        query.extend(limit.as_deref().map(|limit| ("limit", limit)));
        next = match take(shared, &query, &mut reading).await {
            Err(ListFailure::Source(SourceError::Expired(why))) => {
                tracing::warn!(why, "page token expired, listing without pages");
                reading = ObjectList::default();
                take(shared, &at.pairs(), &mut reading).await?
            }
            page => page?,
        };
    }
    Ok(reading)
}

/// Reads one page, and returns the token of the next.
async fn take(
    shared: &KubeShared,
    query: &[(&str, &str)],
    reading: &mut ObjectList,
) -> Result<Option<String>, ListFailure> {
    let bytes = shared.api.list(&shared.target(query)).await?;
    let reader = ObjectDecoder::new(&shared.config, shared.known.lock().is_decimal());
    decode(&bytes, reader, reading)
}

/// Adds the objects of a page, and returns the token of the next.
pub(super) fn decode(
    bytes: &[u8],
    reader: ObjectDecoder<'_>,
    reading: &mut ObjectList,
) -> Result<Option<String>, ListFailure> {
    let unreadable = |problem: String| ListFailure::Source(SourceError::Undecodable(problem));
    let page: Page<'_> =
        serde_json::from_slice(bytes).map_err(|error| unreadable(one_line(&format!("list: {error}"))))?;
    let Page { kind, api_version, metadata, items } = page;
    if reading.version.is_empty() {
        metadata.resource_version.as_deref().unwrap_or_default().clone_into(&mut reading.version);
    }
    let listed = ItemType::of_list(kind.as_deref(), api_version.as_deref());
    for item in items.unwrap_or_default() {
        let item = match reader.read_listed(item.get().as_bytes(), listed) {
            Ok(item) => item,
            Err(ObjectError::Version(_)) => return Err(ListFailure::NotDecimal),
            Err(error) => return Err(unreadable(format!("list item: {}", describe(&error)))),
        };
        match item.problem {
            None => reading.objects.push(Arc::new(item.object)),
            Some(problem) => reading.problems.push((Arc::new(item.object), problem)),
        }
    }
    Ok(metadata.next.as_deref().filter(|next| !next.is_empty()).map(str::to_owned))
}

/// Version parameters of a list request.
#[derive(Debug)]
pub(super) struct VersionQuery {
    pub(super) text: Cow<'static, str>,
    /// True if that version is requested, and no later one.
    pub(super) is_exact: bool,
}

impl VersionQuery {
    pub(super) fn of(shared: &KubeShared, at: &ListVersion) -> Self {
        let text = match at {
            ListVersion::Any => Cow::Borrowed("0"),
            ListVersion::MostRecent => Cow::Borrowed(""),
            ListVersion::NotOlderThan(version) => {
                shared.known.lock().text_of(version).map_or(Cow::Borrowed(""), Cow::Owned)
            }
        };
        Self { text, is_exact: false }
    }

    fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    fn is_any(&self) -> bool {
        self.text == "0"
    }

    fn pairs(&self) -> Vec<(&str, &str)> {
        match &*self.text {
            "" => Vec::new(),
            "0" => vec![("resourceVersion", "0")],
            text if self.is_exact => vec![("resourceVersion", text), ("resourceVersionMatch", "Exact")],
            // With a limit and without this, the API would take it for exactly that version.
            text => vec![("resourceVersion", text), ("resourceVersionMatch", "NotOlderThan")],
        }
    }
}
