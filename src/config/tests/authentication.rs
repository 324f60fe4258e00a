use super::*;

fn authentication(yaml: &str) -> Option<AuthenticationConfig> {
    load(yaml, &["--files=x=."]).unwrap().authentication
}

#[test]
fn authenticators_are_read_and_paths_are_relative_to_the_file() {
    assert_eq!(authentication("authentication: { client_certificates: false }"), None);
    assert_eq!(authentication("tls: { cert: c, key: k, client_ca: a }"), None, "a certificate admits to everything");
    let tokens = AuthenticationConfig { accepts_certificates: false, token_file: Some("/run/tokens".into()) };
    assert_eq!(authentication("authentication: { token_file: /run/tokens }").as_ref(), Some(&tokens));
    let yaml = "authentication: { client_certificates: true }\ntls: { cert: c, key: k, client_ca: a }";
    let both = AuthenticationConfig { accepts_certificates: true, token_file: None };
    assert_eq!(authentication(yaml), Some(both));
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
