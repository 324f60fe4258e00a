//! Label selectors: upstream's tables, bounds, and a naive model.

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*, sample::select};

use super::*;
use crate::model::{Object, ObjectKey, ObjectParts, ResourceVersion, selector::MAX_BYTES};

/// Selector, labels, and true if it matches them.
type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], bool);

fn selector(text: &str) -> LabelSelector {
    LabelSelector::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

fn labelled<T: Into<String>>(pairs: impl IntoIterator<Item = (T, T)>) -> Object {
    Object::new(ObjectParts {
        key: ObjectKey::new("", "x").unwrap(),
        uid: String::new(),
        version: ResourceVersion::decimal(1),
        labels: pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect(),
        api_version: String::new(),
        kind: String::new(),
        media_type: "text/plain",
        body: bytes::Bytes::new(),
    })
}

fn assert_refused(texts: &[&str]) {
    for text in texts {
        assert!(LabelSelector::parse(text).is_err(), "{text:?}");
    }
}

/// apimachinery `TestSelectorParse`: a parsed selector prints as it was written, without the blanks.
#[test]
fn a_selector_prints_as_it_was_written() {
    for text in [
        "x=a,y=b,z=c",
        "",
        "x!=a,y=b",
        "x=",
        "x= ",
        "x=,z= ",
        "x= ,z= ",
        "!x",
        "x>1",
        "x>1,z<5",
        "x in (a,b)",
        "!in,notin",
    ] {
        let compact = if text.contains(" in ") { text.to_owned() } else { text.replace(' ', "") };
        assert_eq!(selector(text).to_string(), compact);
    }
    assert_refused(&["x=a||y=b", "x==a==b", "!x=a", "x<a", "!x in (a)", "x>", "x>9223372036854775808", "x>-1"]);
}

/// apimachinery `TestSetSelectorParser`, in our normal form.
#[test]
fn the_set_syntax_is_that_of_apimachinery() {
    for (text, normal) in [
        ("\rx", "x"),
        ("this-is-a-dns.domain.com/key-with-dash", "this-is-a-dns.domain.com/key-with-dash"),
        ("this-is-another-dns.domain.com/key in (so,what)", "this-is-another-dns.domain.com/key in (so,what)"),
        ("0.1.2.domain/99 notin (10.10.100.1, tick.tack.clock)", "0.1.2.domain/99 notin (10.10.100.1,tick.tack.clock)"),
        ("foo  in\t (abc)", "foo=abc"),
        ("x notin\n (abc)", "x!=abc"),
        ("x  notin\t\t\t(abc,def)", "x notin (abc,def)"),
        ("x in (abc,)", "x in (,abc)"),
        ("x in ()", "x="),
        ("x notin (abc,,def),bar,z in (),w", "bar,w,x notin (,abc,def),z="),
        ("x,y in (a)", "x,y=a"),
        ("x=a,y!=b,z in (h,i,j)", "x=a,y!=b,z in (h,i,j)"),
        ("x,y", "x,y"),
        ("x notin ( )", "x!="),
        ("x notin (, a)", "x notin (,a)"),
        ("a ", "a"),
        ("a in (x,y,notin, z,in)", "a in (in,notin,x,y,z)"),
        ("in in (in)", "in=in"),
        ("a in(x,,)", "a in (,x)"),
    ] {
        assert_eq!(selector(text).to_string(), normal, "{text:?}");
    }
    assert_refused(&[
        ",x,y",
        "x nott in (y)",
        "a in (xyz),",
        "a in (xyz)b notin ()",
        "a in (xyz abc)",
        "a notin(",
        "a (",
        "(",
    ]);
}

/// apimachinery `TestDeterministicParse`, and every operator that has two spellings.
#[test]
fn two_spellings_of_a_selector_are_equal() {
    for (one, other) in [
        ("x=a,a=x", "a=x,x=a"),
        ("x==a", "x=a"),
        ("x in (a)", "x=a"),
        ("x notin (a)", "x!=a"),
        ("x in (b,a,b)", "x in (a,b)"),
        ("x in ()", "x="),
        ("x>05", "x > 5"),
        ("x,x , x", "x"),
    ] {
        assert_eq!(selector(one), selector(other), "{one:?} {other:?}");
    }
    assert_ne!(selector("x=a,x=b"), selector("x in (a,b)"));
    assert_ne!(selector("x>1,x>2"), selector("x>2"));
}

/// apimachinery `TestToString`.
#[test]
fn requirements_are_sorted_by_key() {
    for (text, normal) in [
        ("z,y notin (jkl,k),x in (def,abc)", "x in (abc,def),y notin (jkl,k),z"),
        ("!z,x notin (def,abc),y!=jkl", "x notin (abc,def),y!=jkl,!z"),
        ("z notin (),y in (mno,jkl)", "y in (jkl,mno),z!="),
        ("x=abc,y==jkl,z!=a,z", "x=abc,y=jkl,z,z!=a"),
        ("z,y<8,x>2", "x>2,y<8,z"),
    ] {
        assert_eq!(selector(text).to_string(), normal);
    }
}

/// apimachinery `TestSelectorMatches`, `TestSetMatches` and `TestEverything`.
#[test]
fn a_selector_matches_as_in_apimachinery() {
    let foo: &[_] = &[("foo", "bar"), ("baz", "blah")];
    let cases: &[Case<'_>] = &[
        ("", &[("x", "y")], true),
        ("x=y", &[("x", "y")], true),
        ("x=y,z=w", &[("x", "y"), ("z", "w")], true),
        ("x!=y,z!=w", &[("x", "z"), ("z", "a")], true),
        ("notin=in", &[("notin", "in")], true),
        ("x", &[("x", "z")], true),
        ("!x", &[("y", "z")], true),
        ("x>1", &[("x", "2")], true),
        ("x<1", &[("x", "0")], true),
        ("x=z", &[], false),
        ("x=y", &[("x", "z")], false),
        ("x=y,z=w", &[("x", "w"), ("z", "w")], false),
        ("x!=y,z!=w", &[("x", "z"), ("z", "w")], false),
        ("x", &[("y", "z")], false),
        ("!x", &[("x", "z")], false),
        ("x>1", &[("x", "0")], false),
        ("x<1", &[("x", "2")], false),
        ("foo=bar", foo, true),
        ("baz=blah", foo, true),
        ("foo=bar,baz=blah", foo, true),
        ("foo=blah", foo, false),
        ("baz=bar", foo, false),
        ("foo=bar,foobar=bar,baz=blah", foo, false),
    ];
    for (text, pairs, expected) in cases {
        assert_eq!(selector(text).matches(labelled(pairs.iter().copied()).labels()), *expected, "{text:?} {pairs:?}");
    }
    assert!(LabelSelector::default().is_empty() && selector(" ").is_empty() && !selector("x").is_empty());
}

/// apimachinery `TestRequirementSelectorMatching`, and labels that Kubernetes would reject.
#[test]
fn a_missing_label_and_an_empty_one_are_different() {
    let cases: &[Case<'_>] = &[
        ("x in (foo),y notin (alpha)", &[("x", "foo"), ("y", "baz")], true),
        ("x in (foo),y in (alpha)", &[("x", "foo"), ("y", "baz")], false),
        ("x notin (),y", &[("y", "")], true),
        ("!x,y", &[("y", "")], true),
        ("x notin (),!y", &[("y", "")], false),
        ("x in ()", &[("y", "baz")], false),
        ("x in ()", &[("x", "")], true),
        ("x!=", &[("x", "")], false),
        ("z>1", &[("z", "2")], true),
        ("z>1", &[("z", "v2")], false),
        ("z>1", &[("y", "2")], false),
        ("z<1", &[("z", "-9223372036854775808")], true),
        ("z<1", &[("z", "-9223372036854775809")], false),
        ("z<1", &[("z", "")], false),
    ];
    for (text, pairs, expected) in cases {
        assert_eq!(selector(text).matches(labelled(pairs.iter().copied()).labels()), *expected, "{text:?} {pairs:?}");
    }
}

/// apimachinery `TestLexer` and `TestLexerSequence`.
#[test]
fn the_longest_token_is_taken() {
    use Token::{Close, Comma, End, Equals, GreaterThan, LessThan, Not, NotEquals, Open, Word};

    let tokens = |text| {
        let mut parser = Parser::new(text);
        let mut tokens = vec![parser.token];
        while parser.token != Token::End {
            parser.advance();
            tokens.push(parser.token);
        }
        tokens
    };
    assert_eq!(tokens(""), [End]);
    assert_eq!(tokens("~ || é"), [Word("~"), Word("||"), Word("é"), End]);
    assert_eq!(tokens("key in ( value )"), [Word("key"), Word("in"), Open, Word("value"), Close, End]);
    assert_eq!(tokens("x in (),y"), [Word("x"), Word("in"), Open, Close, Comma, Word("y"), End]);
    assert_eq!(tokens("== != (), = notin"), [Equals, NotEquals, Open, Close, Comma, Equals, Word("notin"), End]);
    assert_eq!(tokens("!key>2<1"), [Not, Word("key"), GreaterThan, Word("2"), LessThan, Word("1"), End]);
    assert_eq!(tokens("!===!"), [NotEquals, Equals, Not, End]);
}

/// apimachinery `TestRequirementConstructor`, `IsQualifiedName` and `IsValidLabelValue`.
#[test]
fn keys_and_values_are_checked() {
    for text in ["1foo in (bar)", "1234 in (bar)", "simple/simple", "1.2.3.4/5678", "Uppercase_Is.OK-123=Y_0.z-9"] {
        selector(text);
    }
    let [name, too_long] = ["a".repeat(63), "a".repeat(64)];
    let prefix = format!("{}.b", "a".repeat(251));
    selector(&format!("{prefix}/{name}={name}"));
    assert_refused(&[
        &too_long,
        &format!("{prefix}b/{name}"),
        &format!("x={too_long}"),
        &format!("x in (a,{too_long})"),
    ]);
    assert_refused(&[
        "a/b/c", "/a", "a/", "A/b", "a..b/c", "-a", "a-", "_a/b", "a b", "é", "a\0", "x=-a", "x=a.", "x=a/b",
    ]);
}

#[test]
fn an_error_points_at_the_character() {
    for (text, message) in [
        ("app=web,tier in a", "character 17: expected '(': \"app=web,tier in »a\""),
        ("app=web,", "character 9: expected a label key or '!': \"app=web,»\""),
        (" ,x", "character 2: expected a label key or '!': \" »,x\""),
        ("!", "character 2: expected a label key: \"!»\""),
        ("!!x", "character 2: expected a label key: \"!»!x\""),
        ("!x=a", "character 3: expected ',' or the end of the selector: \"!x»=a\""),
        ("x y", "character 3: expected '=', '==', '!=', 'in', 'notin', '<' or '>': \"x »y\""),
        ("x=a b", "character 5: expected ',' or the end of the selector: \"x=a »b\""),
        ("x=(a)", "character 3: expected a label value: \"x=»(a)\""),
        ("x in (a b)", "character 9: expected ',' or ')': \"x in (a »b)\""),
        ("x in (a", "character 8: expected ',' or ')': \"x in (a»\""),
        ("x in (=)", "character 7: expected ',' or ')': \"x in (»=)\""),
        ("x > a", "character 5: expected a 64-bit integer: \"x > »a\""),
        ("é=1", "character 1: 'é' is not allowed in a label key: \"»é=1\""),
        ("x=aé", "character 4: 'é' is not allowed in a label value: \"x=a»é\""),
        ("x=a.", "character 4: a label value must end with a letter or digit: \"x=a».\""),
        ("a.b/-x", "character 5: a label key must begin with a letter or digit: \"a.b/»-x\""),
        ("a.B/x", "character 3: 'B' is not allowed in the prefix of a label key: \"a.»B/x\""),
        ("a./x", "character 3: the prefix of a label key has an empty part: \"a.»/x\""),
        ("a/,b", "character 3: expected a name after '/': \"a/»,b\""),
    ] {
        assert_eq!(LabelSelector::parse(text).unwrap_err().to_string(), message, "{text}");
    }
}

#[test]
fn selectors_are_bounded() {
    let position = |text: &str| LabelSelector::parse(text).unwrap_err().position();
    let requirements = vec!["a"; MAX_REQUIREMENTS].join(",");
    selector(&requirements);
    assert_eq!(position(&format!("{requirements},a")), 2 * MAX_REQUIREMENTS + 1);

    let values = vec!["a"; MAX_VALUES].join(",");
    selector(&format!("x in ({values})"));
    assert_eq!(position(&format!("x in ({values},b)")), 2 * MAX_VALUES + 7);
    assert_eq!(position(&format!("y=,x in ({values})")), 2 * MAX_VALUES + 8);

    assert_eq!(position(&" ".repeat(MAX_BYTES + 1)), MAX_BYTES + 1);
    // Shorter than the bound, because it omits blanks that the normal form has.
    let lists: Vec<_> = (100..128).map(|n| format!("{}.{n}/a in({},b)", "a".repeat(245), "c".repeat(33))).collect();
    let text = lists.join(",");
    assert!(text.len() <= MAX_BYTES);
    assert_eq!(position(&text), text.len() + 1);
    selector(&lists[1..].join(","));
}

/// Requirement of a test: written in one of its spellings, and evaluated without this module.
#[derive(Debug, Clone)]
struct Naive {
    key: &'static str,
    operator: &'static str,
    values: Vec<&'static str>,
}

impl Naive {
    fn text(&self) -> String {
        let Self { key, operator, values } = self;
        match *operator {
            "" => (*key).to_owned(),
            "!" => format!("!{key}"),
            "in" | "notin" => format!("{key} {operator} ( {})", values.join(" ,")),
            _ => format!("{key}{operator} {}", values[0]),
        }
    }

    fn matches(&self, labels: &BTreeMap<&str, &str>) -> bool {
        let value = labels.get(self.key);
        let integers = || Some((value?.parse::<i64>().ok()?, self.values[0].parse::<i64>().ok()?));
        match self.operator {
            "" => value.is_some(),
            "!" => value.is_none(),
            "=" | "==" => value == Some(&self.values[0]),
            "!=" => value != Some(&self.values[0]),
            "in" => value.is_some_and(|value| self.values.contains(value)),
            "notin" => !value.is_some_and(|value| self.values.contains(value)),
            ">" => integers().is_some_and(|(label, bound)| label > bound),
            _ => integers().is_some_and(|(label, bound)| label < bound),
        }
    }
}

fn any_naive() -> impl Strategy<Value = Naive> {
    let keys = select(vec!["a", "b", "x.y/c", "in", "notin"]);
    let words = vec(select(vec!["", "1", "22", "a", "in", "v-1.0"]), 1..4);
    let numbers = vec(select(vec!["0", "1", "007", "22"]), 1);
    (keys, select(vec!["", "!", "=", "==", "!=", "in", "notin", ">", "<"]), words, numbers).prop_map(
        |(key, operator, words, numbers)| {
            let values = if matches!(operator, ">" | "<") { numbers } else { words };
            Naive { key, operator, values }
        },
    )
}

proptest! {
    #![proptest_config(crate::property_config())]

    #[test]
    fn parsing_never_panics(text in ".{0,40}|[a1é,=!<>() \\-./]{0,24}|([ab]|in|notin|[ ,=!<>()]){0,16}") {
        if let Ok(selector) = LabelSelector::parse(&text) {
            prop_assert_eq!(LabelSelector::parse(&selector.to_string()), Ok(selector));
        }
    }

    #[test]
    fn a_printed_selector_parses_to_the_same(naive in vec(any_naive(), 0..6).prop_shuffle()) {
        let text = naive.iter().map(Naive::text).collect::<Vec<_>>().join(" , ");
        let reversed = naive.iter().rev().chain(&naive).map(Naive::text).collect::<Vec<_>>().join(",");
        let printed = selector(&text).to_string();
        prop_assert_eq!(selector(&printed), selector(&text));
        prop_assert_eq!(selector(&reversed), selector(&text), "order and repetition do not matter");
        prop_assert_eq!(selector(&printed).to_string(), printed);
    }

    #[test]
    fn matching_agrees_with_the_model(
        naive in vec(any_naive(), 0..4),
        pairs in vec((select(vec!["a", "b", "x.y/c", "in", "notin"]), select(vec!["", "1", "22", "a", "in"])), 0..5),
    ) {
        let text = naive.iter().map(Naive::text).collect::<Vec<_>>().join(",");
        let map: BTreeMap<_, _> = pairs.iter().copied().collect();
        let expected = naive.iter().all(|requirement| requirement.matches(&map));
        prop_assert_eq!(selector(&text).matches(labelled(map).labels()), expected, "{}", text);
    }
}
