use proptest::prelude::*;
use serde_json::json;

use super::{choices::*, *};
use crate::{proto::Compression, watch::FullChannelPolicy};

#[test]
fn durations() {
    for (text, milliseconds) in [
        ("0", 0),
        ("0s", 0),
        ("0ms", 0),
        ("500ms", 500),
        ("30s", 30_000),
        ("1m30s", 90_000),
        ("2h", 7_200_000),
        ("1h2m3s4ms", 3_723_004),
        ("90m", 5_400_000),
        ("1h5ms", 3_600_005),
        ("007s", 7000),
        ("8760h", 31_536_000_000),
    ] {
        assert_eq!(parse_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
    }
    for text in [
        "", " ", "1", "00", "s", "1 s", " 1s", "1s ", "-1s", "+1s", "1.5h", "1d", "1S", "1s1m", "1s1s", "1ms1s", "1µs",
        "h1", "1h2",
    ] {
        let problem = parse_duration(text).unwrap_err().to_string();
        let expected = format!("expected a duration such as 500ms, 30s, 1m30s or 2h, found {text:?}");
        assert_eq!(problem, expected);
    }
    for text in ["8760h1ms", "8761h", "99999999999999999999h", "18446744073709551615ms", "18446744073709551615s"] {
        let problem = parse_duration(text).unwrap_err().to_string();
        assert_eq!(problem, format!("expected a duration of at most 8760h (one year), found {text:?}"));
    }
}

#[test]
fn sizes() {
    for (text, bytes) in [
        ("0", 0),
        ("1", 1),
        ("65536", 65_536),
        ("64KiB", 65_536),
        ("64Ki", 65_536),
        ("16MiB", 16 << 20),
        ("16Mi", 16 << 20),
        ("1GiB", 1 << 30),
        ("1Gi", 1 << 30),
        ("2TiB", 2 << 40),
        ("2Ti", 2 << 40),
        ("0016Mi", 16 << 20),
        ("9223372036854775807", isize::MAX.unsigned_abs()),
    ] {
        assert_eq!(parse_size(text), Ok(bytes), "{text}");
    }
    for text in ["", "KiB", "64KB", "64k", "64 KiB", "-1", "1.5MiB", "64kib", "64KiBs", "64B", "1Mi1Ki", "٣"] {
        let problem = parse_size(text).unwrap_err().to_string();
        let expected = format!("expected a size such as 64KiB, 16MiB, 1GiB or a number of bytes, found {text:?}");
        assert_eq!(problem, expected);
    }
    for text in ["9223372036854775808", "18446744073709551616", "8388608Ti", "99999999999999999999999KiB"] {
        let problem = parse_size(text).unwrap_err().to_string();
        assert_eq!(problem, format!("expected at most 9223372036854775807, found {text:?}"));
    }
}

/// Checks a reader: each row is a value and its result or error.
fn table<T: PartialEq + std::fmt::Debug>(
    read: impl Fn(&Value) -> Result<T, ValueError>,
    rows: impl IntoIterator<Item = (Value, Result<T, &'static str>)>,
) {
    for (written, expected) in rows {
        let read = read(&written).map_err(|error| error.to_string());
        assert_eq!(read, expected.map_err(str::to_owned), "{written}");
    }
}

#[test]
fn counts() {
    table(
        count,
        [
            (json!(0), Ok(0)),
            (json!(7), Ok(7)),
            (json!("many"), Err("expected an unsigned integer, found \"many\"")),
            (json!("7"), Err("expected an unsigned integer, found \"7\"")),
            (json!(-1), Err("expected an unsigned integer, found the number -1")),
            (json!(1.5), Err("expected an unsigned integer, found the number 1.5")),
            (
                // YAML's 0100.
                json!(100.0),
                Err(
                    "expected an unsigned integer, found the number 100.0; write 100, without a leading zero or a fraction",
                ),
            ),
            (json!(true), Err("expected an unsigned integer, found true")),
            (json!([1]), Err("expected an unsigned integer, found a list")),
            (json!({}), Err("expected an unsigned integer, found a map")),
            (json!(u64::MAX), Err("expected at most 9223372036854775807, found the number 18446744073709551615")),
        ],
    );
    table(positive_count, [(json!(1), Ok(1)), (json!(0), Err("expected an unsigned integer of at least 1, found 0"))]);
}

#[test]
fn durations_sizes_and_booleans_of_the_file() {
    table(
        duration,
        [
            (json!("1s"), Ok(Duration::from_secs(1))),
            (json!(0), Ok(Duration::ZERO)),
            (json!(5), Err("expected a duration with its unit such as 500ms, 30s, 1m30s or 2h, found the number 5")),
            (json!(false), Err("expected a duration such as 500ms, 30s, 1m30s or 2h, found false")),
        ],
    );
    table(
        positive_duration,
        [
            (json!("1ms"), Ok(Duration::from_millis(1))),
            (json!("0s"), Err("expected a duration of more than 0, such as 500ms, 30s, 1m30s or 2h, found \"0s\"")),
        ],
    );
    table(
        positive_size,
        [
            (json!("1Ki"), Ok(1024)),
            (json!(1000), Ok(1000)),
            (json!(0), Err("expected a size of more than 0, such as 64KiB, 16MiB or 1GiB, found the number 0")),
            (json!("0MiB"), Err("expected a size of more than 0, such as 64KiB, 16MiB or 1GiB, found \"0MiB\"")),
            (json!(-1), Err("expected a size such as 64KiB, 16MiB, 1GiB or a number of bytes, found the number -1")),
            (json!(u64::MAX), Err("expected at most 9223372036854775807, found the number 18446744073709551615")),
        ],
    );
    table(boolean, [(json!(true), Ok(true)), (json!("yes"), Err("expected true or false, found \"yes\""))]);
}

#[test]
fn policies_paths_and_addresses() {
    table(
        policy,
        [
            (json!("drop"), Ok(FullChannelPolicy::Drop)),
            (json!("block"), Ok(FullChannelPolicy::Block)),
            (json!("replay"), Ok(FullChannelPolicy::Replay)),
            (json!("coalesce"), Ok(FullChannelPolicy::Coalesce)),
            (json!("Drop"), Err("expected drop, block, replay or coalesce, found \"Drop\"")),
            (json!(1), Err("expected drop, block, replay or coalesce, found the number 1")),
        ],
    );
    table(
        policies,
        [
            (json!(["replay", "drop", "replay"]), Ok(vec![FullChannelPolicy::Replay, FullChannelPolicy::Drop])),
            (json!([]), Err("expected a list with at least one of drop, block, replay and coalesce, found none")),
            (
                json!("drop"),
                Err("expected a list with at least one of drop, block, replay and coalesce, found \"drop\""),
            ),
            (json!(["x"]), Err("expected drop, block, replay or coalesce, found \"x\"")),
        ],
    );
    table(
        compressions,
        [
            (json!([]), Ok(Vec::new())),
            (json!(["gzip", "gzip"]), Ok(vec![Compression::Gzip])),
            #[cfg(feature = "zstd")]
            (json!(["gzip", "zstd"]), Ok(vec![Compression::Gzip, Compression::Zstd])),
            #[cfg(feature = "zstd")]
            (json!(["deflate"]), Err("expected zstd or gzip, found \"deflate\"")),
            #[cfg(not(feature = "zstd"))]
            (json!(["zstd"]), Err("expected gzip (zstd is not part of this build), found \"zstd\"")),
            (json!("gzip"), Err("expected a list such as [gzip], found \"gzip\"")),
        ],
    );
    table(
        path,
        [
            (json!("a/b c"), Ok("a/b c".into())),
            (json!(""), Err("expected the path of a directory such as ./manifests, found \"\"")),
            (json!(1), Err("expected a string (in quotes, if it looks like a number), found the number 1")),
        ],
    );
    table(
        or_none(crate::config::listen::address),
        [
            (json!("none"), Ok(None)),
            (json!("0.0.0.0:1"), Ok(Some(([0, 0, 0, 0], 1).into()))),
            (json!(":1"), Ok(Some(([0_u16; 8], 1).into()))),
            (
                json!("off"),
                Err(
                    "expected IP:PORT such as 127.0.0.1:9464 or [::1]:9464, localhost:PORT, :PORT, or none, found \"off\"",
                ),
            ),
        ],
    );
}

#[test]
fn kinds() {
    for text in ["Pod", "a", "V1Beta1", &"a".repeat(63)] {
        assert_eq!(parse_kind(text), Ok(text.to_owned()));
    }
    for text in ["", "1Pod", "apps/Deployment", "Pod ", "é", &"a".repeat(64)] {
        assert!(parse_kind(text).unwrap_err().to_string().starts_with("expected a kind such as Pod"), "{text}");
    }
}

#[test]
fn names_of_resources() {
    for name in ["a", "0", "pods", "pods.v1", "a--b", "a..b", &"a".repeat(253)] {
        assert_eq!(check_resource_name(name), Ok(()), "{name}");
    }
    for name in ["", "Pods", "a_b", "-a", "a-", ".a", "a.", "a b", "a/b", "é", &"a".repeat(254)] {
        let problem = check_resource_name(name).unwrap_err().to_string();
        assert!(problem.starts_with("a resource name has at most 253 lowercase letters"), "{name}");
    }
}

#[test]
fn indexes() {
    assert_eq!(label_index(&json!("app")), Ok(IndexFunc::Label("app".into())));
    assert_eq!(label_index(&json!("a.b/c_d-1")), Ok(IndexFunc::Label("a.b/c_d-1".into())));
    for key in ["", " app", "app=x", "!app", "a,b", "app in (x)", "a/b/c", "/a", "a/", "-a", &"a".repeat(64)] {
        let problem = label_index(&json!(key)).unwrap_err().to_string();
        assert!(problem.starts_with("expected a label key such as app or app.kubernetes.io/name"), "{key}: {problem}");
    }
    assert_eq!(path_index(&json!("{.a['b.c']}")), Ok(IndexFunc::Path(Path::parse(".a['b.c']").unwrap())));
    let problem = path_index(&json!(".a[")).unwrap_err().to_string();
    assert!(problem.ends_with("an example: .spec.nodeName"), "{problem}");
}

#[test]
#[cfg(feature = "cel")]
fn indexes_by_expression() {
    let images = "object.spec.containers.map(c, c.image)";
    let parsed = Expression::parse(images).unwrap();
    assert_eq!(expression(&json!(format!(" {images}\n"))), Ok(parsed), "as YAML's block texts end");
    let problem = expression(&json!("object.a +")).unwrap_err().to_string();
    assert!(problem.starts_with("character 11: expected more: ") && problem.ends_with("map(c, c.image)"), "{problem}");
    assert!(expression(&json!(5)).unwrap_err().to_string().contains("found the number 5"));
}

#[test]
fn bounds() {
    table(
        within("size", "1MiB", "1GiB", size),
        [
            (json!("1MiB"), Ok(1 << 20)),
            (json!("1GiB"), Ok(1 << 30)),
            (json!(5), Err("expected a size from 1MiB to 1GiB, found the number 5")),
            (json!(0), Err("expected a size from 1MiB to 1GiB, found the number 0")),
            (json!([]), Err("expected a size such as 64KiB, 16MiB, 1GiB or a number of bytes, found a list")),
        ],
    );
    table(
        or_none(within("duration", "3s", "5m", duration)),
        [
            (json!("3s"), Ok(Some(Duration::from_secs(3)))),
            (json!("300s"), Ok(Some(Duration::from_secs(300)))),
            (json!("none"), Ok(None)),
            (json!("2999ms"), Err("expected a duration from 3s to 5m, found \"2999ms\"")),
            (json!("300001ms"), Err("expected a duration from 3s to 5m, found \"300001ms\"")),
            (json!("x"), Err("expected a duration such as 500ms, 30s, 1m30s or 2h, found \"x\"")),
        ],
    );
    table(
        within("integer", "1", "100", integer::<u32>),
        [
            (json!(1), Ok(1)),
            (json!(100), Ok(100)),
            (json!(0), Err("expected an integer from 1 to 100, found the number 0")),
            (json!(101), Err("expected an integer from 1 to 100, found the number 101")),
            (json!(u64::MAX), Err("expected an integer from 1 to 100, found the number 18446744073709551615")),
            (json!("1"), Err("expected an integer from 1 to 100, found \"1\"")),
        ],
    );
}

#[test]
fn files_flags() {
    for (text, name, path, kind) in [
        ("pods=./manifests@Pod", "pods", "./manifests", Some("Pod")),
        ("pods=./manifests", "pods", "./manifests", None),
        ("pods=/a=b", "pods", "/a=b", None),
        ("a.b=x y@z@Pod", "a.b", "x y@z", Some("Pod")),
        ("pods=a@b/", "pods", "a@b/", None),
        ("pods=a@b/c", "pods", "a@b/c", None),
    ] {
        assert_eq!(parse_files_flag(text), Ok((name, path.into(), kind.map(str::to_owned))), "{text}");
    }
    for (text, problem) in [
        ("", "expected NAME=DIR[@KIND] such as pods=./manifests@Pod, found \"\""),
        ("./manifests", "expected NAME=DIR[@KIND] such as"),
        ("=a", "a resource name has"),
        ("Pods=a", "a resource name has"),
        ("pods=", "expected the path of a directory"),
        ("pods=@Pod", "expected the path of a directory"),
        ("pods=a@", "expected a kind such as Pod"),
        ("pods=a@b-c", "expected a kind such as Pod"),
    ] {
        let found = parse_files_flag(text).unwrap_err().to_string();
        assert!(found.starts_with(problem), "{text}: {found}");
    }
}

#[test]
fn stream_flags() {
    for (text, name, path) in [
        ("pods=-", "pods", None),
        ("pods=./-", "pods", Some("./-")),
        ("a.b=x=y@z", "a.b", Some("x=y@z")),
        ("events=/dev/fd/63", "events", Some("/dev/fd/63")),
    ] {
        assert_eq!(
            parse_stream_flag(text),
            Ok((name, path.map_or(StreamPath::Stdin, |path| StreamPath::Path(path.into())))),
            "{text}"
        );
    }
    for (text, problem) in [
        ("-", "expected NAME=FILE or NAME=- such as pods=./events.jsonl, found \"-\""),
        ("=-", "a resource name has"),
        ("pods=", "expected the path of a file such as ./events.jsonl, or - for standard input, found \"\""),
    ] {
        let found = parse_stream_flag(text).unwrap_err().to_string();
        assert!(found.starts_with(problem), "{text}: {found}");
    }
}

#[test]
fn long_texts_are_quoted_in_part() {
    assert_eq!(quote(&"é".repeat(61)), format!("\"{}\"…", "é".repeat(60)));
    assert_eq!(found(&Value::Null), "nothing");
}

proptest! {
    #![proptest_config(crate::property_config())]

    #[test]
    fn no_text_panics(text in ".{0,40}") {
        let value = json!(text);
        prop_assert_eq!(parse_duration(&text).is_ok(), duration(&value).is_ok());
        prop_assert_eq!(parse_size(&text).is_ok_and(|size| size > 0), positive_size(&value).is_ok());
        prop_assert_eq!(text.parse(), crate::config::listen::address_or_socket(&value));
        prop_assert!(label_index(&value).is_err() || text.is_ascii());
        prop_assert!(path_index(&value).is_err() || !text.is_empty());
        prop_assert!(parse_files_flag(&text).is_err() || text.contains('='));
        prop_assert!(quote(&text).starts_with('"'));
    }

    #[test]
    fn durations_and_sizes_of_any_length(text in "([0-9]{1,25}(h|m|s|ms|KiB|Ti)?){1,3}") {
        prop_assert!(parse_duration(&text).is_ok_and(|duration| duration <= MAX_DURATION) || parse_duration(&text).is_err());
        prop_assert!(parse_size(&text).map_or(true, |size| size <= isize::MAX.unsigned_abs()));
    }

    #[test]
    fn formatted_values_are_parsed_back(ms in 0_u64..31_536_000_000, bytes in 0_usize..1 << 40) {
        let (h, m, s) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
        prop_assert_eq!(parse_duration(&format!("{h}h{m}m{s}s{}ms", ms % 1000)), Ok(Duration::from_millis(ms)));
        prop_assert_eq!(parse_size(&bytes.to_string()), Ok(bytes));
    }
}
