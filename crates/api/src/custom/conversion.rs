//! Conversion between the versions of a custom resource by the webhook of its definition (strategy Webhook): the
//! ConversionReview, and the validation of its response.
//!
//! Of the metadata a webhook may change only labels and annotations. Nothing here calls the webhook.

use knarr_apimachinery::error::Error;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::meta;
use serde_json::{Map, Value, json};

use super::CustomObject;
use crate::any_object::AnyObject;
use crate::kind::Kind;

/// Why a conversion failed, as the metric `apiserver_conversion_webhook_request_total` distinguishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureType {
    Call,
    MalformedResponse,
    PartialResponse,
    InvalidConvertedObject,
}

impl FailureType {
    pub fn as_str(self) -> &'static str {
        match self {
            FailureType::Call => "conversion_webhook_call_failure",
            FailureType::MalformedResponse => "conversion_webhook_malformed_response_failure",
            FailureType::PartialResponse => "conversion_webhook_partial_response_failure",
            FailureType::InvalidConvertedObject => "conversion_webhook_invalid_converted_object_failure",
        }
    }
}

/// A conversion that failed. It is displayed as Kubernetes words it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("conversion webhook for {gvk} {message}")]
pub struct Failure {
    pub failure_type: FailureType,
    /// Group, version and kind of the objects that were to be converted.
    gvk: String,
    message: String,
}

impl Failure {
    /// The webhook could not be called.
    pub fn call(from: &ConversionRequest<'_>, why: &str) -> Self {
        from.failure(FailureType::Call, format!("failed: {why}"))
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Error::new(500, "", failure.to_string())
    }
}

/// A request to a webhook: objects of one kind to be converted to another version.
pub struct ConversionRequest<'a> {
    /// The objects are the items of a list: the failure's kind ends with `List`.
    pub of_list: bool,
    /// The version that a failure names: the list's own, or the object's.
    pub from: &'a Kind,
    pub to: &'a Kind,
    pub review_version: &'static str,
    pub uid: &'a str,
    pub objects: &'a [Value],
}

impl ConversionRequest<'_> {
    fn failure(&self, failure_type: FailureType, message: String) -> Failure {
        let kind = self.from;
        let list = if self.of_list { "List" } else { "" };
        Failure {
            failure_type,
            gvk: format!("{}, Kind={}{list}", kind.api_version(), kind.kind()),
            message,
        }
    }

    fn review_api_version(&self) -> String {
        format!("apiextensions.k8s.io/{}", self.review_version)
    }

    /// The ConversionReview that is sent.
    pub fn review(&self) -> Value {
        json!({
            "kind": "ConversionReview",
            "apiVersion": self.review_api_version(),
            "request": {
                "uid": self.uid,
                "desiredAPIVersion": self.to.api_version(),
                "objects": self.objects,
            },
        })
    }

    /// The converted objects of a response, in the order of the request, with their metadata restored.
    ///
    /// # Errors
    ///
    /// If the response does not belong to this request, reports a failure, or contains an object of another kind, version or name.
    pub fn read(&self, response: Value) -> Result<Vec<Value>, Failure> {
        let malformed = |why: String| self.failure(FailureType::MalformedResponse, format!("failed: {why}"));
        let text = |value: &Value, at: &str| {
            let found = value.pointer(at).and_then(Value::as_str);
            found.unwrap_or_default().to_string()
        };
        let mut review = response;
        let mut response = match review.pointer_mut("/response").map(Value::take) {
            Some(response @ Value::Object(_)) => response,
            _ => Value::Null,
        };
        if self.review_version == "v1" {
            let (found, kind) = (text(&review, "/apiVersion"), text(&review, "/kind"));
            let expected = self.review_api_version();
            if found != expected || kind != "ConversionReview" {
                return Err(malformed(format!(
                    "expected webhook response of {expected}, Kind=ConversionReview, got {found}, Kind={kind}"
                )));
            }
        }
        if response.is_null() {
            return Err(malformed("no response provided".into()));
        }
        let uid = text(&response, "/uid");
        if self.review_version == "v1" && uid != self.uid {
            return Err(malformed(format!(
                "expected response.uid={:?}, got {uid:?}",
                self.uid
            )));
        }
        let status = text(&response, "/result/status");
        if status != "Success" {
            let message = text(&response, "/result/message");
            return Err(malformed(match message.is_empty() {
                true => format!("response.result.status was '{status}', not 'Success'"),
                false => message,
            }));
        }
        let converted = match response.pointer_mut("/convertedObjects").map(Value::take) {
            Some(Value::Array(converted)) => converted,
            _ => Vec::new(),
        };
        if converted.len() != self.objects.len() {
            let message = format!(
                "returned {} objects, expected {}",
                converted.len(),
                self.objects.len()
            );
            return Err(self.failure(FailureType::PartialResponse, message));
        }
        let pairs = self.objects.iter().zip(converted).enumerate();
        pairs
            .map(|(i, (original, converted))| self.accepted(i, original, converted))
            .collect()
    }

    fn accepted(&self, index: usize, original: &Value, mut converted: Value) -> Result<Value, Failure> {
        let (of_object, of_version, of_metadata) = match self.of_list {
            true => {
                let object = format!("invalid converted object at index {index}");
                let metadata = format!("invalid metadata in object at index {index}");
                (object.clone(), object, metadata)
            }
            false => (
                "invalid object".to_string(),
                format!("invalid object at index {index}"),
                "invalid metadata".to_string(),
            ),
        };
        let invalid = |what: &str, why: String| {
            self.failure(
                FailureType::InvalidConvertedObject,
                format!("returned {what}: {why}"),
            )
        };
        let text = |value: &Value, at: &str| {
            let found = value.pointer(at).and_then(Value::as_str);
            found.unwrap_or_default().to_string()
        };
        let (expected, found) = (self.to.api_version(), text(&converted, "/apiVersion"));
        if expected != found {
            let why = format!("invalid groupVersion (expected {expected}, received {found})");
            return Err(invalid(&of_version, why));
        }
        let (expected, found) = (text(original, "/kind"), text(&converted, "/kind"));
        if expected != found {
            let why = format!("invalid kind (expected {expected}, received {found})");
            return Err(invalid(&of_version, why));
        }
        for (what, at) in [
            ("name", "/metadata/name"),
            ("namespace", "/metadata/namespace"),
            ("UID", "/metadata/uid"),
        ] {
            let (expected, found) = (text(original, at), text(&converted, at));
            if expected != found {
                let why = format!("must have the same {what}: {expected} != {found}");
                return Err(invalid(&of_object, why));
            }
        }
        let metadata = restored(original.get("metadata"), converted.get("metadata"))
            .map_err(|why| invalid(&of_metadata, why.to_string()))?;
        converted["metadata"] = Value::Object(metadata);
        Ok(converted)
    }
}

/// Why the metadata of a converted object is rejected.
#[derive(Debug, thiserror::Error)]
enum MetadataError {
    #[error("missing metadata in converted object")]
    Missing,
    #[error("invalid {field} of type {found} in converted object")]
    Type { field: String, found: &'static str },
    #[error("{field} must be a string, but is {found} in converted object")]
    NotAString { field: String, found: &'static str },
    #[error(transparent)]
    Invalid(ErrorList),
}

/// The original metadata with the labels and annotations of the converted object.
fn restored(
    original: Option<&Value>,
    converted: Option<&Value>,
) -> Result<Map<String, Value>, MetadataError> {
    let converted = match converted {
        None => return Err(MetadataError::Missing),
        Some(Value::Object(metadata)) => metadata,
        Some(other) => {
            return Err(MetadataError::Type {
                field: "metadata".into(),
                found: go_type(other),
            });
        }
    };
    let mut metadata = original.and_then(Value::as_object).cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        let found = match converted.get(field) {
            None | Some(Value::Null) => {
                metadata.remove(field);
                continue;
            }
            Some(Value::Object(found)) => found,
            Some(other) => {
                return Err(MetadataError::Type {
                    field: format!("metadata.{field}"),
                    found: go_type(other),
                });
            }
        };
        if let Some((key, value)) = found.iter().find(|(_, value)| !value.is_string()) {
            return Err(MetadataError::NotAString {
                field: format!("metadata.{field}[{key}]"),
                found: go_type(value),
            });
        }
        let was = metadata.get(field).and_then(Value::as_object);
        if was != Some(found) && !(was.is_none() && found.is_empty()) {
            let map = found
                .iter()
                .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_string())));
            let map = Some(map.collect());
            let errors = match field {
                "labels" => meta::labels(map.as_ref(), &Path::new("metadata").child("labels")),
                _ => meta::annotations(map.as_ref(), &Path::new("metadata").child("annotation")),
            };
            if !errors.is_empty() {
                return Err(MetadataError::Invalid(errors));
            }
        }
        metadata.insert(field.into(), Value::Object(found.clone()));
    }
    Ok(metadata)
}

/// Go's name of the type of a decoded value.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// The typed value of a converted object, pruned by its version's schema. It is not defaulted.
///
/// # Errors
///
/// If the metadata does not decode, or `kind` is not a custom kind.
pub fn object(kind: &Kind, converted: Value) -> Result<Box<dyn AnyObject>, Error> {
    let custom = kind
        .ops
        .custom()
        .ok_or_else(|| Error::internal(format!("{kind:?} is not a custom resource")))?;
    let object: CustomObject = custom.read_converted(converted).map_err(Error::internal)?;
    Ok(Box::new(object))
}

#[cfg(test)]
mod tests;
