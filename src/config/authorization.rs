//! Keys of authorisation.

use super::{
    AuthorityConfig, AuthorizationConfig, SubjectAccessReviewConfig, file, section::Section, table::AuthorizationKeys,
};
use crate::auth::Rules;

const AUTHORITIES: [&str; 3] = ["rules", "rules_file", "subject_access_review"];
const WITHOUT: &str = "this informerd was built without the Kubernetes API (cargo feature `kube`); write `rules`";

/// Reads the section.
pub(super) fn resolve(section: &Section<'_>, is_authenticated: bool) -> AuthorizationConfig {
    let AuthorizationKeys { rules, rules_file, recheck } = AuthorizationKeys::read(section);
    let written = section.written_of(&AUTHORITIES);
    for key in written.iter().skip(1) {
        section.add(key, format!("excludes `{}`; keep one", written[0]));
    }
    if !written.is_empty() && !is_authenticated {
        section.add_here("needs to know the callers; add `authentication` with an authenticator");
    }
    let authority = match written.first() {
        Some(&"rules") => rules.map(AuthorityConfig::Rules),
        Some(&"rules_file") => rules_file.map(|path| AuthorityConfig::RulesFile(section.relative(&path))),
        Some(_) => section.section("subject_access_review").map(|keys| review(&keys)),
        None => None,
    };
    AuthorizationConfig { authority, recheck }
}

fn review(section: &Section<'_>) -> AuthorityConfig {
    if !cfg!(feature = "kube") {
        section.add_here(WITHOUT);
    }
    let keys = SubjectAccessReviewConfig::read(section);
    let kubeconfig = keys.kubeconfig.as_deref().map(|path| section.relative(path));
    AuthorityConfig::SubjectAccessReview(SubjectAccessReviewConfig { kubeconfig, ..keys })
}

/// Parses the content of `authorization.rules_file`: a list of rules in YAML or JSON.
///
/// # Errors
///
/// The first problem, with its place, in one line.
pub fn parse_rules(content: &[u8]) -> Result<Rules, String> {
    let document = file::document("", content).map_err(|(at, problem)| match at.trim_start_matches(':') {
        "" => problem,
        at => format!("{at}: {problem}"),
    })?;
    Rules::from_value(&document).map_err(|error| error.to_string())
}
