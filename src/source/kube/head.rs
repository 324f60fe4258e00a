//! One cheap request before a watch is reopened, for the cluster's present version and the last known change.
//!
//! It lists one object by name, on the path of its namespace, which the API answers with one read of its store. It has the
//! configured selectors too: under a role with `resourceNames` the API allows no other request.
//!
//! Conclusions from the answer:
//!
//! | answer | conclusion |
//! |---|---|
//! | a lower version than the known one | history rewritten |
//! | the object at an older version, at another one up to the known version, or with another uid | history rewritten |
//! | an object at an older version than that of its deletion | history rewritten |
//! | the object at its known version, with the same bytes | same history up to that version |
//! | no object, or a newer one; an answer of another kind, or one that may not be read | none |

use std::borrow::Cow;

use super::{
    client::TOO_LARGE,
    list::Page,
    object::{ItemType, ObjectDecoder},
    resume_check::ResumePoint,
    shared::KubeShared,
};
use crate::{cache::SourceError, model::ResourceVersion};
use bytes::Bytes;

/// Conclusion from an answer that does not contradict the known history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Head {
    /// The last known change is present.
    HasMark,
    /// There is no object.
    Empty,
    /// Neither.
    Unknown,
}

/// Largest answer. A Kubernetes object has at most 1.5 MiB as stored, and more as JSON. An API that ignores `limit` sends no
/// more than this each time a watch is opened.
const MAX_HEAD_BYTES: usize = 8 << 20;

// === impl KubeShared ===

impl KubeShared {
    /// Requests the present version of the cluster, and the object of the last known change.
    ///
    /// # Errors
    ///
    /// [`SourceError::HistoryRewritten`] if the answer contradicts the known history. A request that the API forbids or cannot
    /// parse proves nothing; other failures are those that the watch would meet.
    pub(super) async fn head(
        &self,
        known: &ResourceVersion,
        resume_point: Option<&ResumePoint>,
    ) -> Result<Head, SourceError> {
        let name = resume_point.map(|resume_point| format!("metadata.name={}", escaped(resume_point.key().name())));
        let namespace = resume_point.map_or("", |resume_point| resume_point.key().namespace());
        let target = self.target_in(namespace, name.as_deref(), &[("limit", "1")]);
        let Some(answer) = self.request_head(&target).await? else { return Ok(Head::Unknown) };
        let Some(answer) = self.answer(&answer) else { return Ok(Head::Unknown) };
        let reader = ObjectDecoder::new(&self.config, true);
        judge(&answer, known, resume_point, reader).map_err(|problem| {
            self.known.lock().forget();
            SourceError::HistoryRewritten(problem)
        })
    }

    /// Requests the present version of the cluster; `None` if the API forbids it, or its versions are not decimals.
    ///
    /// # Errors
    ///
    /// The same as of [`head`](Self::head).
    pub(super) async fn present_version(&self) -> Result<Option<ResourceVersion>, SourceError> {
        let answer = self.request_head(&self.target(&[("limit", "1")])).await?;
        let answer = answer.as_deref().and_then(|answer| self.answer(answer));
        Ok(answer.and_then(|answer| answer.version()))
    }

    /// Does the same, and reports each failure; `None` if the API does not allow the request, or its version cannot be compared.
    ///
    /// # Errors
    ///
    /// The reason for which there is no answer.
    pub(super) async fn most_recent_version(&self) -> Result<Option<ResourceVersion>, String> {
        match self.api.list_within(&self.target(&[("limit", "1")]), MAX_HEAD_BYTES).await {
            Ok(answer) => match self.answer(&answer) {
                Some(answer) => Ok(answer.version()),
                None => Err("the answer to a list with limit=1 is no list of the resource".to_owned()),
            },
            Err(SourceError::Refused(_)) => Ok(None),
            // An API that ignores the limit.
            Err(SourceError::Incomplete(problem)) if problem.contains(TOO_LARGE) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Parses an answer; `None` if it is no list of this resource.
    fn answer<'a>(&self, answer: &'a [u8]) -> Option<Page<'a>> {
        let answer: Page<'_> = serde_json::from_slice(answer).ok()?;
        let kind = answer.kind.as_deref().unwrap_or_default();
        (answer.items.is_some() && !self.list_kind.contradicts(kind)).then_some(answer)
    }

    async fn request_head(&self, target: &str) -> Result<Option<Bytes>, SourceError> {
        match self.api.list_within(target, MAX_HEAD_BYTES).await {
            Ok(answer) => Ok(Some(answer)),
            Err(
                SourceError::Refused(problem) | SourceError::Unavailable(problem) | SourceError::Incomplete(problem),
            ) => {
                tracing::debug!(resource = self.config.resource, problem, "head not read");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

// === impl Page ===

impl Page<'_> {
    /// Returns the version of the cluster, if it is a decimal.
    fn version(&self) -> Option<ResourceVersion> {
        ResourceVersion::parse_decimal(self.metadata.as_ref()?.resource_version.as_deref()?).ok()
    }
}

fn judge(
    answer: &Page<'_>,
    known: &ResourceVersion,
    resume_point: Option<&ResumePoint>,
    reader: ObjectDecoder<'_>,
) -> Result<Head, String> {
    if let Some(version) = answer.version()
        && version < *known
    {
        return Err(format!("cluster version {version} is older than the last known version {known}"));
    }
    let items = answer.items.iter().flat_map(|items| &items.0);
    let Some(resume_point) = resume_point else {
        return Ok(if items.count() == 0 { Head::Empty } else { Head::Unknown });
    };
    let listed = ItemType::of_list(answer.kind.as_deref(), answer.api_version.as_deref());
    let objects = items.filter_map(|item| reader.read_listed(item.get().as_bytes(), listed).ok());
    // An API that ignores the selector sends other objects.
    let marked = objects.map(|item| item.object).find(|object| object.key() == resume_point.key());
    let Some(object) = marked else { return Ok(Head::Unknown) };
    let (version, uid) = (object.version(), object.uid());
    if resume_point.is_deleted() {
        if version < resume_point.version() {
            return Err(format!(
                "{} was deleted at version {}, but exists at {version}",
                resume_point.key(),
                resume_point.version()
            ));
        }
        // An object that left the selection with its last change may be in it again, unchanged, if the API selects differently.
        return Ok(Head::Unknown);
    }
    if version == resume_point.version() && uid == resume_point.uid() {
        return Ok(if resume_point.is_written_as(&object) { Head::HasMark } else { Head::Unknown });
    }
    if version > known {
        return Ok(Head::Unknown);
    }
    Err(format!(
        "last known change of {} was at version {} with uid {:?}, but the object is at {version} with uid {uid:?}",
        resume_point.key(),
        resume_point.version(),
        resume_point.uid(),
    ))
}

/// Escapes a value of a field selector, as apimachinery's `fields.EscapeValue`.
fn escaped(value: &str) -> Cow<'_, str> {
    if !value.contains(['\\', ',', '=']) {
        return value.into();
    }
    value.chars().flat_map(|c| matches!(c, '\\' | ',' | '=').then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::kube::{KubeConfig, resume_check::SavedResumePoint};

    /// Judges an answer for a history known up to 9, in which `a` in `n` with the uid `u` was changed last, at 5.
    fn judged(version: &str, items: &str, is_deleted: bool) -> Result<Head, String> {
        let text = format!(r#"{{"metadata":{{"resourceVersion":"{version}"}},"items":{items}}}"#);
        let kept = format!(
            r#"{{"version":"5","namespace":"n","name":"a","uid":"u","is_deleted":{is_deleted},"is_listed":false}}"#
        );
        let resume_point = ResumePoint::resume(serde_json::from_str::<SavedResumePoint>(&kept).unwrap()).unwrap();
        let config = KubeConfig::new("r", "", "v1", "widgets");
        let reader = ObjectDecoder::new(&config, true);
        judge(&serde_json::from_str(&text).unwrap(), &ResourceVersion::decimal(9), Some(&resume_point), reader)
    }

    fn item(name: &str, uid: &str, version: &str) -> String {
        format!(r#"[{{"metadata":{{"namespace":"n","name":"{name}","uid":"{uid}","resourceVersion":"{version}"}}}}]"#)
    }

    #[test]
    fn the_answer_has_the_last_known_change_or_not() {
        assert_eq!(judged("9", &item("a", "u", "5"), false), Ok(Head::HasMark));
        assert_eq!(judged("12", &item("a", "u", "12"), false), Ok(Head::Unknown), "changed since");
        assert_eq!(judged("12", &item("a", "v", "11"), false), Ok(Head::Unknown), "created anew since");
        assert_eq!(judged("12", "null", false), Ok(Head::Unknown), "deleted since");
        assert_eq!(judged("12", &item("b", "u", "5"), false), Ok(Head::Unknown), "no account of the selector");
        assert_eq!(judged("x", &item("a", "u", "5"), false), Ok(Head::HasMark));
        assert_eq!(judged("12", &item("a", "u", "x"), false), Ok(Head::Unknown));
    }

    #[test]
    fn an_older_state_is_a_rewritten_history() {
        assert!(
            judged("8", "[]", false).unwrap_err().contains("cluster version 8 is older than the last known version 9")
        );
        for (uid, version) in [("u", "4"), ("u", "7"), ("v", "5"), ("v", "9")] {
            assert!(judged("12", &item("a", uid, version), false).is_err(), "{uid} at {version}");
        }
        assert_eq!(judged("12", &item("a", "u", "5"), true), Ok(Head::Unknown), "a change of the selection");
        for uid in ["u", "v"] {
            let problem = judged("12", &item("a", uid, "4"), true).unwrap_err();
            assert!(problem.contains("was deleted at version 5, but exists at 4"), "{problem}");
        }
        assert_eq!(judged("12", "null", true), Ok(Head::Unknown));
        assert_eq!(judged("12", &item("a", "v", "11"), true), Ok(Head::Unknown), "created anew since");
    }

    #[test]
    fn values_of_field_selectors_are_escaped() {
        assert_eq!(escaped("system:x"), "system:x");
        assert_eq!(escaped(r"a,b=c\d"), r"a\,b\=c\\d");
    }
}
