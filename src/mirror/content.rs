//! Files of an object: its body, or its data.

use std::{borrow::Cow, collections::BTreeMap};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;

use super::{
    directory::Files,
    file_name::{Layout, data_file, object_file},
};
use crate::model::Object;

/// Fields of a `ConfigMap` or Secret that become files.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    #[serde(default)]
    data: Option<BTreeMap<String, String>>,
    #[serde(default)]
    binary_data: Option<BTreeMap<String, String>>,
}

/// Returns the files of an object by path, and their bytes.
///
/// # Errors
///
/// With [`Layout::Keys`], for an object that is no `ConfigMap` and no Secret, or whose data cannot be decoded: the reason.
pub(super) fn files_of(layout: Layout, object: &Object) -> Result<Files<'_>, String> {
    if layout == Layout::Objects {
        let is_json = object.media_type() == "application/json";
        return Ok([(object_file(object.key(), is_json), Cow::Borrowed(object.body()))].into());
    }
    let is_secret = match object.kind() {
        // An object of a file may have no kind.
        "ConfigMap" | "" => false,
        "Secret" => true,
        kind => return Err(format!("{kind} has no files for its keys: --keys is for ConfigMaps and Secrets")),
    };
    let Data { data, binary_data } = serde_json::from_slice(object.body()).map_err(|error| error.to_string())?;
    let path = |data_key: &str| data_file(object.key(), data_key);
    let decode = |(data_key, value): (String, String)| match STANDARD.decode(value) {
        Ok(bytes) => Ok((path(&data_key), Cow::Owned(bytes))),
        Err(error) => Err(format!("key {data_key:?} is not base64: {error}")),
    };
    let (data, binary_data) = (data.unwrap_or_default().into_iter(), binary_data.unwrap_or_default().into_iter());
    if is_secret {
        return data.map(decode).collect();
    }
    let data = data.map(|(data_key, value)| Ok((path(&data_key), Cow::Owned(value.into_bytes()))));
    data.chain(binary_data.map(decode)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ObjectKey, ObjectParts, ResourceVersion};

    fn object(kind: &str, body: &str) -> Object {
        Object::new(ObjectParts {
            key: ObjectKey::new("shop", "web").unwrap(),
            uid: String::new(),
            version: ResourceVersion::decimal(1),
            labels: BTreeMap::new(),
            api_version: String::new(),
            kind: kind.to_owned(),
            media_type: "application/json",
            body: body.to_owned().into(),
        })
    }

    fn by_key(kind: &str, body: &str) -> Result<Vec<(String, String)>, String> {
        let object = object(kind, body);
        let files = files_of(Layout::Keys, &object)?;
        Ok(files.into_iter().map(|(path, bytes)| (path, String::from_utf8(bytes.into_owned()).unwrap())).collect())
    }

    #[test]
    fn an_object_is_one_file_with_its_bytes() {
        let object = object("Pod", "{ \"a\" : 1.0 }");
        let files = files_of(Layout::Objects, &object).unwrap();
        assert_eq!(files, [("shop/web.json".to_owned(), Cow::Borrowed(&b"{ \"a\" : 1.0 }"[..]))].into());
    }

    #[test]
    fn data_of_config_maps_is_text_and_data_of_secrets_is_decoded() {
        let file = |name: &str, text: &str| (format!("shop/web/{name}"), text.to_owned());
        let body = r#"{"data": {"b": "1\n", ".a": ""}, "binaryData": {"c": "eA=="}, "immutable": true}"#;
        let expected = [file("%2Ea", ""), file("b", "1\n"), file("c", "x")];
        assert_eq!(by_key("ConfigMap", body).unwrap(), expected);
        assert_eq!(by_key("", body).unwrap(), expected);
        assert_eq!(by_key("Secret", r#"{"data": {"token": "c2VjcmV0"}}"#).unwrap(), [file("token", "secret")]);
        assert_eq!(by_key("Secret", "{}").unwrap(), []);
        assert_eq!(by_key("ConfigMap", r#"{"data": null}"#).unwrap(), []);
    }

    #[test]
    fn other_objects_have_no_keys() {
        let error = |kind, body| by_key(kind, body).unwrap_err();
        assert_eq!(error("Pod", "{}"), "Pod has no files for its keys: --keys is for ConfigMaps and Secrets");
        assert!(error("ConfigMap", r#"{"data": {"a": 1}}"#).contains("expected a string"));
        assert!(error("ConfigMap", "[1, 2, 3]").contains("invalid"));
        let error = error("Secret", r#"{"data": {"token": "?"}}"#);
        assert!(error.starts_with("key \"token\" is not base64: "), "{error}");
    }
}
