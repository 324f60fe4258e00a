use serde_json::json;

use super::*;
use crate::auth::Rules;

const RULE: &str = "{ subjects: [user:a], verbs: [list], resources: [x], namespaces: [\"*\"] }";

/// Returns the section of a server with an authenticator.
fn authorization(section: &str) -> AuthorizationConfig {
    load(&with_tokens(section), &["--files=x=."]).unwrap().authorization
}

fn with_tokens(section: &str) -> String {
    format!("authentication: {{ token_file: /tokens }}\nauthorization: {{ {section} }}")
}

#[test]
fn rules_are_in_the_configuration_or_in_a_file() {
    let rule = json!({"subjects": ["user:a"], "verbs": ["list"], "resources": ["x"], "namespaces": ["*"]});
    let rules = Rules::from_value(&json!([rule])).unwrap();
    let of = |authority| AuthorizationConfig { authority: Some(authority), ..AuthorizationConfig::default() };
    assert_eq!(authorization(&format!("rules: [{RULE}]")), of(AuthorityConfig::Rules(rules.clone())));
    assert_eq!(authorization("rules: []"), of(AuthorityConfig::Rules(Rules::default())));
    assert_eq!(authorization("rules_file: /r.yaml"), of(AuthorityConfig::RulesFile("/r.yaml".into())));
    assert_eq!(authorization(""), AuthorizationConfig::default(), "everything is denied");
    assert_eq!(parse_rules(format!("# all\n- {RULE}\n").as_bytes()), Ok(rules.clone()));
    assert_eq!(parse_rules(json!([rule]).to_string().as_bytes()), Ok(rules));
}

#[test]
fn reviews_have_a_cluster_and_bounds() {
    let AuthorizationConfig { authority, recheck } =
        authorization("subject_access_review: { cache: 30s, kubeconfig: /k }, recheck: 10s");
    let expected = SubjectAccessReviewConfig { ttl: Duration::from_secs(30), kubeconfig: Some("/k".into()) };
    assert_eq!(authority, Some(AuthorityConfig::SubjectAccessReview(expected)));
    assert_eq!(recheck, Duration::from_secs(10));
    let default = authorization("subject_access_review: {}");
    let review = AuthorityConfig::SubjectAccessReview(SubjectAccessReviewConfig::default());
    assert_eq!(default, AuthorizationConfig { authority: Some(review), ..AuthorizationConfig::default() });
}

#[test]
fn a_problem_is_one_line() {
    for (section, problem) in [
        (
            "rules: [{ subjects: [bob] }]",
            "rules: rule 1: expected a subject user:NAME, group:NAME or \"*\", found \"bob\"",
        ),
        ("rules: [], rules_file: /r", "rules_file: excludes `rules`; keep one"),
        ("rules: [], subject_access_review: {}", "subject_access_review: excludes `rules`; keep one"),
        ("recheck: 5s", "recheck: expected a duration from 10s to 10m, found \"5s\""),
        ("recheck: 11m", "recheck: expected a duration from 10s to 10m, found \"11m\""),
        ("grace: 1m", "grace: is no key any more: it is five times `recheck`; remove the key"),
        (
            "subject_access_review: { cache: 6m }",
            "subject_access_review.cache: expected a duration from 0s to 5m, found \"6m\"",
        ),
        ("allow: all", "allow: unknown key; known here: rules, rules_file, recheck, subject_access_review"),
    ] {
        assert_eq!(problems(&with_tokens(section)), format!("authorization.{problem}"));
    }
    for authority in ["rules: []", "rules_file: /r", "subject_access_review: {}"] {
        let problem = "authorization: needs to know the callers; add `authentication` with an authenticator";
        assert_eq!(problems(&format!("authorization: {{ {authority} }}")), problem);
    }
    for (content, problem) in [
        (
            "a: b",
            "expected a list such as [{subjects: [\"group:web\"], verbs: [list, watch], resources: [pods], namespaces: [shop]}], found a map",
        ),
        ("- {}\n- [", "2:"),
        ("\u{1}", ""),
    ] {
        let found = parse_rules(content.as_bytes()).unwrap_err();
        assert!(found.starts_with(problem) && !found.contains('\n'), "{found}");
    }
    assert_eq!(parse_rules(b"\xff"), Err("1: is not UTF-8".to_owned()));
    assert_eq!(parse_rules(&vec![b' '; (1 << 20) + 1]), Err("is larger than 1 MiB".to_owned()));
}

#[test]
fn a_resource_may_be_reviewed_as_another_kind() {
    let resource =
        |kind: &str| format!("resources: {{ a: {{ source: {{ files: {{ path: /x }} }}, authorize_as: {kind} }} }}");
    for kind in ["pods", "deployments.apps", "widgets.example.com"] {
        let loaded = load(&resource(kind), &[]).unwrap().resources["a"].options.authorize_as.clone();
        assert_eq!(loaded.as_deref(), Some(kind));
    }
    for kind in ["Pods", "apps/v1", "pods.", ".apps", "\"\""] {
        let problem = problems(&resource(kind));
        assert!(
            problem.starts_with("resources.a.authorize_as: expected a kind such as pods or deployments.apps, found"),
            "{problem}"
        );
    }
}
