//! Random changes ahead of the version to resume from, as of a source with several watches, on the way through relays whose
//! connections are cut: a stream that is not cut receives nothing twice.

use super::*;

/// Origin that is ahead: its version to resume from, and the version of its last change.
struct Origin {
    server: Sandbox,
    safe: u128,
    last: u128,
}

/// Change as a client receives it: type, name and version of the object.
type Received = (String, String, u128);

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

// === impl Origin ===

impl Origin {
    /// Makes a change at the next version, which is not safe to resume from yet.
    async fn change(&mut self, random: &mut fastrand::Rng, present: &mut BTreeMap<&'static str, u128>) -> Received {
        let name = NAMES[random.usize(..NAMES.len())];
        self.last += 1;
        let object = at(name, &format!(r#""n":{}"#, self.last), self.last);
        let (what, event) = match present.contains_key(name) {
            true if random.bool() => ("DELETED", Event::Deleted(object)),
            true => ("MODIFIED", Event::Modified(object)),
            false => ("ADDED", Event::Added(object)),
        };
        if what == "DELETED" {
            present.remove(name);
        } else {
            present.insert(name, self.last);
        }
        self.server.say(Delta::transaction([event, Event::Bookmark(version(self.safe))])).await;
        (what.to_owned(), name.to_owned(), self.last)
    }

    /// Advances the version to resume from.
    async fn advance(&mut self, to: u128) {
        self.safe = to;
        self.server.say(Delta::event(Event::Bookmark(version(to)))).await;
    }
}

async fn told(stream: &mut Stream) -> Received {
    let message = take(stream, 1).await.remove(0);
    let what = message.r#type().as_str_name().trim_start_matches("EVENT_TYPE_").to_owned();
    let object = message.object.unwrap();
    (what, object.name, object.resource_version.parse().unwrap())
}

fn held(server: &Sandbox) -> BTreeMap<String, u128> {
    let state = server.informer.snapshot().unwrap();
    state.objects(None, None).map(|object| (object.key().name().to_owned(), object.version().number())).collect()
}

#[tokio::test]
async fn no_cut_repeats_a_change_or_takes_an_object_back() {
    for seed in 0..12 {
        let mut random = fastrand::Rng::with_seed(seed);
        let server = Sandbox::start(vec![pod("shop", "z", "")]).await;
        let safe = server.informer.snapshot().unwrap().version().number();
        let mut origin = Origin { server, safe, last: safe };
        let wires = [TcpProxy::to(origin.server.address()).await];
        let near = Sandbox::relay(wires[0].address()).await;
        let wire = TcpProxy::to(near.address()).await;
        let far = Sandbox::relay(wire.address()).await;
        let mut streams = Vec::new();
        for relay in [&near, &far] {
            relay.reached(&version(safe)).await;
            let mut stream = watch(relay, watch_from_now()).await;
            assert!(next(&mut stream).await.bookmark.is_some());
            streams.push(stream);
        }
        let mut present = BTreeMap::new();
        for step in 0..60 {
            match random.u32(..10) {
                0 => wires[0].cut(),
                1 => wire.cut(),
                2 => {
                    let to = random.u128(origin.safe..=origin.last);
                    origin.advance(to).await;
                }
                _ => {
                    let expected = origin.change(&mut random, &mut present).await;
                    for stream in &mut streams {
                        assert_eq!(told(stream).await, expected, "seed {seed}, step {step}");
                    }
                    for relay in [&near, &far] {
                        let held = held(relay);
                        let is_same = NAMES.iter().all(|name| held.get(*name) == present.get(name));
                        assert!(is_same, "seed {seed}, step {step}: {held:?}, {present:?}");
                    }
                }
            }
        }
        origin.advance(origin.last).await;
        for relay in [&near, &far] {
            relay.reached(&version(origin.last)).await;
            assert_eq!((held(relay), relay.lists()), (held(&origin.server), 1), "seed {seed}");
        }
    }
}
