//! Values of the Kubernetes API that the server offers.

use serde_json::Value;

use super::{
    ValueError,
    kube::{check_group, check_plural, check_version},
    list_of, quote, text,
};
use crate::model::{ApiKind, ColumnType, Path, PrinterColumn};

/// Kind as which the Kubernetes API has a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KubernetesName {
    /// Kind of the source, or one that is made from the name of the resource.
    Auto,
    /// Kind of this name.
    Kind(ApiKind),
}

/// Reads `auto`, or `[GROUP/]VERSION/PLURAL=KIND[,SHORT…][@cluster]`.
pub(crate) fn kubernetes_name(value: &Value) -> Result<KubernetesName, ValueError> {
    let given = text(value)?;
    if given == "auto" {
        return Ok(KubernetesName::Auto);
    }
    let expected = || {
        let what = "auto, or [GROUP/]VERSION/PLURAL=KIND[,SHORT…][@cluster] such as example.com/v1/settings=Setting";
        ValueError::new(format!("expected {what}, found {}", quote(given)))
    };
    let (rest, namespaced) = given.strip_suffix("@cluster").map_or((given, true), |rest| (rest, false));
    let (path, names) = rest.split_once('=').ok_or_else(expected)?;
    let (group_version, plural) = path.rsplit_once('/').ok_or_else(expected)?;
    let (group, version) = group_version.rsplit_once('/').unwrap_or(("", group_version));
    check_group(group)?;
    check_version(version)?;
    check_plural(plural)?;
    let mut names = names.split(',');
    let kind = names.next().filter(|kind| is_kind(kind)).ok_or_else(expected)?;
    let short_names: Vec<String> = names.map(str::to_owned).collect();
    short_names.iter().try_for_each(|name| check_plural(name))?;
    Ok(KubernetesName::Kind(ApiKind { short_names, namespaced, ..ApiKind::new(group, version, plural, kind) }))
}

/// Largest number of columns of a kind.
const MAX_COLUMNS: usize = 32;

/// Reads a list of `NAME[:TYPE][@wide]=PATH`.
pub(crate) fn printer_columns(value: &Value) -> Result<Vec<PrinterColumn>, ValueError> {
    list_of(value, MAX_COLUMNS, "columns such as [Phase=.status.phase]", |column| printer_column(text(column)?))
}

fn printer_column(given: &str) -> Result<PrinterColumn, ValueError> {
    let expected = || {
        let types = ColumnType::ALL.map(ColumnType::name).join(", ");
        let what = "NAME[:TYPE][@wide]=PATH such as Phase=.status.phase or Age:date=.metadata.creationTimestamp";
        ValueError::new(format!("expected {what}, of the types {types}, found {}", quote(given)))
    };
    let (name, path) = given.split_once('=').ok_or_else(expected)?;
    let (name, is_wide) = name.strip_suffix("@wide").map_or((name, false), |name| (name, true));
    let (name, type_name) = name.split_once(':').unwrap_or((name, ColumnType::String.name()));
    let column_type = ColumnType::ALL.into_iter().find(|known| known.name() == type_name).ok_or_else(expected)?;
    if name.trim().is_empty() {
        return Err(expected());
    }
    let invalid = |error| ValueError::new(format!("column {}: field path {}: {error}", quote(name), quote(path)));
    Ok(PrinterColumn { name: name.to_owned(), column_type, is_wide, path: Path::parse(path).map_err(invalid)? })
}

fn is_kind(text: &str) -> bool {
    text.len() <= 63
        && text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// Reads `refuse` or `warn`; true for the latter.
pub(crate) fn refuse_or_warn(value: &Value) -> Result<bool, ValueError> {
    match text(value)? {
        "refuse" => Ok(false),
        "warn" => Ok(true),
        other => Err(ValueError::new(format!("expected refuse or warn, found {}", quote(other)))),
    }
}

// === impl KubernetesName ===

impl KubernetesName {
    /// Returns the kind of a resource of this name, if its source has none: `web-settings` is `WebSettings` of `informerd.dev/v1`.
    pub fn of_resource(name: &str) -> ApiKind {
        let plural = name.replace('.', "-");
        let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
        let kind: String = plural.split('-').filter(|word| !word.is_empty()).map(capital).collect();
        ApiKind::new("informerd.dev", "v1", &plural, &kind)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_column_has_a_name_a_type_and_a_path() {
        let read = |text: &str| printer_columns(&json!([text])).map(|mut columns| columns.remove(0));
        let path = |text: &str| Path::parse(text).unwrap();
        let phase = PrinterColumn {
            name: "Phase".to_owned(),
            column_type: ColumnType::String,
            is_wide: false,
            path: path(".status.phase"),
        };
        assert_eq!(read("Phase=.status.phase"), Ok(phase));
        let zone = PrinterColumn {
            name: "Own Zone".to_owned(),
            column_type: ColumnType::Integer,
            is_wide: true,
            path: path(".metadata.labels['a=b']"),
        };
        assert_eq!(read("Own Zone:integer@wide=.metadata.labels['a=b']"), Ok(zone));
        for text in
            ["", "Phase", "=.status", " =.status", "Phase:text=.status", "Phase=", "Phase=.a[", "Phase:date:date=.a"]
        {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("such as") || error.contains("field path"), "{text}: {error}");
        }
        let many = |count| printer_columns(&json!(vec!["A=.a"; count]));
        assert!(many(MAX_COLUMNS).is_ok() && many(MAX_COLUMNS + 1).is_err());
        assert!(printer_columns(&json!([])).is_err() && printer_columns(&json!("Phase=.a")).is_err());
    }

    #[test]
    fn a_kind_has_a_path_and_names() {
        let read = |text: &str| kubernetes_name(&json!(text));
        assert_eq!(read("auto"), Ok(KubernetesName::Auto));
        let kind = ApiKind::new("example.com", "v1", "settings", "Setting");
        assert_eq!(kind.singular, "setting");
        assert_eq!(read("example.com/v1/settings=Setting"), Ok(KubernetesName::Kind(kind.clone())));
        let short = ApiKind { short_names: vec!["set".to_owned(), "st".to_owned()], namespaced: false, ..kind };
        assert_eq!(read("example.com/v1/settings=Setting,set,st@cluster"), Ok(KubernetesName::Kind(short)));
        assert_eq!(read("v1/things=Thing"), Ok(KubernetesName::Kind(ApiKind::new("", "v1", "things", "Thing"))));
        for text in [
            "",
            "settings",
            "v1/settings",
            "settings=Setting",
            "v1/settings=setting",
            "v1/Settings=Setting",
            "v1/s=S,UP",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
        assert_eq!(KubernetesName::of_resource("web.shop-1").kind, "WebShop1");
    }
}
