//! OpenAPI 2.0 (swagger): everything in one document.

use knarr_api::registry::ServedKinds;
use serde_json::{Map, Value, json};

use super::operations::{self, Body, Endpoint, Operation};
use super::parameters::Parameter;
use super::schemas::Schemas;
use super::{KUBERNETES_VERSION, Version, root_documents};

const ANSWERS: &[&str] = &["application/json", "application/yaml"];
const WATCHES: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/json;stream=watch",
];

pub(super) fn document(served: &ServedKinds) -> Value {
    let mut schemas = Schemas::new(Version::V2);
    let mut paths = Map::new();
    let mut add = |endpoint: Endpoint, tag: &str, schemas: &Schemas| {
        let item = path_item(&endpoint, tag, schemas);
        paths.insert(endpoint.path, item);
    };
    for (group, versions) in served.groups() {
        for version in versions {
            let tag = operations::tag(group, version);
            for kind in served.of(group, version) {
                for endpoint in operations::of(kind, &mut schemas) {
                    add(endpoint, &tag, &schemas);
                }
            }
            let root = root_documents::group_version_path(group, version);
            let resources = root_documents::resources(&format!("/{root}"), group, version, &mut schemas);
            add(resources, &tag, &schemas);
        }
    }
    for path in root_documents::paths(served) {
        if let Some((endpoint, tag)) = root_documents::endpoint(served, &path, &mut schemas) {
            add(endpoint, &tag, &schemas);
        }
    }
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": KUBERNETES_VERSION},
        "paths": paths,
        "definitions": schemas.finish(),
        "securityDefinitions": {
            "BearerToken": {
                "type": "apiKey",
                "in": "header",
                "name": "authorization",
                "description": "Bearer Token authentication",
            },
        },
        "security": [{"BearerToken": []}],
    })
}

fn parameters(list: &[&Parameter]) -> Vec<Value> {
    list.iter()
        .map(|parameter| {
            let mut body = json!({
                "name": parameter.name,
                "in": parameter.location,
                "description": parameter.description,
                "type": parameter.of,
                "uniqueItems": true,
            });
            if parameter.location == "path" {
                body["required"] = true.into();
            }
            body
        })
        .collect()
}

fn path_item(endpoint: &Endpoint, tag: &str, schemas: &Schemas) -> Value {
    let mut item = Map::new();
    if !endpoint.parameters.is_empty() {
        item.insert("parameters".into(), parameters(&endpoint.parameters).into());
    }
    for operation in &endpoint.operations {
        item.insert(operation.method.into(), rendered(operation, tag, schemas));
    }
    Value::Object(item)
}

fn rendered(operation: &Operation, tag: &str, schemas: &Schemas) -> Value {
    let schema = match &operation.response_type {
        Some(name) => schemas.reference(name),
        None => json!({"type": "string"}),
    };
    let produces = match &operation.response_type {
        Some(_) if operation.watchable => WATCHES.to_vec(),
        Some(_) => ANSWERS.to_vec(),
        None => vec![operation.text_type()],
    };
    let mut responses: Map<String, Value> = operation
        .codes
        .iter()
        .map(|code| {
            let response = json!({"description": super::meaning(*code), "schema": schema});
            (code.to_string(), response)
        })
        .collect();
    responses.insert("401".into(), json!({"description": super::meaning(401)}));

    let mut all = parameters(operation.parameters);
    let mut body_parameter = |name: &str, required: bool| {
        let mut parameter = json!({"name": "body", "in": "body", "schema": schemas.reference(name)});
        if required {
            parameter["required"] = true.into();
        }
        all.push(parameter);
    };
    let consumes = match &operation.body {
        Some(Body::Object(name)) => {
            body_parameter(name, true);
            &["*/*"]
        }
        Some(Body::Optional(name)) => {
            body_parameter(name, false);
            &["*/*"]
        }
        Some(Body::Patch(name)) => {
            body_parameter(name, true);
            super::PATCH_FORMS
        }
        None => &["*/*"][..],
    };
    let mut body = Map::new();
    body.insert("tags".into(), json!([tag]));
    body.insert("schemes".into(), json!(["https"]));
    body.insert("description".into(), operation.description.as_str().into());
    body.insert("operationId".into(), operation.id.as_str().into());
    body.insert("consumes".into(), consumes.into());
    body.insert("produces".into(), produces.into());
    if !all.is_empty() {
        body.insert("parameters".into(), all.into());
    }
    body.insert("responses".into(), responses.into());
    operation.mark(&mut body);
    Value::Object(body)
}
