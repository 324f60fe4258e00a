//! Basic types: keys, versions, objects, events, selectors and index functions.
//!
//! Every other module may use these types; they depend on none of the modules above: no IO, no async, no wire format, no
//! clock.
//!
//! - An [`Object`] is immutable and shared (`Arc`). It keeps the source's bytes and the positions of its envelope in them,
//!   never a JSON tree.
//! - A [`ResourceVersion`] orders only versions of the same lineage.
//! - A [`Path`] reads a body cheaply, and field selectors use it; an [`Expression`] covers everything else. Indexes use
//!   either.
//!
//! Not here: storage of objects (`cache`), distribution (`watch`) and encoding (`proto`).

mod api_kind;
mod envelope;
mod event;
mod expression;
mod index;
mod key;
mod named_views;
mod namespaces;
mod object;
mod path;
mod random;
mod selection;
mod selector;
mod shard;
mod syntax;
mod term_result;
mod version;
#[cfg(test)]
pub(crate) mod work;

pub(crate) use self::{
    object::{JSON, json_problem},
    random::random_id,
};
pub use api_kind::{ApiKind, ColumnType, PrinterColumn};
#[cfg(any(feature = "kube", feature = "server"))]
pub(crate) use envelope::Envelope;
pub use envelope::JsonText;
#[cfg(feature = "kubernetes-api")]
pub(crate) use envelope::Pairs;
pub use event::{AppliedVersion, Batch, Cause, Change, Event, EventType, HistoryPosition};
#[cfg(all(test, feature = "cel"))]
pub(crate) use expression::parsed;
pub use expression::{
    Condition, Evaluations, EventView, Expression, ExpressionError, MAX_EXPRESSION_BYTES, sharing_bodies,
};
pub use index::{IndexClosure, IndexFunc, IndexMatch, IndexValues, IndexedObject, Indexers, IndexersError};
pub use key::{KeyError, ObjectKey};
pub use named_views::{NamedViews, NamedViewsError};
pub use namespaces::Namespaces;
#[cfg(feature = "server")]
pub(crate) use object::ParsedBody;
pub use object::{FieldError, Labels, MAX_MESSAGE_BYTES, MAX_OBJECT_BYTES, Object, ObjectError, ObjectParts};
pub use path::{FieldCut, FieldCutError, Path, View, ViewError};
pub use selection::{Part, Selection, Term, Transition};
pub use selector::{FieldSelector, LabelSelector};
pub use shard::{Shard, ShardError, ShardKey, ShardRange};
#[cfg(any(feature = "client", feature = "kube"))]
pub(crate) use syntax::escaped;
pub use syntax::{SyntaxError, excerpt, excerpt_of};
pub use term_result::TermResult;
pub use version::{Lineage, ResourceVersion, VersionError};
