//! Script of a Kubernetes API.

use proptest::{collection::vec, option, prelude::*, sample::select};

use super::{
    api::{Answer, EarlyEnd, InitialEvents, RetryAfter, To, WrongAnswer},
    world::{Form, Selection, Versions},
};
use crate::source_checker::{
    proxy::NetworkFault,
    upstream::{UpstreamSetup, UpstreamStep},
};

#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each is a property of an API that a script draws")]
pub(crate) struct Setup {
    pub(super) initial_events: InitialEvents,
    pub(super) ignores_limit: bool,
    /// True if a list without pages takes too long.
    pub(super) needs_pages: bool,
    pub(super) sends_bookmarks: bool,
    pub(super) is_built_in: bool,
    pub(super) is_cluster_readable: bool,
    /// Configured namespaces of the source, each with its own watch; empty for one watch of all.
    pub(super) namespaces: &'static [&'static str],
    pub(super) selection: Selection,
    pub(super) versions: Versions,
    /// True if the source is configured to count versions itself, as it must be if they are decimals without an order.
    pub(super) has_opaque_versions: bool,
    /// True if only requests with the configured selector are allowed.
    pub(super) needs_selector: bool,
    /// None for whole objects. Otherwise the source requests metadata only; true if the API supports that.
    pub(super) metadata: Option<bool>,
    pub(super) page_size: Option<u32>,
    pub(super) token: Option<TokenEnd>,
    /// True if the API server and the source authenticate each other with certificates.
    pub(super) has_certificates: bool,
}

/// Text at the end of the token file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenEnd {
    Nothing,
    Newline,
}

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Put(&'static str, u32),
    Delete(Vec<&'static str>),
    /// Expiry of the objects of one lease, all at one version.
    Expire(Vec<&'static str>),
    /// Writes of objects of one lease, and their expiry at one version.
    Lease(Vec<&'static str>),
    DeleteAll,
    /// Writes of other kinds, which raise the version by this number.
    Elsewhere(u64),
    /// Removal of the pages of older versions.
    Compact,
    Network(NetworkFault),
    /// Takeover by another API server, whose watch cache begins now.
    Restart,
    /// The same, with a new release that has other defaults.
    Upgrade(Form),
    /// Change of the CRD, so that objects have other bytes at the same version.
    Crd(Form),
    /// Deletion of the CRD with all objects, and its creation.
    CrdAnew,
    /// CRD whose version is not served until the fault is healed.
    CrdNotServed,
    Restore(Restore),
    /// Lag of the replica, which sees no more changes: the only one, or the one for this namespace. With a number,
    /// another one takes over, which lags by so many changes.
    Lag(Option<&'static str>, usize),
    Once(Answer),
    Standing(Answer),
    /// ERROR in the watch.
    InBand(u16, &'static str),
    /// End of a watch's time between two changes of one version.
    CloseInside(Vec<&'static str>),
    /// Close of watches: all, or those of this namespace.
    CloseWatches(Option<&'static str>),
    /// Takeover of this namespace's requests by another API server; its watch cache begins now.
    RestartOf(&'static str),
    /// Expiry of the watches; the initial events of the next one do not come.
    Stall,
    /// Expiry of the watches; the initial events of the next one end early, in this way.
    EndInitialEvents(EarlyEnd),
    /// Expiry of the watches; the next list is answered with something else.
    WrongAnswer(WrongAnswer),
    /// Expiry of the watches; the token of the next page but one is that of the next page, three times.
    Circle,
    /// Renewal of the token and the certificates, together with the files. Open connections are cut, or continue.
    CredentialsRenewed {
        is_cut: bool,
    },
    /// The same, but the files follow only when it is healed.
    CredentialsEnd {
        is_cut: bool,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct Restore {
    /// Number of lost versions.
    pub(super) back: u64,
    /// True if the lost changes are written again, at the same versions and with other bytes.
    pub(super) repeats: bool,
    /// Number of writes of the new history while the source is disconnected: below, at or beyond the lost version.
    pub(super) ahead: u32,
    /// Number of versions that other kinds use meanwhile.
    pub(super) elsewhere: u64,
    pub(super) has_another_uid: bool,
    /// True if the API servers are stopped first, and not killed: they close their watches, and requests wait for the new ones.
    pub(super) stops: bool,
}

pub(super) const NAMESPACES: [&str; 3] = ["a", "b", "c"];
pub(super) const KEYS: [&str; 8] = ["a/x", "a/y", "a/z", "b/x", "b/y", "b/z", "c/x", "c/v"];

fn rarely() -> impl Strategy<Value = bool> {
    prop_oneof![1 => Just(true), 3 => Just(false)]
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

impl UpstreamSetup for Setup {
    fn any() -> BoxedStrategy<Self> {
        use InitialEvents::{Forbidden, Ignored, Served};
        use Versions::{Decimal, Text, Unordered};
        let selection = select(vec![
            Selection::All,
            Selection::All,
            Selection::All,
            Selection::Label,
            Selection::Field,
            Selection::Field,
            Selection::Name,
        ]);
        let namespaces: Vec<&'static [&'static str]> = vec![&[], &[], &[], &["a"], &["b", "a"], &NAMESPACES];
        let namespaces = select(namespaces);
        let versions = prop_oneof![
            6 => Just((Decimal, false)),
            1 => Just((Decimal, true)),
            1 => any::<bool>().prop_map(|is_opaque| (Text, is_opaque)),
            1 => Just((Unordered, true)),
        ];
        let often = || rarely().prop_map(|is_so| !is_so);
        // First, true if the API ignores the limit; second, true if it needs one.
        let limit = select(vec![(true, false), (true, false), (false, false), (false, true)]);
        let token = select(vec![None, None, Some(TokenEnd::Nothing), Some(TokenEnd::Newline)]);
        (
            (select(vec![Served, Served, Served, Forbidden, Ignored]), limit, often(), any::<bool>(), often()),
            (selection, any::<bool>(), select(vec![None, Some(1_u32), Some(1), Some(2)]), token, rarely()),
            (select(vec![None, None, None, None, Some(true), Some(false)]), namespaces, versions),
        )
            .prop_map(
                |(
                    (initial_events, (ignores_limit, needs_pages), sends_bookmarks, is_built_in, is_cluster_readable),
                    (selection, needs_selector, page_size, token, has_certificates),
                    (metadata, namespaces, (versions, is_opaque)),
                )| Self {
                    initial_events,
                    ignores_limit,
                    needs_pages,
                    sends_bookmarks,
                    is_built_in,
                    is_cluster_readable,
                    // Versions that cannot be compared are valid in one watch only.
                    namespaces: if versions == Decimal && !is_opaque { namespaces } else { &[] },
                    selection,
                    versions,
                    has_opaque_versions: is_opaque || versions == Unordered,
                    needs_selector: needs_selector && selection == Selection::Name,
                    metadata,
                    page_size,
                    token,
                    has_certificates,
                },
            )
            .boxed()
    }

    fn kinds(&self) -> Vec<&'static str> {
        let kinds = [
            ("certificates", self.has_certificates),
            ("token file that ends with a newline", self.token == Some(TokenEnd::Newline)),
            ("initial events that are ignored", self.initial_events == InitialEvents::Ignored),
            ("several namespaces", self.namespaces.len() > 1),
            ("several namespaces without bookmarks", self.namespaces.len() > 1 && !self.sends_bookmarks),
            ("versions that are no decimals", self.versions == Versions::Text),
            ("versions without an order", self.versions == Versions::Unordered),
            ("opaque versions", self.has_opaque_versions),
            (
                "opaque versions that another history has again",
                self.has_opaque_versions && self.versions == Versions::Decimal,
            ),
            ("only pages in time", self.needs_pages),
            ("no bookmarks", !self.sends_bookmarks),
            ("only the selector is allowed", self.needs_selector),
            ("selected by a field", self.selection == Selection::Field),
            ("kube-system is not readable", !self.is_cluster_readable),
            ("metadata only", self.metadata == Some(true)),
            ("metadata only of an API that sends whole objects", self.metadata == Some(false)),
        ];
        kinds.into_iter().filter(|(_, is_so)| *is_so).map(|(kind, _)| kind).collect()
    }
}

impl UpstreamStep for Step {
    fn any_write() -> BoxedStrategy<Self> {
        // Some objects are red under one form only.
        let number = prop_oneof![2 => 0_u32..100, 1 => (0_u32..16).prop_map(|number| 6 * number + 3)];
        prop_oneof![
            10 => (select(&KEYS[..]), number).prop_map(|(key, number)| Self::Put(key, number)),
            3 => vec(select(&KEYS[..]), 1..3).prop_map(Self::Delete),
            2 => vec(select(&KEYS[..]), 3..9).prop_map(Self::Expire),
            2 => vec(select(&KEYS[..]), 2..5).prop_map(Self::Lease),
            2 => Just(Self::Compact),
            1 => Just(Self::DeleteAll),
            2 => select(vec![1_u64, 7, 5000]).prop_map(Self::Elsewhere),
        ]
        .boxed()
    }

    fn any_fault() -> BoxedStrategy<Self> {
        prop_oneof![
            6 => NetworkFault::any().prop_map(Self::Network),
            4 => (option::of(select(&NAMESPACES[..])), select(vec![0_usize, 1, 3, 3]))
                .prop_map(|(namespace, behind)| Self::Lag(namespace, behind)),
            4 => any_answer().prop_map(Self::Standing),
            1 => any::<bool>().prop_map(|is_cut| Self::CredentialsEnd { is_cut }),
            1 => Just(Self::CrdNotServed),
        ]
        .boxed()
    }

    fn any_event() -> BoxedStrategy<Self> {
        let elsewhere = select(vec![0_u64, 0, 20, 1000]);
        let restore = (0_u64..8, any::<bool>(), 0_u32..8, elsewhere, rarely(), any::<bool>()).prop_map(
            |(back, repeats, ahead, elsewhere, has_another_uid, stops)| Restore {
                back,
                repeats,
                ahead: if repeats { 0 } else { ahead },
                elsewhere,
                has_another_uid,
                stops,
            },
        );
        let in_band = select(vec![
            (410_u16, "Expired"),
            (410, "Gone"),
            (500, "InternalError"),
            (504, "Timeout"),
            (429, "TooManyRequests"),
        ]);
        prop_oneof![
            4 => NetworkFault::any_cut().prop_map(Self::Network),
            3 => Just(Self::Restart),
            2 => any_form().prop_map(Self::Upgrade),
            2 => any_form().prop_map(Self::Crd),
            3 => any_form().prop_map(|form| Self::Crd(Form { is_recoloured: true, ..form })),
            1 => Just(Self::CrdAnew),
            5 => restore.prop_map(Self::Restore),
            2 => any_answer().prop_map(Self::Once),
            2 => in_band.prop_map(|(code, reason)| Self::InBand(code, reason)),
            2 => option::of(select(&NAMESPACES[..])).prop_map(Self::CloseWatches),
            3 => vec(select(&KEYS[..]), 2..5).prop_map(Self::CloseInside),
            1 => select(&NAMESPACES[..]).prop_map(Self::RestartOf),
            3 => any::<bool>().prop_map(|is_cut| Self::CredentialsRenewed { is_cut }),
            9 => Just(Self::Stall),
            5 => select(&EarlyEnd::ALL[..]).prop_map(Self::EndInitialEvents),
            5 => select(&WrongAnswer::ALL[..]).prop_map(Self::WrongAnswer),
            3 => Just(Self::Circle),
            1 => Just(Self::Compact),
        ]
        .boxed()
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Put(..) => "put",
            Self::Delete(_) => "deletion",
            Self::Expire(_) | Self::Lease(_) => "several deletions at one version",
            Self::DeleteAll => "deletion of everything",
            Self::Elsewhere(_) => "write elsewhere",
            Self::Compact => "compaction",
            Self::Network(fault) => fault.kind(),
            Self::Restart => "restart",
            Self::Upgrade(_) => "upgrade with other bytes",
            Self::Crd(Form { is_recoloured: true, .. }) => "CRD with another selectable field",
            Self::Crd(_) => "CRD with other bytes",
            Self::CrdAnew => "CRD created again",
            Self::CrdNotServed => "CRD not served",
            Self::Restore(Restore { has_another_uid: true, .. }) => "restore with another uid",
            Self::Restore(Restore { stops: true, .. }) => "restore of a cluster that was stopped",
            Self::Restore(Restore { repeats: true, .. }) => "restore whose lost writes are repeated",
            Self::Restore(Restore { back, ahead, elsewhere, .. }) if u64::from(*ahead) + elsewhere > *back => {
                "restore beyond the last version"
            }
            Self::Restore(_) => "restore",
            Self::Lag(None, 0) => "lag",
            Self::Lag(None, _) => "replica that is behind",
            Self::Lag(Some(_), _) => "lag of one namespace",
            Self::Once(answer) | Self::Standing(answer) => match (answer.code, answer.retry_after) {
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
            Self::InBand(410, _) => "410 in band",
            Self::InBand(..) => "500 in band",
            // Counted when it has taken effect.
            Self::CloseInside(_) => "watch closed inside a version, drawn",
            Self::CloseWatches(None) => "watches closed",
            Self::CloseWatches(Some(_)) => "watches of one namespace closed",
            Self::RestartOf(_) => "restart for one namespace",
            Self::Stall => "initial events that stall, drawn",
            Self::EndInitialEvents(_) => "initial events that end early, drawn",
            Self::WrongAnswer(_) => "answer that is no list, drawn",
            Self::Circle => "page tokens in a circle, drawn",
            Self::CredentialsRenewed { .. } => "credentials renewed",
            Self::CredentialsEnd { is_cut: true } => "credentials end",
            Self::CredentialsEnd { .. } => "credentials end while a watch is open",
        }
    }

    fn is_write(&self) -> bool {
        matches!(
            self,
            Self::Put(..)
                | Self::Delete(_)
                | Self::Expire(_)
                | Self::Lease(_)
                | Self::DeleteAll
                | Self::Elsewhere(_)
                | Self::Compact
        )
    }
}
