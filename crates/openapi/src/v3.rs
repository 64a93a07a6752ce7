//! OpenAPI 3.0: one document a group version.

use knarr_api::registry::ServedKinds;
use serde_json::{Map, Value, json};

use super::operations::{self, Body, Endpoint, Operation};
use super::parameters::Parameter;
use super::schemas::Schemas;
use super::{KUBERNETES_VERSION, Version, root_documents};

/// The media types of responses.
const RESPONSE_MEDIA_TYPES: &[&str] = &["application/json", "application/yaml"];
const WATCHES: &[&str] = &[
    "application/json",
    "application/json;stream=watch",
    "application/yaml",
];

/// The document of a group version; `None` if nothing is served there.
pub(super) fn group_version(served: &ServedKinds, group: &str, version: &str) -> Option<Value> {
    let mut schemas = Schemas::new(Version::V3);
    let tag = operations::tag(group, version);
    let mut paths = Map::new();
    let mut root = None;
    for kind in served.of(group, version) {
        root.get_or_insert_with(|| operations::root(kind));
        for endpoint in operations::of(kind, &mut schemas) {
            paths.insert(endpoint.path.clone(), path_item(&endpoint, &tag, &schemas));
        }
    }
    let resources = root_documents::resources(&root?, group, version, &mut schemas);
    paths.insert(resources.path.clone(), path_item(&resources, &tag, &schemas));
    Some(document(paths, schemas.finish()))
}

/// A document of one path that belongs to no group version.
pub(super) fn single(endpoint: &Endpoint, tag: &str, schemas: Schemas) -> Value {
    let mut paths = Map::new();
    paths.insert(endpoint.path.clone(), path_item(endpoint, tag, &schemas));
    document(paths, schemas.finish())
}

fn document(paths: Map<String, Value>, schemas: Map<String, Value>) -> Value {
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": KUBERNETES_VERSION},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "BearerToken": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "authorization",
                    "description": "Bearer Token authentication",
                },
            },
        },
    })
}

fn parameters(list: &[&Parameter]) -> Value {
    list.iter()
        .map(|parameter| {
            let mut body = json!({
                "name": parameter.name,
                "in": parameter.location,
                "description": parameter.description,
                "schema": {"type": parameter.of, "uniqueItems": true},
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
        item.insert("parameters".into(), parameters(&endpoint.parameters));
    }
    for operation in &endpoint.operations {
        item.insert(operation.method.into(), rendered(operation, tag, schemas));
    }
    Value::Object(item)
}

fn content(types: &[&str], schema: &Value) -> Value {
    types
        .iter()
        .map(|t| (t.to_string(), json!({ "schema": schema })))
        .collect::<Map<_, _>>()
        .into()
}

fn rendered(operation: &Operation, tag: &str, schemas: &Schemas) -> Value {
    let response_content = match &operation.response_type {
        Some(name) if operation.watchable => content(WATCHES, &schemas.reference(name)),
        Some(name) => content(RESPONSE_MEDIA_TYPES, &schemas.reference(name)),
        None => content(&[operation.text_type()], &json!({"type": "string"})),
    };
    let mut responses: Map<String, Value> = operation
        .codes
        .iter()
        .map(|code| {
            let response = json!({"description": super::meaning(*code), "content": response_content});
            (code.to_string(), response)
        })
        .collect();
    responses.insert("401".into(), json!({"description": super::meaning(401)}));

    let mut body = Map::new();
    body.insert("tags".into(), json!([tag]));
    body.insert("description".into(), operation.description.as_str().into());
    body.insert("operationId".into(), operation.id.as_str().into());
    if !operation.parameters.is_empty() {
        body.insert("parameters".into(), parameters(operation.parameters));
    }
    let request = match &operation.body {
        Some(Body::Object(name)) => {
            Some(json!({"content": content(&["*/*"], &schemas.reference(name)), "required": true}))
        }
        Some(Body::Optional(name)) => Some(json!({"content": content(&["*/*"], &schemas.reference(name))})),
        Some(Body::Patch(name)) => {
            Some(json!({"content": content(super::PATCH_FORMS, &schemas.reference(name)), "required": true}))
        }
        None => None,
    };
    if let Some(request) = request {
        body.insert("requestBody".into(), request);
    }
    body.insert("responses".into(), responses.into());
    operation.mark(&mut body);
    Value::Object(body)
}
