//! Histories of a Kubernetes API: the scripted API server, what may happen to it, and the real source over it.

mod api;
mod world;

use std::{collections::BTreeMap, path::Path, time::Duration};

use informerd::{
    cache::SourceHealth,
    source::kube::{KubeCluster, KubeConfig, KubeSource},
};
use proptest::{collection::vec, prelude::*, sample::select};

use self::{
    api::{Answer, Api, Counts, InitialEvents, PLURAL, RetryAfter, State, To},
    world::{Form, Selection, World},
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
    /// The kubeconfig and the token.
    directory: tempfile::TempDir,
    is_token_wrong: bool,
    rewrites: u64,
    disturbances: u64,
    probes: u32,
}

#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each is a property of an API that a script draws")]
pub(crate) struct Setup {
    initial_events: InitialEvents,
    ignores_limit: bool,
    sends_bookmarks: bool,
    is_built_in: bool,
    is_cluster_readable: bool,
    selection: Selection,
    /// Only requests with the configured selector are allowed.
    needs_selector: bool,
    /// The source requests metadata only, of an API that knows this, or not.
    metadata: Option<bool>,
    page_size: Option<u32>,
    token: Option<TokenEnd>,
    first: Vec<Step>,
}

/// The end of the file of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenEnd {
    Nothing,
    Newline,
}

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Put(&'static str, u32),
    Delete(Vec<&'static str>),
    /// The objects of one lease end at one version.
    Expire(Vec<&'static str>),
    DeleteAll,
    /// Writes of other kinds raise the version.
    Elsewhere(u64),
    /// Pages of older versions are gone.
    Compact,
    Network(NetworkFault),
    /// Another API server takes over: its watch cache begins now.
    Restart,
    /// The same, of a version that has other defaults.
    Upgrade(Form),
    /// The CRD is changed: objects have other bytes at the same version.
    Crd(Form),
    /// The CRD is deleted with all objects, and created again.
    CrdAnew,
    /// The version of the CRD is not served until it is healed.
    CrdNotServed,
    Restore(Restore),
    /// The replica sees nothing more.
    Lag,
    Once(Answer),
    Standing(Answer),
    /// An ERROR in the watch.
    InBand(u16, &'static str),
    /// Watches are closed.
    CloseWatches,
    /// The token is renewed, and the file with it.
    TokenRenewed,
    /// The token is renewed; the file follows when it is healed.
    TokenEnds,
}

#[derive(Debug, Clone)]
pub(crate) struct Restore {
    /// Versions that are lost.
    back: u64,
    /// Writes of the new history while the source is away: below, at or beyond the lost version.
    ahead: u32,
    /// Versions that other kinds take meanwhile.
    elsewhere: u64,
    has_another_uid: bool,
}

const KEYS: [&str; 8] = ["a/x", "a/y", "a/z", "b/x", "b/y", "b/z", "c/x", "c/v"];
/// As the program has it by default.
const STALE_AFTER: Duration = Duration::from_secs(15);

// === impl Kube ===

impl Kube {
    /// A new API server process answers: what is open is cut, and its watch cache begins at the present version.
    async fn restart(&mut self) {
        self.api.set(State::restart);
        self.proxy.begin(NetworkFault::Cut).await;
    }

    async fn restore(&mut self, restore: &Restore) {
        let Restore { back, ahead, elsewhere, has_another_uid } = *restore;
        // In one step: nobody sees half of it.
        self.api.set(|state| {
            state.world.restore(state.world.version.saturating_sub(back).max(1));
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
        self.proxy.begin(NetworkFault::Cut).await;
    }

    fn write_token(&self) {
        let end = if self.setup.token == Some(TokenEnd::Newline) { "\n" } else { "" };
        let token = self.api.set(|state| state.token.clone()).unwrap_or_default();
        std::fs::write(self.directory.path().join("token"), token + end).unwrap();
    }
}

/// An object as the API writes its metadata only.
fn metadata(object: &[u8]) -> String {
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

fn any_form() -> impl Strategy<Value = Form> {
    (prop_oneof![Just(None), (1_u32..4).prop_map(Some)], any::<bool>()).prop_map(|(default, is_pruned)| Form {
        default,
        is_pruned,
        is_recoloured: false,
    })
}

fn any_answer() -> impl Strategy<Value = Answer> {
    let retry_after = prop_oneof![
        Just(RetryAfter::None),
        (1_u64..20).prop_map(RetryAfter::Seconds),
        (1_u64..20).prop_map(RetryAfter::Date),
    ];
    (
        select(vec![401_u16, 403, 404, 410, 429, 429, 500, 504]),
        retry_after,
        select(vec![To::All, To::Lists, To::Watches]),
    )
        .prop_map(|(code, retry_after, to)| Answer {
            code,
            retry_after: if code == 429 { retry_after } else { RetryAfter::None },
            to,
        })
}

impl Upstream for Kube {
    type Setup = Setup;
    type Step = Step;

    const IS_PAUSED: bool = true;
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
        "token renewed",
        "token ends",
        "initial events that are ignored",
        "no bookmarks",
        "token file that ends with a newline",
        "metadata only",
        "metadata only of an API that sends whole objects",
        "watch from before the watch cache",
        "page",
        "version too large",
        "bookmark",
    ];

    fn any_setup() -> BoxedStrategy<Setup> {
        use InitialEvents::{Forbidden, Ignored, Served};
        let selection = select(vec![
            Selection::All,
            Selection::All,
            Selection::All,
            Selection::Label,
            Selection::Field,
            Selection::Name,
        ]);
        let often = || prop_oneof![3 => Just(true), 1 => Just(false)];
        let first = prop_oneof![1 => Just(Vec::new()), 3 => vec(Self::any_write(), 1..6)];
        let token = select(vec![None, None, Some(TokenEnd::Nothing), Some(TokenEnd::Newline)]);
        (
            (select(vec![Served, Served, Served, Forbidden, Ignored]), any::<bool>(), often(), any::<bool>(), often()),
            (selection, any::<bool>(), select(vec![None, Some(1_u32), Some(2)]), token, first),
            select(vec![None, None, None, None, Some(true), Some(false)]),
        )
            .prop_map(
                |(
                    (initial_events, ignores_limit, sends_bookmarks, is_built_in, is_cluster_readable),
                    (selection, needs_selector, page_size, token, first),
                    metadata,
                )| Setup {
                    initial_events,
                    ignores_limit,
                    sends_bookmarks,
                    is_built_in,
                    is_cluster_readable,
                    selection,
                    needs_selector: needs_selector && selection == Selection::Name,
                    metadata,
                    page_size,
                    token,
                    first,
                },
            )
            .boxed()
    }

    fn any_write() -> BoxedStrategy<Step> {
        prop_oneof![
            10 => (select(&KEYS[..]), 0_u32..100).prop_map(|(key, number)| Step::Put(key, number)),
            3 => vec(select(&KEYS[..]), 1..3).prop_map(Step::Delete),
            3 => vec(select(&KEYS[..]), 3..9).prop_map(Step::Expire),
            1 => Just(Step::DeleteAll),
            2 => select(vec![1_u64, 7, 5000]).prop_map(Step::Elsewhere),
        ]
        .boxed()
    }

    fn any_fault() -> BoxedStrategy<Step> {
        let network = prop_oneof![
            3 => Just(NetworkFault::Refuse),
            2 => Just(NetworkFault::Close),
            3 => Just(NetworkFault::Freeze),
            1 => (500_u32..5_000).prop_map(NetworkFault::Slow),
        ];
        prop_oneof![
            6 => network.prop_map(Step::Network),
            2 => Just(Step::Lag),
            4 => any_answer().prop_map(Step::Standing),
            1 => Just(Step::TokenEnds),
            1 => Just(Step::CrdNotServed),
        ]
        .boxed()
    }

    fn any_event() -> BoxedStrategy<Step> {
        let cut = prop_oneof![
            1 => Just(NetworkFault::Cut),
            3 => (1_usize..4000).prop_map(NetworkFault::CutAfter),
        ];
        let restore = (0_u64..8, 0_u32..8, select(vec![0_u64, 0, 20, 1000]), any::<bool>())
            .prop_map(|(back, ahead, elsewhere, has_another_uid)| Restore { back, ahead, elsewhere, has_another_uid });
        let in_band = select(vec![
            (410_u16, "Expired"),
            (410, "Gone"),
            (500, "InternalError"),
            (504, "Timeout"),
            (429, "TooManyRequests"),
        ]);
        prop_oneof![
            4 => cut.prop_map(Step::Network),
            3 => Just(Step::Restart),
            2 => any_form().prop_map(Step::Upgrade),
            2 => any_form().prop_map(Step::Crd),
            1 => any_form().prop_map(|form| Step::Crd(Form { is_recoloured: true, ..form })),
            1 => Just(Step::CrdAnew),
            3 => restore.prop_map(Step::Restore),
            2 => any_answer().prop_map(Step::Once),
            2 => in_band.prop_map(|(code, reason)| Step::InBand(code, reason)),
            1 => Just(Step::CloseWatches),
            1 => Just(Step::TokenRenewed),
            1 => Just(Step::Compact),
        ]
        .boxed()
    }

    fn kind(step: &Step) -> &'static str {
        match step {
            Step::Put(..) => "put",
            Step::Delete(_) => "deletion",
            Step::Expire(_) => "several deletions at one version",
            Step::DeleteAll => "deletion of everything",
            Step::Elsewhere(_) => "write elsewhere",
            Step::Compact => "compaction",
            Step::Network(fault) => fault.kind(),
            Step::Restart => "restart",
            Step::Upgrade(_) => "upgrade with other bytes",
            Step::Crd(Form { is_recoloured: true, .. }) => "CRD with another selectable field",
            Step::Crd(_) => "CRD with other bytes",
            Step::CrdAnew => "CRD created again",
            Step::CrdNotServed => "CRD not served",
            Step::Restore(Restore { has_another_uid: true, .. }) => "restore with another uid",
            Step::Restore(Restore { back, ahead, elsewhere, .. }) if u64::from(*ahead) + elsewhere > *back => {
                "restore beyond the last version"
            }
            Step::Restore(_) => "restore",
            Step::Lag => "lag",
            Step::Once(answer) | Step::Standing(answer) => match (answer.code, answer.retry_after) {
                (401, _) => "401",
                (403, _) => "403",
                (404, _) => "404",
                (410, _) => "410",
                (429, RetryAfter::None) => "429",
                (429, RetryAfter::Seconds(_)) => "429 with seconds",
                (429, RetryAfter::Date(_)) => "429 with a date",
                (504, _) => "504",
                _ => "500",
            },
            Step::InBand(410, _) => "410 in band",
            Step::InBand(..) => "500 in band",
            Step::CloseWatches => "watches closed",
            Step::TokenRenewed => "token renewed",
            Step::TokenEnds => "token ends",
        }
    }

    fn setup_kinds(setup: &Setup) -> Vec<&'static str> {
        let kinds = [
            ("token file that ends with a newline", setup.token == Some(TokenEnd::Newline)),
            ("initial events that are ignored", setup.initial_events == InitialEvents::Ignored),
            ("no bookmarks", !setup.sends_bookmarks),
            ("only the selector is allowed", setup.needs_selector),
            ("selected by a field", setup.selection == Selection::Field),
            ("kube-system is not readable", !setup.is_cluster_readable),
            ("metadata only", setup.metadata == Some(true)),
            ("metadata only of an API that sends whole objects", setup.metadata == Some(false)),
        ];
        kinds.into_iter().filter(|(_, is_so)| *is_so).map(|(kind, _)| kind).collect()
    }

    fn first_steps(setup: &Setup) -> Vec<Step> {
        setup.first.clone()
    }

    async fn start(setup: &Setup) -> Self {
        let world = World::new(setup.selection);
        let api = Api::new(State {
            cache_start: world.version,
            world,
            cluster: setup.is_cluster_readable.then(|| "cluster".to_owned()),
            token: setup.token.map(|_| "t".to_owned()),
            lagging_at: None,
            compacted: 0,
            expires_page: false,
            generation: 0,
            is_served: true,
            initial_events: setup.initial_events,
            ignores_limit: setup.ignores_limit,
            sends_bookmarks: setup.sends_bookmarks,
            is_built_in: setup.is_built_in,
            needs_selector: setup.needs_selector,
            knows_metadata: setup.metadata == Some(true),
            once: Vec::new(),
            standing: None,
            in_band: Vec::new(),
            counts: Counts::default(),
        });
        let proxy = Proxy::to(api.listen().await);
        let directory = tempfile::tempdir().unwrap();
        let user = match setup.token {
            Some(_) => format!("{{tokenFile: {}}}", directory.path().join("token").display()),
            None => "{}".to_owned(),
        };
        let kubeconfig = format!(
            "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: c, cluster: {{server: 'http://{}'}}}}], \
             users: [{{name: u, user: {user}}}], contexts: [{{name: c, context: {{cluster: c, user: u}}}}]}}",
            proxy.address()
        );
        std::fs::write(directory.path().join("kubeconfig"), kubeconfig).unwrap();
        let kube = Self {
            setup: setup.clone(),
            api,
            proxy,
            directory,
            is_token_wrong: false,
            rewrites: 0,
            disturbances: 0,
            probes: 0,
        };
        kube.write_token();
        kube
    }

    async fn step(&mut self, step: &Step) {
        let is_write = matches!(
            step,
            Step::Put(..) | Step::Delete(_) | Step::Expire(_) | Step::DeleteAll | Step::Elsewhere(_) | Step::Compact
        );
        self.disturbances += u64::from(!is_write);
        match step {
            Step::Put(text, number) => self.api.set(|state| state.world.put(&key(text), *number)),
            Step::Delete(texts) => self.api.set(|state| state.world.delete(&keys(texts), false)),
            Step::Expire(texts) => self.api.set(|state| state.world.delete(&keys(texts), true)),
            Step::DeleteAll => self.api.set(|state| state.world.delete(&keys(&KEYS), false)),
            Step::Elsewhere(versions) => self.api.set(|state| state.world.version += versions),
            Step::Compact => self.api.set(|state| {
                (state.compacted, state.expires_page) = (state.world.version, true);
            }),
            Step::Network(fault) => self.proxy.begin(*fault).await,
            Step::Restart => self.restart().await,
            Step::Upgrade(form) => {
                let is_recoloured = self.api.set(|state| state.world.form.is_recoloured);
                // An API server that begins writes leases and more before its watch caches begin.
                self.api.set(|state| {
                    state.world.form = Form { is_recoloured, ..*form };
                    state.world.version += 3;
                });
                self.restart().await;
            }
            // The storage of the kind is made anew, and with it the watch cache; other kinds go on.
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
            Step::Lag => self.api.set(|state| {
                state.lagging_at = state.lagging_at.or(Some((state.world.changes.len(), state.world.version)));
            }),
            Step::Once(answer) => {
                self.api.set(|state| {
                    state.once = vec![*answer];
                    state.generation += 1;
                });
            }
            Step::Standing(answer) => self.api.set(|state| state.standing = Some(*answer)),
            Step::InBand(code, reason) => self.api.set(|state| state.in_band = vec![(*code, *reason)]),
            Step::CloseWatches => self.api.set(|state| state.generation += 1),
            Step::TokenRenewed | Step::TokenEnds if self.setup.token.is_some() => {
                self.api.set(|state| state.token = state.token.take().map(|token| token + "t"));
                self.is_token_wrong = matches!(step, Step::TokenEnds);
                if !self.is_token_wrong {
                    self.write_token();
                }
                self.proxy.begin(NetworkFault::Cut).await;
            }
            Step::TokenRenewed | Step::TokenEnds => {}
        }
    }

    async fn heal(&mut self) {
        self.proxy.heal();
        self.api.set(|state| {
            (state.standing, state.lagging_at, state.is_served) = (None, None, true);
            state.once.clear();
            state.in_band.clear();
        });
        self.write_token();
        self.is_token_wrong = false;
    }

    async fn probe(&mut self) {
        self.probes += 1;
        // Red by label and by field, under both forms, and of the name that may be selected.
        let number = 1_000_001 + 6 * self.probes;
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
            is_metadata_only: self.setup.metadata.is_some(),
            page_size: self.setup.page_size,
            ..KubeConfig::new("things", "example.com", "v1", PLURAL)
        };
        let health = SourceHealth::new(config.contact_timeout, STALE_AFTER);
        Served::start(KubeSource::new(config, health.clone()), health, state_directory)
    }

    fn truths(&self) -> Vec<Truth> {
        self.api.set(|state| {
            let mut truths = vec![state.world.truth(usize::MAX)];
            // A replica that sees nothing more goes on to answer, and cannot know.
            truths.extend(state.lagging_at.map(|(changes, _)| state.world.truth(changes)));
            if self.setup.metadata.is_some() {
                truths.iter_mut().flat_map(Truth::values_mut).for_each(|fact| fact.body = metadata(&fact.body).into());
            }
            truths
        })
    }

    fn rewrites(&self) -> u64 {
        self.rewrites
    }

    fn disturbances(&self) -> u64 {
        let late = self.api.set(|state| state.counts.once + state.counts.in_band);
        self.disturbances + late + self.proxy.late_cuts()
    }

    fn is_faulty(&self) -> bool {
        let is_faulty =
            self.api.set(|state| state.standing.is_some() || state.lagging_at.is_some() || !state.is_served);
        is_faulty || self.is_token_wrong || self.proxy.is_faulty()
    }

    fn is_unreachable(&self) -> bool {
        self.proxy.is_unreachable()
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            prompt: Duration::from_secs(1),
            // A dead connection is noticed within 25 s, and then `stale_after`.
            detects: Duration::from_secs(25 + 15 + 5),
            // The longest delay between two attempts is 60 s, an answer may take another 60 s, and Retry-After 25 s.
            recovers: Duration::from_secs(300),
            lists: 12,
            watch: Duration::from_secs(100),
        }
    }

    fn requests(&self) -> Option<(u64, u64)> {
        Some(self.api.set(|state| (state.counts.lists, state.counts.watches)))
    }

    fn was_deleted(&self, key: &Key) -> bool {
        self.api.set(|state| state.world.deleted.contains(key) || state.world.selection != Selection::All)
    }

    fn tally(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.api.set(|state| state.counts);
        let mut tally = self.proxy.counts();
        tally.insert("watch from before the watch cache", counts.expired_watches);
        tally.insert("expired page", counts.expired_pages);
        tally.insert("page", counts.pages);
        tally.insert("error in band that was sent", counts.in_band);
        tally.insert("answer that was refused", counts.refused);
        tally.insert("version too large", counts.too_large);
        tally.insert("bookmark", counts.bookmarks);
        tally.insert("watch whose initial events were ignored", counts.ignored_initial_events);
        tally.retain(|_, count| *count > 0);
        tally
    }
}
