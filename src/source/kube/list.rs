//! List of a whole resource, in pages.

use std::{
    borrow::Cow,
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};

use super::{
    object::{ItemType, ObjectDecoder},
    shared::{KubeShared, ObjectList},
    unreadable::UnreadableObject,
};
use crate::{
    cache::{ListVersion, SourceError},
    model::{JsonText, ObjectKey},
    source::text::one_line,
};

/// One page.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Page<'a> {
    #[serde(borrow, default)]
    pub(super) kind: Option<JsonText<'a>>,
    #[serde(borrow, default)]
    pub(super) api_version: Option<JsonText<'a>>,
    #[serde(borrow, default)]
    pub(super) metadata: Option<ListMetadata<'a>>,
    /// `None` if there is no such field: the answer is no list. Go writes null for an empty list.
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) items: Option<Items<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ListMetadata<'a> {
    #[serde(borrow)]
    pub(super) resource_version: Option<JsonText<'a>>,
    #[serde(rename = "continue", borrow)]
    next: Option<JsonText<'a>>,
}

/// Items of a list; none for null.
pub(super) struct Items<'a>(pub(super) Vec<&'a RawValue>);

/// Progress of a list in pages, which shows pages without an end.
struct PageProgress {
    tokens: HashSet<String>,
    /// First object of each page.
    firsts: HashSet<ObjectKey>,
    /// Objects before the last page.
    before: usize,
    /// Pages in a row that begin with no new object.
    idle: u32,
    ends_at: Instant,
}

/// client-go's page size.
const PAGE_SIZE: u32 = 500;
/// Longest time for all pages of a list, and for all initial events. kube-apiserver's page tokens expire after 5 minutes.
pub(super) const MAX_LIST_TIME: Duration = Duration::from_secs(600);
/// Limit of pages in a row that begin with no new object.
const MAX_IDLE_PAGES: u32 = 100;

/// Reads all pages, at the version of the first.
pub(super) async fn read(shared: &KubeShared, at: &ListVersion) -> Result<ObjectList, SourceError> {
    read_at(shared, VersionQuery::of(shared, at)).await
}

/// Reads all pages at exactly this version, if the API still has it and supports the parameter: the reading has its version.
pub(super) async fn read_exact(shared: &KubeShared, version: String) -> Result<ObjectList, SourceError> {
    read_at(shared, VersionQuery { text: version.into(), is_exact: true }).await
}

async fn read_at(shared: &KubeShared, at: VersionQuery) -> Result<ObjectList, SourceError> {
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
    let mut progress = PageProgress::new();
    while let Some(token) = next {
        #[expect(clippy::single_match_else, reason = "a problem of the pages is one, wherever it is found")]
        let problem = match progress.note(&token, &reading) {
            Err(problem) => problem,
            Ok(()) => {
                let mut query = vec![("continue", &*token)];
                query.extend(limit.as_deref().map(|limit| ("limit", limit)));
                match timeout_at(progress.ends_at, take(shared, &query, &mut reading)).await {
                    Ok(Err(SourceError::Expired(why))) => why,
                    Ok(page) => {
                        next = page?;
                        continue;
                    }
                    Err(_) => format!("pages not complete within {MAX_LIST_TIME:?}"),
                }
            }
        };
        tracing::warn!(problem, "pages do not end, listing without pages");
        reading = ObjectList::default();
        let rest = take(shared, &at.pairs(), &mut reading).await?;
        if rest.is_some() {
            return Err(SourceError::Incomplete(format!("list in pages that do not end: {problem}")));
        }
        break;
    }
    Ok(reading)
}

/// Reads one page, and returns the token of the next.
async fn take(
    shared: &KubeShared,
    query: &[(&str, &str)],
    reading: &mut ObjectList,
) -> Result<Option<String>, SourceError> {
    let bytes = shared.api.list(&shared.target(query)).await?;
    let reader = ObjectDecoder::new(&shared.config, shared.known.lock().is_decimal());
    decode(&bytes, reader, reading)
}

/// Adds the objects of a page, and returns the token of the next.
pub(super) fn decode(
    bytes: &[u8],
    reader: ObjectDecoder<'_>,
    reading: &mut ObjectList,
) -> Result<Option<String>, SourceError> {
    let unreadable = SourceError::Undecodable;
    let page: Page<'_> =
        serde_json::from_slice(bytes).map_err(|error| unreadable(one_line(&format!("list: {error}"))))?;
    let Page { kind, api_version, metadata, items } = page;
    let kind = kind.as_deref().unwrap_or_default();
    // A status, a table, or whatever else a proxy answers with 200, is not an empty list.
    let (Some(metadata), Some(items)) = (metadata, items) else {
        return Err(unreadable(one_line(&format!(
            "answer of kind {kind:?} is not a list: it has no metadata or no items"
        ))));
    };
    if reading.is_begun && reading.kind != kind {
        return Err(unreadable(one_line(&format!("page of kind {kind:?} in a list of kind {:?}", reading.kind))));
    }
    if !std::mem::replace(&mut reading.is_begun, true) {
        kind.clone_into(&mut reading.kind);
        api_version.as_deref().unwrap_or_default().clone_into(&mut reading.api_version);
        metadata.resource_version.as_deref().unwrap_or_default().clone_into(&mut reading.version);
    }
    let listed = ItemType::of_list(Some(kind), api_version.as_deref());
    for item in items.0 {
        reading.items += 1;
        let text = item.get().as_bytes();
        let item = match reader.read_listed(text, listed) {
            Ok(item) => item,
            Err(error) => {
                let place = format!("item {} of the list", reading.items);
                reading.unreadable.push(UnreadableObject::of(text, &error, &place));
                continue;
            }
        };
        match item.problem {
            None => reading.objects.push(Arc::new(item.object)),
            Some(problem) => reading.problems.push((Arc::new(item.object), problem)),
        }
    }
    Ok(metadata.next.as_deref().filter(|next| !next.is_empty()).map(str::to_owned))
}

/// Deserializes the value of a field that is there.
fn present<'de, D: Deserializer<'de>>(json: D) -> Result<Option<Items<'de>>, D::Error> {
    let items: Option<Vec<&'de RawValue>> = Option::deserialize(json)?;
    Ok(Some(Items(items.unwrap_or_default())))
}

// === impl PageProgress ===

impl PageProgress {
    fn new() -> Self {
        let (tokens, firsts) = (HashSet::new(), HashSet::new());
        Self { tokens, firsts, before: 0, idle: 0, ends_at: Instant::now() + MAX_LIST_TIME }
    }

    /// Records a page, and the token of the next.
    ///
    /// # Errors
    ///
    /// The reason for which the pages have no end.
    fn note(&mut self, token: &str, reading: &ObjectList) -> Result<(), String> {
        if !self.tokens.insert(token.to_owned()) {
            return Err("page token repeated".to_owned());
        }
        let first = reading.objects.get(self.before).map(|object| object.key().clone());
        self.before = reading.objects.len();
        let is_new = first.is_some_and(|first| self.firsts.insert(first));
        self.idle = if is_new { 0 } else { self.idle + 1 };
        if self.idle >= MAX_IDLE_PAGES {
            return Err(format!("{MAX_IDLE_PAGES} pages in a row without a new object"));
        }
        Ok(())
    }
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
