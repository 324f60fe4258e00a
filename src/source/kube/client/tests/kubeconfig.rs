use std::fs;

use super::*;

fn env<const N: usize>(values: [(&'static str, String); N]) -> impl Fn(&str) -> Option<String> {
    let values = BTreeMap::from(values);
    move |name| values.get(name).cloned()
}

fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path
}

fn load(path: &Path, context: Option<&str>) -> Result<RestConfig, String> {
    let cluster = KubeCluster { kubeconfig: Some(path.to_owned()), context: context.map(str::to_owned) };
    RestConfig::load(&cluster, &env([]))
}

/// `TestModifyContext` and `TestLoadingGetLoadingPrecedence` of clientcmd: the first definition wins, a missing file is
/// ignored, and paths are relative to the file that has them.
#[test]
fn files_are_merged_as_kubectl_merges_them() {
    let directory = tempfile::tempdir().unwrap();
    let first = write(
        directory.path(),
        "one/config",
        "clusters: [{name: k, cluster: {server: 'https://one', certificate-authority: ca.crt}}]\nusers: null\n",
    );
    let second = write(
        directory.path(),
        "two/config",
        "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u, namespace: x}}]\n\
         clusters: [{name: k, cluster: {server: 'https://two'}}]\n\
         users: [{name: u, user: {tokenFile: ./token, exec: {command: ./plugin, args: null}}}]\nother: 1\n",
    );
    let list = std::env::join_paths([&first, &directory.path().join("missing"), &second]).unwrap();
    let env = env([("KUBECONFIG", list.into_string().unwrap())]);
    let RestConfig { cluster, user, files } = RestConfig::load(&KubeCluster::default(), &env).unwrap();
    assert_eq!(cluster.server, "https://one");
    assert_eq!(cluster.certificate_authority, Some(directory.path().join("one/ca.crt")));
    assert_eq!(user.token_file, Some(directory.path().join("two/./token")));
    assert_eq!(user.exec.unwrap().command, directory.path().join("two/./plugin").display().to_string());
    assert_eq!(files.len(), 3, "one that is missing may appear");
}

#[test]
fn missing_entries_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let text = "contexts: [{name: c, context: {cluster: k}}, {name: d, context: {cluster: gone}}]\n\
                clusters: [{name: k, cluster: {server: ''}}]\n";
    let path = write(directory.path(), "config", text);
    for (context, problem) in [
        (None, "the kubeconfig has no current context; write a `context`"),
        (Some("none"), "context \"none\" not found in the kubeconfig (known: c, d)"),
        (Some("c"), "cluster \"k\" of the kubeconfig has no `server`"),
        (Some("d"), "cluster \"gone\" of context \"d\" not found in the kubeconfig"),
    ] {
        assert_eq!(load(&path, context).err().unwrap(), problem);
    }
    let broken = write(directory.path(), "broken", "clusters: {");
    assert!(load(&broken, None).err().unwrap().starts_with(&format!("{}: ", broken.display())));
    let missing = directory.path().join("missing");
    assert!(load(&missing, None).err().unwrap().starts_with(&format!("{}: no such file", missing.display())));
    let nowhere = RestConfig::load(&KubeCluster::default(), &env([("HOME", "/no/such/home".to_owned())]));
    let expected = "no kubeconfig: none of /no/such/home/.kube/config exists; name one, or run inside a cluster";
    assert_eq!(nowhere.err().unwrap(), expected);
    let nowhere = RestConfig::load(&KubeCluster::default(), &env([])).err().unwrap();
    assert!(nowhere.starts_with("no kubeconfig: neither KUBECONFIG nor HOME is set"), "{nowhere}");
}

/// In a pod without a token the error is not about kubeconfigs.
#[test]
fn a_pod_without_a_service_account_has_its_own_error() {
    let host = ("KUBERNETES_SERVICE_HOST", "10.0.0.1".to_owned());
    let problem = RestConfig::load(&KubeCluster::default(), &env([host.clone()])).err().unwrap();
    assert!(problem.contains("KUBERNETES_SERVICE_PORT"), "{problem}");
    let env = env([host, ("KUBERNETES_SERVICE_PORT", "443".to_owned())]);
    let problem = RestConfig::load(&KubeCluster::default(), &env).err().unwrap();
    assert!(problem.starts_with("the service account of this pod: /var/run/secrets/"), "{problem}");
    assert!(problem.contains("automountServiceAccountToken"), "{problem}");
}

#[test]
fn values_in_the_file_win_over_files_that_it_names() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "ca", "from the file");
    let text = |more: &str| {
        format!(
            "{{current-context: c, contexts: [{{name: c, context: {{cluster: k, user: u}}}}], \
             clusters: [{{name: k, cluster: {{server: 'https://a', certificate-authority: ca{more}}}}}], \
             users: [{{name: u, user: {{client-certificate-data: YQ==}}}}]}}"
        )
    };
    let path = write(directory.path(), "config", &text(", certificate-authority-data: 'Zm\n  9v'"));
    assert_eq!(load(&path, None).unwrap().cluster.authority(), Ok(Some(b"foo".to_vec())));
    assert_eq!(
        load(&path, None).unwrap().user.identity().unwrap_err(),
        "the kubeconfig has a client certificate without a client key"
    );
    let path = write(directory.path(), "config", &text(""));
    assert_eq!(load(&path, None).unwrap().cluster.authority(), Ok(Some(b"from the file".to_vec())));
    let path = write(directory.path(), "config", &text(", certificate-authority-data: '?'"));
    let problem = load(&path, None).unwrap().cluster.authority().unwrap_err();
    assert!(problem.starts_with("certificate-authority-data of the kubeconfig is not base64"), "{problem}");
}

#[test]
fn a_file_that_cannot_be_parsed_is_not_quoted() {
    let directory = tempfile::tempdir().unwrap();
    for user in ["    token: canary\n    ]\n", "    token: [canary]\n", "    exec: canary\n"] {
        let path = write(directory.path(), "config", &format!("users:\n- name: canary\n  user:\n{user}"));
        let problem = load(&path, None).err().unwrap();
        assert!(problem.contains("config: is not a kubeconfig, at line ") && !problem.contains("canary"), "{problem}");
    }
}
