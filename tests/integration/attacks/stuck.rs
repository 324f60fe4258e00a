//! Many calls of one kind by one client at the same time: calls that the client does not read, and the calls that cost the server
//! most.

use informerd::proto::pb::{self, FullChannelPolicy};
use prost::Message;

use super::{
    attacked_server::{AttackedServer, LARGE, Setup, keys, subscribe, watch, within},
    client::Raw,
    frames::{LIST, MAX_WINDOW, SUBSCRIBE, UNTIL, WATCH, call, window_update},
    number,
};
use crate::sandbox::queue;

/// Calls of one kind, on as few connections as possible.
struct Calls {
    name: &'static str,
    number: u64,
    /// Window of each stream, in bytes.
    window: u32,
    path: &'static str,
    request: fn(u64) -> Vec<u8>,
}

/// Number of calls per connection; the server accepts 1,024.
const PER_CONNECTION: u64 = 1000;
/// Number of watches of a Subscribe call.
const SUBSCRIBED: u64 = 50;
/// Limit of the bytes that the server retains for clients that lag.
const WINDOW_BYTES: u64 = 1 << 20;
/// Bytes of a log that the server has not been able to discard when the test reads the metric.
const SLACK_BYTES: u64 = 256 << 10;

fn calls(name: &'static str, number: u64, path: &'static str, request: fn(u64) -> Vec<u8>) -> Calls {
    Calls { name, number, window: MAX_WINDOW, path, request }
}

/// Returns the calls with this window, which never opens again.
fn stuck(window: u32, mut calls: Calls) -> Calls {
    calls.window = window;
    calls
}

/// Returns an expression that takes all the steps that it may; each one is different.
fn costly(at: u64) -> String {
    let list = format!("[{}]", (0..40).map(|number| number.to_string()).collect::<Vec<_>>().join(","));
    format!("{list}.all(a, {list}.all(b, {list}.all(c, a + b + c + {at} >= 0)))")
}

fn list() -> pb::ListRequest {
    pb::ListRequest { resource: "s".to_owned(), format: pb::PayloadFormat::Raw.into(), ..Default::default() }
}

/// Runs calls until another client has read so many events, and cancels them by closing their connections.
async fn attack(attacked: &AttackedServer, calls: &Calls) {
    let attack = calls.name;
    let started = attacked.process.metrics().await.sum("grpc_server_started_total") as u64;
    let mut connections: Vec<Raw> = Vec::new();
    for at in 0..calls.number {
        if at % PER_CONNECTION == 0 {
            connections.push(Raw::open(attacked.process.grpc, calls.window).await);
        }
        let connection = connections.last_mut().unwrap();
        let stream = connection.next_stream();
        connection.send(call(stream, calls.path, &(calls.request)(at))).await;
    }
    let is_begun = async {
        while (attacked.process.metrics().await.sum("grpc_server_started_total") as u64) < started + calls.number {
            attacked.reads(attack, 1).await;
        }
    };
    within(attack, is_begun).await;
    attacked.serves(attack).await;
    // List by an expression that no earlier call has used.
    let expression = format!("object.seq >= 0 && '{attack}' != ''");
    let listed = within(attack, attacked.list(pb::ListRequest { expression, ..Default::default() })).await;
    assert_eq!(listed, keys() / 10, "{attack}");
    attacked.reads(attack, number(50, 10_000)).await;
    attacked.serves(attack).await;
    let counts = attacked.counts().await;
    assert!(counts.retained <= WINDOW_BYTES + SLACK_BYTES, "{attack}: {counts:?}");
    drop(connections);
    attacked.recovers(attack).await;
}

#[rustfmt::skip]
fn kinds() -> Vec<Calls> {
    vec![
        stuck(0, calls("Watches without a window, each with its own selection", number(50, 1000), WATCH, |at| pb::WatchRequest { label_selector: format!("app!=z{at}"), ..watch() }.encode_to_vec())),
        stuck(0, calls("Watches without a window under COALESCE", number(50, 10_000), WATCH, |_| pb::WatchRequest { queue: Some(queue(FullChannelPolicy::Coalesce, 1)), ..watch() }.encode_to_vec())),
        stuck(0, calls("Subscribe without a window, each watch with its own selection", number(5, 20), SUBSCRIBE, |at| subscribe((0..SUBSCRIBED).map(|watch_at| pb::WatchRequest { label_selector: format!("app!=y{at}x{watch_at}"), ..watch() })).encode_to_vec())),
        stuck(1, calls("Subscribe with a window of a byte under COALESCE", number(5, 200), SUBSCRIBE, |_| subscribe((0..SUBSCRIBED).map(|_| pb::WatchRequest { queue: Some(queue(FullChannelPolicy::Coalesce, 1)), ..watch() })).encode_to_vec())),
        stuck(0, calls("Lists without a window", number(50, 10_000), LIST, |_| list().encode_to_vec())),
        stuck(1, calls("Lists with a window of a byte, once", number(50, 10_000), LIST, |_| list().encode_to_vec())),
        stuck(1, calls("Lists with a window of a byte, twice", number(50, 10_000), LIST, |_| list().encode_to_vec())),
        stuck(1, calls("Lists with a window of a byte, three times", number(50, 10_000), LIST, |_| list().encode_to_vec())),
        calls("Watches with their own selections", number(50, 10_000), WATCH, |at| pb::WatchRequest { field_selector: format!("seq=-{}", at + 1), ..watch() }.encode_to_vec()),
        calls("Watches of 64 labels", number(20, 1000), WATCH, |at| pb::WatchRequest { label_selector: (0..64).map(|label| format!("!k{label}x{at}")).collect::<Vec<_>>().join(","), ..watch() }.encode_to_vec()),
        calls("a Watch with a costly expression", 1, WATCH, |at| pb::WatchRequest { expression: costly(at), ..watch() }.encode_to_vec()),
        calls("Watches with costly expressions", number(5, 1000), WATCH, |at| pb::WatchRequest { expression: costly(at + 1), ..watch() }.encode_to_vec()),
        calls("Untils with costly conditions", number(4, 1000), UNTIL, |at| pb::UntilRequest { watch: Some(pb::WatchRequest { initial_events: 0, ..watch() }), conditions: vec![format!("{} && false", costly(at))] }.encode_to_vec()),
        calls("Lists with costly expressions", number(4, 1000), LIST, |at| pb::ListRequest { expression: format!("{} && false", costly(at)), ..list() }.encode_to_vec()),
        calls("expressions to be compiled", number(30, 2000), LIST, |at| pb::ListRequest { expression: (0..100).map(|number| format!("object.seq == {}", at * 200 + number)).collect::<Vec<_>>().join(" || "), ..list() }.encode_to_vec()),
        calls("Lists by 256 values", 16, LIST, |_| pb::ListRequest { index: Some(pb::IndexMatch { name: "name".to_owned(), values: (0..256).map(|at| format!("k{at}")).collect() }), ..list() }.encode_to_vec()),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_of_one_client_do_not_affect_others() {
    let config = "history: { events: 10000, bytes: 4MiB }\nlimits: { memory: 64MiB }";
    let attacked = AttackedServer::start(Setup { config, ..Setup::default() }).await;
    for calls in kinds() {
        attack(&attacked, &calls).await;
    }
}

/// Objects larger in total than the memory for clients, if each call had its own copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_objects_wait_for_windows_of_one_byte_one_after_the_other() {
    let large = number(1 << 20, 2900 << 10);
    let config = "history: { events: 10000, bytes: 4MiB }\nlimits: { memory: 64MiB }";
    let attacked = AttackedServer::start(Setup { config, large: large as usize, ..Setup::default() }).await;
    let with_all = |watch| pb::WatchRequest { initial_events: pb::InitialEvents::Send.into(), ..watch };
    for (name, path, request) in [
        ("Watches of large objects", WATCH, with_all(watch()).encode_to_vec()),
        ("Lists of large objects", LIST, list().encode_to_vec()),
    ] {
        let mut connection = Raw::open(attacked.process.grpc, 1).await;
        for _ in 0..number(20 * LARGE as u64, 1000) {
            let stream = connection.next_stream();
            connection.send(call(stream, path, &request)).await;
        }
        attacked.until(name, |counts| counts.waiting >= large).await;
        attacked.reads(name, number(50, 10_000)).await;
        attacked.serves(name).await;
        let metrics = attacked.process.metrics().await;
        // Beside these, each call has its request, and its snapshot keeps the states that have changed since.
        let owners =
            ["sending", "made"].map(|owner| metrics.sum(&format!("informerd_waiting_bytes{{owner=\"{owner}\"")));
        let waiting = owners.iter().sum::<f64>() as u64;
        // One object, and 1 MiB of objects that fit.
        assert!(waiting <= large + (1 << 20) + SLACK_BYTES, "{name}: {waiting}");
        drop(connection);
        attacked.recovers(name).await;
    }
}

/// Opens one more List again and again, on one connection whose other streams hold it open: the server resets each List, and
/// releases its snapshot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stuck_lists_are_reset_though_their_connection_stays() {
    let config = "history: { events: 100 }\nwatch: { progress_timeout: 1s }";
    let attacked = AttackedServer::start(Setup { config, ..Setup::default() }).await;
    let attack = "one more stuck List again and again";
    let mut connection = Raw::open(attacked.process.grpc, 0).await;
    let lists = number(10, 60);
    // The window of this stream is large enough for all its bookmarks, so the server never resets it.
    let idle = connection.next_stream();
    let nothing = pb::WatchRequest { name: "none".to_owned(), namespace: "d".to_owned(), ..watch() };
    connection.send([call(idle, WATCH, &nothing.encode_to_vec()), window_update(idle, 10_000)].concat()).await;
    attacked.until(attack, |counts| counts.watchers == 2).await;
    for _ in 0..lists {
        let stream = connection.next_stream();
        connection.send(call(stream, LIST, &list().encode_to_vec())).await;
        // By now all objects that its snapshot holds have changed.
        attacked.reads(attack, keys()).await;
    }
    let is_reset = async {
        while attacked.process.metrics().await.sum("informerd_streams_stalled_total") < lists as f64 {
            attacked.reads(attack, 1).await;
        }
    };
    within(attack, is_reset).await;
    let counts = attacked.until(attack, |counts| counts.waiting == 0).await;
    assert_eq!((counts.watchers, counts.calls), (2, 2), "the idle one stays");
    attacked.serves(attack).await;
    drop(connection);
    attacked.recovers(attack).await;
}
