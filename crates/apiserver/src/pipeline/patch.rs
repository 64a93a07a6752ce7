//! PATCH: JSON patch, JSON merge patch and strategic merge patch on the object's encoding.

use std::sync::Arc;

use bytes::Bytes;
use knarr_api::{AnyObject, Kind, Object, patch};
use knarr_apimachinery::error::ResourceRef;
use knarr_apimachinery::field::{ErrorList, FieldError};
use knarr_apimachinery::{Error, codec, field};
use knarr_client::{Patch, Preconditions};
use serde_json::Value;

use super::Pipeline;
use super::decode::{BodyError, FieldValidation, Json, Reason, decode_body, syntax};
use super::metadata::check_name;
use super::patch_document::PatchDocument;
use super::preconditions::check_unconditional_update;
use crate::request::{Ctx, Target, with_empty_details};

/// A parsed patch.
pub(crate) struct PatchBody {
    patch: Patch,
    /// Fields of the patch that strict decoding rejects, whatever it is applied to.
    strict_errors: Vec<String>,
}

impl From<Patch> for PatchBody {
    fn from(patch: Patch) -> Self {
        PatchBody {
            patch,
            strict_errors: Vec::new(),
        }
    }
}

impl PatchBody {
    /// Like [`PatchBody::parse`]; strategic merge patch is for built-in kinds only, and kube-apiserver's handler of custom resources has another
    /// error.
    pub(crate) fn parse_for(kind: &Kind, content_type: &str, body: &[u8]) -> Result<Self, Error> {
        let media = content_type.split(';').next().unwrap_or("").trim();
        let is_taken = matches!(
            media,
            "application/json-patch+json" | "application/merge-patch+json"
        );
        if kind.ops.custom().is_some() && !is_taken {
            return Err(Error::new(
                415,
                "UnsupportedMediaType",
                "the body of the request was in an unknown format - accepted media types include: \
application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
            ));
        }
        Self::parse(content_type, body)
    }

    /// Parses a patch by its content type; 415 for one that is not supported.
    pub(crate) fn parse(content_type: &str, body: &[u8]) -> Result<Self, Error> {
        let read = |prefix: &str| {
            serde_json::from_slice::<Value>(body)
                .map_err(|e| Error::bad_request(format!("{prefix}{}", syntax(body, &e))))
        };
        let patch = match content_type.split(';').next().unwrap_or("").trim() {
            "application/json-patch+json" => Patch::Json(read("error decoding patch: ")?),
            "application/merge-patch+json" => Patch::Merge(read("error decoding patch: ")?),
            // Kubernetes decodes this one elsewhere, with a shorter error.
            "application/strategic-merge-patch+json" => Patch::Strategic(read("")?),
            _ => {
                return Err(with_empty_details(Error::new(
                    415,
                    "UnsupportedMediaType",
                    "415: Unsupported Media Type",
                )));
            }
        };
        let mut strict_errors: Vec<String> = match codec::read::<Value>(body) {
            Ok((_, strict_errors)) => strict_errors.iter().map(ToString::to_string).collect(),
            Err(e) => return Err(Error::bad_request(format!("error decoding patch: {e}"))),
        };
        if let Patch::Json(operations) = &patch {
            let unknown = patch::json::unknown_fields(operations).into_iter();
            strict_errors.extend(unknown.map(|field| format!("unknown field {field:?}")));
            for error in &mut strict_errors {
                error.insert_str(0, "json patch ");
            }
        }
        Ok(PatchBody { patch, strict_errors })
    }

    fn apply(&self, target: &Target<'_>, doc: &mut Value) -> Result<(), Error> {
        match &self.patch {
            Patch::Strategic(patch) => patch::strategic::apply(target.kind, doc, patch),
            _ => self.apply_to_scale(doc),
        }
    }

    /// Applies the patch to a Scale.
    pub(crate) fn apply_to_scale(&self, doc: &mut Value) -> Result<(), Error> {
        match &self.patch {
            Patch::Json(patch) => patch::json::apply(doc, patch),
            Patch::Merge(patch) => {
                patch::merge::check(patch)?;
                patch::merge::apply(doc, patch);
                Ok(())
            }
            Patch::Strategic(patch) => patch::strategic::apply_to_scale(doc, patch),
        }
    }

    /// Reports the patch's duplicate and unknown fields as warnings, or returns them for an error, by `fieldValidation`.
    fn report_strict_errors(&self, ctx: &mut Ctx, validation: FieldValidation) -> Vec<String> {
        let all = &self.strict_errors;
        match validation {
            FieldValidation::Strict => return all.clone(),
            FieldValidation::Warn => all.iter().for_each(|error| ctx.warn(error.as_str())),
            FieldValidation::Ignore => {}
        }
        Vec::new()
    }

    /// 422: the result `doc` of the patch is not an object of its kind.
    pub(crate) fn unprocessable(&self, doc: &Value, why: &str) -> Error {
        let (value, why) = match &self.patch {
            Patch::Strategic(patch) => (
                patch::go_value(patch),
                patch::conversion::converter_message(why).unwrap_or_else(|| why.to_string()),
            ),
            Patch::Json(_) | Patch::Merge(_) => (shown(doc), why.to_string()),
        };
        let mut errors = ErrorList::new();
        errors.push(FieldError {
            cause: field::Cause::Invalid,
            field: "patch".into(),
            value: Some(format!("{value:?}")),
            detail: why,
        });
        let about = ResourceRef {
            group: "",
            resource: "",
            name: "",
        };
        Error::invalid(about, &errors)
    }
}

impl Pipeline {
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

/// The result of the patch applied to `old`; with a resourceVersion only if the patch sets one.
fn apply(
    ctx: &mut Ctx,
    target: &Target<'_>,
    body: &PatchBody,
    validation: FieldValidation,
    old: &Object,
) -> Result<Box<dyn AnyObject>, Error> {
    let mut document = PatchDocument::new(&body.patch, target.kind, old.json())?;
    let was = version_of(&document.read);
    body.apply(target, &mut document.read)?;
    let doc = &document.read;
    // Without its apiVersion the document is decoded as Kubernetes' internal type, which has no metadata.
    let typed = doc.get("apiVersion").and_then(Value::as_str);
    let is_untyped = document.is_whole() && typed.is_none_or(str::is_empty);
    if is_untyped && !matches!(body.patch, Patch::Strategic(_)) {
        let unknown: Vec<String> = doc
            .as_object()
            .into_iter()
            .flat_map(|members| members.keys())
            .filter(|key| !matches!(key.as_str(), "apiVersion" | "kind"))
            .map(|key| format!("unknown field {key:?}"))
            .collect();
        match validation {
            FieldValidation::Strict => {
                return Err(body.unprocessable(doc, &Reason::Strict(unknown).to_string()));
            }
            FieldValidation::Warn => unknown.into_iter().for_each(|w| ctx.warn(w)),
            FieldValidation::Ignore => {}
        }
        return Err(Error::bad_request(format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            target.name
        )));
    }
    // The resourceVersion is the object's and not the client's, unless the patch changed it.
    let given = version_of(doc);
    let json = Json::from(Bytes::from(document.to_json()?));
    let mut own = body.report_strict_errors(ctx, validation);
    let new = match decode_body(ctx, target.kind, &json, validation) {
        Ok(new) if own.is_empty() => Ok(new),
        Ok(_) => Err(Reason::Strict(own).to_string()),
        Err(BodyError::CannotBeHandled(error)) => Err(match error.reason {
            Reason::Strict(more) => {
                own.extend(more);
                Reason::Strict(own).to_string()
            }
            reason => reason.to_string(),
        }),
        Err(error) => Err(error.reason()),
    };
    // The error shows the whole document.
    let mut new = new.map_err(|why| match serde_json::from_slice::<Value>(json.bytes()) {
        Ok(doc) => body.unprocessable(&doc, &why),
        Err(error) => Error::internal(error),
    })?;
    if new.metadata().name.as_deref().unwrap_or("").is_empty() {
        check_name(target, &*new)?;
    }
    if given == was {
        new.metadata_mut().resource_version = None;
    } else {
        check_unconditional_update(target, &*new)?;
    }
    Ok(new)
}

fn version_of(doc: &Value) -> Option<String> {
    Some(doc.get("metadata")?.get("resourceVersion")?.as_str()?.to_string())
}

/// The order in which Kubernetes encodes metadata.
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

/// A patched document as Kubernetes shows it in an error: sorted, except metadata.
fn shown(doc: &Value) -> String {
    let Value::Object(members) = doc else {
        return doc.to_string();
    };
    let member = |(key, value): (&String, &Value)| format!("{}:{value}", Value::from(key.as_str()));
    let shown = members.iter().map(|(key, value)| match value {
        Value::Object(meta) if key == "metadata" => {
            let position = |k: &String| METADATA.iter().position(|m| m == k).unwrap_or(METADATA.len());
            let mut sorted: Vec<_> = meta.iter().collect();
            sorted.sort_by_key(|(k, _)| position(k));
            let meta: Vec<String> = sorted
                .into_iter()
                .map(|(key, value)| match value {
                    Value::Array(entries) if key == "managedFields" => {
                        let entries: Vec<String> = entries.iter().map(shown_entry).collect();
                        format!("\"managedFields\":[{}]", entries.join(","))
                    }
                    _ => member((key, value)),
                })
                .collect();
            format!("\"metadata\":{{{}}}", meta.join(","))
        }
        _ => member((key, value)),
    });
    format!("{{{}}}", shown.collect::<Vec<_>>().join(","))
}

/// The order in which Kubernetes encodes an entry of managedFields.
const MANAGED: [&str; 7] = [
    "manager",
    "operation",
    "apiVersion",
    "time",
    "fieldsType",
    "fieldsV1",
    "subresource",
];

fn shown_entry(entry: &Value) -> String {
    let members = MANAGED
        .iter()
        .filter_map(|key| Some(format!("{key:?}:{}", entry.get(key)?)));
    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_that_cannot_be_decoded_are_rejected() {
        for (media, body, code, message) in [
            (
                "json-patch",
                "",
                400,
                "error decoding patch: unexpected end of JSON input",
            ),
            (
                "merge-patch",
                "",
                400,
                "error decoding patch: unexpected end of JSON input",
            ),
            ("strategic-merge-patch", "", 400, "unexpected end of JSON input"),
            ("yaml-patch", "{}", 415, "415: Unsupported Media Type"),
        ] {
            let media = format!("application/{media}+json; charset=utf-8");
            let error = PatchBody::parse(&media, body.as_bytes()).err().expect(message);
            assert_eq!((error.code(), error.message()), (code, message), "{media}");
        }
    }

    #[test]
    fn duplicate_and_unknown_fields_of_a_patch_are_reported() {
        for (media, body, strict_errors) in [
            (
                "merge-patch",
                r#"{"data":{"a":"1","a":"2"},"b":null}"#,
                vec![r#"duplicate field "data.a""#],
            ),
            ("strategic-merge-patch", r#"{"data":{"a":"1"}}"#, vec![]),
            (
                "json-patch",
                r#"[{"op":"test","op":"add","path":"/a","value":1,"vale":2}]"#,
                vec![
                    r#"json patch duplicate field "[0].op""#,
                    r#"json patch unknown field "[0].vale""#,
                ],
            ),
        ] {
            let body = PatchBody::parse(&format!("application/{media}+json"), body.as_bytes()).expect(body);
            assert_eq!(body.strict_errors, strict_errors, "{media}");
        }
    }
}
