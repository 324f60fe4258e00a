//! Authorisation by the configuration of a server.

use std::fs;

use informerd::client::{Client, TlsOptions};

use crate::{
    authentication::{ALL, reason_of},
    authority::Authority,
    sandbox::DEADLINE,
    tls::Secured,
};

/// SHA-256 of `secret`, and a user.
const TOKENS: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b ci\n";
const RULES: &str =
    r#"[{ "subjects": ["user:ci"], "verbs": ["list", "watch"], "resources": ["pods"], "namespaces": [""] }]"#;

#[tokio::test]
async fn an_authenticated_caller_has_the_rights_of_the_rules_file_until_it_changes() {
    let authority = Authority::new();
    let keys = "authentication: { token_file: tokens }, authorization: { rules_file: rules.json },";
    let files = [("tokens", TOKENS), ("token", "secret"), ("rules.json", RULES)];
    let server = Secured::start_with(&authority, None, keys, &files).await;
    let options = TlsOptions { authority: Some(authority.pem()), ..TlsOptions::default() };
    let address = server.address.with_tls(options).unwrap().with_token_file(server.path("token")).unwrap();
    assert_eq!(server.listed(&address).await.unwrap(), ["web"]);
    let client = Client::connect(&address).await.unwrap();
    assert_eq!(reason_of(&client.watchers("pods").await.unwrap_err()), Some("ACCESS_DENIED"));

    for (rules, is_allowed) in [("[]", false), (RULES, true)] {
        fs::write(server.path("rules.json"), rules).unwrap();
        let reloaded = async {
            while server.listed(&address).await.is_ok() != is_allowed {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, reloaded).await.expect("reloaded in time");
    }
    server.stop().await;
}

#[tokio::test]
async fn without_rules_every_caller_is_denied() {
    let authority = Authority::new();
    let files = [("tokens", TOKENS), ("token", "secret")];
    for (keys, expected) in [("", Err(Some("ACCESS_DENIED".to_owned()))), (ALL, Ok(vec!["web".to_owned()]))] {
        let comma = if keys.is_empty() { "" } else { "," };
        let keys = format!("authentication: {{ token_file: tokens }}, {keys}{comma}");
        let server = Secured::start_with(&authority, None, &keys, &files).await;
        let options = TlsOptions { authority: Some(authority.pem()), ..TlsOptions::default() };
        let address = server.address.with_tls(options).unwrap().with_token_file(server.path("token")).unwrap();
        let listed = server.listed(&address).await.map_err(|error| reason_of(&error).map(str::to_owned));
        assert_eq!(listed, expected);
        server.stop().await;
    }
}
