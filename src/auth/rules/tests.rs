use serde_json::{Value, json};

use super::*;
use crate::{auth::IdentityDetails, model::View};

fn identity(user: &str, groups: &[&str]) -> Identity {
    let groups = groups.iter().map(|group| (*group).to_owned()).collect();
    Identity::new(IdentityDetails { user: user.to_owned(), groups, ..IdentityDetails::default() })
}

const OPERATIONS: [Operation; 6] =
    [Operation::Get, Operation::List, Operation::Watch, Operation::Inspect, Operation::Disconnect, Operation::See];

fn rules(value: &Value) -> Rules {
    Rules::from_value(value).unwrap()
}

fn only(namespaces: &[&str]) -> Scope {
    Scope::Only(namespaces.iter().copied().collect())
}

#[test]
fn what_no_rule_grants_is_denied() {
    let everything = rules(&json!([{"subjects": ["*"], "verbs": ["*"], "resources": ["*"], "namespaces": ["*"]}]));
    for operation in OPERATIONS {
        let attributes = Attributes::new(operation, "pods");
        assert_eq!(Rules::default().authorize(&identity("a", &[]), &attributes), Err(AccessError::Denied));
        assert_eq!(everything.authorize(&identity("a", &[]), &attributes), Ok(Scope::All));
    }
}

#[test]
fn a_request_for_all_namespaces_is_narrowed_to_those_of_all_verbs() {
    let rules = rules(&json!([
        {"subjects": ["user:web"], "verbs": ["list"], "resources": ["pods"], "namespaces": ["a", "b", ""]},
        {"subjects": ["group:team"], "verbs": ["watch"], "resources": ["*"], "namespaces": ["b", "", "c"]},
        {"subjects": ["user:system:serviceaccount:shop:web"], "verbs": ["get"], "resources": ["pods"], "namespaces": ["*"]},
    ]));
    let web = identity("web", &["team"]);
    let ask = |identity: &Identity, operation, namespace: Option<&str>| {
        let attributes = Attributes { namespace: namespace.map(str::to_owned), ..Attributes::new(operation, "pods") };
        rules.authorize(identity, &attributes)
    };
    assert_eq!(ask(&web, Operation::List, None), Ok(only(&["", "a", "b"])));
    assert_eq!(ask(&web, Operation::Watch, None), Ok(only(&["", "b"])));
    assert_eq!(ask(&web, Operation::See, None), Ok(only(&["", "a", "b", "c"])));
    assert_eq!(ask(&web, Operation::Watch, Some("b")), Ok(Scope::All));
    assert_eq!(ask(&web, Operation::Watch, Some("a")), Err(AccessError::Denied));
    assert_eq!(ask(&web, Operation::Inspect, None), Err(AccessError::Denied));
    assert_eq!(ask(&identity("web", &[]), Operation::Watch, None), Err(AccessError::Denied));
    let account = identity("system:serviceaccount:shop:web", &[]);
    assert_eq!(ask(&account, Operation::Get, None), Ok(Scope::All));
    assert_eq!(ask(&account, Operation::List, None), Err(AccessError::Denied));
}

#[test]
fn the_content_of_secrets_needs_a_rule_that_names_resource_and_format() {
    let of = |resource: &str, formats: Value| {
        rules(
            &json!([{"subjects": ["*"], "verbs": ["*"], "resources": [resource], "namespaces": ["*"], "formats": formats}]),
        )
    };
    let secret = |format, selects_content| Attributes {
        format,
        selects_content,
        is_secret: true,
        ..Attributes::new(Operation::Watch, "secrets")
    };
    let caller = identity("a", &[]);
    for (rules, allowed) in [
        (of("secrets", Value::Null), [true, false, false, false]),
        (of("*", Value::Null), [true, false, false, false]),
        (of("*", json!(["RAW", "STRUCT"])), [true, false, false, false]),
        (of("secrets", json!(["METADATA"])), [true, false, false, false]),
        (of("secrets", json!(["RAW"])), [true, false, true, true]),
        (of("secrets", json!(["STRUCT"])), [true, true, false, true]),
    ] {
        let requests =
            [(Format::Metadata, false), (Format::Struct, false), (Format::Raw, false), (Format::Metadata, true)];
        let found = requests.map(|(format, content)| rules.authorize(&caller, &secret(format, content)).is_ok());
        assert_eq!(found, allowed, "{rules:?}");
    }
}

#[test]
fn a_view_is_granted_by_its_name_and_never_more() {
    let rule = |more: Value| {
        let mut rule = json!({"subjects": ["*"], "verbs": ["*"], "resources": ["*"], "namespaces": ["*"]});
        rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        rules(&json!([rule]))
    };
    let of = |format, view: Option<&str>, selects_content| Attributes {
        format,
        view: view.map(str::to_owned),
        selects_content,
        ..Attributes::new(Operation::Watch, "pods")
    };
    let (raw, metadata) = (Format::Raw, Format::Metadata);
    let requests = [
        of(metadata, None, false),
        of(metadata, None, true),
        of(raw, Some("small"), false),
        of(raw, Some("small"), true),
        of(raw, Some("other"), false),
        of(raw, None, false),
        of(Format::Struct, Some("small"), false),
    ];
    for (rules, allowed) in [
        (rule(json!({})), [true; 7]),
        (rule(json!({"views": ["small"]})), [true, false, true, false, false, false, true]),
        (rule(json!({"views": ["small"], "formats": ["RAW"]})), [true, false, true, false, false, false, false]),
        (rule(json!({"formats": ["RAW"]})), [true, true, true, true, true, true, false]),
        (rule(json!({"formats": ["METADATA"]})), [true, false, false, false, false, false, false]),
    ] {
        let found = requests.each_ref().map(|request| rules.authorize(&identity("a", &[]), request).is_ok());
        assert_eq!(found, allowed, "{rules:?}");
    }
}

/// A view by one rule and whole bodies by another are each in the namespaces of their rule.
#[test]
fn rules_of_views_and_of_whole_bodies_add_up() {
    let rules = rules(&json!([
        {"subjects": ["*"], "verbs": ["list"], "resources": ["pods"], "namespaces": ["a", "b"], "formats": ["RAW"], "views": ["small"]},
        {"subjects": ["*"], "verbs": ["list"], "resources": ["pods"], "namespaces": ["b", "c"], "formats": ["STRUCT"]},
    ]));
    let ask = |format, view: Option<&str>, selects_content| {
        let view = view.map(str::to_owned);
        let attributes = Attributes { format, view, selects_content, ..Attributes::new(Operation::List, "pods") };
        rules.authorize(&identity("x", &[]), &attributes)
    };
    assert_eq!(ask(Format::Raw, Some("small"), false), Ok(only(&["a", "b"])));
    assert_eq!(
        ask(Format::Raw, Some("small"), true),
        Ok(only(&["b"])),
        "the selection needs whole bodies in any format"
    );
    assert_eq!(ask(Format::Raw, None, false), Err(AccessError::Denied));
    assert_eq!(ask(Format::Struct, Some("small"), false), Ok(only(&["b", "c"])));
    assert_eq!(ask(Format::Metadata, None, false), Ok(only(&["a", "b", "c"])));
    assert_eq!(ask(Format::Metadata, None, true), Ok(only(&["b", "c"])));
}

#[test]
fn a_view_that_no_resource_of_its_rule_has_is_found() {
    let rule = |resources: &[&str], views: &[&str]| json!({"subjects": ["*"], "verbs": ["list"], "resources": resources, "namespaces": ["*"], "views": views});
    let small = View::parse(&["spec"], &[]).unwrap();
    let with = NamedViews::new([("small".to_owned(), small)]).unwrap();
    let (required, without) = (with.clone().required(&["small".to_owned()]).unwrap(), NamedViews::default());
    let resources = BTreeMap::from([("pods", &with), ("nodes", &without), ("jobs", &required)]);
    let built_in = "@metadata, @no-managed-fields, @no-status";
    for (resources_of_rule, views, expected) in [
        (&["pods"][..], &["small", "@no-status"][..], None),
        (&["pods"], &["smal"], Some(format!("\"smal\" not found (known in pods: {built_in}, small)"))),
        (&["nodes", "pods"], &["small"], None),
        (&["nodes"], &["small", "a"], Some(format!("\"a\", \"small\" not found (known in nodes: {built_in})"))),
        (&["jobs"], &["@no-status"], Some("\"@no-status\" not found (known in jobs: small)".to_owned())),
        (&["*"], &["small"], None),
        // For another server.
        (&["secrets"], &["small"], None),
    ] {
        let impersonation = json!({"subjects": ["*"], "verbs": ["impersonate"], "users": ["*"]});
        let rules = rules(&json!([impersonation, rule(resources_of_rule, views)]));
        let expected = expected.map(|problem| format!("rule 2: view {problem}: it grants no body in that view"));
        assert_eq!(rules.unknown_views(&resources), Vec::from_iter(expected));
    }
    let everything = rules(&json!([rule(&["*"], &["other"])])).unknown_views(&resources);
    assert!(everything[0].contains("(known in jobs: small; nodes: @metadata"), "{everything:?}");
}

#[test]
fn a_bad_rule_is_one_line_with_its_number() {
    let good = json!({"subjects": ["*"], "verbs": ["list"], "resources": ["a"], "namespaces": ["*"]});
    let with = |key: &str, value: Value| {
        let mut rule = good.clone();
        rule[key] = value;
        json!([good, rule])
    };
    for (value, problem) in [
        (
            json!({}),
            "expected a list such as [{subjects: [\"group:web\"], verbs: [list, watch], resources: [pods], namespaces: [shop]}], found a map",
        ),
        (
            json!([1]),
            "rule 1: expected a map such as {subjects: [\"group:web\"], verbs: [list, watch], resources: [pods], namespaces: [shop]}, found 1",
        ),
        (
            with("verb", json!(["list"])),
            "rule 2: unknown key \"verb\"; known here: subjects, verbs, resources, namespaces, formats, views",
        ),
        (with("views", json!([])), "rule 2: expected a list of at least one text for `views`, found an empty list"),
        (
            with("views", json!(["small", "*"])),
            "rule 2: `views` has \"*\": name each view, or leave the key out to grant whole bodies",
        ),
        (
            json!([{"subjects": ["*"], "verbs": ["list"], "resources": ["a"], "namespaces": ["*"], "formats": ["METADATA"], "views": ["x"]}]),
            "rule 1: `views` are parts of bodies, which `formats` excludes: add STRUCT or RAW, or remove one of the keys",
        ),
        (
            with("namespaces", Value::Null),
            "rule 2: `namespaces` is missing; a rule is such as {subjects: [\"group:web\"], verbs: [list, watch], resources: [pods], namespaces: [shop]}",
        ),
        (with("verbs", json!("list")), "rule 2: expected a list of at least one text for `verbs`, found \"list\""),
        (with("verbs", json!([])), "rule 2: expected a list of at least one text for `verbs`, found an empty list"),
        (
            with("verbs", json!([1])),
            "rule 2: expected a list of at least one text for `verbs`, found a list of other values",
        ),
        (
            with("verbs", json!(["patch\n"])),
            "rule 2: expected a verb get, list, watch, admin, disconnect or \"*\", or impersonate, found \"patch\\n\"",
        ),
        (
            with("verbs", json!(["list", "impersonate"])),
            "rule 2: `impersonate` needs a rule of its own, such as {subjects: [\"user:relay\"], verbs: [impersonate], users: [\"*\"], groups: [web]}",
        ),
        (
            with("verbs", json!(["impersonate"])),
            "rule 2: unknown key \"namespaces\"; known here: subjects, verbs, users, groups",
        ),
        (
            json!([{"subjects": ["*"], "verbs": ["impersonate"]}]),
            "rule 1: `users` is missing; a rule is such as {subjects: [\"user:relay\"], verbs: [impersonate], users: [\"*\"], groups: [web]}",
        ),
        (with("subjects", json!(["bob"])), "rule 2: expected a subject user:NAME, group:NAME or \"*\", found \"bob\""),
        (
            with("subjects", json!(["user:"])),
            "rule 2: expected a subject user:NAME, group:NAME or \"*\", found \"user:\"",
        ),
        (with("formats", json!(["raw"])), "rule 2: expected a format METADATA, STRUCT or RAW, found \"raw\""),
        (json!(vec![good.clone(); 10_001]), "has 10001 rules; expected at most 10000"),
    ] {
        assert_eq!(Rules::from_value(&value).unwrap_err().to_string(), problem);
    }
}

/// A right to read everything is none to read as somebody else.
#[test]
fn impersonation_needs_a_right_to_the_user_and_to_each_group() {
    let all = json!({"subjects": ["*"], "verbs": ["*"], "resources": ["*"], "namespaces": ["*"]});
    let rules = rules(&json!([
        all,
        {"subjects": ["user:relay"], "verbs": ["impersonate"], "users": ["*"], "groups": ["web"]},
        {"subjects": ["group:relays"], "verbs": ["impersonate"], "users": ["ann"]},
        {"subjects": ["group:relays"], "verbs": ["impersonate"], "users": ["bob"], "groups": ["*"]},
    ]));
    for (caller, user, groups, is_allowed) in [
        (identity("relay", &[]), "ann", &[][..], true),
        (identity("relay", &[]), "ann", &["web"], true),
        (identity("relay", &[]), "ann", &["ops", "web"], false),
        (identity("relay", &["relays"]), "ann", &["ops", "web"], true),
        (identity("x", &["relays"]), "ann", &["ops"], true),
        (identity("x", &["relays"]), "eve", &["ops"], false),
        (identity("x", &[]), "x", &[], false),
    ] {
        let expected = if is_allowed { Ok(()) } else { Err(AccessError::Denied) };
        assert_eq!(rules.impersonate(&caller, &identity(user, groups)), expected, "{caller:?} {user} {groups:?}");
    }
    let reads = Attributes::new(Operation::List, "pods");
    let only_acts = Rules::from_value(&json!([{"subjects": ["*"], "verbs": ["impersonate"], "users": ["*"]}])).unwrap();
    assert_eq!(only_acts.authorize(&identity("relay", &[]), &reads), Err(AccessError::Denied));
}

/// Decides for one namespace, by the texts of the rules alone.
fn is_granted(rules: &[Value], caller: &Identity, attributes: &Attributes, namespace: &str) -> bool {
    let has = |rule: &Value, key: &str, name: &str| {
        rule[key].as_array().unwrap().iter().any(|text| *text == json!(name) || *text == json!("*"))
    };
    // Without a view whole bodies are wanted.
    let is_granted_in = |verb: &str, format: &str, view: Option<&str>| {
        rules.iter().any(|rule| {
            let is_caller = rule["subjects"].as_array().unwrap().iter().any(|subject| {
                let groups = &caller.details().groups;
                *subject == json!("*")
                    || *subject == json!(format!("user:{}", caller.user()))
                    || groups.iter().any(|group| *subject == json!(format!("group:{group}")))
            });
            let is_named = |views: &Value| view.is_some_and(|view| views.as_array().unwrap().contains(&json!(view)));
            let has_view = format == "METADATA" || rule.get("views").is_none_or(is_named);
            let names_resource = !rule["resources"].as_array().unwrap().contains(&json!("*"));
            let reads = match rule.get("formats") {
                _ if format == "METADATA" => true,
                None => !attributes.is_secret,
                Some(formats) => {
                    formats.as_array().unwrap().contains(&json!(format)) && (names_resource || !attributes.is_secret)
                }
            };
            is_caller
                && reads
                && has_view
                && has(rule, "verbs", verb)
                && has(rule, "resources", &attributes.resource)
                && has(rule, "namespaces", namespace)
        })
    };
    let format = FORMATS.iter().find(|(_, format)| *format == attributes.format).unwrap().0;
    let allows = |verb: &str| {
        let reads_content = is_granted_in(verb, "RAW", None) || is_granted_in(verb, "STRUCT", None);
        is_granted_in(verb, format, attributes.view.as_deref()) && (reads_content || !attributes.selects_content)
    };
    match attributes.operation {
        Operation::Get => allows("get") || allows("list"),
        Operation::List => allows("list"),
        Operation::Watch => allows("list") && allows("watch"),
        Operation::Inspect => allows("admin"),
        Operation::Disconnect => allows("disconnect"),
        Operation::See => allows("get") || allows("list") || allows("watch"),
    }
}

/// Returns some of these texts, at least one.
fn some<'a>(random: &mut fastrand::Rng, texts: &[&'a str]) -> Vec<&'a str> {
    let mut chosen: Vec<_> = texts.iter().copied().filter(|_| random.u8(..4) == 0).collect();
    if chosen.is_empty() {
        chosen.push(texts[random.usize(..texts.len())]);
    }
    chosen
}

#[test]
fn random_rules_grant_what_each_of_their_texts_grants() {
    let mut random = fastrand::Rng::with_seed(19);
    let (mut allowed, mut narrowed, mut denied) = (0, 0, 0);
    for _ in 0..1000 {
        let count = random.usize(..12);
        let list: Vec<Value> = (0..count)
            .map(|_| {
                let subjects = ["*", "user:a", "user:b", "user:group:x", "group:x", "group:y"];
                let (named_subjects, named_namespaces) = (random.u8(..4) > 0, random.u8(..4) > 0);
                let mut rule = json!({
                    "subjects": some(&mut random, &subjects[usize::from(named_subjects)..]),
                    "verbs": some(&mut random, &["get", "list", "watch", "admin", "disconnect", "*"]),
                    "resources": some(&mut random, &["*", "pods", "secrets"]),
                    "namespaces": some(&mut random, &["a", "b", "c", "", "*"][..5 - usize::from(named_namespaces)]),
                });
                if random.bool() {
                    rule["formats"] = json!(some(&mut random, &["METADATA", "STRUCT", "RAW"]));
                }
                if random.bool() && rule.get("formats") != Some(&json!(["METADATA"])) {
                    rule["views"] = json!(some(&mut random, &["small", "@metadata"]));
                }
                rule
            })
            .collect();
        let rules = rules(&json!(list));
        for _ in 0..20 {
            let caller =
                identity(some(&mut random, &["a", "b", "group:x", "c"])[0], &some(&mut random, &["x", "y", "z"]));
            let operation = OPERATIONS[random.usize(..OPERATIONS.len())];
            let is_metadata = matches!(operation, Operation::Inspect | Operation::Disconnect | Operation::See);
            let resource = ["pods", "secrets", "none"][random.usize(..3)];
            let namespace = ["a", "b", "c", "", "d"][random.usize(..5)];
            let format = if is_metadata { Format::Metadata } else { FORMATS[random.usize(..3)].1 };
            let view = [None, Some("small"), Some("@metadata"), Some("none")][random.usize(..4)];
            let attributes = Attributes {
                namespace: random.bool().then(|| namespace.to_owned()),
                view: view.filter(|_| format != Format::Metadata).map(str::to_owned),
                format,
                selects_content: !is_metadata && random.bool(),
                is_secret: resource == "secrets",
                ..Attributes::new(operation, resource)
            };
            let found = rules.authorize(&caller, &attributes);
            let sees = |namespace: &str| match (&found, &attributes.namespace) {
                (Err(AccessError::Denied), _) => false,
                (Ok(Scope::All), requested) => requested.as_deref().is_none_or(|requested| requested == namespace),
                (Ok(Scope::Only(names)), None) => names.contains(namespace),
                other => panic!("{other:?}"),
            };
            // No rule names the namespace d: it is only in all of them.
            for namespace in ["a", "b", "c", "", "d"] {
                let is_requested = attributes.namespace.as_deref().is_none_or(|requested| requested == namespace);
                let expected = is_requested && is_granted(&list, &caller, &attributes, namespace);
                assert_eq!(sees(namespace), expected, "{namespace:?} of {attributes:?} for {caller:?}: {list:#?}");
            }
            match found {
                Ok(Scope::All) => allowed += 1,
                Ok(Scope::Only(_)) => narrowed += 1,
                Err(_) => denied += 1,
            }
        }
    }
    assert!(allowed > 1000 && narrowed > 1000 && denied > 1000, "{allowed} {narrowed} {denied}");
}
