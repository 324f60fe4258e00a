//! Tests of a source with `is_metadata_only`.

use super::*;
use crate::cache::WarmStart;

fn config(fixture: &Fixture) -> KubeConfig {
    KubeConfig { is_metadata_only: true, page_size: Some(2), label_selector: "a=b".to_owned(), ..fixture.config() }
}

fn rig(fixture: &Fixture, kept: Option<&SavedSnapshot>) -> Rig {
    let health = SourceHealth::new(Duration::from_secs(5), Duration::from_secs(15));
    Rig::follow(KubeSource::new(config(fixture), health.clone()), health, kept, body)
}

/// Returns the body with sorted keys.
fn body(object: &Object) -> String {
    serde_json::from_slice::<serde_json::Value>(object.body()).unwrap().to_string()
}

/// Returns the expected body of a written object.
fn expected(key: &str, uid: u64, version: u64) -> String {
    expected_in("", key, uid, version)
}

fn expected_in(namespace: &str, name: &str, uid: u64, version: u64) -> String {
    let metadata = serde_json::json!({
        "name": name, "namespace": namespace, "uid": format!("u{uid}"), "resourceVersion": version.to_string(),
        "managedFields": [{"manager": "x"}],
    });
    let kind = ("PartialObjectMetadata", "meta.k8s.io/v1");
    serde_json::json!({"kind": kind.0, "apiVersion": kind.1, "metadata": metadata}).to_string()
}

/// By initial events and in pages, live and after a restart; also from an API that sends whole objects.
#[tokio::test]
async fn only_metadata_is_served_whatever_the_api_sends() {
    for (streams, knows_partial) in [(true, true), (false, true), (true, false), (false, false)] {
        let fixture = Fixture::new().await;
        fixture.fake.set(|store| (store.streams, store.knows_partial) = (streams, knows_partial));
        fixture.fake.write("a=secret b=secret c=secret");
        let mut rig = rig(&fixture, None);
        assert_eq!(rig.told().await, "list 4");
        let listed: Vec<_> = rig.state.values().map(|(_, body)| body.clone()).collect();
        assert_eq!(listed, [expected("a", 2, 2), expected("b", 3, 3), expected("c", 4, 4)]);
        assert_eq!(fixture.fake.asked().iter().any(|asked| asked.contains("page")), !streams);
        assert!(fixture.fake.set(|store| store.target.contains("labelSelector=a%3Db")));
        fixture.fake.write("b=other -c d=secret");
        assert_eq!(rig.told().await, format!("5 ~b={}", expected("b", 3, 5)));
        assert_eq!(rig.told().await, "6 -c");
        assert_eq!(rig.told().await, format!("7 +d={}", expected("d", 7, 7)));
        // The head reads the last known change before the next watch.
        fixture.gate.cut();
        fixture.fake.write("a=other");
        assert_eq!(rig.told().await, format!("8 ~a={}", expected("a", 2, 8)));
        assert_eq!((rig.lists(), rig.history_rewrites), (1, 0));
        let kept = rig.kept().await;
        drop(rig);
        fixture.fake.write("a=more");
        let mut rig = self::rig(&fixture, Some(&kept));
        assert_eq!(rig.told().await, format!("9 ~a={}", expected("a", 2, 9)));
        assert_eq!((rig.lists(), rig.history_rewrites), (0, 0));
        let asked = fixture.fake.asked();
        assert!(asked.iter().all(|asked| asked.ends_with(" of metadata") == knows_partial), "{asked:?}");
    }
}

#[tokio::test]
async fn several_namespaces_can_be_metadata_only() {
    let fixture = Fixture::new().await;
    fixture.fake.write("m/a=secret n/b=secret o/c=secret");
    let namespaces = ["m", "n"].map(str::to_owned).into();
    let health = SourceHealth::new(Duration::from_secs(5), Duration::from_secs(15));
    let source = KubeSource::new(KubeConfig { namespaces, ..config(&fixture) }, health.clone());
    let mut rig = Rig::follow(source, health, None, body);
    assert_eq!(rig.told().await, "list 4");
    fixture.fake.write("n/b=other");
    while rig.state["n/b"].1 != expected_in("n", "b", 3, 5) {
        rig.next().await;
    }
    assert_eq!(rig.state["m/a"].1, expected_in("m", "a", 2, 2));
    assert_eq!(rig.state.len(), 2);
    let asked = fixture.fake.asked();
    assert!(asked.iter().all(|asked| asked.contains(" of metadata")), "{asked:?}");
}

/// A snapshot of whole objects cannot be resumed from with metadata only, and the other way round.
#[tokio::test]
async fn the_identity_of_a_snapshot_includes_metadata_only() {
    let fixture = Fixture::new().await;
    let identity = |config: KubeConfig| {
        let health = SourceHealth::new(Duration::from_secs(5), Duration::from_secs(15));
        KubeSource::new(config, health).identity()
    };
    assert_ne!(identity(config(&fixture)), identity(KubeConfig { is_metadata_only: false, ..config(&fixture) }));
}
