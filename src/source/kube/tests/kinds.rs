//! Discovery of the kind of a resource, which the API may have or allow later than the source begins.

use super::*;

/// Waits much longer than the longest delay between two attempts. Time is paused.
async fn later() {
    tokio::time::sleep(Duration::from_secs(3600)).await;
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_the_api_refuses_or_has_not_yet_is_discovered_later() {
    let fixture = Fixture::new().await;
    let health = SourceHealth::new(Duration::MAX, Duration::MAX);
    fixture.fake.set(|store| (store.token, store.kind) = (Some("x"), ""));
    let discovery = KubeSource::discover(&fixture.config(), health.clone(), &KubeClients::default());
    let discovery = tokio::spawn(discovery);
    later().await;
    // Of a group without any kinds, an answer of another program, and no group; then it has others.
    fixture.fake.set(|store| {
        store.token = None;
        store.others.extend(["{}", "hello"].map(|answer| Fault::Answer(answer.to_owned())));
        store.others.push_back(Fault::Refuse(404, None, "{}".to_owned()));
    });
    later().await;
    assert_eq!((health.api_kind(), discovery.is_finished()), (None, false), "it is not there");
    fixture.fake.set(|store| store.kind = "Widget");
    timeout(Duration::from_secs(61), discovery).await.expect("it is found in time").unwrap();
    assert_eq!(health.api_kind().unwrap().kind, "Widget");
}
