use bytes::Bytes;
use proptest::{collection::vec, prelude::*, sample::select};

use super::{check::MAX_LEVELS, *};
use crate::model::{ObjectKey, ObjectParts, ResourceVersion};

const POD: &str = r#"{"metadata":{"namespace":"shop","name":"web","labels":{"app":"web","tier":"front"}},
    "spec":{"replicas":3,"big":9007199254740993,"huge":18446744073709551615,"ratio":1.5,"paused":false,"none":null,
        "containers":[{"name":"a","image":"nginx:1"},{"name":"b","image":"envoy:2"}],"ports":[80,443],"empty":[]}}"#;

fn object(json: &str) -> Object {
    Object::from_json(Bytes::copy_from_slice(json.as_bytes()), "file", ResourceVersion::decimal(1)).unwrap()
}

fn matches(text: &str, json: &str) -> bool {
    Expression::parse(text).unwrap().matches(&object(json))
}

/// Returns the result, and the number of counted failures, within the largest budget that can be configured.
fn outcome(text: &str, json: &str) -> (bool, u64) {
    let expression = Expression::parse(text).unwrap().with_max_steps(100_000);
    (expression.matches(&object(json)), expression.errors())
}

fn values(text: &str) -> Vec<String> {
    Expression::parse(text).unwrap().values(&object(POD))
}

fn refused(text: &str) -> String {
    Expression::parse(text).unwrap_err().to_string()
}

#[test]
fn an_expression_reads_fields_of_the_object() {
    for text in [
        "true",
        "object.metadata.name == 'web'",
        "object.spec.replicas > 2 && object.spec.replicas <= 3",
        "object.spec.big == 9007199254740993 && object.spec.big != 9007199254740992",
        "object.spec.huge == 18446744073709551615u",
        "object.spec.ratio * 2.0 == 3.0 && object.spec.replicas == 3.0",
        "!object.spec.paused && object.spec.none == null",
        "object.metadata.labels['app'] == 'web' && 'tier' in object.metadata.labels",
        "object.spec.containers.exists(c, c.image.startsWith('nginx:'))",
        "object.spec.containers.all(c, c.image.contains(':'))",
        "object.spec.containers.exists_one(c, c.name == 'b')",
        "object.spec.containers.filter(c, c.name != 'a').map(c, c.image) == ['envoy:2']",
        "object.spec.containers.map(c, c.name == 'a', c.image)[0] == 'nginx:1'",
        "size(object.spec.ports) == 2 && object.spec.ports.size() == 2 && 443 in object.spec.ports",
        "has(object.spec.replicas) && !has(object.spec.missing)",
        "object.spec.containers.map(c, c.name) + ['c'] == ['a', 'b', 'c']",
        "object.spec.ports.exists(p, object.spec.ports.exists(q, p + q == 523))",
        "type(object.spec.replicas) == int && string(object.spec.ports[1]) == '443' && int('7') == 7",
        "object.spec == object.spec && {'a': [1]} == {'a': [1]}",
        "(has(object.spec.missing) ? object.spec.missing : 'x') == 'x'",
        ".object.spec.replicas == 3",
    ] {
        assert_eq!(outcome(text, POD), (true, 0), "{text}");
    }
}

#[test]
fn missing_fields_are_false_and_failures_are_false_and_counted() {
    for text in [
        "object.spec.missing == 'x'",
        "object.missing.deeper.still > 1",
        "object.metadata.labels['no'] == 'x'",
        "object.spec.ports[2] == 1",
        "object.spec.containers.exists(c, c.missing == 1)",
        "!(object.spec.missing == 'x')",
        "false",
    ] {
        assert_eq!(outcome(text, POD), (false, 0), "{text}");
    }
    for text in [
        "object.spec.replicas",
        "object.spec.replicas + 'x' == 'y'",
        "object.spec.none.deeper == 1",
        "object.spec.replicas / 0 == 1",
        "object.spec.big * object.spec.big == 1",
        "object.metadata.name > 5",
        "int('x') == 1",
        "object.spec.replicas.all(x, true)",
    ] {
        assert_eq!(outcome(text, POD), (false, 1), "{text}");
    }
    assert_eq!(outcome("object.spec.missing == 1 || object.spec.replicas == 3", POD), (true, 0), "as CEL has it");
}

#[test]
fn a_body_that_is_not_json_never_matches() {
    let raw = Object::new(ObjectParts {
        key: ObjectKey::new("shop", "web").unwrap(),
        uid: String::new(),
        version: ResourceVersion::decimal(1),
        labels: std::collections::BTreeMap::new(),
        api_version: String::new(),
        kind: String::new(),
        media_type: "text/plain",
        body: Bytes::from_static(b"{}"),
    });
    let expression = Expression::parse("true").unwrap();
    assert!(!expression.matches(&raw) && expression.values(&raw).is_empty());
    assert_eq!(expression.errors(), 0);
    assert!(matches("object == 3", "3") && matches("object[0]", "[true]"), "any JSON is an object here");
    let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
    assert_eq!(outcome("true", &deep), (false, 1), "it cannot be looked into");
}

#[test]
fn the_values_of_an_index_are_json_text() {
    assert_eq!(values("object.metadata.name"), ["web"]);
    assert_eq!(values("object.spec.big"), ["9007199254740993"]);
    assert_eq!(values("object.spec.huge"), ["18446744073709551615"]);
    assert_eq!(values("object.spec.ratio"), ["1.5"]);
    assert_eq!(values("object.spec.paused"), ["false"]);
    assert_eq!(values("object.spec.containers.map(c, c.name + '/' + c.image)"), ["a/nginx:1", "b/envoy:2"]);
    assert_eq!(values("['x', 1, true, null, [2], {'a': 3}, 2.5]"), ["x", "1", "true", "2.5"]);
    for text in ["null", "object.spec", "object.missing", "1 / 0", "object.spec.empty", "b'x'"] {
        assert_eq!(values(text), [""; 0], "{text}");
    }
}

#[test]
fn errors_point_at_the_position() {
    for (text, expected) in [
        ("1 +", "character 4: expected more: \"1 +»\""),
        ("", "character 1: expected more: \"»\""),
        ("object.a == 'é' &&& true", "character 19: unexpected \"&\": \"object.a == 'é' &&»& true\""),
        ("pod.spec == 1", "character 1: unknown variable \"pod\" (known: object): "),
        ("true || type == 'ADDED'", "character 9: unknown variable \"type\" (known: object): "),
        ("object.a.exists(c, d == 1)", "character 20: unknown variable \"d\" (known: object, c): "),
        ("object.a.exists(c, true) || c == 1", "character 29: unknown variable \"c\" (known: object): "),
        ("object.a.matches('x')", "unknown function \"matches\" or wrong arguments (known: bool(x), bytes(x), "),
        ("now() > 1", "unknown function \"now\" or wrong arguments"),
        ("contains(object.a, 'x')", "unknown function \"contains\" or wrong arguments"),
        ("has(object)", "invalid argument to has() macro: "),
        ("Pod{name: 'x'}", "message literals are not supported; write a map: {'key': value}: "),
        ("object.?a", "unsupported syntax '.?': "),
        ("true true", "character 6: unexpected \"true\": "),
        ("'abc", "character 1: unexpected \"'abc\": "),
    ] {
        let message = refused(text);
        assert!(message.starts_with("character ") && message.contains(expected), "{text}: {message}");
        assert!(!message.contains('\n') && message.len() < 500, "{text}: {message}");
    }
    assert!(refused("1 +\n  @").starts_with("character 7: "), "over lines: {}", refused("1 +\n  @"));
}

#[test]
fn expressions_with_the_same_text_are_equal() {
    let parse = |text| Expression::parse(text).unwrap();
    assert_eq!(parse(" true\n"), parse("true"));
    assert_ne!(parse("true"), parse("(true)"));
    assert_eq!(
        (parse(" 1 == 1 ").to_string(), format!("{:?}", parse("true"))),
        ("1 == 1".into(), "Expression(\"true\")".into())
    );
    let errors = Arc::new(AtomicU64::new(5));
    let expression = parse("1 / 0 == 1").counted_in(&errors);
    assert!(!expression.clone().matches(&object("{}")));
    assert_eq!((expression.errors(), errors.load(Ordering::Relaxed)), (6, 6), "clones count together");
}

#[test]
fn the_text_is_bounded_in_length_and_nesting() {
    let long = format!("'{}'", "é".repeat(MAX_EXPRESSION_BYTES / 2));
    assert!(refused(&long).starts_with("character 2049: expression too long (limit: 4096 bytes): "));
    let nested = |n: usize| format!("{}true{}", "(".repeat(n), ")".repeat(n));
    assert!(Expression::parse(&nested(30)).is_ok(), "brackets alone are no levels");
    assert!(refused(&nested(2000)).contains(": brackets nested too deeply (limit: 40): "));
    let list = |n: usize| format!("{}1{}", "[".repeat(n), "]".repeat(n));
    assert!(Expression::parse(&list(MAX_LEVELS - 1)).is_ok());
    assert!(refused(&list(MAX_LEVELS)).starts_with("character 21: expression nested too deeply (limit: 20 levels): "));
    assert!(Expression::parse(&format!("object{}", ".a".repeat(1000))).is_ok(), "a name is one level");
    let alternatives = vec!["object.a == 1"; 200].join(" || ");
    assert!(Expression::parse(&alternatives).is_ok(), "these are not nested");
}

/// Every form of nesting, as deep as the length allows, on a stack as small as a worker's, without optimisation.
#[test]
fn no_text_exhausts_the_stack() {
    let n = MAX_EXPRESSION_BYTES;
    let around = |open: &str, inner: &str, close: &str| {
        let times = (n - inner.len()) / (open.len() + close.len());
        format!("{}{inner}{}", open.repeat(times), close.repeat(times))
    };
    let texts = [
        around("(", "1", ")"),
        around("[", "1", "]"),
        around("{1:", "1", "}"),
        around("!", "true", ""),
        around("-", "1", ""),
        around("size(", "1", ")"),
        around("object.all(x,", "true", ")"),
        around("true?", "1", ":1"),
        around("true?1:", "1", ""),
        around("", "object", ".a"),
        around("", "object", "[0]"),
        around("", "object", ".size()"),
        around("", "1", "+1"),
        around("", "1", "<1"),
        around("", "1", " in [1]"),
        around("", "true", "||true"),
        around("", "true", "&&true"),
        around("(", "", ""),
        around("?", "", ""),
        around("@#", "", ""),
        around("'", "", ""),
        around("a.", "", ""),
    ];
    for text in texts {
        // A text that is not rejected is evaluated.
        if let Ok(expression) = Expression::parse(&text) {
            expression.matches(&object(POD));
        }
    }
}

/// Maximum nesting, evaluated on the stack of a test's thread, which is as large as a worker's.
#[test]
fn expressions_at_the_nesting_limit_are_evaluated() {
    let pod = object(POD);
    let deepest = |open: &str, inner: &str, close: &str| {
        let nested =
            (1..=MAX_LEVELS).rev().map(|times| format!("{}{inner}{}", open.repeat(times), close.repeat(times)));
        let expression = nested.into_iter().find_map(|text| Expression::parse(&text).ok()).unwrap();
        expression.matches(&pod);
        expression.as_str().len()
    };
    assert_eq!(deepest("[", "1", "]"), 19 + 1 + 19);
    assert_eq!(deepest("", "object", "[0]"), 6 + 19 * 3);
    assert_eq!(deepest("size(", "1", ")"), 19 * 5 + 1 + 19);
    assert_eq!(deepest("[1].all(x,", "true", ")"), 9 * 10 + 4 + 9);
    assert_eq!(deepest("", "1", "+1"), 1 + 19 * 2);
    assert_eq!(deepest("[object].map(x,", "x", ")"), 4 * 15 + 1 + 4);
}

/// CEL's work for names, keys and errors is charged too.
#[test]
fn names_keys_and_errors_cost_steps_too() {
    let body = serde_json::json!({ "short": vec![1; 30], "list": vec![1; 3000], "many": vec![1; 100_000] }).to_string();
    let (fields, name) = (".a".repeat(1500), "n".repeat(3000));
    for text in [
        format!("object.short.all(a, object{fields} == 1 || true)"),
        format!("object.short.all(a, [1].all(b, [1].all(c, object{} == 1 || true)))", ".a".repeat(800)),
        format!("object.list.all({name}, true)"),
        format!("object.list.all(a, has(a.{name}) || true)"),
        format!("object.list.all(a, [a][0].{name} == 1 || true)"),
        // The first operand is copied in each of the sums.
        format!("({}).size() > 0", ["object.list"; 15].join(" + ")),
        format!("[object.list, object.list, object.list]{} == 1", " + [1]".repeat(14)),
    ] {
        assert_eq!(outcome(&text, &body), (false, 1), "{text:.100}");
    }
    for text in [
        // CEL would put a copy of the list into each error.
        "object.list.all(a, object.many[0.5] == 1 || true)",
        "object.list.all(a, object.many[1.0 / 0.0] == 1 || true)",
        "object.list.all(a, object.many[double('nan')] == 1 || true)",
        "object.list.all(a, object.many[1e300] == 1 || true)",
        "object.list.all(a, object.many[2.0] == 1)",
    ] {
        let started = std::time::Instant::now();
        assert_eq!(outcome(text, &body), (true, 0), "{text}");
        let took = started.elapsed();
        assert!(took < std::time::Duration::from_secs(5), "{text}: {took:?}");
    }
    assert_eq!(outcome("object.list[0.5] == 1", &body), (false, 1));
}

/// Each would take hours or terabytes.
#[test]
fn a_costly_evaluation_fails_soon() {
    let numbers = serde_json::json!({ "list": vec![1; 3000], "text": "x".repeat(100_000) }).to_string();
    let sum = (0..5).fold("s".to_owned(), |sum, _| format!("({sum}+{sum})"));
    let grown = format!("[object.text]{}", format!(".map(s, {sum})").repeat(3));
    let list = "object.list";
    for text in [
        format!("{list}.all(a, {list}.all(b, {list}.all(c, {list}.all(d, true))))"),
        format!("{list}.exists(a, {list}.exists(b, {list}.exists(c, a + b + c == 0)))"),
        format!("{list}.map(a, {list}.map(b, {list})).size() > 0"),
        format!("{list}.all(a, {list}.filter(b, true).size() > 0)"),
        format!("{list}.all(a, object == object)"),
        format!("{list}.all(a, a in {list} && 2 in {list} || true)"),
        format!("[{}].size() > 0", vec!["object"; 500].join(", ")),
        format!("{{{}}}.size() > 0", (0..300).map(|n| format!("{n}: object")).collect::<Vec<_>>().join(", ")),
        format!("{grown}.size() > 0"),
        format!("{list}.all(a, {})", vec!["true"; 100].join("&&")),
        format!("{list}.all(a, object.text.contains('y') || true)"),
        format!("{list}.exists(a, {list}.all(b, {list}.all(c, true))) || true"),
    ] {
        let started = std::time::Instant::now();
        assert_eq!(outcome(&text, &numbers), (false, 1), "{text:.100}");
        let took = started.elapsed();
        assert!(took < std::time::Duration::from_secs(5), "{text:.100}: {took:?}");
    }
    for text in [
        format!("{list}.all(a, a == 1)"),
        format!("{list}.filter(a, a == 1).size() == 3000"),
        "object.text.contains('y') || object.text.size() == 100000".to_owned(),
    ] {
        assert_eq!(outcome(&text, &numbers), (true, 0), "{text}");
    }
}

#[test]
fn bodies_at_a_reused_address_are_distinguished() {
    let expression = Expression::parse("object.n == 2").unwrap();
    for n in 0..1000 {
        let body = format!(r#"{{"n":{n}}}"#);
        assert_eq!(expression.matches(&object(&body)), n == 2, "{n}");
    }
}

#[test]
fn an_evaluation_has_the_configured_steps() {
    let json = serde_json::json!({ "list": vec![1; 3000] }).to_string();
    let expression = Expression::parse("object.list.all(a, a == 1)").unwrap();
    for (expression, expected) in [
        (expression.clone().with_max_steps(100_000), true),
        (expression.clone().with_max_steps(9_000), false),
        (expression.clone(), false),
    ] {
        let errors = expression.errors();
        assert_eq!(expression.matches(&object(&json)), expected, "{}", expression.max_steps);
        assert_eq!(expression.errors() - errors, u64::from(!expected), "counted");
    }
    assert!(Expression::parse("object.list[2999] == 1").unwrap().matches(&object(&json)));
}

/// A loop that ends early, and one that uses up the budget, are charged the same each time.
#[test]
fn a_loop_goes_through_a_map_in_the_order_of_its_keys() {
    let numbers = (0..3_000).map(|n| format!("\"k{n}\":{n}"));
    let json =
        format!("{{\"labels\":{{\"y\":2,\"x\":1,\"z\":3}},\"m\":{{{}}}}}", numbers.collect::<Vec<_>>().join(","));
    for (text, expected) in [
        ("object.labels.map(k, k) == ['x', 'y', 'z']", true),
        ("object.labels.map(k, object.labels[k]) == [1, 2, 3]", true),
        ("object.labels.filter(k, k != 'x')[0] == 'y'", true),
        ("{3: 0, 1: 0, 2u: 0}.map(k, string(k)) == ['1', '3', '2']", true),
        ("object.m.exists(k, object.m[k] == 7 && object.m.all(l, object.m[l] >= 0))", false),
    ] {
        let expression = Expression::parse(text).unwrap();
        assert_eq!(expression.matches(&object(&json)), expected, "{text}");
        assert!(is_a_function_of_the_object(&expression, &json), "{text}");
    }
}

#[test]
fn a_condition_is_over_an_event() {
    let met = |text: &str, event_type: &str, body: Option<&'static str>, count: Option<u64>| {
        let condition = Condition::parse(text).unwrap();
        let body = body.map(|body| Bytes::from_static(body.as_bytes()));
        (condition.is_met(EventView { event_type, body: body.as_ref(), count }), condition.0.errors())
    };
    let n = Some(r#"{"n":1}"#);
    assert_eq!(met("type == 'ADDED' && object.n == 1", "ADDED", n, None), (true, 0));
    assert_eq!(met("type == 'ADDED' && object.n == 1", "MODIFIED", n, Some(1)), (false, 0));
    assert_eq!(met("type == 'SYNCED' && object == null", "SYNCED", None, Some(0)), (true, 0));
    assert_eq!(met("object.n == 1", "SYNCED", None, Some(0)), (false, 0), "nothing to look into, which is no failure");
    assert_eq!(met("object.n > 'x'", "ADDED", n, None), (false, 1));
    assert_eq!(met("count == 0", "SYNCED", None, Some(0)), (true, 0));
    assert_eq!(met("count < 2", "ADDED", n, None), (false, 0), "it is not known yet");
    assert!(Condition::parse("typ == 1").unwrap_err().to_string().contains("(known: type, object, count)"));
}

/// Generates expressions of all operations over values of all types.
fn expressions() -> impl Strategy<Value = String> {
    let leaf = select(vec![
        "true",
        "false",
        "1",
        "2u",
        "1.5",
        "'x'",
        "b'x'",
        "null",
        "[]",
        "[true]",
        "{}",
        "{'a': true}",
        "object",
        "object.yes",
        "object.n",
        "object.text",
        "object.list",
        "object.flags",
        "object.map",
    ]);
    leaf.prop_map(str::to_owned).prop_recursive(3, 24, 3, |inner| {
        let operator = select(vec!["+", "-", "*", "/", "%", "==", "!=", "<", "&&", "||", "in"]);
        let call = select(vec!["bool", "bytes", "double", "dyn", "int", "size", "string", "type", "uint", "!", "-"]);
        let loops = select(vec!["all", "exists", "exists_one", "map", "filter"]);
        prop_oneof![
            (inner.clone(), operator, inner.clone()).prop_map(|(a, operator, b)| format!("({a} {operator} {b})")),
            (call, inner.clone()).prop_map(|(call, a)| format!("{call}({a})")),
            (inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, b, c)| format!("({a} ? {b} : {c})")),
            (inner.clone(), loops, inner.clone()).prop_map(|(a, of, b)| format!("({a}).{of}(e, {b} == e ? {b} : e)")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("[{a}, {b}][0]")),
        ]
    })
}

/// Checks that the result depends on the object alone, so that a client that received an ADDED also receives its DELETED.
fn is_a_function_of_the_object(expression: &Expression, json: &str) -> bool {
    let outcome = || {
        // At another address, so that its value is made again.
        let object = object(json);
        (expression.matches(&object), expression.values(&object))
    };
    let first = outcome();
    (0..3).all(|_| outcome() == first)
}

/// Generates JSON with maps in maps, whose keys are out of order.
fn maps() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        any::<i32>().prop_map(Into::into),
        "[a-d]{0,2}".prop_map(Into::into),
        Just(serde_json::Value::Null)
    ];
    leaf.prop_recursive(3, 48, 12, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Into::into),
            vec(("[a-z]{1,2}", inner), 0..12)
                .prop_map(|entries| entries.into_iter().collect::<serde_json::Map<_, _>>().into()),
        ]
    })
}

proptest! {
    #![proptest_config(crate::property_config())]

    #[test]
    fn an_expression_is_a_function_of_the_object(
        range in select(vec!["object.m", "object.m.a", "{'b': 1, 'a': object.m, 3: 1, 2u: 2, true: 0}", "[object.m, object]"]),
        inner in select(vec!["k", "object.m[k]", "string(k)", "k + 'x'", "size(object.m[k])", "type(k)", "object.m[k].map(l, l)"]),
        whole in select(vec![
            "$.map(k, @)", "$.map(k, @)[0]", "$.filter(k, @ != 'x')", "$.map(k, @ == 'a', @)", "$.all(k, @ == 'a')",
            "$.exists(k, @ > 1)", "$.exists_one(k, @ == null)", "$.map(k, [@])[0] + $.map(k, [@])[1]", "$ == $", "string($)",
        ]),
        comparison in select(vec!["", " == ['a', 'b']", " == 'a'", " != null"]),
        m in maps(),
    ) {
        let text = whole.replace('@', inner).replace('$', range) + comparison;
        if let Ok(expression) = Expression::parse(&text) {
            let json = serde_json::json!({ "m": m }).to_string();
            prop_assert!(is_a_function_of_the_object(&expression, &json), "{text} of {json}");
        }
    }

    #[test]
    fn an_expression_whose_result_can_be_a_boolean_selects(text in expressions()) {
        let json = r#"{"yes":true,"n":1,"text":"true","list":[1,2],"flags":[true,false],"map":{"a":true}}"#;
        if let Ok(expression) = Expression::parse(&text) {
            let result = expression.compiled.program.test(100_000, None, object(json).shared_json().as_ref());
            let is_refused = Expression::selecting(&text).is_err();
            prop_assert!(result.is_err() || !is_refused, "{text} is {result:?}");
        }
    }

    #[test]
    fn no_text_panics(
        tokens in vec(select(vec![
            "object", ".", "a", "b", "(", ")", "[", "]", "{", "}", ":", ",", "?", "&&", "||", "!", "-", "+", "*", "/", "%",
            "==", "!=", "<", ">=", " in ", "1", "0", "-9223372036854775808", "1.5", "2u", "'x'", "b'y'", "true", "null",
            "size", "has", "all(x,", "map(x,", "exists_one(x,", "string", "int", "contains", "\\", "'", "\n", "é", "`", "@",
            "type", "\u{0}", "r'", "\"\"\"", "0x", "1e400", "dyn", "double",
        ]), 0..12),
        json in select(vec![POD, "{}", "null", "[]", r#"{"a":{"b":[1,2]},"b":"x"}"#, r#"{"a":-9223372036854775808}"#]),
    ) {
        let text = tokens.concat();
        if let Ok(expression) = Expression::parse(&text) {
            expression.matches(&object(json));
            expression.values(&object(json));
        }
    }
}
