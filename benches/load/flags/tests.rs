use informerd::proto::pb;

use super::*;

fn parse(arguments: &str) -> Result<(Bench, Mode), String> {
    let flags = Flags::try_parse_from(["load"].into_iter().chain(arguments.split_whitespace()));
    let flags = flags.map_err(|error| error.to_string())?;
    let parsed = flags.common().bench().and_then(|bench| Ok((bench, flags.mode()?)));
    parsed.map_err(|failure| failure.to_string())
}

fn fan_out(arguments: &str) -> FanOut {
    match parse(arguments).unwrap().1 {
        Mode::FanOut(fan_out) => fan_out,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_mode_has_the_configured_size() {
    let w1 = FanOut {
        watchers: 100,
        connections: 100,
        events: 20_000,
        rate: None,
        values: None,
        watches: Watches::default(),
    };
    assert_eq!(fan_out("w1 --local"), w1);
    let w2 = FanOut {
        watchers: 1000,
        connections: 4,
        events: 1000,
        rate: Some(100.0),
        values: None,
        watches: Watches::default(),
    };
    assert_eq!(fan_out("w2 --local --rate 100 --seconds 10"), w2);
    let w3 = FanOut {
        watchers: 10,
        connections: 5,
        events: 7,
        rate: None,
        values: Some(10_000),
        watches: Watches::default(),
    };
    assert_eq!(fan_out("w3 --local --watchers 10 --connections 5 --values 10000 --events 7"), w3);
    assert_eq!(fan_out("w3 --local").values, Some(5000));
    assert_eq!(fan_out("w1 --local --watchers 5000000").events, 1);
    let mode = |arguments: &str| parse(arguments).unwrap().1;
    let idle = Idle { watchers: 10_000, connections: 100, watches: Watches::default(), at_once: false };
    assert_eq!(mode("idle --local"), Mode::Idle(idle));
    let watches = Watches { subscribe: true, own_selections: true };
    assert_eq!(mode("idle --local --subscribe --own-selections"), Mode::Idle(Idle { watches, ..idle }));
    let w2 = FanOut { watches: Watches { own_selections: false, ..watches }, ..w2 };
    assert_eq!(fan_out("w2 --local --rate 100 --seconds 10 --subscribe"), w2);
    let stopped = Stopped { watchers: 9, events: 2000, rate: 1e3, block_timeout: Duration::from_millis(300) };
    assert_eq!(mode("stopped --local --watchers 9 --seconds 2 --block-timeout 300ms"), Mode::Stopped(stopped));
    let storm = Storm { watchers: 1000, objects: 7, rate: 100.0 };
    assert_eq!(mode("storm --local --objects 7"), Mode::Storm(storm));
    assert_eq!(mode("list --local --lists 3 --rate 5"), Mode::Lists(Lists { count: 3, objects: 100_000, rate: 5.0 }));
    let compressed = Compressed { clients: 100, objects: 10_000, call: Call::Watch, compression: "zstd" };
    assert_eq!(mode("compressed --local"), Mode::Compressed(compressed));
    let compressed = Compressed { clients: 2, objects: 3, call: Call::List, compression: "gzip" };
    let flags = "--clients 2 --objects 3 --list --compression gzip";
    assert_eq!(mode(&format!("compressed --local {flags}")), Mode::Compressed(compressed));
    let views = Views { watchers: 300, objects: 20_000, events: 20_000, rate: None };
    assert_eq!(mode("views --local"), Mode::Views(views));
    let views = Views { watchers: 5, objects: 7, events: 1000, rate: Some(500.0) };
    assert_eq!(mode("views --local --watchers 5 --objects 7 --rate 500 --seconds 2"), Mode::Views(views));
}

#[test]
fn the_subject_and_its_baselines_are_distinguished() {
    let (bench, _) = parse("w1 --local --baseline naive=/a,floor=/b --policy replay --reps 7").unwrap();
    let names: Vec<&str> = bench.subjects.iter().map(Subject::name).collect();
    assert_eq!(names, ["informerd", "naive", "floor"]);
    assert_eq!((bench.repetitions, bench.policy), (7, pb::FullChannelPolicy::Replay));
    assert_eq!(bench.subjects[1], Subject::Naive { program: "/a".into() });
    let (bench, _) = parse("w1 --local --program /c --baseline naive").unwrap();
    let own = env::current_exe().unwrap();
    assert_eq!(bench.subjects, [Subject::local(Some("/c".into()), Kind::Plain), Subject::Naive { program: own }]);
    let (bench, _) = parse("w2 --local --subscribe --baseline watch,watch=/w").unwrap();
    let watch = |program: Option<&str>| Subject::local(program.map(Into::into), Kind::Watch);
    assert_eq!(bench.subjects[1..], [watch(None), watch(Some("/w"))]);
    let (bench, _) = parse("w1 --server 127.0.0.1:5 --feed /tmp/feed --pid 7 --resource pods").unwrap();
    let address = ([127, 0, 0, 1], 5).into();
    let remote = Remote { address, resource: "pods".to_owned(), feed: "/tmp/feed".into(), pid: Some(7) };
    assert_eq!(bench.subjects, [Subject::Remote(remote)]);
}

#[test]
fn invalid_combinations_are_rejected() {
    for (arguments, hint) in [
        ("w1", "--local"),
        ("w1 --local --server 127.0.0.1:5 --feed x", "cannot be used with"),
        ("w1 --program x --server 127.0.0.1:5 --feed x", "cannot be used with"),
        ("w1 --server 127.0.0.1:5", "--feed"),
        ("w1 --server unix:/run/x.sock --feed x", "speaks TCP"),
        ("w1 --local --baseline slow=/a", "one of them with =PROGRAM"),
        ("w1 --local --baseline naive=", "program is missing"),
        ("w1 --local --rate 0", "events a second"),
        ("w1 --local --watchers 0", "0 is not in"),
        ("w2 --local --watchers 3", "more than 3 watchers"),
        ("w1 --local --window 5", "65535"),
        ("w1 --local --max-frame 5", "16384"),
        ("idle --local --watchers 9", "more than 9 watchers"),
        ("stopped --local --watchers 1", "1 is not in"),
        ("w9 --local", "unrecognized subcommand"),
    ] {
        let error = parse(arguments).unwrap_err();
        assert!(error.contains(hint), "{arguments}: {hint} is not in {error}");
    }
}
