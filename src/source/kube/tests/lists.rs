//! Tests of lists in pages, and of their versions.

use super::*;

async fn ten() -> Stand {
    let stand = Stand::new().await;
    stand.play.set(|store| store.streams = false);
    for n in 0..10 {
        stand.play.write(&format!("{n}=1"));
    }
    stand
}

fn source(config: KubeConfig) -> KubeSource {
    let health = SourceHealth::new(config.contact_timeout, Duration::from_secs(15));
    KubeSource::new(config, health)
}

/// Returns the list requests, without heads and watches.
fn lists(stand: &Stand) -> Vec<String> {
    stand.play.asked().into_iter().filter(|asked| asked.starts_with("list")).collect()
}

/// `TestReflectorWatchListPageSize`: limit 4, three pages, 10 items.
#[tokio::test]
async fn a_list_is_read_in_pages_of_the_size_that_is_asked_for() {
    let stand = ten().await;
    let source = source(KubeConfig { page_size: Some(4), ..stand.config() });
    let list = source.list(ListVersion::MostRecent).await.unwrap();
    assert_eq!((list.objects.len(), list.version.number()), (10, 11));
    assert_eq!(lists(&stand), ["list limit=4", "list limit=4 page", "list limit=4 page"]);
}

/// `TestReflectorNotPaginatingNotConsistentReads`: with a version there is no limit, so that a cache can answer.
#[tokio::test]
async fn a_list_that_need_not_be_the_most_recent_is_not_paged() {
    let stand = ten().await;
    let source = source(stand.config());
    let list = source.list(ListVersion::MostRecent).await.unwrap();
    source.list(ListVersion::NotOlderThan(list.version)).await.unwrap();
    assert_eq!(lists(&stand), ["list limit=500", "list 11"]);
}

/// `TestReflectorPaginatingNonConsistentReadsIfWatchCacheDisabled`: an API that pages a list at version 0 has no watch cache.
#[tokio::test]
async fn an_api_without_a_cache_is_asked_for_pages() {
    let stand = ten().await;
    let of_two = |from: &str| {
        let item = r#"{"metadata":{"name":"x","resourceVersion":"3"}}"#;
        Fault::Answer(format!(
            r#"{{"kind":"L","metadata":{{"resourceVersion":"11","continue":"{from}"}},"items":[{item}]}}"#
        ))
    };
    stand.play.set(|store| store.lists.extend([of_two("11/1"), of_two("")]));
    let source = source(stand.config());
    let list = source.list(ListVersion::Any).await.unwrap();
    source.list(ListVersion::NotOlderThan(list.version)).await.unwrap();
    assert_eq!(lists(&stand), ["list 0 limit=500", "list limit=500 page", "list 11 limit=500"]);
}

/// Behaviour of client-go's pager: an expired continue token leads to one full list.
#[tokio::test]
async fn a_page_that_has_expired_is_followed_by_the_whole_list() {
    let stand = ten().await;
    let source = source(KubeConfig { page_size: Some(4), ..stand.config() });
    let expires = |play: &Play| {
        play.write("a=1");
        play.compact(12);
    };
    stand.play.set(|store| store.lists.extend([Fault::Then(Box::new(|_| {})), Fault::Then(Box::new(expires))]));
    let list = source.list(ListVersion::MostRecent).await.unwrap();
    assert_eq!((list.objects.len(), list.version.number()), (11, 12));
    assert_eq!(lists(&stand), ["list limit=4", "list limit=4 page", "list"]);
}

/// `TestReflectorExpiredExactResourceVersion`, `TestReflectorFullListIfTooLarge`: the errors over the wire; `state.rs` tests
/// the order of requests.
#[tokio::test]
async fn what_a_list_is_refused_with_says_what_to_ask_next() {
    let stand = ten().await;
    let source = source(stand.config());
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
        stand.play.set(|store| store.lists.push_back(fault));
        let error = source.list(at.clone()).await.unwrap_err();
        assert!(is_expected(&error), "{error:?}");
    }
    source.list(at).await.unwrap();
}

#[tokio::test]
async fn an_empty_list_may_be_null() {
    let stand = ten().await;
    let text = r#"{"kind":"WidgetList","metadata":{"resourceVersion":"7"},"items":null}"#;
    stand.play.set(|store| store.lists.push_back(Fault::Answer(text.to_owned())));
    let list = source(stand.config()).list(ListVersion::MostRecent).await.unwrap();
    assert_eq!((list.objects.len(), list.version.number()), (0, 7));
}
