//! The manifests of `deploy/`, applied to the API server, and their pods as the kubelet would run them.

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant},
};

use informerd::proto::pb;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    DEADLINE,
    apiserver::{ApiServer, CONFIG_MAPS},
    follow::{Followed, ReceivedEvent},
    gate::Gate,
    manifest::{Manifest, named, text},
    pod::{ADDRESS, Container, Pod},
    selection::Selection,
    truth::Truth,
};

pub(crate) const RESTRICTED: &str = "pod-security.kubernetes.io/enforce=restricted";

/// Applies a manifest as users do, and returns it with the versions of its objects. The API server rejects unknown fields.
pub(crate) fn apply(apiserver: &ApiServer, manifest: &str) -> String {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("manifest.yaml");
    fs::write(&file, manifest).unwrap();
    let file = file.to_str().unwrap();
    let told = apiserver.kubectl(&["apply", "--validate=strict", "-f", file]);
    assert_eq!(told.lines().count(), Manifest::parse(manifest).objects.len(), "{told}");
    let version = "jsonpath={range .items[*]}{.kind} {.metadata.resourceVersion}{'\\n'}{end}";
    let versions = apiserver.kubectl(&["get", "-f", file, "-o", version]);
    assert_eq!(versions.lines().count(), told.lines().count(), "{versions}");
    versions
}

/// Publishes the authority of the cluster in a namespace, as its controllers do for each.
pub(crate) fn publish_authority(apiserver: &ApiServer, namespace: &str) {
    let authority = format!("--from-literal=ca.crt={}", apiserver.authority());
    apiserver.kubectl(&["create", "configmap", "kube-root-ca.crt", "-n", namespace, &authority]);
}

/// Returns the rights of a service account in a namespace that others do not have.
fn rights(apiserver: &ApiServer, namespace: &str, account: &str) -> BTreeSet<Vec<String>> {
    let rights = |account: &str| -> BTreeSet<Vec<String>> {
        let listed = apiserver.kubectl(&["auth", "can-i", "--list", "--no-headers", "-n", namespace, "--as", account]);
        listed.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    let nobody = "system:serviceaccount:default:nobody";
    &rights(account) - &rights(nobody)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_manifests_grant_exactly_the_necessary_rights() {
    let apiserver = ApiServer::start().await;
    apiserver.kubectl(&["label", "namespace", "default", RESTRICTED, &RESTRICTED.replace("enforce", "warn")]);
    for (file, account, in_its_own, elsewhere) in [
        (
            "sidecar.yaml",
            "system:serviceaccount:default:informerd",
            &["configmaps", "endpointslices.discovery.k8s.io"][..],
            &[][..],
        ),
        ("mirror.yaml", "system:serviceaccount:dashboards:informerd", &["configmaps"], &[]),
        ("standalone.yaml", "system:serviceaccount:informerd:informerd", &["pods", "services"], &["pods", "services"]),
        ("shared.yaml", "system:serviceaccount:informerd:informerd", &["configmaps", "pods"], &["configmaps", "pods"]),
    ] {
        let manifest = text(file);
        assert_eq!(apply(&apiserver, &manifest), apply(&apiserver, &manifest), "{file}: nothing is written again");

        // The least rights.
        let manifest = Manifest::parse(&manifest);
        let namespace = manifest.object("ServiceAccount")["metadata"]["namespace"].as_str().unwrap();
        for (namespace, resources) in [(namespace, in_its_own), ("kube-system", elsewhere)] {
            let line = |words: &str| words.split(' ').map(str::to_owned).collect::<Vec<_>>();
            let rules = resources.iter().map(|resource| line(&format!("{resource} [] [] [list watch]")));
            let of_namespaces = (!elsewhere.is_empty()).then(|| line("namespaces [] [kube-system] [get]"));
            let reviews = ["tokenreviews.authentication.k8s.io", "subjectaccessreviews.authorization.k8s.io"];
            let reviews = reviews.iter().filter(|_| file == "shared.yaml");
            let of_reviews = reviews.map(|review| line(&format!("{review} [] [] [create]")));
            let expected: BTreeSet<_> = rules.chain(of_namespaces).chain(of_reviews).collect();
            assert_eq!(rights(&apiserver, namespace, account), expected, "{file} in {namespace}");
        }

        // The strictest Pod Security Standard admits them, and rejects a pod that is not so.
        let mut pod = manifest.pod().clone();
        (pod["apiVersion"], pod["kind"]) = (json!("v1"), json!("Pod"));
        (pod["metadata"]["name"], pod["metadata"]["namespace"]) = (json!("p"), json!(namespace));
        assert_eq!(create(&apiserver, &pod), Ok(()), "{file}");
        pod["spec"]["securityContext"]["runAsNonRoot"] = json!(false);
        assert!(
            create(&apiserver, &pod).unwrap_err().contains("violates PodSecurity \"restricted:latest\": runAsNonRoot")
        );
    }
}

/// Creates an object as far as the API server alone does it.
pub(crate) fn create(apiserver: &ApiServer, object: &Value) -> Result<(), String> {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("object.json");
    fs::write(&file, object.to_string()).unwrap();
    let output = apiserver.try_kubectl(&["create", "--dry-run=server", "-f", file.to_str().unwrap()]);
    if output.status.success() { Ok(()) } else { Err(String::from_utf8(output.stderr).unwrap()) }
}

/// Checks that the application starts once the cache is complete, reads through it, and receives everything, across restarts of
/// informerd.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_application_of_a_sidecar_starts_with_its_cache_and_outlives_it() {
    let apiserver = ApiServer::start().await;
    let (mut truth, mut marks) = (Truth::new(19), 0);
    write(&apiserver, &mut truth, 20).await;
    publish_authority(&apiserver, "a");
    let manifest = text("sidecar.yaml")
        .replace("namespace: default", "namespace: a")
        .replace("namespace: \"default\"", "namespace: a");
    apply(&apiserver, &manifest);
    let manifest = Manifest::parse(&manifest);
    let template = manifest.pod();
    let gate = Gate::to(apiserver.address()).await;
    gate.refuse(true);

    let pod = Pod::new("a", template, gate.port()).await;
    let mut sidecar = pod.container(&apiserver, named(&template["spec"]["initContainers"], "informerd"));
    let mut application = pod.container(&apiserver, named(&template["spec"]["containers"], "application"));
    assert_eq!(template["spec"]["initContainers"][0]["restartPolicy"], "Always");
    sidecar.start().await;
    // It runs, and reports that it is not ready, and why; the kubelet waits, and starts no other container.
    until("the probe says why", async || {
        sidecar.probe("livenessProbe").await.is_ok()
            && sidecar.probe("startupProbe").await.is_err_and(|problem| {
                problem.contains("configmaps: not synced: ") && problem.contains("endpointslices: not synced: ")
            })
    })
    .await;
    gate.refuse(false);
    sidecar.started().await;
    application.start().await;
    assert_eq!(sidecar.informerd(&["resources", "-o", "name"]), "configmaps\nendpointslices\n");

    // The initial events have everything, and so have those after them.
    mark(&apiserver, &application, &mut marks).await;
    write(&apiserver, &mut truth, 20).await;
    mark(&apiserver, &application, &mut marks).await;
    truth.check(&told(&application), true);
    let (first, running) = (told(&application), application.pid());
    assert!(
        first.told.iter().any(|told| told.cause == pb::Cause::Initial)
            && first.told.iter().any(|told| told.cause != pb::Cause::Initial)
    );

    // An unreachable API makes no pod unready.
    gate.refuse(true);
    write(&apiserver, &mut truth, 5).await;
    sidecar.probe("readinessProbe").await.unwrap();
    gate.refuse(false);
    mark(&apiserver, &application, &mut marks).await;
    truth.check(&told(&application), true);

    for round in 1..=2 {
        sidecar.kill().await;
        assert!(sidecar.probe("readinessProbe").await.is_err());
        write(&apiserver, &mut truth, 10).await;
        sidecar.started().await;
        sidecar.probe("readinessProbe").await.unwrap();
        write(&apiserver, &mut truth, 10).await;
        mark(&apiserver, &application, &mut marks).await;
        assert!(sidecar.starts > round);
        truth.check(&told(&application), true);
    }
    assert_eq!((application.has_ended(), application.pid(), application.starts), (None, running, 1));
    let notes = application.log("err");
    assert!(notes.contains("# reconnecting") && !notes.contains("# relisted: "), "{notes}");
    let told = told(&application).told;
    let each: BTreeSet<_> = told.iter().map(|told| (&told.key, told.version)).collect();
    assert_eq!(each.len(), told.len(), "each change once");

    // The application ends first; the sidecar ends after it.
    let ends_at = Instant::now() + pod.grace_period();
    assert_eq!(application.terminate(pod.grace_period()).await, Some(0));
    assert_eq!(sidecar.has_ended(), None);
    assert_eq!(sidecar.terminate(ends_at.duration_since(Instant::now())).await, Some(0));
    let log = sidecar.log("err");
    // The waiting command writes to the log too when it is killed.
    let log = log.lines().filter(|line| line.starts_with('{'));
    let log: Vec<Value> = log.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(log.last().unwrap()["message"], "shut down");
    let error = log.iter().find(|line| line["level"] == "ERROR");
    assert_eq!(error, None, "an API that is away is a warning, and one line");
}

/// Checks that the application finds every key of the labelled objects as a file when it starts, and every change later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mirror_of_a_pod_has_the_data_of_labelled_objects_as_files() {
    let apiserver = ApiServer::start().await;
    apply(&apiserver, &text("mirror.yaml"));
    publish_authority(&apiserver, "dashboards");
    let labelled = |name: &str, data: &str| {
        apiserver.kubectl(&["create", "configmap", name, "-n", "dashboards", &format!("--from-literal={data}")]);
        apiserver.kubectl(&["label", "configmap", name, "-n", "dashboards", "grafana_dashboard=1"]);
    };
    labelled("web", "web.json={}");
    let manifest = Manifest::read("mirror.yaml");
    let template = manifest.pod();
    let pod = Pod::new("dashboards", template, apiserver.address().port()).await;
    let containers = &template["spec"]["initContainers"];
    let mut server = pod.container(&apiserver, named(containers, "informerd"));
    let mut mirror = pod.container(&apiserver, named(containers, "mirror"));
    server.start().await;
    server.started().await;
    mirror.start().await;
    mirror.started().await;
    let file = |path: &str| mirror.file(&format!("/dashboards/dashboards/{path}"));
    assert_eq!(file("web/web.json").as_deref(), Some("{}"));
    labelled("db", "db.json=[]");
    until("the new file is there", async || file("db/db.json").is_some_and(|text| text == "[]")).await;
    apiserver.kubectl(&["label", "configmap", "web", "-n", "dashboards", "grafana_dashboard-"]);
    until("the file is removed", async || file("web/web.json").is_none()).await;

    // The mirror waits for its server, and is right again.
    server.kill().await;
    labelled("new", "new.json={}");
    server.start().await;
    server.started().await;
    until("the missed file is there", async || file("new/new.json").is_some()).await;
    assert_eq!(mirror.terminate(pod.grace_period()).await, Some(0));
    assert_eq!(server.terminate(pod.grace_period()).await, Some(0));
}

/// Calls the address of the pod, and checks that the pod fails /readyz before it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_standalone_pod_serves_other_pods_and_shuts_down_gracefully() {
    let apiserver = ApiServer::start().await;
    apply(&apiserver, &text("standalone.yaml"));
    publish_authority(&apiserver, "informerd");
    let manifest = Manifest::read("standalone.yaml");
    let template = manifest.pod();
    let pod = Pod::new("informerd", template, apiserver.address().port()).await;
    let mut server = pod.container(&apiserver, named(&template["spec"]["containers"], "informerd"));
    server.start().await;
    server.started().await;
    let at = format!("{ADDRESS}:50051");
    assert_eq!(
        server.informerd(&["list", "services", "-o", "name", "--server", &at]),
        "default/kubernetes\ninformerd/informerd\n"
    );
    assert_eq!(server.informerd(&["resources", "-o", "name", "--server", &at]), "pods\nservices\n");

    // For `drain.delay` the Service leaves it out while it still serves, so that no connection is refused.
    server.signal("-TERM");
    until("it says that it ends", async || {
        server.probe("readinessProbe").await.is_err_and(|problem| problem.contains("shutting down"))
    })
    .await;
    server.informerd(&["get", "services", "default/kubernetes", "--server", &at]);
    assert_eq!(server.ended(pod.grace_period()).await, Some(0));
}

async fn write(apiserver: &ApiServer, truth: &mut Truth, count: usize) {
    for _ in 0..count {
        apiserver.write(truth, CONFIG_MAPS).await;
    }
}

/// Writes one more object, and waits until the application has received it, and so everything before it.
async fn mark(apiserver: &ApiServer, application: &Container, marks: &mut usize) {
    *marks += 1;
    let name = format!("mark-{marks}");
    apiserver.kubectl(&["create", "configmap", &name, "-n", "a"]);
    let name = format!("\"name\":\"{name}\"");
    until(&format!("told of {name}"), async || application.log("out").contains(&name)).await;
}

async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < DEADLINE, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns the events of the written objects that the application has printed.
fn told(application: &Container) -> Followed {
    let notes = application.log("err");
    let synced_at = notes.lines().find_map(|line| line.strip_prefix("# synced: ")?.rsplit(' ').next()?.parse().ok());
    let events = application.log("out");
    // The last line may be incomplete.
    let events = events.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let told = events.filter_map(|line| {
        let event: Value = serde_json::from_str(line).unwrap();
        let object = &event["object"];
        let metadata = &object["metadata"];
        let word = |value: &Value, prefix: &str| format!("{prefix}{}", value.as_str().unwrap_or("UNSPECIFIED"));
        let version = |value: &Value| value.as_str().map_or(0, |version| version.parse().unwrap());
        if metadata["labels"]["suite"] != "truth" {
            return None;
        }
        let event_type = pb::EventType::from_str_name(&word(&event["type"], "EVENT_TYPE_")).unwrap();
        let resume = version(&event["resourceVersion"]);
        // A deletion has the last state of the object; its version may still be open.
        let of_deletion = event.get("objectVersion").map_or(resume, version);
        let is_deletion = event_type == pb::EventType::Deleted;
        Some(ReceivedEvent {
            event_type,
            cause: pb::Cause::from_str_name(&word(&event["cause"], "CAUSE_")).unwrap(),
            key: format!("a/{}", metadata["name"].as_str().unwrap().trim_start_matches("o-")),
            value: Some(CONFIG_MAPS.value(&object.to_string())),
            version: if is_deletion { of_deletion } else { version(&metadata["resourceVersion"]) },
            resume,
            coalesced: 0,
        })
    });
    let selection = Selection::namespace("a");
    Followed {
        selection,
        synced_at: synced_at.unwrap(),
        may_begin_open: true,
        told: told.collect(),
        ..Followed::default()
    }
}
