//! Histories of a Kubernetes API: the scripted API server, its events and faults, and the real source over it.

mod api;
mod script;
mod world;

use std::{collections::BTreeMap, path::Path, time::Duration};

use informerd::{
    cache::SourceHealth,
    source::kube::{KubeCluster, KubeConfig, KubeSource},
};

use self::{
    api::{Api, Certificates, Counts, PLURAL, State, Violations},
    script::{KEYS, Restore, Setup, Step, TokenEnd},
    world::{Form, Selection, Versions, World},
};
use super::{
    proxy::{NetworkFault, Proxy},
    served::Served,
    upstream::{Bounds, Key, Truth, Upstream},
};

pub(crate) struct Kube {
    setup: Setup,
    api: Api,
    proxy: Proxy,
    /// Directory of the kubeconfig, the token and the certificates.
    directory: tempfile::TempDir,
    are_credentials_wrong: bool,
    rewrites: u64,
}

/// Default of the program.
const STALE_AFTER: Duration = Duration::from_secs(15);
/// Time for which a restored cluster is stopped.
const STOPPED: Duration = Duration::from_secs(12);

// === impl Kube ===

impl Kube {
    /// Replaces the API server's process: open connections are cut, and the watch cache begins at the current version.
    async fn restart(&mut self) {
        self.api.set(State::restart);
        self.begin(NetworkFault::Cut).await;
    }

    async fn restore(&mut self, restore: &Restore) {
        let Restore { back, repeats, ahead, elsewhere, has_another_uid, stops } = *restore;
        self.api.set(|state| {
            (state.generation, state.is_stopped) = (state.generation + 1, true);
            state.kills += u64::from(!stops);
        });
        if !stops {
            self.begin(NetworkFault::Cut).await;
        }
        tokio::time::sleep(STOPPED).await;
        // In one step, so that no request sees half of it.
        self.api.set(|state| {
            state.is_stopped = false;
            let lost = state.world.restore(state.world.version.saturating_sub(back).max(1));
            if repeats {
                state.world.repeat(&lost);
            }
            state.restart();
            state.compacted = state.world.version;
            if let Some(uid) = state.cluster.as_mut().filter(|_| has_another_uid) {
                *uid += "x";
            }
            for number in 0..ahead {
                state.world.put(&key(KEYS[number as usize % 3]), 1000 + number);
            }
            state.world.version += elsewhere;
        });
        self.rewrites += 1;
    }

    /// Begins a network fault, which loses the answers in flight.
    async fn begin(&mut self, fault: NetworkFault) {
        self.proxy.begin(fault).await;
        self.api.set(|state| state.violations.lose_answers());
    }

    fn write_credentials(&self) {
        let end = if self.setup.token == Some(TokenEnd::Newline) { "\n" } else { "" };
        let (token, certificates) = self.api.set(|state| (state.token.clone(), state.certificates.clone()));
        std::fs::write(self.directory.path().join("token"), token.unwrap_or_default() + end).unwrap();
        if let Some(certificates) = certificates {
            certificates.write(self.directory.path());
        }
    }
}

/// Returns an object as the API writes its metadata only.
fn partial(object: &[u8]) -> String {
    let object: serde_json::Value = serde_json::from_slice(object).unwrap();
    format!(r#"{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{}}}"#, object["metadata"])
}

fn key(text: &str) -> Key {
    let (namespace, name) = text.split_once('/').unwrap();
    (namespace.to_owned(), name.to_owned())
}

fn keys(texts: &[&str]) -> Vec<Key> {
    texts.iter().map(|text| key(text)).collect()
}

impl Upstream for Kube {
    type Setup = Setup;
    type Step = Step;

    const NOT_YET: &'static [(&'static str, &'static str)] = &[];
    const REQUIRED: &'static [&'static str] = &[
        "put",
        "deletion",
        "several deletions at one version",
        "deletion of everything",
        "write elsewhere",
        "compaction",
        "network: refused",
        "network: closed",
        "network: cut",
        "network: cut at a byte",
        "network: frozen",
        "network: slow",
        "restart",
        "upgrade with other bytes",
        "CRD with other bytes",
        "CRD with another selectable field",
        "CRD created again",
        "CRD not served",
        "restore",
        "restore with another uid",
        "restore of a cluster that was stopped",
        "restore whose lost writes are repeated",
        "restore beyond the last version",
        "lag",
        "401",
        "403",
        "404",
        "410",
        "429",
        "429 with seconds",
        "429 with a date",
        "500",
        "504",
        "410 in band",
        "500 in band",
        "watches closed",
        "credentials renewed",
        "credentials end",
        "credentials end while a watch is open",
        "token renewed",
        "certificates renewed",
        "initial events that stall",
        "initial events after a stall",
        "initial events that end early",
        "answer that is no list",
        "page tokens in a circle",
        "list that takes too long in one piece",
        "initial events that are ignored",
        "no bookmarks",
        "several namespaces",
        "versions that are no decimals",
        "versions without an order",
        "opaque versions",
        "opaque versions that another history has again",
        "several namespaces without bookmarks",
        "network: a part cut",
        "lag of one namespace",
        "replica that is behind",
        "watches of one namespace closed",
        "restart for one namespace",
        "token file that ends with a newline",
        "metadata only",
        "metadata only of an API that sends whole objects",
        "watch from before the watch cache",
        "page",
        "watch closed inside a version",
        "version too large",
        "bookmark",
    ];

    async fn start(setup: &Setup) -> Self {
        let world = World::new(setup.selection, setup.versions, setup.metadata.is_some());
        let api = Api::new(State {
            cache_start: world.version,
            world,
            cluster: setup.is_cluster_readable.then(|| "cluster".to_owned()),
            token: setup.token.map(|_| "t".to_owned()),
            certificates: setup.has_certificates.then(Certificates::new),
            lagging_at: None,
            lagging_in: None,
            is_behind: false,
            is_listed_since: false,
            replicas: BTreeMap::new(),
            compacted: 0,
            expires_page: false,
            generation: 0,
            kills: 0,
            is_stopped: false,
            is_served: true,
            initial_events: setup.initial_events,
            ignores_limit: setup.ignores_limit,
            has_short_pages: setup.page_size == Some(1),
            needs_pages: setup.needs_pages,
            stalls: false,
            early_end: None,
            wrong_answer: None,
            circles: 0,
            sends_bookmarks: setup.sends_bookmarks,
            is_built_in: setup.is_built_in,
            needs_selector: setup.needs_selector,
            has_opaque_versions: setup.has_opaque_versions || setup.versions != Versions::Decimal,
            closes_inside: false,
            violations: Violations::of(!setup.namespaces.is_empty()),
            knows_metadata: setup.metadata == Some(true),
            once: Vec::new(),
            standing: None,
            in_band: Vec::new(),
            counts: Counts::default(),
        });
        let proxy = Proxy::to(api.listen().await);
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let token = setup.token.map_or(String::new(), |_| format!("tokenFile: {}, ", path("token")));
        let (scheme, authority, identity) = if setup.has_certificates {
            let identity = format!("client-certificate: {}, client-key: {}", path("certificate"), path("key"));
            ("https", format!(", certificate-authority: {}", path("authority")), identity)
        } else {
            ("http", String::new(), String::new())
        };
        let kubeconfig = format!(
            "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: c, cluster: {{server: '{scheme}://{}'{authority}}}}}], \
             users: [{{name: u, user: {{{token}{identity}}}}}], contexts: [{{name: c, context: {{cluster: c, user: u}}}}]}}",
            proxy.address()
        );
        std::fs::write(directory.path().join("kubeconfig"), kubeconfig).unwrap();
        let kube = Self { setup: setup.clone(), api, proxy, directory, are_credentials_wrong: false, rewrites: 0 };
        kube.write_credentials();
        kube
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Put(text, number) => self.api.set(|state| state.world.put(&key(text), *number)),
            Step::Delete(texts) => self.api.set(|state| state.world.delete(&keys(texts), false)),
            Step::Expire(texts) => self.api.set(|state| state.world.delete(&keys(texts), true)),
            Step::Lease(texts) | Step::CloseInside(texts) => self.api.set(|state| {
                state.closes_inside |= matches!(step, Step::CloseInside(_));
                for (number, key) in (0..).zip(keys(texts)) {
                    state.world.put(&key, 100 + 3 * number + 1);
                }
                state.world.delete(&keys(texts), true);
            }),
            Step::DeleteAll => self.api.set(|state| state.world.delete(&keys(&KEYS), false)),
            Step::Elsewhere(versions) => self.api.set(|state| state.world.version += versions),
            Step::Compact => self.api.set(|state| {
                (state.compacted, state.expires_page) = (state.world.version, true);
            }),
            Step::Network(fault) => self.begin(*fault).await,
            Step::Restart => self.restart().await,
            Step::Upgrade(form) => {
                let is_recoloured = self.api.set(|state| state.world.form.is_recoloured);
                // A new API server writes leases and other kinds before its watch caches begin.
                self.api.set(|state| {
                    state.world.form = Form { is_recoloured, ..*form };
                    state.world.version += 3;
                });
                self.restart().await;
            }
            // The storage of the kind is created anew, and with it the watch cache; other kinds keep theirs.
            Step::Crd(form) => self.api.set(|state| {
                state.world.form = *form;
                state.world.version += 1;
                state.generation += 1;
                state.lagging_at = None;
                state.cache_start = state.world.version;
            }),
            Step::CrdAnew => self.api.set(|state| {
                state.world.delete(&keys(&KEYS), false);
                state.world.version += 2;
                state.generation += 1;
                state.lagging_at = None;
                state.cache_start = state.world.version;
            }),
            Step::CrdNotServed => self.api.set(|state| {
                (state.is_served, state.generation) = (false, state.generation + 1);
            }),
            Step::Restore(restore) => self.restore(restore).await,
            Step::Lag(namespace, behind) => self.api.set(|state| state.lag(*namespace, *behind)),
            Step::Once(answer) => {
                self.api.set(|state| {
                    state.once = vec![*answer];
                    state.generation += 1;
                });
            }
            Step::Standing(answer) => self.api.set(|state| state.standing = Some(*answer)),
            Step::InBand(code, reason) => self.api.set(|state| state.in_band = vec![(*code, *reason)]),
            Step::CloseWatches(None) => self.api.set(|state| state.generation += 1),
            Step::CloseWatches(Some(namespace)) => self.api.set(|state| state.close_watches_of(namespace)),
            Step::RestartOf(namespace) => self.api.set(|state| state.restart_of(namespace)),
            Step::EndInitialEvents(end) => self.api.set(|state| {
                (state.in_band, state.early_end) = (vec![(410, "Expired")], Some(*end));
            }),
            Step::WrongAnswer(answer) => self.api.set(|state| {
                (state.in_band, state.wrong_answer) = (vec![(410, "Expired")], Some(*answer));
            }),
            Step::Circle => self.api.set(|state| (state.in_band, state.circles) = (vec![(410, "Expired")], 3)),
            Step::Stall => self.api.set(|state| (state.in_band, state.stalls) = (vec![(410, "Expired")], true)),
            Step::CredentialsRenewed { is_cut } | Step::CredentialsEnd { is_cut }
                if self.setup.token.is_some() || self.setup.has_certificates =>
            {
                self.api.set(|state| {
                    state.counts.tokens_renewed += u64::from(state.token.is_some());
                    state.counts.certificates_renewed += u64::from(state.certificates.is_some());
                    state.token = state.token.take().map(|token| token + "t");
                    state.certificates = state.certificates.take().map(|_| Certificates::new());
                });
                self.are_credentials_wrong = matches!(step, Step::CredentialsEnd { .. });
                if !self.are_credentials_wrong {
                    self.write_credentials();
                }
                if *is_cut {
                    self.begin(NetworkFault::Cut).await;
                }
            }
            Step::CredentialsRenewed { .. } | Step::CredentialsEnd { .. } => {}
        }
    }

    async fn heal(&mut self) {
        self.proxy.heal();
        self.api.set(|state| {
            (state.standing, state.lagging_at, state.is_served) = (None, None, true);
            state.closes_inside = false;
            state.once.clear();
            state.in_band.clear();
            state.stalls = false;
            (state.early_end, state.wrong_answer, state.circles) = (None, None, 0);
        });
        self.write_credentials();
        self.are_credentials_wrong = false;
    }

    async fn probe(&mut self, number: u32) {
        // The object is red by label and by field, under both forms, and has the name that may be selected.
        let number = 1_000_001 + 6 * number;
        self.api.set(|state| state.world.put(&key("a/x"), number));
    }

    async fn serve(&self, state_directory: &Path) -> Served {
        let (label_selector, field_selector) = match self.setup.selection {
            Selection::All => ("", ""),
            Selection::Label => ("color=red", ""),
            Selection::Field => ("", "spec.color=red"),
            Selection::Name => ("", "metadata.name=x"),
        };
        let config = KubeConfig {
            label_selector: label_selector.to_owned(),
            field_selector: field_selector.to_owned(),
            cluster: KubeCluster { kubeconfig: Some(self.directory.path().join("kubeconfig")), context: None },
            namespaces: self.setup.namespaces.iter().map(|name| (*name).to_owned()).collect(),
            is_metadata_only: self.setup.metadata.is_some(),
            has_opaque_versions: self.setup.has_opaque_versions,
            page_size: self.setup.page_size,
            ..KubeConfig::new("things", "example.com", "v1", PLURAL)
        };
        let health = SourceHealth::new(config.contact_timeout, STALE_AFTER);
        self.api.set(|state| {
            state.violations.has_new_process();
            state.counts.in_process = 0;
        });
        Served::start(KubeSource::new(config, health.clone()), health, state_directory)
    }

    fn truths(&self) -> Vec<Truth> {
        let Setup { namespaces, metadata, versions, has_opaque_versions, .. } = &self.setup;
        let is_counted = *has_opaque_versions || *versions != Versions::Decimal;
        self.api.set(|state| {
            let present = state.world.truth(usize::MAX);
            let mut truths = vec![present.clone()];
            // A replica that sees no more changes continues to answer, and cannot notice it. After a list meanwhile, and at a
            // replica that lags, there may be any state since: it was read from the store or another replica, and the watch is
            // silent.
            let (since, lagging) = state.lagging_at.map_or((usize::MAX, None), |(since, _)| (since, state.lagging_in));
            let is_any = lagging.is_some() || state.is_behind || state.is_listed_since;
            let last = if is_any { state.world.changes.len() } else { since.saturating_add(1) };
            truths.extend((since..last).map(|changes| {
                let (mut truth, mut there) = (present.clone(), state.world.truth(changes));
                truth.retain(|(namespace, _), _| lagging.is_some_and(|lagging| lagging != namespace));
                there.retain(|(namespace, _), _| lagging.is_none_or(|lagging| lagging == namespace));
                truth.extend(there);
                truth
            }));
            // A list reads every namespace at the version of the first, which may lag. The others are as old until their watches
            // are open, which a fault may prevent for long.
            let lags_first = lagging.is_some_and(|lagging| namespaces.first() == Some(&lagging));
            if lags_first && state.is_listed_since {
                truths.push(state.world.truth(since));
            }
            for truth in &mut truths {
                truth.retain(|(namespace, _), _| namespaces.is_empty() || namespaces.contains(&namespace.as_str()));
                for fact in truth.values_mut() {
                    fact.version.take_if(|_| is_counted);
                    if metadata.is_some() {
                        fact.body = partial(&fact.body).into();
                    }
                }
            }
            truths
        })
    }

    fn rewrites(&self) -> u64 {
        self.rewrites
    }

    fn proxies(&self) -> Vec<&Proxy> {
        vec![&self.proxy]
    }

    fn late_disturbances(&self) -> u64 {
        self.api.set(|state| {
            let counts = &state.counts;
            counts.once
                + counts.in_band
                + counts.stalls
                + counts.closed_inside
                + counts.early_ends
                + counts.wrong_answers
                + counts.circles
        })
    }

    fn has_fault(&self) -> bool {
        let is_faulty =
            self.api.set(|state| state.standing.is_some() || state.lagging_at.is_some() || !state.is_served);
        is_faulty || self.are_credentials_wrong
    }

    fn is_unreachable(&self) -> bool {
        self.proxy.is_unreachable()
    }

    fn bounds(&self) -> Bounds {
        let watches = self.setup.namespaces.len().max(1) as u64;
        Bounds {
            prompt: Duration::from_secs(1),
            // The source notices a dead connection within 25 s; then `stale_after`.
            detects: Duration::from_secs(25 + 15 + 5),
            // The longest delay between two attempts is 60 s, an answer may take another 60 s, and Retry-After 25 s.
            recovers: Duration::from_secs(300),
            lists: 12 * watches,
            // Beside a watch that is opened again, a short one may show that nothing has changed since.
            watches: 2 * watches,
            watch: Duration::from_secs(100) / watches as u32,
        }
    }

    fn requests(&self) -> Option<(u64, u64)> {
        Some(self.api.set(|state| (state.counts.lists, state.counts.watches)))
    }

    fn violation(&self) -> Option<String> {
        // The source did not receive an answer that was cut in flight.
        self.api.set(|state| state.violations.first()).filter(|_| self.proxy.late_cuts() == 0)
    }

    fn was_deleted(&self, key: &Key) -> bool {
        self.api.set(|state| state.world.deleted.contains(key) || state.world.selection != Selection::All)
    }

    fn tally(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.api.set(|state| state.counts);
        BTreeMap::from([
            ("watch from before the watch cache", counts.expired_watches),
            ("initial events that stall", counts.stalls),
            ("initial events that end early", counts.early_ends),
            ("answer that is no list", counts.wrong_answers),
            ("page tokens in a circle", counts.circles),
            ("initial events after a stall", counts.initial_events_after_a_stall),
            ("list that takes too long in one piece", counts.in_one_piece),
            ("expired page", counts.expired_pages),
            ("page", counts.pages),
            ("watch closed inside a version", counts.closed_inside),
            ("error in band that was sent", counts.in_band),
            ("answer that was refused", counts.refused),
            ("version too large", counts.too_large),
            ("bookmark", counts.bookmarks),
            ("token renewed", counts.tokens_renewed),
            ("certificates renewed", counts.certificates_renewed),
            ("watch whose initial events were ignored", counts.ignored_initial_events),
        ])
    }
}
