//! The nouns: keys, versions, objects, events, selectors and index functions.
//!
//! Everybody reads these types and nobody below them: no IO, no async, no wire format, no clock.
//!
//! - An [`Object`] is immutable and shared (`Arc`); it keeps the source's bytes and where its envelope stands in them, never a
//!   JSON tree.
//! - A [`ResourceVersion`] orders only versions of the same lineage.
//! - A [`Path`] is the cheap way to look into a body, and selectors stand on it; an [`Expression`] is the way for everything
//!   else. Indexes stand on either.
//!
//! Deliberately not here: how objects are stored (`cache`), distributed (`watch`) or encoded (`proto`).

mod envelope;
mod event;
mod expression;
mod index;
mod key;
mod object;
mod path;
mod random;
mod selection;
mod selector;
mod syntax;
mod version;

pub use envelope::JsonText;
pub use event::{Applied, Batch, Cause, Change, Event, EventType, Reached};
#[cfg(all(test, feature = "cel"))]
pub(crate) use expression::parsed;
pub use expression::{Condition, EventView, Expression, ExpressionError, MAX_EXPRESSION_BYTES};
pub use index::{IndexFunc, IndexMatch, Indexers, IndexersError, in_one_wake};
pub use key::{KeyError, ObjectKey};
pub use object::{Labels, MAX_OBJECT_BYTES, Object, ObjectError, ObjectParts};
pub use path::{FieldCut, FieldCutError, Path};
pub(crate) use random::random_id;
pub use selection::{Selection, Transition};
pub use selector::{FieldSelector, LabelSelector};
pub use syntax::{SyntaxError, excerpt};
pub use version::{Lineage, ResourceVersion, VersionError};
