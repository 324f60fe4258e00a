//! Authorisation by the configuration of a server.

use std::fs;

use informerd::{
    app::{App, AppError},
    client::{Client, ListResult, Query, ServerAddress, TlsOptions},
    config::{Config, ServeFlags},
};
use tempfile::TempDir;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    authentication::{ALL, line, reason_of},
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

/// Starts a server with this configuration in a directory with these files. Returns its address, and a guard.
async fn started(directory: &TempDir, config: &str) -> Result<(ServerAddress, AbortOnDropHandle<()>), AppError> {
    let path = directory.path().join("informerd.yaml");
    fs::write(&path, format!("{{ listen: '127.0.0.1:0', admin: {{ listen: none }}, {config} }}")).unwrap();
    let app = App::start(Config::load(&ServeFlags { config: Some(path), ..ServeFlags::default() }).unwrap()).await?;
    let address = app.grpc_address().to_string().parse().unwrap();
    let running = tokio::spawn(async { app.run(std::future::pending()).await.unwrap() });
    Ok((address, AbortOnDropHandle::new(running)))
}

#[tokio::test]
async fn a_relay_forwards_the_identity_of_its_callers_where_both_sides_configure_it() {
    let directory = TempDir::new().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    for namespace in ["shop", "stock"] {
        write(
            &format!("{namespace}.json"),
            &format!(r#"{{"kind":"Pod","metadata":{{"namespace":"{namespace}","name":"web"}}}}"#),
        );
    }
    for user in ["relay", "ann", "bob"] {
        write(user, user);
    }
    write("of-parent", &line("relay", "relay"));
    write("of-relay", &["ann", "bob"].map(|user| line(user, user)).concat());
    let impersonation = r#"{ subjects: ["user:relay"], verbs: [impersonate], users: ["*"] }"#;
    let parent = |more: &str| {
        format!(
            r#"authentication: {{ token_file: of-parent }}, authorization: {{ rules: [
                {{ subjects: ["user:relay"], verbs: [list, watch], resources: ["*"], namespaces: ["*"] }},
                {{ subjects: ["user:ann"], verbs: [list], resources: [pods], namespaces: [shop] }}, {more} ] }},
                resources: {{ pods: {{ source: {{ files: {{ path: ., kind: Pod }} }} }} }}"#
        )
    };
    let relay = |parent: &ServerAddress, more: &str| {
        format!(
            "{more} resources: {{ copies: {{ source: {{ informerd: {{ endpoint: 'http://{parent}', resource: pods, \
             token_file: relay, forward_identity: true }} }} }} }}"
        )
    };
    let authentication = "authentication: { token_file: of-relay },";
    let nowhere = "127.0.0.1:1".parse().unwrap();
    let error = started(&directory, &relay(&nowhere, "")).await.unwrap_err().to_string();
    let expected =
        "resources.copies.source.informerd.forward_identity: needs to know the callers; add `authentication`";
    assert!(error.contains(expected), "{error}");

    for (more, expected) in [(impersonation, Ok(vec!["shop".to_owned()])), ("", Err("ACCESS_DENIED".to_owned()))] {
        let (parent, _parent) = started(&directory, &parent(more)).await.unwrap();
        let (relay, _relay) = started(&directory, &relay(&parent, authentication)).await.unwrap();
        let listed = async |user: &str| {
            let address = relay.with_token_file(directory.path().join(user)).unwrap();
            let listed = Client::connect(&address).await.unwrap().list(&Query::of("copies")).await;
            let namespaces = |listed: ListResult| listed.objects.into_iter().map(|object| object.namespace).collect();
            listed.map(namespaces).map_err(|error| reason_of(&error).unwrap_or_default().to_owned())
        };
        assert_eq!(listed("ann").await, expected);
        assert_eq!(listed("bob").await, Err("ACCESS_DENIED".to_owned()));
    }
}
