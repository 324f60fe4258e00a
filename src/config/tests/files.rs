//! Tests of files, directories and streams.

use super::*;

#[test]
fn options_of_files_and_streams_are_read() {
    let load = |section: &str| load(&format!("resources: {{ x: {{ source: {{ {section} }} }} }}"), &[]);
    let config = load("files: { path: /x, rescan: 1m }").unwrap();
    let expected = FilesConfig { rescan: Duration::from_secs(60), ..FilesConfig::new("/x", "") };
    assert_eq!(config.resources["x"].source, SourceConfig::Files(expected));
    for (text, confirm_after) in [("none", None), ("1m30s", Some(Duration::from_secs(90)))] {
        let config = load(&format!("stream: {{ path: /x, confirm_after: {text} }}")).unwrap();
        let expected = StreamConfig { confirm_after, ..StreamConfig::new(StreamPath::Path("/x".into()), "") };
        assert_eq!(config.resources["x"].source, SourceConfig::Stream(expected));
    }
    for (section, problem) in [
        ("files: { path: /x, rescan: 99ms }", "files.rescan: expected a duration from 100ms to 1h, found \"99ms\""),
        ("files: { path: /x, rescan: 61m }", "files.rescan: expected a duration from 100ms to 1h, found \"61m\""),
        ("files: { path: /x, quiet: 1s }", "files.quiet: is no key any more: the server chooses it itself"),
        (
            "stream: { path: /x, confirm_after: 0 }",
            "stream.confirm_after: expected a duration from 100ms to 1h, found the number 0",
        ),
        ("stream: { path: /x, confirm_after: never }", "stream.confirm_after: expected a duration such as 500ms"),
    ] {
        let found = load(section).unwrap_err().to_string();
        assert!(found.starts_with(&format!("resources.x.source.{problem}")), "{found}");
    }
}

#[test]
fn a_time_to_live_is_for_streams_only() {
    let load =
        |source: &str, ttl: &str| load(&format!("resources: {{ x: {{ source: {{ {source} }}, ttl: {ttl} }} }}"), &[]);
    assert_eq!(load("stream: { path: /x }", "90s").unwrap().resources["x"].options.ttl, Some(Duration::from_secs(90)));
    for (source, ttl, problem) in [
        ("stream: { path: /x }", "999ms", "expected a duration from 1s to 720h, found \"999ms\""),
        (
            "files: { path: /x }",
            "90s",
            "is only for `stream` sources: every other source finds deletions itself; remove it",
        ),
        ("informerd: { endpoint: 'http://h:1' }", "90s", "is only for `stream` sources"),
    ] {
        let found = load(source, ttl).unwrap_err().to_string();
        assert!(found.starts_with(&format!("resources.x.ttl: {problem}")), "{found}");
    }
}

#[test]
fn verifications_are_for_sources_that_can_be_listed() {
    let load = |source: &str, interval: &str| {
        load(&format!("resources: {{ x: {{ source: {{ {source} }}, verify_interval: {interval} }} }}"), &[])
    };
    let config = load("files: { path: /x }", "6h").unwrap();
    assert_eq!(config.resources["x"].options.verify_interval, Some(Duration::from_secs(6 * 3600)));
    for (source, interval, problem) in [
        ("files: { path: /x }", "59s", "expected a duration from 1m to 720h, found \"59s\""),
        ("stream: { path: /x }", "1h", "is not for `stream` sources, which have no list to compare with; remove it"),
    ] {
        let found = load(source, interval).unwrap_err().to_string();
        assert!(found.starts_with(&format!("resources.x.verify_interval: {problem}")), "{found}");
    }
}

#[test]
fn streams() {
    let stream = |path: Option<PathBuf>| {
        SourceConfig::Stream(StreamConfig::new(path.map_or(StreamPath::Stdin, StreamPath::Path), ""))
    };
    let yaml =
        "resources: { a: { source: { stream: { path: ../a.jsonl } } }, b: { source: { stream: { path: '-' } } } }";
    let (directory, flags) = file(yaml, &["--stream=c=c.jsonl", "--files=d=.", "--stream", "e=/dev/fd/3"]);
    let config = Config::load(&flags).unwrap();
    let source = |name: &str| config.resources[name].source.clone();
    assert_eq!(source("a"), stream(Some(directory.path().join("../a.jsonl"))));
    assert_eq!((source("b"), source("c")), (stream(None), stream(Some("c.jsonl".into()))));
    assert_eq!(config.resources.len(), 5);
    assert!(load("{}", &["--stream=a=-"]).is_ok(), "nothing else is needed");
    for (yaml, args, problem) in [
        ("{}", ["--stream=a=-", "--stream=b=-"], "resources: `a` and `b` both read standard input (`-`); give one"),
        (yaml, ["--stream=c=-", "--files=d=."], "resources: `b` and `c` both read standard input"),
        (
            yaml,
            ["--stream=a=x", "--files=d=."],
            "--stream: resource \"a\" is also defined in the file, as resources.a; keep",
        ),
        ("{}", ["--stream=a=x", "--files=a=."], "--stream: resource \"a\" is defined twice; keep one"),
        ("{}", ["--stream=x", "--files=a=."], "--stream: expected NAME=FILE or NAME=- such as"),
        (
            "resources: { x: { source: { files: { path: a }, stream: { path: b } } } }",
            ["--files=a=.", "--files=b=."],
            "resources.x.source: has `files` and `stream`; keep one",
        ),
        ("resources: { x: { source: { stream: } } }", ["--files=a=.", "--files=b=."], "resources.x.source: is missing"),
        (
            "resources: { x: { source: { stream: { path: } } } }",
            ["--files=a=.", "--files=b=."],
            "resources.x.source.stream.path: is missing; write the path of a file such as",
        ),
        (
            "resources: { x: { source: { stream: { path: 5 } } } }",
            ["--files=a=.", "--files=b=."],
            "resources.x.source.stream.path: expected a string",
        ),
    ] {
        let found = load(yaml, &args).unwrap_err().to_string();
        assert!(found.starts_with(problem) && found.lines().count() == 1, "{problem}\n{found}");
    }
}
