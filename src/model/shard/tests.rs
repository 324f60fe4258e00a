//! Shards: upstream's tests of hashes, matches and texts, and any division of the hashes.

use bytes::Bytes;
use proptest::{collection::vec, prelude::*, sample::select};

use super::*;
use crate::model::{ObjectKey, ObjectParts, ResourceVersion};

fn object(json: &str) -> Object {
    Object::from_json(Bytes::copy_from_slice(json.as_bytes()), "file", ResourceVersion::decimal(1)).unwrap()
}

fn pod(uid: &str) -> Object {
    object(&format!(
        r#"{{"metadata":{{"namespace":"test-namespace","name":"test-name","uid":"{uid}"}},"spec":{{"n":1}}}}"#
    ))
}

fn uid(ranges: &[(u64, u64)]) -> Shard {
    Shard::new(ShardKey::Uid, ranges).unwrap()
}

fn path(text: &str) -> ShardKey {
    ShardKey::Path(Path::parse(text).unwrap())
}

/// apimachinery `TestHashField`, with the hashes that its `HashField` has: an object is in the same shard there.
#[test]
fn the_hash_is_that_of_kubernetes() {
    for (value, hash) in [
        ("", 0xcbf2_9ce4_8422_2325),
        ("a", 0xaf63_dc4c_8601_ec8c),
        ("abc", 0xe71f_a219_0541_574b),
        ("foobar", 0x8594_4171_f739_67e8),
        ("test", 0xf9e6_e6ef_197c_2b25),
        ("different", 0x88f3_8c6c_3332_1162),
        ("test-uid-12345", 0xd4c5_3b72_f928_7c28),
        ("aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee", 0x9375_4b72_48a0_0eb9),
        ("my-namespace", 0x9322_3e53_e4f7_0a61),
        ("grüße", 0x5862_e9cb_86cd_3d18),
    ] {
        assert_eq!(fnv1a(value), hash, "{value}");
        assert_eq!(ShardKey::Uid.hash(&pod(value)), hash, "{value}");
    }
}

/// apimachinery `TestResolveFieldValue`, with the keys that only informerd has.
#[test]
fn the_key_names_a_value_of_the_object() {
    let pod = pod("test-uid-123");
    for (key, value) in [
        (ShardKey::Uid, "test-uid-123"),
        (ShardKey::Namespace, "test-namespace"),
        (ShardKey::Key, "test-namespace/test-name"),
        (path("metadata.name"), "test-name"),
        (path("spec.n"), "1"),
        (path("spec.missing"), ""),
        (path("spec"), ""),
    ] {
        assert_eq!(key.hash(&pod), fnv1a(value), "{key}");
    }
    let node = object(r#"{"metadata":{"name":"node-a"}}"#);
    assert_eq!(ShardKey::Key.hash(&node), fnv1a("node-a"));
    assert_eq!((ShardKey::Uid.hash(&node), ShardKey::Namespace.hash(&node)), (fnv1a(""), fnv1a("")));
    let raw = Object::new(ObjectParts {
        key: ObjectKey::new("shop", "web").unwrap(),
        uid: String::new(),
        version: ResourceVersion::decimal(1),
        labels: std::collections::BTreeMap::new(),
        api_version: String::new(),
        kind: String::new(),
        media_type: "text/plain",
        body: Bytes::from_static(br#"{"spec":{"n":1}}"#),
    });
    assert_eq!(path("spec.n").hash(&raw), fnv1a(""), "a body that is not JSON has no fields");
}

/// apimachinery `TestSelectorMatches`.
#[test]
fn an_object_is_in_the_ranges_with_its_hash() {
    let pod = pod("test-uid-123");
    let hash = fnv1a("test-uid-123");
    for (ranges, is_in) in [
        (vec![(0, 0)], true),
        (vec![(hash, hash + 1)], true),
        (vec![(hash, 0)], true),
        (vec![(hash + 1, 0)], false),
        (vec![(0, hash)], false),
        (vec![(0, hash + 1)], true),
        (vec![(u64::MAX, 0)], false),
        (vec![(0, 1)], false),
        (vec![(0, 1), (hash - 5, hash + 5), (hash + 9, 0)], true),
        (vec![(0, 1), (hash - 5, hash), (hash + 1, 0)], false),
    ] {
        assert_eq!(uid(&ranges).matches(&pod), is_in, "{ranges:x?}");
    }
}

/// apimachinery `TestSelectorString`; overlapping and adjacent ranges are one.
#[test]
fn a_shard_prints_kubernetes_syntax_for_its_hashes() {
    let text = "shardRange(object.metadata.uid, '0x0000000000000000', '0x0000000000000080')";
    assert_eq!(uid(&[(0, 0x80)]).to_string(), text);
    assert_eq!(uid(&[(0x40, 0x80), (0, 0x20), (0x20, 0x50)]).to_string(), text);
    assert_eq!(uid(&[(0, 0x80), (0x10, 0x20), (0x7f, 0x80)]).to_string(), text);
    assert_ne!(uid(&[(0, 0x7f), (0x10, 0x20)]).to_string(), text);
    let namespaces = Shard::new(ShardKey::Namespace, &[(0xf << 60, 0), (1, 2)]).unwrap();
    assert_eq!(
        namespaces.to_string(),
        "shardRange(object.metadata.namespace, '0x0000000000000001', '0x0000000000000002') || \
         shardRange(object.metadata.namespace, '0xf000000000000000', '0x10000000000000000')"
    );
    let by_node = Shard::new(path("spec.nodeName"), &[(0, 1)]).unwrap().to_string();
    assert_eq!(by_node, "shardRange(object.spec.nodeName, '0x0000000000000000', '0x0000000000000001')");
    assert!(Shard::new(ShardKey::Key, &[(0, 1)]).unwrap().to_string().starts_with("shardRange(key, "));
}

/// apiserver `TestParse`, but that leading zeros may be left out: Kubernetes' own documentation leaves them out.
#[test]
fn kubernetes_syntax_parses() {
    let range = |start: &str, end: &str| format!("shardRange(object.metadata.uid, '{start}', '{end}')");
    let (first, last) =
        (range("0x0000000000000000", "0x8000000000000000"), range("0x8000000000000000", "0x10000000000000000"));
    let half = uid(&[(0, 1 << 63)]);
    for (text, shard) in [
        (first.clone(), half.clone()),
        (range("0x0000000000000000", "0x10000000000000000"), uid(&[(0, 0)])),
        (first.replace("uid", "namespace"), Shard::new(ShardKey::Namespace, &[(0, 1 << 63)]).unwrap()),
        (format!("{first} || {last}"), uid(&[(0, 0)])),
        (
            [range("0x1", "0x5"), range("0x7", "0xa"), range("0x000000000000000a", "0xf")].join(" || "),
            uid(&[(1, 5), (7, 0xa), (0xa, 0xf)]),
        ),
        (first.replace(' ', ""), half.clone()),
        (format!("  {}  ", first.replace(',', "  ,  ").replace('(', "( ")), half.clone()),
        (range("0x0", "0x8000000000000000"), half.clone()),
        // What CEL's grammar allows besides.
        (first.replace('\'', "\""), half.clone()),
        (first.replace('\'', "'''"), half.clone()),
        (first.replace("'0x8", "r\"0x8").replace("000')", "000\")"), half.clone()),
        (format!("(({first}))||({last})"), uid(&[(0, 0)])),
        (format!("({first} || ({last} || {first}))"), uid(&[(0, 0)])),
        (
            first
                .replace("object.metadata.uid", "(object\n. metadata .uid)")
                .replace("'0x0", "( '0x0")
                .replace("0', ", "0'), "),
            half,
        ),
        (format!("// the first\n{first} // half"), uid(&[(0, 1 << 63)])),
    ] {
        let parsed = text.parse::<Shard>();
        assert_eq!(parsed, Ok(shard.clone()), "{text}");
        assert_eq!(shard.to_string().parse(), Ok(shard), "{text}");
    }
    for (text, expected) in [
        (String::new(), "expected a part"),
        ("invalidFunc(object.metadata.uid, '0x00', '0x80')".to_owned(), "expected a part"),
        (range("0000000000000000", "0x8000000000000000"), "expected a hexadecimal number"),
        (range("0x0000000000000000", "8000000000000000"), "expected a hexadecimal number"),
        (range("0x", "0x8000000000000000"), "expected a hexadecimal number"),
        (range("0x000000000000000000", "0x80"), "expected a hexadecimal number"),
        (range("0x0g", "0x80"), "expected a hexadecimal number"),
        (range("0x0A", "0x80"), "expected a hexadecimal number"),
        (range("0x0", "0x10000000000000001"), "expected a hexadecimal number"),
        (range("0x10000000000000000", "0x10000000000000000"), "must be greater"),
        (range("0x8000000000000000", "0x8000000000000000"), "must be greater"),
        (range("0xffffffffffffffff", "0x0000000000000000"), "must be greater"),
        (first.replace("uid", "name"), "expected object.metadata.uid or"),
        (first.replace("uid", "labels"), "expected object.metadata.uid or"),
        (first.replace("object.metadata.uid", "uid"), "expected object.metadata.uid or"),
        (format!("{first} && {last}"), "expected '||' or the end"),
        (format!("{first} || {}", last.replace("uid", "namespace")), "the same field"),
        (format!("({first}"), "expected ')' or '||'"),
        (format!("{first})"), "expected '||' or the end"),
        (format!("{first} ||"), "expected shardRange"),
        ("object.metadata.uid > 'shardRange'".to_owned(), "expected shardRange"),
        ("shardRange(object.metadata.uid, 0, 8)".to_owned(), "expected a hexadecimal number"),
        ("shardRange(object.metadata.uid, hex(0), '0x8')".to_owned(), "expected a hexadecimal number"),
        ("shardRange(object.metadata.uid, '0x0')".to_owned(), "expected ','"),
        ("shardRange(object.metadata.uid, '0x0".to_owned(), "expected a hexadecimal number"),
        (vec![first; 65].join("||"), "expected 1 to 64 ranges"),
    ] {
        let error = text.parse::<Shard>().unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn a_part_is_counted_from_zero() {
    let part = |text: &str| text.parse::<Shard>().unwrap();
    assert_eq!(part("2/8"), uid(&[(0x4 << 60, 0x6 << 60)]));
    assert_eq!((part("0/1"), part("7/8")), (uid(&[(0, 0)]), uid(&[(0xe << 60, 0)])));
    assert_eq!(part("1/3"), uid(&[(0x5555_5555_5555_5555, 0xaaaa_aaaa_aaaa_aaaa)]));
    assert_eq!(part("namespace:0/2").key(), &ShardKey::Namespace);
    assert_eq!(part("key:0/2").key(), &ShardKey::Key);
    let by_label = part("metadata.labels['app.kubernetes.io/name']:1/2");
    assert_eq!(by_label.key().as_str(), ".metadata.labels['app.kubernetes.io/name']");
    assert_eq!(part("uid:1/2"), part("1/2"));
    assert_ne!(part(".uid:1/2"), part("1/2"), "a field of the body");
    for (text, expected) in [
        ("8/8", "the first of 8 is 0/8, and the last 7/8"),
        ("0/0", "expected a part"),
        ("2", "expected a part"),
        ("+2/8", "expected a part"),
        ("2/8/1", "expected a part"),
        ("18446744073709551616/2", "expected a part"),
        (":1/2", "expected a key"),
        ("spec.containers[*].image:1/2", "[*] is not allowed"),
    ] {
        let error = text.parse::<Shard>().unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn a_shard_has_one_to_64_ranges_each_with_a_hash() {
    let shard = |ranges: &[(u64, u64)]| Shard::new(ShardKey::Uid, ranges);
    assert_eq!(shard(&[]), Err(ShardError::Count { found: 0 }));
    assert_eq!(shard(&[(0, 1); 65]), Err(ShardError::Count { found: 65 }));
    assert_eq!(shard(&[(0, 1); 64]), Ok(uid(&[(0, 1)])));
    for (start, end) in [(5, 5), (6, 5), (u64::MAX, 1)] {
        let error = shard(&[(0, 1), (start, end)]).unwrap_err();
        assert_eq!(error, ShardError::Empty { start, end });
        assert!(error.to_string().ends_with("is empty or reversed"), "{error}");
    }
    assert!(ShardKey::parse("spec.list[*]").is_err() && ShardKey::parse("").is_err());
    let reads_body = |key: &str| Shard::new(ShardKey::parse(key).unwrap(), &[(0, 1)]).unwrap().reads_body();
    assert!(!reads_body("uid") && !reads_body("namespace") && !reads_body("key") && reads_body("spec.nodeName"));
}

proptest! {
    #![proptest_config(crate::property_config())]

    /// Each object is in exactly one of the shards, whatever their borders are, and however the ranges are dealt out.
    #[test]
    fn shards_of_all_hashes_share_no_object_and_miss_none(
        borders in vec(any::<u64>(), 0..40),
        deal in vec(0..5_usize, 41),
        uids in vec("[a-f0-9]{0,8}", 1..40),
        key in select(vec!["uid", "namespace", "key", "spec.n", "metadata.uid"]),
    ) {
        let mut borders: Vec<u64> = borders.into_iter().chain([0]).collect();
        borders.sort_unstable();
        borders.dedup();
        let ends = borders[1..].iter().copied().chain([0]);
        let mut dealt = vec![Vec::new(); 5];
        for ((start, end), shard) in borders.iter().copied().zip(ends).zip(deal) {
            dealt[shard].push((start, end));
        }
        let key = ShardKey::parse(key).unwrap();
        let dealt = dealt.iter().filter(|ranges| !ranges.is_empty());
        let shards: Vec<Shard> = dealt.map(|ranges| Shard::new(key.clone(), ranges).unwrap()).collect();
        for uid in uids {
            let pod = pod(&uid);
            let hash = key.hash(&pod);
            let found: Vec<&Shard> = shards.iter().filter(|shard| shard.matches(&pod)).collect();
            prop_assert_eq!(found.len(), 1);
            let has_hash = |range: &&ShardRange| (range.first()..=range.last()).contains(&hash);
            prop_assert_eq!(found[0].ranges().iter().filter(has_hash).count(), 1);
        }
    }

    #[test]
    fn equal_parts_follow_on_one_another(of in prop_oneof![1..200_u64, any::<u64>()], part in any::<u64>()) {
        let of = of.max(1);
        let shard = |part| Shard::part(ShardKey::Uid, part, of);
        let ends = |part| shard(part).map(|shard| (shard.ranges()[0].first(), shard.ranges()[0].last()));
        let part = part % of;
        let (first, last) = ends(part).unwrap();
        prop_assert!(first <= last);
        prop_assert_eq!(ends(part + 1).map_or(last == u64::MAX, |(next, _)| next == last + 1), true);
        prop_assert_eq!(part == 0, first == 0);
        prop_assert_eq!(shard(of), None);
    }

    #[test]
    fn no_text_panics(text in "[shardRange(object.metadata.uid, '0x8')|/:]{0,80}|.*") {
        if let Ok(shard) = text.parse::<Shard>() {
            prop_assert!(!shard.ranges().is_empty());
        }
    }
}
