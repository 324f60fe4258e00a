//! Tests of emitted objects and versions, and of the requests for them.

use serde_json::json;

use super::{fake_api::event, *};
use crate::{
    cache::Delta,
    model::{Event, FieldCut},
    source::tests::sole_event,
};

#[tokio::test]
async fn a_resource_is_listed_and_followed_over_one_watch() {
    let fixture = Fixture::new().await;
    fixture.fake.write("shop/a=1 b=1");
    let mut rig = fixture.listed().await;
    assert_eq!(rig.state, fixture.fake.state());
    fixture.fake.write("b=2 c=1 -shop/a b=3");
    for expected in ["4 ~b=2", "5 +c=1", "6 -shop/a", "7 ~b=3"] {
        assert_eq!(rig.told().await, expected);
    }
    assert_eq!(fixture.fake.asked(), ["initial"], "the initial events and what follows are one watch");
    assert_eq!(rig.history_rewrites, 0);
}

/// `TestReflectorListAndWatch`: both modes, with exact options. `TestWatchTimeout`: a random one between five minutes and ten.
#[tokio::test]
async fn requests_have_the_parameters_of_client_go() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1");
    let config = KubeConfig {
        namespace: "shop".to_owned(),
        label_selector: "app in (web,x)".to_owned(),
        field_selector: "spec.nodeName=n".to_owned(),
        ..fixture.config()
    };
    let mut rig = follow(config.clone(), None);
    rig.told().await;
    let path = "/apis/example.com/v1/namespaces/shop/widgets";
    let selectors = "labelSelector=app%20in%20%28web%2Cx%29&fieldSelector=spec.nodeName%3Dn";
    let target = fixture.fake.set(|store| store.target.clone());
    let seconds: u64 = target.split("timeoutSeconds=").nth(1).unwrap().split('&').next().unwrap().parse().unwrap();
    assert!((300..=600).contains(&seconds), "{seconds}");
    let expected = format!(
        "{path}?watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}&sendInitialEvents=true&\
         resourceVersionMatch=NotOlderThan&{selectors}"
    );
    assert_eq!(target, expected);
    let user_agent = fixture.fake.set(|store| store.user_agent.clone());
    assert_eq!(user_agent, concat!("informerd/", env!("CARGO_PKG_VERSION")));
    drop(rig);

    fixture.fake.set(|store| store.streams = false);
    let mut rig = follow(KubeConfig { group: String::new(), namespace: String::new(), ..config }, None);
    rig.told().await;
    until(|| fixture.fake.set(|store| store.target.contains("watch=1") && !store.target.contains("sendInitial"))).await;
    let target = fixture.fake.set(|store| store.target.clone());
    assert!(target.starts_with("/api/v1/widgets?watch=1&allowWatchBookmarks=true&timeoutSeconds="), "{target}");
    assert!(target.ends_with(&format!("&resourceVersion=2&{selectors}")), "{target}");
}

/// Bodies are the received bytes without dropped fields, in a list and in a watch alike.
#[tokio::test]
async fn an_object_has_the_same_bytes_from_a_list_and_a_watch() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1");
    let drop_fields = FieldCut::new([Path::parse("metadata.managedFields").unwrap()]).unwrap();
    let config = KubeConfig { drop_fields, ..fixture.config() };
    let health = SourceHealth::new(config.contact_timeout, Duration::from_secs(15));
    let mut bodies = Vec::new();
    for streams in [true, false] {
        fixture.fake.set(|store| store.streams = streams);
        let source = KubeSource::new(config.clone(), health.clone());
        let list = source.list(ListVersion::MostRecent).await.unwrap();
        bodies.push(String::from_utf8(list.objects[0].body().to_vec()).unwrap());
        assert_eq!((list.objects[0].kind(), list.objects[0].api_version()), ("Widget", "example.com/v1"));
    }
    let sorted = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!(sorted(&bodies[0]), sorted(&bodies[1]));
    assert!(!bodies[0].contains("managedFields") && bodies[0].contains(r#""value":"1""#), "{bodies:?}");
}

#[tokio::test]
async fn a_bookmark_is_a_version_to_resume_from() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1");
    let lines = vec![fake_api::bookmark("2", Some("true")), fake_api::bookmark("9", None)];
    fixture.fake.set(|store| {
        store.revision = 9;
        store.watches.push_back(Fault::Tell(lines));
    });
    let mut rig = fixture.rig();
    assert_eq!((rig.next().await, rig.next().await), ("list 2".to_owned(), "bookmark 9".to_owned()));
    until(|| fixture.fake.asked() == ["initial", "head", "watch 9"]).await;
}

/// An object that cannot be served is reported under its key, and the others are served.
#[tokio::test]
async fn an_object_that_is_too_large_is_not_served_and_is_reported_until_fixed() {
    let fixture = Fixture::new().await;
    let large = "x".repeat(crate::model::MAX_OBJECT_BYTES);
    fixture.fake.write(&format!("a=1 b={large}"));
    let mut rig = fixture.listed().await;
    assert_eq!(rig.state.keys().collect::<Vec<_>>(), ["/a".trim_start_matches('/')]);
    assert!(rig.error("receive at most 3145728").await.starts_with("b: "));
    fixture.fake.write(&format!("a={large} b=1 a=2"));
    for expected in ["4 !a", "5 ~b=1", "6 +a=2"] {
        // The API decides between ADDED and MODIFIED here; the cache corrects it later.
        assert_eq!(rig.told().await.replace('~', "+"), expected.replace('~', "+"));
    }
    assert_eq!(rig.health.report().problems, 0);
}

/// An event that cannot be decoded ends the watch, and is never skipped.
#[tokio::test]
async fn an_unreadable_event_leads_to_a_list_and_is_never_applied() {
    for line in [
        "nonsense".to_owned(),
        event("ADDED", &json!({"metadata": {"resourceVersion": "9"}})),
        event("ADDED", &json!({"metadata": {"name": "z"}})),
        event("RENAMED", &json!({"metadata": {"name": "z", "resourceVersion": "9"}})),
        fake_api::bookmark("", None),
    ] {
        let fixture = Fixture::new().await;
        fixture.fake.write("a=1");
        fixture.fake.set(|store| {
            store.watches.push_back(Fault::Tell(vec![fake_api::bookmark("2", Some("true")), line.clone()]));
        });
        let mut rig = fixture.rig();
        assert_eq!(rig.told().await, "list 2");
        assert_eq!(rig.told().await, "list 2", "{line}");
        assert_eq!(fixture.fake.asked()[..2], ["initial", "initial 2"], "{line}");
        assert_eq!(rig.state, fixture.fake.state());
    }
}

/// Versions that are not decimals are numbered by lineage.
#[tokio::test]
async fn an_api_with_other_versions_is_served_by_lineage() {
    for streams in [true, false] {
        let fixture = Fixture::new().await;
        fixture.fake.set(|store| (store.prefix, store.streams) = ("v-", streams));
        fixture.fake.write("a=1 b=1");
        let mut rig = fixture.rig();
        assert_eq!(rig.told().await, "list 1");
        assert_eq!(rig.state, fixture.fake.state());
        fixture.fake.write("b=2 -a");
        assert_eq!(rig.told().await, "2 ~b=2");
        assert_eq!(rig.told().await, "3 -a");
        fixture.gate.cut();
        fixture.fake.write("c=1");
        // There may be more deletions at that version.
        assert_eq!(rig.told().await, "4 -a");
        assert_eq!(rig.told().await, "5 +c=1");
        assert_eq!((rig.state.clone(), rig.history_rewrites), (fixture.fake.state(), 0));
        assert_eq!(fixture.fake.asked().last().unwrap(), "watch v-4");
    }
}

/// An API server may be replaced by one that writes its versions in another form.
#[tokio::test]
async fn a_version_that_the_api_cannot_parse_is_listed_again() {
    for code in [400, 422] {
        let fixture = Fixture::new().await;
        fixture.fake.set(|store| (store.prefix, store.streams) = ("v-", false));
        fixture.fake.write("a=1");
        let mut rig = fixture.rig();
        assert_eq!(rig.told().await, "list 1");
        fixture.fake.write("a=2");
        assert_eq!(rig.told().await, "2 ~a=2");
        let invalid = || Fault::Refuse(code, None, json!({"reason": "Invalid", "message": "version v-3"}).to_string());
        fixture.fake.set(|store| {
            store.watches.extend((0..1000).map(|_| invalid()));
            // The list at that version.
            store.lists.push_back(invalid());
        });
        fixture.gate.cut();
        assert_eq!(rig.told().await, "list 2", "{code}");
        let lists: Vec<String> = fixture.fake.asked().into_iter().filter(|asked| asked.starts_with("list")).collect();
        assert!(!lists.last().unwrap().contains("v-"), "{code}: {lists:?}");
        fixture.fake.set(|store| store.watches.clear());
        fixture.fake.write("a=3");
        while rig.state != fixture.fake.state() {
            rig.told().await;
        }
    }
}

#[tokio::test]
async fn versions_of_a_lineage_belong_to_one_run() {
    let fixture = Fixture::new().await;
    fixture.fake.set(|store| store.prefix = "v-");
    let rig = fixture.rig();
    let popped = rig.fifo.pop_batch(1, 1).await.unwrap().remove(0);
    let Delta::Replace(list) = popped else { panic!("{popped:?}") };
    assert!(list.version.lineage().is_some());
    fixture.fake.write("a=1");
    let popped = rig.fifo.pop_batch(1, 1).await.unwrap().remove(0);
    let Event::Added(object) = sole_event(popped) else { panic!("another event") };
    assert_eq!(object.version(), &list.version.next());
}

#[tokio::test]
async fn a_refused_token_is_read_again_and_the_error_names_the_remedy() {
    let fixture = Fixture::new().await;
    fixture.fake.set(|store| store.token = Some("one"));
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "one").unwrap();
    let path = kubeconfig(&fixture.gate.url(), &format!("tokenFile: {}", token.path().display()));
    let cluster = KubeCluster { kubeconfig: Some(path.to_path_buf()), context: None };
    let mut rig = follow(KubeConfig { cluster, ..fixture.config() }, None);
    assert_eq!(rig.told().await, "list 1");
    fixture.fake.set(|store| store.token = Some("two"));
    fixture.gate.cut();
    let error = rig.error("who?").await;
    assert!(error.ends_with("(Unauthorized); correct the credentials of the kubeconfig or the token"), "{error}");
    std::fs::write(token.path(), "two").unwrap();
    fixture.fake.write("a=1");
    rig.reach_state(fixture.fake.revision(), || fixture.fake.state()).await;
    assert_eq!(rig.history_rewrites, 0);
}

#[tokio::test]
async fn an_exec_plugin_provides_the_credentials() {
    let fixture = Fixture::new().await;
    fixture.fake.set(|store| store.token = Some("from-plugin"));
    let credential =
        r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"from-plugin"}}"#;
    let exec = "apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: echo";
    let path = kubeconfig(&fixture.gate.url(), &format!("exec: {{{exec}, args: ['{credential}']}}"));
    let cluster = KubeCluster { kubeconfig: Some(path.to_path_buf()), context: None };
    let mut rig = follow(KubeConfig { cluster: cluster.clone(), ..fixture.config() }, None);
    assert_eq!(rig.told().await, "list 1");

    std::fs::write(&path, std::fs::read_to_string(&path).unwrap().replace("command: echo", "command: /no/such/plugin"))
        .unwrap();
    let rig = follow(KubeConfig { cluster, ..fixture.config() }, None);
    rig.error("exec plugin \"/no/such/plugin\" cannot be started").await;
}
