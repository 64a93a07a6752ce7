//! PATCH: JSON patch, merge patch and strategic merge patch over the object's encoding.

use std::sync::Arc;

use knarr_api::error::About;
use knarr_api::field::{Errors, FieldError};
use knarr_api::{AnyObject, Error, Object, field, patch};
use knarr_client::Preconditions;
use serde_json::Value;

use super::decode::{FieldValidation, decode, syntax};
use super::{Ctx, Target, with_empty_details};
use crate::server::Server;

/// A patch, read but not applied.
pub(crate) enum PatchBody {
    Json(Value),
    Merge(Value),
    Strategic(Value),
}

/// How many operations a JSON patch may have.
const JSON_PATCH_OPERATIONS_MAX: usize = 10_000;

impl PatchBody {
    /// By content type; 415 for one that is not served.
    pub(crate) fn parse(content_type: &str, body: &[u8]) -> Result<Self, Error> {
        let media_type = content_type.split(';').next().unwrap_or("").trim();
        let read = || serde_json::from_slice::<Value>(body);
        let object = || match read() {
            Ok(value @ Value::Object(_)) => Ok(value),
            Ok(Value::Null) => Err(Error::bad_request("Invalid JSON Patch")),
            Ok(other) => Err(Error::bad_request(format!(
                "error decoding patch: json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
                json_type(&other)
            ))),
            Err(e) => Err(Error::bad_request(format!(
                "error decoding patch: {}",
                syntax(body, &e)
            ))),
        };
        match media_type {
            "application/json-patch+json" => {
                let value = read()
                    .map_err(|e| Error::bad_request(format!("error decoding patch: {}", syntax(body, &e))))?;
                if let Some(operations) = value
                    .as_array()
                    .map(Vec::len)
                    .filter(|n| *n > JSON_PATCH_OPERATIONS_MAX)
                {
                    return Err(Error::new(
                        413,
                        "RequestEntityTooLarge",
                        format!(
                            "Request entity too large: The allowed maximum operations in a JSON patch is \
{JSON_PATCH_OPERATIONS_MAX}, got {operations}"
                        ),
                    ));
                }
                Ok(PatchBody::Json(value))
            }
            "application/merge-patch+json" => object().map(PatchBody::Merge),
            // Kubernetes reads this one elsewhere, and says so in fewer words.
            "application/strategic-merge-patch+json" if body.trim_ascii().is_empty() => {
                Err(Error::bad_request("unexpected end of JSON input"))
            }
            "application/strategic-merge-patch+json" => object().map(PatchBody::Strategic),
            "application/apply-patch+yaml" | "application/apply-patch+cbor" => Err(Error::new(
                415,
                "UnsupportedMediaType",
                "the body of the request was in an unknown format - server-side apply is not served yet; accepted \
media types include: application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json",
            )),
            _ => Err(with_empty_details(Error::new(
                415,
                "UnsupportedMediaType",
                "415: Unsupported Media Type",
            ))),
        }
    }

    fn apply(&self, target: &Target<'_>, doc: &mut Value) -> Result<(), Error> {
        match self {
            PatchBody::Json(patch) => patch::json::apply(doc, patch),
            PatchBody::Merge(patch) => {
                patch::merge::apply(doc, patch);
                Ok(())
            }
            PatchBody::Strategic(patch) => patch::strategic::apply(target.kind, doc, patch),
        }
    }
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::Object(_) => "object",
        Value::Null => "null",
    }
}

impl Server {
    pub(crate) async fn patch(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        body: &PatchBody,
        validation: FieldValidation,
    ) -> Result<Arc<Object>, Error> {
        self.update(ctx, target, &Preconditions::default(), &mut |ctx, old| {
            apply(ctx, target, body, validation, old)
        })
        .await
    }
}

/// The object that the patch makes of `old`.
fn apply(
    ctx: &mut Ctx,
    target: &Target<'_>,
    body: &PatchBody,
    validation: FieldValidation,
    old: &Object,
) -> Result<Box<dyn AnyObject>, Error> {
    let mut doc: Value = serde_json::from_slice(old.json()).map_err(Error::internal)?;
    let was = version_of(&doc);
    body.apply(target, &mut doc)?;
    // The version came from the object and not from the client, unless the patch changed it.
    let given = version_of(&doc);
    let json = serde_json::to_vec(&doc).map_err(Error::internal)?;
    let mut new = decode(ctx, target.kind, &json, validation).map_err(|e| unprocessable(&doc, &e))?;
    if given == was {
        new.metadata_mut().resource_version = None;
        if !target.kind.ops.unconditional_update() {
            new.metadata_mut().resource_version = was;
        }
    }
    Ok(new)
}

fn version_of(doc: &Value) -> Option<String> {
    Some(doc.get("metadata")?.get("resourceVersion")?.as_str()?.to_string())
}

/// The order in which Kubernetes writes metadata.
const METADATA: [&str; 15] = [
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
];

/// A patched document as Kubernetes shows it in a refusal: sorted, but for metadata.
fn shown(doc: &Value) -> String {
    let Value::Object(members) = doc else {
        return doc.to_string();
    };
    let member = |(key, value): (&String, &Value)| format!("{}:{value}", Value::from(key.as_str()));
    let shown = members.iter().map(|(key, value)| match value {
        Value::Object(meta) if key == "metadata" => {
            let place = |k: &String| METADATA.iter().position(|m| m == k).unwrap_or(METADATA.len());
            let mut sorted: Vec<_> = meta.iter().collect();
            sorted.sort_by_key(|(k, _)| place(k));
            let meta: Vec<String> = sorted.into_iter().map(member).collect();
            format!("\"metadata\":{{{}}}", meta.join(","))
        }
        _ => member((key, value)),
    });
    format!("{{{}}}", shown.collect::<Vec<_>>().join(","))
}

/// 422: what the patch made is no object of its kind.
fn unprocessable(doc: &Value, error: &Error) -> Error {
    let mut mistakes = Errors::new();
    mistakes.push(FieldError {
        cause: field::Cause::Invalid,
        field: "patch".into(),
        value: Some(format!("{:?}", shown(doc))),
        // What is wrong with it, without what it should have been.
        detail: match error.message().split_once(" cannot be handled as a ") {
            Some((_, rest)) => rest.split_once(": ").map_or(rest, |(_, why)| why).to_string(),
            None => error.message().to_string(),
        },
    });
    let about = About {
        group: "",
        resource: "",
        name: "",
    };
    Error::invalid(about, &mistakes)
}
