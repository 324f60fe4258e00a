//! Files of the server under test: its configuration, its users, keys and rules, and manifests, also with errors next to secrets.

use std::{fs, net::SocketAddr, path::Path};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::json;

use super::canary::Kind;
use crate::authentication::line;

const RULES: &str = r#"
- { subjects: ["user:reader"], verbs: ["*"], resources: [secrets, relayed], namespaces: ["*"], formats: [RAW, STRUCT] }
- { subjects: ["user:admin"], verbs: ["*"], resources: ["*"], namespaces: ["*"] }
- { subjects: ["group:web", "user:system:serviceaccount:open:web"], verbs: [get, list, watch], resources: [pods], namespaces: [open] }
- { subjects: ["user:jay"], verbs: [get, list, watch], resources: [pods, secrets], namespaces: ["*"], formats: [METADATA] }
"#;

/// Writes the configuration files that the server reads again, without an error.
pub(super) fn good_files(directory: &Path) {
    let write = |name: &str, text: &str| fs::write(directory.join(name), text).unwrap();
    let line = |name: &str, user: &str| line(&Kind::Token.canary(name), user);
    write("tokens", &[line("Reader", "reader"), line("Admin", "admin"), line("Ann", "ann web")].concat());
    write("rules.yaml", RULES);
    fs::copy(directory.join("good-jwks.json"), directory.join("jwks.json")).unwrap();
}

/// Writes them with errors next to secrets: the token itself in place of its hash, a private key, and a token among the rules.
pub(super) fn bad_files(directory: &Path, number: usize) {
    let write = |name: &str, text: &str| fs::write(directory.join(name), text).unwrap();
    let token = Kind::Token.canary("Ann");
    let good = line(&token, "ann web");
    let [tokens, keys, rules] = &[
        [
            format!("{good}{token} ann\n"),
            format!("{{\"keys\": \"{token}\"}}"),
            format!("- {{ subjects: [\"user:ann\"]\n  {token}: ]\n"),
        ],
        [
            format!("{good}{good}"),
            format!("{{\"keys\": [{{\"kty\": \"{token}\", \"x\": 5}}]}}"),
            format!("- {{ verbs: [list], {token}: \"\n"),
        ],
        [
            format!("{} {token} {token} {token}\n", &good[..64]),
            format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END", STANDARD.encode(&token)),
            "5".to_owned(),
        ],
    ][number % 3];
    write("tokens", tokens);
    write("jwks.json", keys);
    write("rules.yaml", rules);
}

/// Writes pods in an open and in a closed namespace and other objects; with some versions, also files that cannot be read.
pub(super) fn manifests(directory: &Path, version: u64) {
    let write = |name: &str, text: &str| fs::write(directory.join(name), text).unwrap();
    for (namespace, kind) in [("open", Kind::Open), ("closed", Kind::Closed)] {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "spec": { "text": kind.canary("Key"), "at": version },
            "metadata": { "namespace": namespace, "name": "web", "labels": { "app": "web" } },
        });
        write(&format!("pods/{namespace}.json"), &pod.to_string());
    }
    let canary = Kind::Settings.canary("Key");
    write("settings/a.yaml", &format!("kind: Settings\nmetadata: {{ name: a }}\ntext: {canary}\nat: {version}\n"));
    let bad = [
        format!("metadata: {canary}\n"),
        format!("text: {canary}\nmetadata: {{ name: x, labels: {canary} }}\n"),
        format!("text: {canary}\n  at: [{canary}\n"),
        format!("metadata: {{ name: x, labels: {{ a: [{canary}] }} }}\n"),
        format!("text: &a {canary}\nat: *{}\n", &canary[..4]),
        format!("{canary}\n"),
        format!("metadata: {{ name: x }}\ntext: !!int {canary}\n"),
    ];
    let at = usize::try_from(version).unwrap();
    write("settings/bad.yaml", &bad[at % bad.len()]);
    write("settings/bad.json", &json!({ "metadata": { "name": 5, "labels": canary }, "kind": canary }).to_string());
    write("settings/broken.json", &format!("{{\"text\": \"{canary}\", {canary}"));
}

/// Returns a kubeconfig; `broken` stands behind its token.
pub(super) fn kubeconfig(api: SocketAddr, broken: &str) -> String {
    format!(
        "current-context: c\ncontexts: [{{ name: c, context: {{ cluster: k, user: u }} }}]\n\
         clusters: [{{ name: k, cluster: {{ server: 'http://{api}' }} }}]\nusers:\n- name: u\n  user:\n    token: {}\n{broken}",
        Kind::Upstream.canary("Kube")
    )
}

pub(super) fn config(relayed: &str) -> String {
    let indexes = "indexes: { app: { label: app }, text: { path: .spec.text }, key: { path: .data.key } }";
    let kube =
        |plural: &str| format!("source: {{ kube: {{ version: v1, plural: {plural}, kubeconfig: kubeconfig }} }}");
    format!(
        r#"
state_dir: state
state_interval: 200ms
audit: {{ file: audit.log }}
authentication:
  token_file: tokens
  jwt: {{ issuer: "https://issuer.example", audiences: [informerd], keys: jwks.json }}
  token_review: {{ audiences: [informerd], kubeconfig: kubeconfig }}
authorization: {{ rules_file: rules.yaml, recheck: 10s }}
quotas: {{ streams: 30 }}
resources:
  pods: {{ source: {{ files: {{ path: pods }} }}, {indexes} }}
  settings: {{ source: {{ files: {{ path: settings }} }}, {indexes} }}
  secrets: {{ allow_secrets: true, {}, {indexes} }}
  configmaps: {{ {}, {indexes} }}
  relayed:
    allow_secrets: true
    source: {{ informerd: {{ endpoint: "http://{relayed}", resource: pods, token_file: relay-token }} }}
    {indexes}
  config:
    optional: true
    source: {{ etcd: {{ endpoints: ["http://{relayed}"], prefix: /a/, username: root, password_file: etcd-password }} }}
"#,
        kube("secrets"),
        kube("configmaps"),
    )
}
