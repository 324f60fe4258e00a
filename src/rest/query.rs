//! Parameters of list and watch, by the validation of Kubernetes (`ValidateListOptions` in apimachinery).

use std::{collections::HashSet, fmt::Display, time::Duration};

use percent_encoding::percent_decode;

use super::status::{Cause, Failure};
use crate::model::{FieldSelector, LabelSelector, Shard, excerpt};

/// Parameters of list and watch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) is_watch: bool,
    pub(super) label_selector: String,
    pub(super) field_selector: String,
    /// Version; empty for the most recent, and `0` for any.
    pub(super) resource_version: String,
    version_match: String,
    pub(super) limit: u32,
    pub(super) token: String,
    pub(super) allows_bookmarks: bool,
    pub(super) sends_initial_events: Option<bool>,
    /// Time after which a watch ends; none for one of the server's own.
    pub(super) timeout: Option<Duration>,
    pub(super) include_object: String,
    pub(super) shard: Option<Shard>,
}

const NOT_OLDER_THAN: &str = "NotOlderThan";
const EXACT: &str = "Exact";
const MATCH: &str = "resourceVersionMatch";
const INITIAL: &str = "sendInitialEvents";

// === impl Query ===

impl Query {
    /// Parses the query of a list or watch. Of a parameter that is given twice the first counts, and those that Kubernetes does not
    /// know are ignored, as there.
    pub(super) fn parse(text: &str) -> Result<Self, Failure> {
        Self::parse_of(text, |_| true)
    }

    /// Parses the query of a request for one object, which has fewer parameters.
    pub(super) fn parse_get(text: &str) -> Result<Self, Failure> {
        Self::parse_of(text, |key| ["resourceVersion", MATCH, "includeObject"].contains(&key))
    }

    fn parse_of(text: &str, is_known: impl Fn(&str) -> bool) -> Result<Self, Failure> {
        let (mut query, mut seen) = (Self::default(), HashSet::new());
        for pair in pairs(text) {
            let (key, value) = pair?;
            if !is_known(&key) || !seen.insert(key.clone()) {
                continue;
            }
            match &*key {
                "watch" => query.is_watch = boolean(&value),
                "labelSelector" => query.label_selector = value,
                "fieldSelector" => query.field_selector = value,
                "resourceVersion" if value.trim_start_matches('0').is_empty() => {
                    query.resource_version = value.chars().take(1).collect();
                }
                "resourceVersion" => query.resource_version = value,
                MATCH => query.version_match = value,
                "limit" => query.limit = u32::try_from(number(&value)?.max(0)).unwrap_or(u32::MAX),
                "continue" => query.token = value,
                "allowWatchBookmarks" => query.allows_bookmarks = boolean(&value),
                INITIAL => query.sends_initial_events = Some(boolean(&value)),
                "timeoutSeconds" => {
                    let seconds = number(&value)?;
                    // One in the past is over at once.
                    let timeout = u64::try_from(seconds).map_or(Duration::from_millis(1), Duration::from_secs);
                    query.timeout = (seconds != 0).then_some(timeout);
                }
                "includeObject" => query.include_object = value,
                "shardSelector" if !value.is_empty() => query.shard = Some(shard(&value)?),
                _ => {}
            }
        }
        Ok(query)
    }

    /// Returns true if the client requests the state at exactly a version.
    pub(super) fn is_exact(&self) -> bool {
        self.version_match == EXACT
    }

    /// Returns true if a list is that at exactly a version: as in Kubernetes, also one with pages that does not say how its version
    /// matches.
    pub(super) fn lists_exactly(&self) -> bool {
        self.is_exact() || (self.version_match.is_empty() && self.limit > 0 && !self.is_any_version())
    }

    /// Returns true if the client names no version.
    pub(super) fn is_any_version(&self) -> bool {
        ["", "0"].contains(&&*self.resource_version)
    }

    /// Checks that the parameters fit together, and that this server has them: in the order of Kubernetes, as clients get the first
    /// error.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let Self { resource_version, version_match, token, .. } = self;
        let invalid = |field: &str, error: &dyn Display| Failure::bad_request(&format!("{field}: {error}"));
        LabelSelector::parse(&self.label_selector).map_err(|error| invalid("labelSelector", &error))?;
        FieldSelector::parse(&self.field_selector).map_err(|error| invalid("fieldSelector", &error))?;
        let forbidden = |is_so: bool, field, message| is_so.then(|| Cause::forbidden(field, message));
        let (is_matching, is_any) = (!version_match.is_empty(), self.is_any_version());
        let (is_initial, is_continued) = (self.sends_initial_events.is_some(), !token.is_empty());
        let supported: &[&str] = if self.is_watch { &[NOT_OLDER_THAN] } else { &[EXACT, NOT_OLDER_THAN, ""] };
        let is_other = is_matching && !supported.contains(&&**version_match);
        let unsupported = is_other.then(|| Cause::not_supported(MATCH, version_match, supported));
        // A watch of any version matches by itself those that are not older.
        let is_continued = is_continued && (is_matching || self.is_watch && is_any && !is_initial);
        let message = "resourceVersionMatch is forbidden when continue is provided";
        let continued = forbidden(is_continued, MATCH, message);
        let causes = if self.is_watch {
            let is_older = is_initial && version_match != NOT_OLDER_THAN;
            let message = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            let older = forbidden(is_older, MATCH, message);
            let message = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            [older, forbidden(is_matching && !is_initial, MATCH, message), unsupported, continued, None]
        } else {
            let message = "resourceVersionMatch is forbidden unless resourceVersion is provided";
            let without = forbidden(is_matching && resource_version.is_empty(), MATCH, message);
            let message = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            let zero = forbidden(self.is_exact() && resource_version == "0", MATCH, message);
            let initial = forbidden(is_initial, INITIAL, "sendInitialEvents is forbidden for list");
            [without, continued, unsupported, zero, initial]
        };
        let causes: Vec<Cause> = causes.into_iter().flatten().collect();
        if !causes.is_empty() {
            return Err(Failure::invalid(causes));
        }
        if !self.is_watch && !token.is_empty() && !is_any {
            return Err(Failure::bad_request("specifying resource version is not allowed when using continue"));
        }
        Ok(())
    }
}

/// Returns the parameters of a query, decoded.
pub(super) fn pairs(text: &str) -> impl Iterator<Item = Result<(String, String), Failure>> {
    text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((decode(key)?, decode(value)?))
    })
}

fn decode(text: &str) -> Result<String, Failure> {
    let spaced = text.replace('+', " ");
    let decoded = percent_decode(spaced.as_bytes()).decode_utf8();
    decoded.map(Into::into).map_err(|_| Failure::bad_request("the query is not UTF-8"))
}

/// Parses a shard in Kubernetes' form: `shardRange`, but no part of so many.
fn shard(text: &str) -> Result<Shard, Failure> {
    let shard: Result<Shard, _> = text.parse();
    shard.ok().filter(|_| text.contains("shardRange")).ok_or_else(|| {
        let example = "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')";
        let problem = text.parse::<Shard>().err().map(|error| error.to_string()).unwrap_or_default();
        Failure::bad_request(&format!("shardSelector: {:?} is not such as {example} {problem}", excerpt(text)))
    })
}

/// Reads a boolean as apimachinery does.
pub(super) fn boolean(value: &str) -> bool {
    !(value.eq_ignore_ascii_case("false") || value == "0")
}

pub(super) fn number(value: &str) -> Result<i64, Failure> {
    value.parse().map_err(|_| Failure::bad_request(&format!("strconv.ParseInt: parsing {value:?}: invalid syntax")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<(), (u16, String)> {
        let checked = Query::parse(text).and_then(|query| query.check());
        checked.map_err(|failure| (failure.code(), failure.message().to_owned()))
    }

    #[test]
    fn parameters_are_decoded() {
        let query = Query::parse(
            "watch=true&labelSelector=app%3Dweb%2Ctier+in+(a)&limit=-1&timeoutSeconds=7&allowWatchBookmarks&x=y&sendInitialEvents=0",
        )
        .unwrap();
        assert!(query.is_watch && query.allows_bookmarks);
        assert_eq!(query.label_selector, "app=web,tier in (a)");
        assert_eq!((query.limit, query.sends_initial_events), (0, Some(false)));
        assert_eq!(Query::parse("limit=5&limit=6").unwrap().limit, 5);
        let one = "limit=x&watch=1&resourceVersion=7&resourceVersionMatch=Exact&includeObject=None";
        let one = Query::parse_get(one).unwrap();
        assert_eq!(
            (one.is_watch, one.is_exact(), &*one.resource_version, &*one.include_object),
            (false, true, "7", "None")
        );
        for (text, version) in [("00", "0"), ("0", "0"), ("", ""), ("01", "01"), ("x", "x")] {
            assert_eq!(Query::parse(&format!("resourceVersion={text}")).unwrap().resource_version, version, "{text}");
        }
        for (text, timeout) in [("7", Some(7000)), ("0", None), ("-5", Some(1))] {
            let parsed = Query::parse(&format!("timeoutSeconds={text}")).unwrap().timeout;
            assert_eq!(parsed, timeout.map(Duration::from_millis), "{text}");
        }
        assert!(!Query::parse("watch=False").unwrap().is_watch && !Query::parse("").unwrap().is_watch);
    }

    #[test]
    fn parameters_fit_together_as_in_kubernetes() {
        let good = [
            "",
            "limit=5&resourceVersion=0",
            "resourceVersion=7&resourceVersionMatch=Exact",
            "resourceVersion=0&resourceVersionMatch=NotOlderThan",
            "continue=x&resourceVersion=0",
            "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
            "watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=7",
            "watch=1&resourceVersion=7&allowWatchBookmarks=true",
            "shardSelector=shardRange(object.metadata.uid,'0x0','0x8000000000000000')",
            "shardSelector=",
        ];
        for text in good {
            assert_eq!(check(text), Ok(()), "{text}");
        }
        for (text, is_exact) in [
            ("resourceVersion=7&resourceVersionMatch=Exact", true),
            ("resourceVersion=7&limit=5", true),
            ("resourceVersion=7", false),
            ("resourceVersion=0&limit=5", false),
            ("limit=5", false),
            ("resourceVersion=7&limit=5&resourceVersionMatch=NotOlderThan", false),
        ] {
            assert_eq!(Query::parse(text).unwrap().lists_exactly(), is_exact, "{text}");
        }
        let invalid = [
            ("resourceVersionMatch=Exact", "forbidden unless resourceVersion is provided"),
            ("resourceVersion=0&resourceVersionMatch=Exact", "\"exact\" is forbidden for resourceVersion \"0\""),
            ("resourceVersion=1&resourceVersionMatch=Sometimes", "Unsupported value: \"Sometimes\""),
            ("resourceVersion=1&resourceVersionMatch=Exact&continue=x", "forbidden when continue is provided"),
            ("sendInitialEvents=true", "sendInitialEvents is forbidden for list"),
            ("watch=1&sendInitialEvents=true", "requires setting resourceVersionMatch to NotOlderThan"),
            ("watch=1&resourceVersionMatch=NotOlderThan", "forbidden for watch unless sendInitialEvents is provided"),
            ("watch=1&sendInitialEvents=true&resourceVersionMatch=Exact", "Unsupported value: \"Exact\""),
        ];
        for (text, message) in invalid {
            let (code, found) = check(text).unwrap_err();
            assert_eq!(code, 422, "{text}");
            assert!(found.contains(message), "{text}: {found}");
        }
        for text in [
            "limit=x",
            "timeoutSeconds=1.5",
            "shardSelector=a",
            "watch=1&shardSelector=0/2",
            "shardSelector=+",
            "shardSelector=shardRange(object.metadata.name,'0x0','0x8')",
            "continue=x&resourceVersion=5",
            "labelSelector=%ff",
        ] {
            assert_eq!(check(text).unwrap_err().0, 400, "{text}");
        }
    }
}
