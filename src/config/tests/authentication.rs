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
        token_file: Some("/run/tokens".into()),
        jwt: None,
        token_review: None,
    };
    assert_eq!(authentication("authentication: { token_file: /run/tokens }").as_ref(), Some(&tokens));
    let yaml = "authentication: { client_certificates: true }\ntls: { cert: c, key: k, client_ca: a }";
    let both = AuthenticationConfig { accepts_certificates: true, token_file: None, jwt: None, token_review: None };
    assert_eq!(authentication(yaml), Some(both));
    let names = CertificateNames { user: CertificateUser::AlternativeName, has_system_names: true };
    for (authenticator, has_authenticator) in [("client_certificates: true, ", true), ("", false)] {
        let keys = format!("{authenticator}certificate_user: san, certificate_system_names: true");
        let yaml = format!("authentication: {{ {keys} }}\ntls: {{ cert: c, key: k, client_ca: a }}");
        let config = load(&yaml, &["--files=x=."]).unwrap();
        assert_eq!((config.certificates, config.authentication.is_some()), (names, has_authenticator));
    }
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
        for (key, value) in [("certificate_user", "san"), ("certificate_system_names", "true")] {
            let written = problems(&format!("authentication: {{ {key}: {value} }}\n{tls}"));
            assert_eq!(written, problem.replace("client_certificates", key));
        }
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
fn token_reviews_need_audiences() {
    let review = |keys: &str| format!("authentication: {{ token_review: {{ {keys} }} }}");
    let (directory, flags) = file(review("audiences: [informerd], kubeconfig: config"), &["--files=x=."]);
    let read = Config::load(&flags).unwrap().authentication.unwrap().token_review.unwrap();
    let expected = TokenReviewConfig {
        audiences: vec!["informerd".to_owned()],
        kubeconfig: Some(directory.path().join("config")),
    };
    assert_eq!(read, expected);
    let missing = "authentication.token_review.audiences: is missing; write for example [informerd]";
    assert_eq!(problems(&review("kubeconfig: config")), missing);
    assert!(problems(&review("audiences: ['']")).contains("expected a name, found \"\""));
}
