//! The documents that are served: complete, without loose references, and as kubectl reads them.

use std::collections::HashSet;

use super::*;

fn document(path: &str) -> Value {
    v3(&ServedKinds::default(), path).unwrap_or_else(|| panic!("no document {path}"))
}

/// Calls `visit` with every `$ref` below. (JSONSchemaProps has a field of that name, whose schema is no text.)
fn references(value: &Value, visit: &mut impl FnMut(&str)) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get("$ref") {
                visit(reference);
            }
            fields.values().for_each(|v| references(v, visit));
        }
        Value::Array(items) => items.iter().for_each(|v| references(v, visit)),
        _ => {}
    }
}

fn operations(document: &Value) -> Vec<(String, String, &Value)> {
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in item.as_object().into_iter().flatten() {
            if method != "parameters" {
                all.push((path.clone(), method.clone(), operation));
            }
        }
    }
    all
}

#[test]
fn every_document_has_all_schemas_it_refers_to() {
    let documents = v3_paths(&ServedKinds::default())
        .into_iter()
        .map(|path| (document(&path), path));
    for (document, path) in documents.chain([(v2(&ServedKinds::default()), "v2".to_string())]) {
        references(&document, &mut |reference| {
            let pointer = reference.strip_prefix('#').unwrap_or_default();
            assert!(document.pointer(pointer).is_some(), "{path}: {reference}");
        });
        let mut ids = HashSet::new();
        let all = operations(&document);
        assert!(!all.is_empty(), "{path}");
        for (at, method, operation) in all {
            let id = operation["operationId"].as_str().unwrap_or_default();
            assert!(
                !id.is_empty() && ids.insert(id.to_string()),
                "{path}: {method} {at}: {id:?}"
            );
        }
    }
}

/// Before it sends a manifest, kubectl checks for this parameter, and for the media types of patches.
#[test]
fn every_patch_names_its_kind_and_takes_field_validation() {
    for kind in knarr_api::registry::ALL
        .iter()
        .filter(|kind| kind.verbs.contains(&"patch"))
    {
        let document = document(&root_documents::group_version_path(kind.group(), kind.version()));
        let gvk = json!({"group": kind.group(), "version": kind.version(), "kind": kind.kind()});
        let patches: Vec<&Value> = operations(&document)
            .into_iter()
            .filter(|(_, method, o)| method == "patch" && o["x-kubernetes-group-version-kind"] == gvk)
            .map(|(_, _, operation)| operation)
            .collect();
        assert!(!patches.is_empty(), "{kind:?}");
        for patch in patches {
            let parameters = patch["parameters"].as_array().expect("parameters");
            assert!(
                parameters
                    .iter()
                    .any(|p| p["name"] == "fieldValidation" && p["in"] == "query"),
                "{kind:?}"
            );
            let forms = &patch["requestBody"]["content"];
            assert!(
                !forms["application/strategic-merge-patch+json"].is_null(),
                "{kind:?}"
            );
        }
    }
}

#[test]
fn fields_have_their_merge_keys_and_strategies() {
    let core = document("api/v1");
    let schemas = &core["components"]["schemas"];
    let spec = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"];
    let containers = &spec["containers"];
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(containers["x-kubernetes-patch-strategy"], "merge");
    assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
    assert_eq!(
        containers["items"],
        json!({"$ref": "#/components/schemas/io.k8s.api.core.v1.Container"})
    );
    assert_eq!(
        spec["restartPolicy"]["enum"],
        json!(["Always", "Never", "OnFailure"])
    );
    let claim = &schemas["io.k8s.api.core.v1.PersistentVolumeClaimSpec"]["properties"];
    assert_eq!(claim["accessModes"]["items"]["enum"][0], "ReadOnlyMany");
    assert_eq!(
        spec["securityContext"]["allOf"],
        json!([{"$ref": "#/components/schemas/io.k8s.api.core.v1.PodSecurityContext"}])
    );
    let pod = &schemas["io.k8s.api.core.v1.Pod"];
    assert_eq!(
        pod["x-kubernetes-group-version-kind"],
        json!([{"group": "", "version": "v1", "kind": "Pod"}])
    );
    assert_eq!(pod["required"], Value::Null);
    let quantity = &schemas["io.k8s.apimachinery.pkg.api.resource.Quantity"];
    assert_eq!(quantity["oneOf"], json!([{"type": "string"}, {"type": "number"}]));
}

#[test]
fn version_2_has_its_own_schema_forms() {
    let document = v2(&ServedKinds::default());
    let definitions = &document["definitions"];
    let spec = &definitions["io.k8s.api.core.v1.PodSpec"]["properties"];
    assert_eq!(
        spec["securityContext"]["$ref"],
        "#/definitions/io.k8s.api.core.v1.PodSecurityContext"
    );
    let either = &definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"];
    assert_eq!(
        (&either["type"], &either["format"]),
        (&json!("string"), &json!("int-or-string"))
    );
    let create = &document["paths"]["/api/v1/namespaces/{namespace}/pods"]["post"];
    assert_eq!(create["operationId"], "createCoreV1NamespacedPod");
    let body = create["parameters"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|p| p["in"] == "body");
    assert_eq!(
        body.map(|b| &b["schema"]["$ref"]),
        Some(&json!("#/definitions/io.k8s.api.core.v1.Pod"))
    );
}

#[test]
fn the_index_leads_to_each_document_by_its_hash() {
    let index = v3_index(&ServedKinds::default());
    let entries = index["paths"].as_object().expect("paths");
    assert_eq!(
        entries.keys().cloned().collect::<Vec<_>>(),
        v3_paths(&ServedKinds::default())
    );
    let url = entries["apis/apps/v1"]["serverRelativeURL"].as_str();
    let hash = hash(&document("apis/apps/v1"));
    assert_eq!(
        url,
        Some(format!("/openapi/v3/apis/apps/v1?hash={hash}").as_str())
    );
}

#[test]
fn what_is_not_served_has_no_document() {
    for path in [
        "",
        "apis/apps/v2",
        "apis/nope.io",
        "api/v2",
        "apis/apps/v1/",
        "apis//v1",
    ] {
        assert!(v3(&ServedKinds::default(), path).is_none(), "{path:?}");
    }
}
