//! Reference of all keys, and errors for unknown keys that name the nearest one.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::{
    ConfigError,
    error::{ConfigErrors, join},
    rows::{Key, Row},
    table::GeneralConfig,
};

/// Longest key that is compared, longer than any key and typo: a comparison takes time by the product of both lengths.
const MAX_TYPO_BYTES: usize = 64;

/// Keys of earlier versions by the advice for who still writes them.
const REMOVED: &[(&str, &str)] = &[
    (
        "the server chooses it itself; remove the key",
        "authentication.token_review.cache authorization.namespaces limits.compilations limits.expression_steps \
         limits.page_snapshots limits.request_bytes limits.streams_per_connection quotas.list_burst \
         resources.<name>.source.files.quiet resources.<name>.source.kube.contact_timeout \
         resources.<name>.source.kube.page_size resources.<name>.source.kube.watch_timeout watch.batch_window \
         watch.coalesce_bytes watch.future_wait watch.max_queue_length watch.queue_bytes watch.selection_budget \
         watch.selection_share",
    ),
    (
        "the client requests it for each watch; remove the key",
        "resources.<name>.full_channel_policy resources.<name>.queue_length watch.bookmark_interval",
    ),
    (
        "write a kubeconfig whose current context is this one, and remove the key",
        "authentication.token_review.context authorization.subject_access_review.context",
    ),
    (
        "it is `informerd`: write that in the roles, or `authorize_as` for a resource, and remove the key",
        "authorization.subject_access_review.group",
    ),
    ("it is five times `recheck`; remove the key", "authorization.grace"),
    ("it follows from watch.max_watchers; remove the key", "limits.calls"),
    ("it follows from the limit on open files (ulimit -n, LimitNOFILE); remove the key", "limits.connections"),
    ("it follows from limits.memory; remove the key", "limits.struct_bytes"),
    ("it follows from history.bytes; remove the key", "watch.window_bytes"),
];

/// Returns every key of the configuration file, in the order of the reference.
pub fn reference() -> &'static [Key] {
    static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
        let mut keys = Vec::new();
        Row::flatten(GeneralConfig::ROWS, &mut keys);
        keys
    });
    &KEYS
}

/// Adds a problem for every key that is not in the table.
pub(super) fn check_known(file: &Map<String, Value>, errors: &mut ConfigErrors) {
    check_section(&mut Vec::new(), file, errors);
}

fn check_section(path: &mut Vec<String>, section: &Map<String, Value>, errors: &mut ConfigErrors) {
    for (name, value) in section {
        path.push(name.clone());
        match (reference().iter().find(|key| is_at(key.path, path)), value) {
            (None, _) => errors.push(unread(path)),
            (Some(key), Value::Object(below)) if key.path.split('.').count() > path.len() => {
                check_section(path, below, errors);
            }
            _ => {}
        }
        path.pop();
    }
}

/// Returns the problem of an unknown key.
fn unread(path: &[String]) -> ConfigError {
    let at = join(path);
    let Some((key, parents)) = path.split_last() else {
        return ConfigError::new(&at, "unknown key");
    };
    let siblings = siblings(parents);
    let problem = if let Some(advice) = removed(path) {
        format!("is no key any more: {advice}")
    } else if let Some(near) = nearest(key, &siblings) {
        format!("unknown key; did you mean `{near}`?")
    } else if let Some(elsewhere) = reference().iter().find(|known| known.path.rsplit('.').next() == Some(key)) {
        format!("unknown key here; did you mean `{}`?", elsewhere.path)
    } else {
        format!("unknown key; known here: {}", siblings.join(", "))
    };
    ConfigError::new(&at, &problem)
}

/// Returns the advice for a key of an earlier version.
fn removed(path: &[String]) -> Option<&'static str> {
    let is_it = |key: &str| key.split('.').count() == path.len() && is_at(key, path);
    let found = REMOVED.iter().find(|(_, keys)| keys.split_whitespace().any(is_it));
    found.map(|(advice, _)| *advice)
}

/// Returns true if a pattern begins like this path.
fn is_at<S: AsRef<str>>(pattern: &str, path: &[S]) -> bool {
    let mut parts = pattern.split('.');
    path.iter().all(|name| parts.next().is_some_and(|part| part.starts_with('<') || part == name.as_ref()))
}

/// Returns the keys that can be below a key.
fn siblings(parents: &[String]) -> Vec<&'static str> {
    let mut names: Vec<_> = reference()
        .iter()
        .filter(|known| is_at(known.path, parents))
        .filter_map(|known| known.path.split('.').nth(parents.len()))
        .collect();
    names.dedup();
    names
}

/// Returns the known name that a misspelled one probably stands for.
pub(crate) fn nearest(key: &str, known: &[&'static str]) -> Option<&'static str> {
    if key.len() > MAX_TYPO_BYTES {
        return None;
    }
    let distances = known.iter().map(|name| (strsim::damerau_levenshtein(key, name), *name));
    let (distance, name) = distances.min_by_key(|(distance, _)| *distance)?;
    (distance <= (name.len() / 3).max(1)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(key: &str) -> String {
        unread(&key.split('.').map(str::to_owned).collect::<Vec<_>>()).to_string()
    }

    #[test]
    fn the_nearest_sibling_is_named() {
        for (key, near) in [
            ("lisen", "listen"),
            ("resource", "resources"),
            ("watch.queue_lenght", "queue_length"),
            ("watch.queueLength", "queue_length"),
            ("watch.max-watchers", "max_watchers"),
            ("drain.dealy", "delay"),
            ("resources.pods.indices", "indexes"),
            ("resources.pods.source.file", "files"),
            ("resources.pods.source.files.pth", "path"),
            ("resources.pods.indexes.node.lable", "label"),
            ("resources.pods.verify_intervall", "verify_interval"),
        ] {
            assert_eq!(problem(key), format!("{key}: unknown key; did you mean `{near}`?"));
        }
    }

    #[test]
    fn a_key_of_an_earlier_version_has_advice() {
        let advice = problem("watch.batch_window");
        assert_eq!(advice, "watch.batch_window: is no key any more: the server chooses it itself; remove the key");
        let advice = problem("resources.pods.queue_length");
        assert!(
            advice.ends_with("is no key any more: the client requests it for each watch; remove the key"),
            "{advice}"
        );
        for key in reference() {
            assert_eq!(removed(&key.path.split('.').map(str::to_owned).collect::<Vec<_>>()), None, "{}", key.path);
        }
    }

    #[test]
    fn a_key_of_another_section_is_found() {
        assert_eq!(problem("block_timeout"), "block_timeout: unknown key here; did you mean `watch.block_timeout`?");
        assert_eq!(problem("drain.age"), "drain.age: unknown key here; did you mean `history.age`?");
    }

    #[test]
    fn without_a_near_name_the_known_keys_are_listed() {
        assert_eq!(problem("history.colour"), "history.colour: unknown key; known here: age, events, bytes");
        assert_eq!(problem("admin.x"), "admin.x: unknown key; known here: listen, open_metrics, bodies, hosts");
        let long = "x".repeat(1000);
        let shown = format!("history.\"{}\"…: unknown key; known here: age, events, bytes", "x".repeat(80));
        assert_eq!(problem(&format!("history.{long}")), shown);
    }
}
