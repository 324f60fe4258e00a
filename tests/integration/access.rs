//! Rights of callers: every RPC against a direct evaluation of random rules, and nothing about objects that a caller may not see.

mod calls;
mod explain;
mod forwarding;
mod impersonation;
mod interference;
mod recheck;
mod reviews;
mod rules;
mod streams;

use std::collections::BTreeSet;

use informerd::{
    auth::{Authorizer, Rules},
    grpc::AccessConfig,
    model::{NamedViews, View},
};

use self::{
    calls::{Answer, Shape},
    rules::{Caller, RuleSet},
};
use crate::sandbox::{Options, Sandbox, pod};

/// Number of rule sets, each with [`SHAPES`] calls.
const RULE_SETS: u64 = 1000;
const SHAPES: usize = 24;
const SEED: u64 = 19;

/// Namespaces of the objects; the last of [`calls::NAMESPACES`] has none.
const OBJECTS: [(&str, &str); 7] = [("", "a"), ("", "b"), ("x", "a"), ("x", "c"), ("y", "a"), ("y", "b"), ("z", "c")];

/// Starts a server whose callers have the rights of these rules.
async fn server(authorizer: &Authorizer) -> Sandbox {
    let access = AccessConfig { authorizer: Some(authorizer.clone()), ..AccessConfig::default() };
    let objects = OBJECTS.map(|(namespace, name)| pod(namespace, name, &format!(r#""nodeName":"node-{name}""#)));
    Sandbox::start_with(Options { access, views: views(), ..Options::default() }, objects.into()).await
}

/// Returns the views of the server: one that leaves out the specs.
fn views() -> NamedViews {
    NamedViews::new([("small".to_owned(), View::parse(&["metadata.name"], &[]).unwrap())]).unwrap()
}

/// Every call returns exactly the objects that the rules grant, or is denied, whether the resource exists or not.
#[tokio::test]
async fn a_caller_receives_exactly_what_the_rules_grant() {
    let authorizer = Authorizer::of_rules(Rules::default());
    let server = server(&authorizer).await;
    let mut random = fastrand::Rng::with_seed(SEED);
    let (mut denied, mut limited, mut whole, mut viewed) = (0, 0, 0, 0);
    for number in 0..RULE_SETS {
        let rules = RuleSet::draw(&mut random);
        authorizer.set_rules(rules.parsed());
        for _ in 0..SHAPES {
            let (caller, shape) = (Caller::draw(&mut random), Shape::draw(&mut random));
            let expected = shape.expected(|wanted| rules.allows(&caller, wanted));
            let found = shape.call(&server, &caller, expected.count()).await;
            assert_eq!(found, expected, "rule set {number}: {rules:#?} {caller:?} {shape:?}");
            match &found {
                Answer::Denied => denied += 1,
                Answer::Limited(..) => limited += 1,
                Answer::Whole(_) | Answer::NotFound | Answer::Invalid => whole += 1,
            }
            let (Answer::Whole(found) | Answer::Limited(_, found)) = &found else { continue };
            viewed += usize::from(found.iter().any(|words| words.ends_with(" with a view")));
        }
    }
    assert!(viewed > 500, "{viewed}");
    assert!([denied, limited, whole].iter().all(|count| *count > 1000), "{denied} {limited} {whole}");
}

/// Returns the objects of these namespaces.
fn objects_in(is_in: impl Fn(&str) -> bool) -> BTreeSet<(&'static str, &'static str)> {
    OBJECTS.into_iter().filter(|(namespace, _)| is_in(namespace)).collect()
}
