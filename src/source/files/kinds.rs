//! Advice to serve each kind of a directory as a resource of its own.

use std::path::Path;

use crate::source::text::escaped;

/// Limit of the kinds that the advice shows flags for.
const SHOWN_KINDS: usize = 8;

/// Returns the advice, such as
/// `several kinds in one resource; serve each as its own: --files pods=DIR@Pod --files services=DIR@Service`.
pub(super) fn kinds_advice(kinds: &[String], directory: &Path) -> String {
    let directory = directory.to_string_lossy();
    let flags = kinds.iter().take(SHOWN_KINDS).map(|kind| format!(" --files {}={directory}@{kind}", plural(kind)));
    let more = if kinds.len() > SHOWN_KINDS { " …" } else { "" };
    escaped(&format!("several kinds in one resource; serve each as its own:{}{more}", flags.collect::<String>()))
        .into_owned()
}

/// Returns the plural as Kubernetes names its resources, for nearly all of them.
fn plural(kind: &str) -> String {
    let kind = kind.to_lowercase();
    match kind.as_bytes() {
        [.., b'a' | b'e' | b'o' | b'u', b'y'] => kind + "s",
        [.., b'y'] => format!("{}ies", &kind[..kind.len() - 1]),
        [.., b's' | b'x'] | [.., b'c' | b's', b'h'] => kind + "es",
        _ => kind + "s",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_kinds_are_reported_with_the_flags_to_use() {
        let kinds = ["Gateway", "Ingress", "NetworkPolicy", "Pod"].map(str::to_owned);
        assert_eq!(
            kinds_advice(&kinds, Path::new("./m")),
            "several kinds in one resource; serve each as its own: --files gateways=./m@Gateway \
             --files ingresses=./m@Ingress --files networkpolicies=./m@NetworkPolicy --files pods=./m@Pod"
        );
    }
}
