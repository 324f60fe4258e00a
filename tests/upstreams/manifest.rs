//! File of `deploy/`, as kubectl and the kubelet read it.

use std::{fs, path::Path};

use serde_json::Value;

/// Objects of Kubernetes, in the order of the file.
pub(crate) struct Manifest {
    pub(crate) objects: Vec<Value>,
}

// === impl Manifest ===

impl Manifest {
    pub(crate) fn read(name: &str) -> Self {
        Self::parse(&text(name))
    }

    pub(crate) fn parse(text: &str) -> Self {
        let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
        Self { objects: documents.into_iter().filter(|document| !document.is_null()).collect() }
    }

    /// Returns the only object of a kind.
    pub(crate) fn object(&self, kind: &str) -> &Value {
        let mut found = self.objects.iter().filter(|object| object["kind"] == kind);
        let object = found.next().unwrap_or_else(|| panic!("no {kind}"));
        assert!(found.next().is_none(), "one {kind}");
        object
    }

    /// Returns the pod template of the `Deployment` or `DaemonSet`.
    pub(crate) fn pod(&self) -> &Value {
        let is_daemon = self.objects.iter().any(|object| object["kind"] == "DaemonSet");
        &self.object(if is_daemon { "DaemonSet" } else { "Deployment" })["spec"]["template"]
    }
}

/// Returns the text of a file of `deploy/`.
pub(crate) fn text(name: &str) -> String {
    fs::read_to_string(Path::new("deploy").join(name)).unwrap()
}

/// Returns the elements of an array; none where there is no array.
pub(crate) fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns the element with this name.
pub(crate) fn named<'a>(values: &'a Value, name: &str) -> &'a Value {
    items(values).iter().find(|value| value["name"] == name).unwrap_or_else(|| panic!("no {name} in {values}"))
}
