//! Tests of lists in pages, and of their versions.

use super::*;

async fn ten() -> Fixture {
    let fixture = Fixture::new().await;
    fixture.fake.set(|store| store.streams = false);
    for n in 0..10 {
        fixture.fake.write(&format!("{n}=1"));
    }
    fixture
}

fn source(config: KubeConfig) -> KubeSource {
    let health = SourceHealth::new(config.contact_timeout, Duration::from_secs(15));
    KubeSource::new(config, health)
}

/// Returns the list requests, without heads and watches.
fn lists(fixture: &Fixture) -> Vec<String> {
    fixture.fake.asked().into_iter().filter(|asked| asked.starts_with("list")).collect()
}

/// `TestReflectorWatchListPageSize`: limit 4, three pages, 10 items.
#[tokio::test]
async fn a_list_is_read_in_pages_of_the_configured_size() {
    let fixture = ten().await;
    let source = source(KubeConfig { page_size: Some(4), ..fixture.config() });
    let list = source.list(ListVersion::MostRecent).await.unwrap();
    assert_eq!((list.objects.len(), list.version.number()), (10, 11));
    assert_eq!(lists(&fixture), ["list limit=4", "list limit=4 page", "list limit=4 page"]);
}

/// `TestReflectorNotPaginatingNotConsistentReads`: with a version there is no limit, so that a cache can answer.
#[tokio::test]
async fn a_list_that_need_not_be_the_most_recent_is_not_paged() {
    let fixture = ten().await;
    let source = source(fixture.config());
    let list = source.list(ListVersion::MostRecent).await.unwrap();
    source.list(ListVersion::NotOlderThan(list.version)).await.unwrap();
    assert_eq!(lists(&fixture), ["list limit=500", "list 11"]);
}

/// `TestReflectorPaginatingNonConsistentReadsIfWatchCacheDisabled`: an API that pages a list at version 0 has no watch cache.
#[tokio::test]
async fn an_api_without_a_watch_cache_is_read_in_pages() {
    let fixture = ten().await;
    let of_two = |from: &str| {
        let item = r#"{"metadata":{"name":"x","resourceVersion":"3"}}"#;
        Fault::Answer(format!(
            r#"{{"kind":"L","metadata":{{"resourceVersion":"11","continue":"{from}"}},"items":[{item}]}}"#
        ))
    };
    fixture.fake.set(|store| store.lists.extend([of_two("11/1"), of_two("")]));
    let source = source(fixture.config());
    let list = source.list(ListVersion::Any).await.unwrap();
    source.list(ListVersion::NotOlderThan(list.version)).await.unwrap();
    assert_eq!(lists(&fixture), ["list 0 limit=500", "list limit=500 page", "list 11 limit=500"]);
}

/// `TestReflectorListExtract`: an object that is kept keeps nothing else of its page.
#[tokio::test]
async fn an_object_of_a_page_keeps_no_other_one_in_memory() {
    let fixture = ten().await;
    let source = source(KubeConfig { page_size: Some(5), ..fixture.config() });
    let mut objects = source.list(ListVersion::MostRecent).await.unwrap().objects;
    drop(source);
    let others: Vec<_> = objects.drain(1..).map(|object| std::sync::Arc::downgrade(&object)).collect();
    assert_eq!((objects.len(), others.len()), (1, 9));
    assert!(others.iter().all(|other| other.upgrade().is_none()));
}

/// Behaviour of client-go's pager: an expired continue token leads to one full list.
#[tokio::test]
async fn a_page_that_has_expired_is_followed_by_the_whole_list() {
    let fixture = ten().await;
    let source = source(KubeConfig { page_size: Some(4), ..fixture.config() });
    let expires = |fake: &FakeApi| {
        fake.write("a=1");
        fake.compact(12);
    };
    fixture.fake.set(|store| store.lists.extend([Fault::Then(Box::new(|_| {})), Fault::Then(Box::new(expires))]));
    let list = source.list(ListVersion::MostRecent).await.unwrap();
    assert_eq!((list.objects.len(), list.version.number()), (11, 12));
    assert_eq!(lists(&fixture), ["list limit=4", "list limit=4 page", "list"]);
}

/// `TestReflectorExpiredExactResourceVersion`, `TestReflectorFullListIfTooLarge`: the errors over the wire; `state.rs` tests
/// the order of requests.
#[tokio::test]
async fn the_error_of_a_list_determines_the_next_request() {
    let fixture = ten().await;
    let source = source(fixture.config());
    let at = ListVersion::NotOlderThan(crate::model::ResourceVersion::decimal(11));
    let refuse = |code: u16, text: &str| Fault::Refuse(code, None, text.to_owned());
    for (fault, is_expected) in [
        (
            refuse(410, r#"{"reason":"Expired","code":410}"#),
            (|error| matches!(error, SourceError::Expired(_))) as fn(&SourceError) -> bool,
        ),
        (refuse(504, r#"{"reason":"Timeout","message":"Too large resource version: 11"}"#), |error| {
            matches!(error, SourceError::VersionTooLarge(_))
        }),
        (refuse(500, "{}"), |error| matches!(error, SourceError::Unavailable(_))),
        (refuse(403, "{}"), |error| matches!(error, SourceError::Refused(_))),
        (refuse(504, "{}"), |error| matches!(error, SourceError::Incomplete(_))),
        (Fault::Answer("{\"items\":5}".to_owned()), |error| matches!(error, SourceError::Undecodable(_))),
        (Fault::Answer("<html>".to_owned()), |error| matches!(error, SourceError::Undecodable(_))),
    ] {
        fixture.fake.set(|store| store.lists.push_back(fault));
        let error = source.list(at.clone()).await.unwrap_err();
        assert!(is_expected(&error), "{error:?}");
    }
    source.list(at).await.unwrap();
}

#[tokio::test]
async fn an_empty_list_may_be_null() {
    let fixture = ten().await;
    let text = r#"{"kind":"WidgetList","metadata":{"resourceVersion":"7"},"items":null}"#;
    fixture.fake.set(|store| store.lists.push_back(Fault::Answer(text.to_owned())));
    let list = source(fixture.config()).list(ListVersion::MostRecent).await.unwrap();
    assert_eq!((list.objects.len(), list.version.number()), (0, 7));
}
