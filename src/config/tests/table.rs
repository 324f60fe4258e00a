//! Tests of the table: its rows agree with the reading of keys, with the help and with the reference.

use std::fmt::Write;

use clap::CommandFactory;

use super::*;
use crate::auth::JwtConfig;

/// Returns the keys that this build reads.
fn served() -> impl Iterator<Item = &'static Key> {
    let is_for_kube = |key: &Key| [".kube.", "_review."].iter().any(|part| key.path.contains(part));
    reference().iter().filter(move |key| cfg!(feature = "kube") || !is_for_kube(key))
}

#[test]
fn the_reference_lists_the_defaults() {
    let default = load("", &["--files=pods=."]).unwrap();
    for key in served() {
        let Some(text) = key.default else { continue };
        let mut yaml = String::new();
        for (depth, part) in key.path.replace("<name>", "other").split('.').enumerate() {
            write!(yaml, "\n{}{part}:", "  ".repeat(depth)).unwrap();
        }
        writeln!(yaml, " {text}").unwrap();
        let mut expected = default.clone();
        if key.path.starts_with("authorization.subject_access_review") {
            yaml.push_str("authentication: { token_file: /tokens }\n");
            expected.authentication = load(&yaml, &["--files=pods=."]).unwrap().authentication;
            let review = AuthorityConfig::SubjectAccessReview(SubjectAccessReviewConfig::default());
            expected.authorization.authority = Some(review);
        }
        if key.path.starts_with("resources") {
            let kube = KubeConfig::new("", "", "v1", "pods");
            let relay = RelayConfig::new("http://h:1".parse().unwrap(), "other");
            let stream = SourceConfig::Stream(StreamConfig::new(StreamPath::Path("/x".into()), ""));
            let (rest, source) = match key.path.split('.').skip(2).find(|part| *part != "source") {
                Some("files") => ("        path: /x\n", files("/x", None)),
                Some("stream") => ("        path: /x\n", stream),
                Some("kube") => ("        version: v1\n        plural: pods\n", SourceConfig::Kube(kube)),
                Some("informerd") => ("        endpoint: http://h:1\n", SourceConfig::Informerd(relay)),
                _ => ("    source: { files: { path: /x } }\n", files("/x", None)),
            };
            yaml.push_str(rest);
            let other = ResourceConfig { source, name: "other".into(), ..default.resources["pods"].clone() };
            expected.resources.insert("other".into(), other);
        }
        if key.path.starts_with("authentication.token_review.") {
            yaml.push_str("    audiences: [a]\n");
            let review = TokenReviewConfig { audiences: vec!["a".into()], ..TokenReviewConfig::default() };
            expected.authentication = Some(AuthenticationConfig {
                accepts_certificates: false,
                token_file: None,
                jwt: None,
                token_review: Some(review),
            });
        }
        if key.path.starts_with("authentication.jwt.") {
            yaml.push_str("    issuer: i\n    audiences: [a]\n    keys: /k\n");
            let jwt = JwtConfig {
                issuer: "i".into(),
                audiences: vec!["a".into()],
                keys: "/k".into(),
                user_claim: "sub".into(),
                user_prefix: String::new(),
                groups_claim: None,
                groups_prefix: "i:".into(),
            };
            expected.authentication = Some(AuthenticationConfig {
                accepts_certificates: false,
                token_file: None,
                jwt: Some(jwt),
                token_review: None,
            });
        }
        assert_eq!(load(&yaml, &["--files=pods=."]), Ok(expected), "{yaml}");
        assert_eq!(reference().iter().filter(|other| other.path == key.path).count(), 1);
    }
}

/// Sets each key to a map, which no key accepts.
#[test]
fn every_key_of_the_table_is_read() {
    for key in served() {
        let path = key.path.replace("<name>", "other").replace("<index>", "owner").replace("<view>", "small");
        let mut yaml = String::new();
        for (depth, part) in path.split('.').enumerate() {
            write!(yaml, "\n{}{part}:", "  ".repeat(depth)).unwrap();
        }
        let errors = load(&format!("{yaml} {{ a: b }}"), &["--files=pods=."]).unwrap_err();
        let mut problems = errors.iter().filter(|error| error.at() == path);
        let problem = problems.next().unwrap_or_else(|| panic!("{path} is not read: {errors}"));
        assert!(problem.problem().ends_with("found a map") && problems.next().is_none(), "{errors}");
    }
}

#[test]
fn bounds_of_the_table_are_enforced() {
    for (key, good, bad, expected) in [
        ("limits.request_timeout", ["100ms", "5m"], ["99ms", "301s"], "a duration from 100ms to 5m"),
        ("limits.peer_share", ["1", "100"], ["0", "101"], "an integer from 1 to 100"),
        ("limits.memory", ["1MiB", "1024GiB"], ["0", "1025GiB"], "a size from 1MiB to 1024GiB"),
        ("limits.memory", ["1024KiB", "1048576"], ["1023KiB", "1048575"], "a size from 1MiB to 1024GiB"),
        ("quotas.lists_per_second", ["1", "100000"], ["0", "100001"], "an integer from 1 to 100000"),
    ] {
        let (section, leaf) = key.split_once('.').unwrap();
        let load = |value: &str| load(&format!("{section}: {{ {leaf}: {value} }}"), &["--files=x=."]);
        for value in good {
            assert!(load(value).is_ok(), "{key}: {value}");
        }
        for value in bad {
            let problem = load(value).unwrap_err().to_string();
            assert!(problem.starts_with(&format!("{key}: expected {expected}, found ")), "{problem}");
        }
    }
}

#[test]
fn help_shows_the_default_of_a_flag() {
    for (flag, help) in [
        (
            "listen",
            "Address for gRPC: IP:PORT, localhost:PORT, :PORT for every address, or unix:/path/of/socket [default: 127.0.0.1:50051]",
        ),
        ("insecure", "Allow gRPC in plain text on an address that is not loopback [default: false]"),
    ] {
        let command = Serve::command();
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(flag)).unwrap();
        assert_eq!(arg.get_help().unwrap().to_string(), help);
    }
}

/// clap implements the precedence of a flag over its variable.
#[test]
fn flags_and_their_environment() {
    let command = Serve::command();
    let variables: Vec<_> =
        command.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg.get_env()?.to_str()?))).collect();
    assert_eq!(
        variables,
        [
            ("config", "INFORMERD_CONFIG"),
            ("listen", "INFORMERD_LISTEN"),
            ("admin-listen", "INFORMERD_ADMIN_LISTEN"),
            ("insecure", "INFORMERD_INSECURE"),
            ("state-dir", "INFORMERD_STATE_DIR"),
            ("etcd-username", "INFORMERD_ETCD_USERNAME"),
            ("etcd-password-file", "INFORMERD_ETCD_PASSWORD_FILE"),
            ("kubeconfig", "INFORMERD_KUBECONFIG"),
            ("kube-context", "INFORMERD_KUBE_CONTEXT"),
            ("log-format", "INFORMERD_LOG_FORMAT"),
            ("log", "INFORMERD_LOG"),
        ]
    );
    command.debug_assert();
    assert_eq!(flags(&[]), ServeFlags::default());
    assert_eq!(flags(&["--log-format", "json", "--log=debug"]).log_format, LogFormat::Json);
    for (args, insecure) in [
        (vec![], None),
        (vec!["--insecure"], Some(true)),
        (vec!["--insecure=no"], Some(false)),
        (vec!["--insecure=1"], Some(true)),
    ] {
        let expected =
            insecure.map_or(ServeFlags::default(), |insecure| ServeFlags::default().with("insecure", insecure));
        assert_eq!(flags(&args), expected);
    }
    assert_eq!(flags(&["--files=a=b", "--insecure", "--files", "c=d"]).files, ["a=b", "c=d"]);
}
