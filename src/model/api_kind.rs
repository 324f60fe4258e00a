//! Names of a kind, as the discovery of a Kubernetes API has them, and its columns.

use super::Path;

/// Kind of a Kubernetes API.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ApiKind {
    /// API group; empty for the core.
    pub group: String,
    /// Version of the group, such as `v1`.
    pub version: String,
    /// Plural name in paths, such as `pods`.
    pub plural: String,
    /// Kind, such as `Pod`.
    pub kind: String,
    /// Singular name for commands, such as `pod`.
    pub singular: String,
    /// Short names for commands, such as `po`.
    pub short_names: Vec<String>,
    /// Groups of kinds for commands, such as `all`.
    pub categories: Vec<String>,
    /// True if its objects are in namespaces.
    pub namespaced: bool,
    /// Columns of tables after the name, where they are configured.
    pub columns: Vec<PrinterColumn>,
}

/// Column of a kind, as in `additionalPrinterColumns` of a `CustomResourceDefinition`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PrinterColumn {
    /// Name above the column.
    pub name: String,
    /// Type of the cells.
    pub column_type: ColumnType,
    /// True for a column that only `-o wide` shows.
    pub is_wide: bool,
    /// Place of the value in an object.
    pub path: Path,
}

/// Type of the cells of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ColumnType {
    /// Any scalar; several ones separated by commas.
    String,
    /// Whole number.
    Integer,
    /// Number.
    Number,
    /// True or false.
    Boolean,
    /// Time, which is shown as an age.
    Date,
}

// === impl ColumnType ===

impl ColumnType {
    /// Every type.
    pub const ALL: [Self; 5] = [Self::String, Self::Integer, Self::Number, Self::Boolean, Self::Date];

    /// Returns the name of the type in definitions.
    pub fn name(self) -> &'static str {
        ["string", "integer", "number", "boolean", "date"][self as usize]
    }
}

// === impl ApiKind ===

impl ApiKind {
    /// Returns the kind without its names in commands: it has the singular name of its kind, and no short one.
    pub fn new(group: &str, version: &str, plural: &str, kind: &str) -> Self {
        let names = [group, version, plural, kind].map(str::to_owned);
        let [group, version, plural, kind] = names;
        let (singular, namespaced) = (kind.to_lowercase(), true);
        Self { group, version, plural, kind, singular, namespaced, ..Self::default() }
    }

    /// Returns `GROUP/VERSION`, or the version alone in the core group: the `apiVersion` of its objects.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}
