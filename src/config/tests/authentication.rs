use super::*;
use crate::auth::{CertificateNames, CertificateUser, JwtConfig};

fn authentication(yaml: &str) -> Option<AuthenticationConfig> {
    load(yaml, &["--files=x=."]).unwrap().authentication
}

#[test]
fn authenticators_are_read_and_paths_are_relative_to_the_file() {
    assert_eq!(authentication("authentication: { client_certificates: false }"), None);
    assert_eq!(authentication("tls: { cert: c, key: k, client_ca: a }"), None, "a certificate admits to everything");
    let tokens = AuthenticationConfig {
        accepts_certificates: false,
        certificates: CertificateNames::default(),
        token_file: Some("/run/tokens".into()),
        jwt: None,
        token_review: None,
    };
    assert_eq!(authentication("authentication: { token_file: /run/tokens }").as_ref(), Some(&tokens));
    let yaml = "authentication: { client_certificates: true }\ntls: { cert: c, key: k, client_ca: a }";
    let both = AuthenticationConfig {
        accepts_certificates: true,
        certificates: CertificateNames::default(),
        token_file: None,
        jwt: None,
        token_review: None,
    };
    assert_eq!(authentication(yaml), Some(both));
    let keys = "client_certificates: true, certificate_user: san, certificate_system_names: true";
    let yaml = format!("authentication: {{ {keys} }}\ntls: {{ cert: c, key: k, client_ca: a }}");
    let names = CertificateNames { user: CertificateUser::AlternativeName, has_system_names: true };
    assert_eq!(authentication(&yaml).unwrap().certificates, names);
    let (directory, flags) = file("authentication: { token_file: tokens }", &["--files=x=."]);
    let loaded = Config::load(&flags).unwrap().authentication.unwrap();
    assert_eq!(loaded.token_file, Some(directory.path().join("tokens")));
}

#[test]
fn client_certificates_need_their_signers() {
    let problem =
        "authentication.client_certificates: needs the certificates of their signers; add `tls: { client_ca: ... }`";
    for tls in ["", "tls: { cert: c, key: k }"] {
        assert_eq!(problems(&format!("authentication: {{ client_certificates: true }}\n{tls}")), problem);
    }
}

#[test]
fn an_issuer_needs_its_audiences_and_keys() {
    let (directory, flags) = file(
        "authentication: { jwt: { issuer: 'https://i', audiences: [a, b], keys: jwks.json, groups_claim: groups } }",
        &["--files=x=."],
    );
    let jwt = Config::load(&flags).unwrap().authentication.unwrap().jwt.unwrap();
    let expected = JwtConfig {
        issuer: "https://i".to_owned(),
        audiences: vec!["a".to_owned(), "b".to_owned()],
        keys: directory.path().join("jwks.json"),
        user_claim: "sub".to_owned(),
        user_prefix: String::new(),
        groups_claim: Some("groups".to_owned()),
        groups_prefix: "https://i:".to_owned(),
    };
    assert_eq!(jwt, expected);
    let written = authentication("authentication: { jwt: { issuer: i, audiences: [a], keys: k, groups_prefix: '' } }");
    assert_eq!(written.unwrap().jwt.unwrap().groups_prefix, "");
    let problems = problems("authentication: { jwt: { audiences: [], user_claim: '' } }");
    let expected = [
        "authentication.jwt.issuer: is missing; write the `iss` of the tokens, such as https://issuer.example",
        "authentication.jwt.audiences: expected a list of 1 to 32 names such as [informerd], found 0",
        "authentication.jwt.keys: is missing; write the path of a JWKS document or of public keys in PEM",
        "authentication.jwt.user_claim: expected a name, found \"\"",
    ];
    assert_eq!(problems, expected.join("\n"));
}

#[test]
#[cfg(feature = "kube")]
fn token_reviews_need_audiences_and_are_kept_for_a_bounded_time() {
    let review = |keys: &str| format!("authentication: {{ token_review: {{ {keys} }} }}");
    let (directory, flags) = file(review("audiences: [informerd], kubeconfig: config, context: c"), &["--files=x=."]);
    let read = Config::load(&flags).unwrap().authentication.unwrap().token_review.unwrap();
    let expected = TokenReviewConfig {
        audiences: vec!["informerd".to_owned()],
        ttl: Duration::from_secs(120),
        kubeconfig: Some(directory.path().join("config")),
        context: Some("c".to_owned()),
    };
    assert_eq!(read, expected);
    assert!(authentication(&review("audiences: [a], cache: 10s")).unwrap().accepts_tokens());
    assert!(load(&review("audiences: [a], cache: 10m"), &["--files=x=."]).is_ok());
    let missing = "authentication.token_review.audiences: is missing; write for example [informerd]";
    assert_eq!(problems(&review("cache: 10s")), missing);
    for cache in ["9s", "601s", "0"] {
        let problem = problems(&review(&format!("audiences: [a], cache: {cache}")));
        assert!(
            problem.starts_with("authentication.token_review.cache: expected a duration from 10s to 10m"),
            "{problem}"
        );
    }
    assert!(problems(&review("audiences: ['']")).contains("expected a name, found \"\""));
}
