//! `informerd watch`: rows on stdout, notes about the watch on stderr.

mod diff;
mod exec;
mod flags;
mod notes;
mod printer;
mod state;

use std::time::Duration;

use tokio::time::timeout;

use self::printer::WatchPrinter;
pub(super) use self::{
    diff::{DiffFlags, EXAMPLES as DIFF_EXAMPLES, diff},
    flags::{FollowFlags, WatchFlags},
    notes::WatchNotes,
};
use super::{
    failure::Failure,
    print::{EventPrinter, stdout},
};

pub(super) const EXAMPLES: &str = "\
Examples, with a server of examples/shop.yaml (edit a file in examples/manifests to see a change):
  informerd watch pods
  informerd watch pods -l app=web --watch-only
  informerd watch pods,deployments,configmaps -n orders
  informerd watch configmaps platform/feature-flags -o yaml
  informerd watch pods --expression 'object.spec.containers.size() > 1'
  informerd watch pods -n orders -o jsonl | jq .object.status.phase
  informerd watch pods -l app=web --state -o jsonl | jq '.items | length'
  informerd watch pods --index node=node-a --policy coalesce
  informerd watch deployments --diff --timestamps
  informerd watch configmaps --exec 'echo $INFORMERD_EVENT $INFORMERD_NAME; cat' --timeout 10m

It resumes after a restart of the server, and misses nothing. With --state a reader that is slow gets the last state, and not every \
one before it; -o jsonl prints one List a line. Ctrl-C and SIGTERM end it with exit code 0 (130 or 143 where \
nobody reads its output).

--exec runs its command with sh, for one event after the other: the next event waits, and if the queue at the server fills \
meanwhile, the policy applies. The command has INFORMERD_EVENT (ADDED, MODIFIED, DELETED), INFORMERD_CAUSE, INFORMERD_RESOURCE, \
INFORMERD_NAMESPACE, INFORMERD_NAME, INFORMERD_UID, INFORMERD_OBJECT_VERSION and INFORMERD_RESOURCE_VERSION in its environment, \
and on its standard input what -o jsonl prints for the event. A note reports a command that fails.";

pub(super) async fn run(flags: &WatchFlags) -> Result<(), Failure> {
    let WatchFlags { resource, name, objects, events, .. } = flags;
    let options = objects.options();
    if events.diff && !options.output.is_table() {
        return Err(Failure::usage("--diff is for tables: leave out -o; -o jsonl prints whole objects to compare"));
    }
    let resources: Vec<&str> = resource.split(',').collect();
    check_several(flags, &resources)?;
    let query = |resource: &str| {
        let query = objects.selection.query_of_name(resource, name.as_deref())?;
        Ok::<_, Failure>(flags.changed.applied_to(query))
    };
    let limit = events.timeout.unwrap_or(Duration::MAX);
    if flags.state {
        return timeout(limit, state::run(resource, query(resource)?, objects)).await.unwrap_or(Ok(()));
    }
    let queries = resources.iter().map(|resource| Ok(objects.for_output(query(resource)?, events.exec.is_some())));
    let queries = queries.collect::<Result<_, Failure>>()?;
    let mut printer = WatchPrinter::new(flags, EventPrinter::new(stdout(), &options))?;
    match timeout(limit, printer.run(queries)).await {
        Ok(ended) => ended,
        Err(_) => printer.end(),
    }
}

/// Checks the names of several resources, and the flags that are for one alone.
fn check_several(flags: &WatchFlags, resources: &[&str]) -> Result<(), Failure> {
    let repeated = resources.iter().enumerate().find(|(at, resource)| resources[..*at].contains(resource));
    let problem = match (resources, repeated) {
        ([_], _) => return Ok(()),
        _ if resources.contains(&"") => "an empty name among the resources".to_owned(),
        (_, Some((_, resource))) => format!("{resource} is there twice"),
        _ if flags.state => "--state is the list of one resource: name one".to_owned(),
        _ if flags.events.since.is_some() => "--since is a version of one resource: name one".to_owned(),
        _ => return Ok(()),
    };
    Err(Failure::usage(problem))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        flags: WatchFlags,
    }

    fn parse(arguments: &[&str]) -> WatchFlags {
        Command::try_parse_from([&["watch"], arguments].concat()).unwrap().flags
    }

    #[test]
    fn a_name_may_contain_its_namespace() {
        let chosen = |arguments: &[&str]| {
            let WatchFlags { resource, name, objects, .. } = parse(arguments);
            let query = objects.selection.query_of_name(&resource, name.as_deref()).unwrap();
            (query.namespace.unwrap_or_default(), query.name.unwrap_or_default())
        };
        let pair = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        assert_eq!(chosen(&["pods"]), pair("", ""));
        assert_eq!(chosen(&["pods", "web"]), pair("", "web"));
        assert_eq!(chosen(&["pods", "shop/web"]), pair("shop", "web"));
        assert_eq!(chosen(&["pods", "shop/web", "-n", "shop"]), pair("shop", "web"));
        assert_eq!(chosen(&["pods", "dir/web", "-n", "shop"]), pair("shop", "dir/web"));
        assert_eq!(chosen(&["pods", "/dir/web"]), pair("", "dir/web"));
    }

    #[test]
    fn what_is_for_one_resource_is_refused_for_several() {
        let checked = |arguments: &[&str]| {
            let flags = parse(arguments);
            check_several(&flags, &flags.resource.split(',').collect::<Vec<_>>()).map_err(|failure| failure.message)
        };
        for arguments in [&["pods", "--state"][..], &["pods", "--since", "3"], &["pods,services", "-l", "app=web"]] {
            assert_eq!(checked(arguments), Ok(()), "{arguments:?}");
        }
        for (arguments, expected) in [
            (&["pods,services", "--state"][..], "--state is the list of one resource: name one"),
            (&["pods,services", "--since", "3"], "--since is a version of one resource: name one"),
            (&["pods,"], "an empty name among the resources"),
            (&["pods,services,pods"], "pods is there twice"),
        ] {
            assert_eq!(checked(arguments), Err(Some(expected.to_owned())), "{arguments:?}");
        }
    }

    #[test]
    fn initial_events_can_be_left_out() {
        assert!(parse(&["pods"]).initial && !parse(&["pods", "--initial=false"]).initial);
        assert!(parse(&["pods", "--watch-only"]).watch_only);
    }

    #[test]
    fn a_state_has_no_initial_events_to_leave_out() {
        assert!(parse(&["pods", "--state", "-l", "app=web", "-o", "yaml"]).state);
        for other in ["--watch-only", "--initial=false"] {
            let error = Command::try_parse_from(["watch", "pods", "--state", other]).unwrap_err().to_string();
            let flag = other.split('=').next().unwrap();
            assert!(error.contains("'--state' cannot be used with") && error.contains(flag), "{error}");
        }
    }
}
