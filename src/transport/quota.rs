//! Limits on the resources that clients have open: in all, and for each client.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

/// Owner of connections, or of what is open over them; everything that it has open shares one quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// An IPv4 host, or the network (/64) of an IPv6 host, which may choose the other bits of its address for each connection.
    Address(IpAddr),
    /// A user of this machine at the other end of a unix socket, if the kernel reports it.
    User(Option<u32>),
    /// An authenticated user, wherever its calls come from: a hash of its name under a key that only this process has.
    Identity(u64),
}

/// Count of open things of one kind, and its limits.
#[derive(Debug)]
pub struct Quota {
    all: usize,
    each: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    by_origin: HashMap<Origin, usize>,
}

/// Permit for one open thing, which counts until the permit is dropped.
#[derive(Debug)]
#[must_use = "it is not counted any more when this is dropped"]
pub struct Permit {
    quota: Arc<Quota>,
    origin: Option<Origin>,
}

/// Limit that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exceeded {
    /// The limit for all origins, with its value.
    All(usize),
    /// The limit for this origin, which is its share, with its value.
    Share(usize),
}

/// Counters of rejections by reason; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Rejections(Family<ReasonLabels, Counter>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// Reasons of rejections, each of which has its counter from the start on: an increase shows only after a first value.
const REASONS: [&str; 33] = [
    "accept_failed",
    "admin_connections",
    "admin_host",
    "admin_timeout",
    "calls",
    "compilations",
    "connections",
    "content_type",
    "handshake_timeout",
    "headers_timeout",
    "health_watches",
    "method",
    "page_snapshots",
    "past_states",
    "peer_calls",
    "peer_compilations",
    "peer_connections",
    "peer_health_watches",
    "peer_page_snapshots",
    "peer_past_states",
    "peer_reflections",
    "peer_request_memory",
    "peer_watchers",
    "preface_timeout",
    "quota_bulk_responses",
    "quota_bytes_held",
    "quota_lists_per_second",
    "quota_streams",
    "reflections",
    "request_bytes",
    "request_memory",
    "request_timeout",
    "watchers",
];

/// Length of the IPv6 network prefix, which a host cannot choose.
const NETWORK_BITS: u32 = 64;

/// Returns the share of one origin, `percent` of the whole and at least one.
pub fn share_of(all: usize, percent: u32) -> usize {
    (all / 100 * percent as usize + all % 100 * percent as usize / 100).max(1)
}

// === impl Origin ===

impl Origin {
    /// Returns the origin of an address.
    pub fn at(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> NETWORK_BITS << NETWORK_BITS).into(),
            address @ IpAddr::V4(_) => address,
        })
    }
}

// === impl Quota ===

impl Quota {
    /// Creates a quota of `all`, and of `percent` of that for one origin.
    pub fn new(all: usize, percent: u32) -> Arc<Self> {
        Arc::new(Self { all, each: share_of(all, percent), open: Mutex::default() })
    }

    /// Creates a quota of `each` for one origin, and without a limit for all.
    pub fn of_each(each: usize) -> Arc<Self> {
        Arc::new(Self { all: usize::MAX, each, open: Mutex::default() })
    }

    /// Takes a permit. Without an origin, only the limit for all applies.
    ///
    /// # Errors
    ///
    /// Returns the limit that the permit would exceed.
    pub fn take(self: &Arc<Self>, origin: Option<Origin>) -> Result<Permit, Exceeded> {
        let mut open = self.open.lock();
        if let Some(origin) = origin {
            let of_origin = open.by_origin.get(&origin).copied().unwrap_or_default();
            if of_origin >= self.each {
                return Err(Exceeded::Share(self.each));
            }
        }
        if open.all >= self.all {
            return Err(Exceeded::All(self.all));
        }
        open.all += 1;
        if let Some(origin) = origin {
            *open.by_origin.entry(origin).or_default() += 1;
        }
        Ok(Permit { quota: Arc::clone(self), origin })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut open = self.quota.open.lock();
        open.all -= 1;
        if let Some(origin) = self.origin
            && let Some(of_origin) = open.by_origin.get_mut(&origin)
        {
            *of_origin -= 1;
            if *of_origin == 0 {
                open.by_origin.remove(&origin);
            }
        }
    }
}

// === impl Exceeded ===

impl Exceeded {
    /// Returns the value of the limit.
    pub fn limit(self) -> usize {
        let (Self::All(limit) | Self::Share(limit)) = self;
        limit
    }
}

// === impl Rejections ===

impl Rejections {
    /// Counts a rejection.
    pub fn count(&self, reason: &'static str) {
        debug_assert!(REASONS.contains(&reason), "{reason} has no counter at the start");
        self.0.get_or_create(&ReasonLabels { reason }).inc();
    }

    /// Returns the number of rejections for a reason.
    pub fn counted(&self, reason: &'static str) -> u64 {
        self.0.get_or_create(&ReasonLabels { reason }).get()
    }

    /// Registers the counters.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Connections, calls and pages of lists that were refused or closed, by the limit that was reached";
        registry.register("informerd_refused", help, self.0.clone());
        for reason in REASONS {
            drop(self.0.get_or_create(&ReasonLabels { reason }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> Origin {
        Origin::at(address.parse().unwrap())
    }

    #[test]
    fn an_origin_is_a_host_or_a_network() {
        assert_ne!(at("10.1.2.3"), at("10.1.2.4"));
        assert_eq!(at("10.1.2.3"), at("::ffff:10.1.2.3"));
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:0:0:2"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
    }

    #[test]
    fn a_share_is_a_part_and_at_least_one() {
        for (all, percent, share) in [(192, 25, 48), (3, 25, 1), (100_000, 25, 25_000), (7, 100, 7), (199, 50, 99)] {
            assert_eq!(share_of(all, percent), share, "{percent} % of {all}");
        }
        assert_eq!(share_of(usize::MAX, 100), usize::MAX);
    }

    #[test]
    fn a_quota_of_each_has_no_limit_for_all() {
        let quota = Quota::of_each(1);
        let _open: Vec<Permit> = (0..1000).map(|user| quota.take(Some(Origin::Identity(user))).unwrap()).collect();
        assert_eq!(quota.take(Some(Origin::Identity(7))).unwrap_err(), Exceeded::Share(1));
        let _unknown: Vec<Permit> = (0..1000).map(|_| quota.take(None).unwrap()).collect();
    }

    #[test]
    fn an_origin_has_its_share_and_all_have_the_whole() {
        let quota = Quota::new(4, 50);
        let (one, two) = (Some(at("10.0.0.1")), Some(Origin::User(Some(7))));
        let first = quota.take(one).unwrap();
        let second = quota.take(one).unwrap();
        assert_eq!(quota.take(one).unwrap_err(), Exceeded::Share(2));
        let others = [two, None].map(|origin| quota.take(origin).unwrap());
        assert_eq!([two, None].map(|origin| quota.take(origin).unwrap_err()), [Exceeded::All(4); 2]);
        drop(first);
        let again = quota.take(one).unwrap();
        assert_eq!(quota.open.lock().all, 4);
        drop(again);
        assert_eq!(quota.open.lock().by_origin.len(), 2);
        drop((second, others));
        let open = quota.open.lock();
        assert_eq!((open.all, open.by_origin.len()), (0, 0), "who has gone is forgotten");
    }
}
