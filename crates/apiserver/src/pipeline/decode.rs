//! Decodes bodies to objects: JSON, YAML and protobuf, strictly or with warnings.

use knarr_api::api_type::Ops;
use knarr_api::{AnyObject, Kind, registry};
use knarr_apimachinery::codec::{self, DecodeError, StrictError};
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::{Error, protobuf};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::yaml;
use crate::request::Ctx;

/// How unknown and duplicate fields are handled (`fieldValidation`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

/// The error for protobuf that does not begin with `k8s` and a zero byte.
const NO_ENVELOPE: &str =
    "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]";

const ACCEPTED: &str = "the body of the request was in an unknown format - accepted media types include: \
application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// A body as JSON.
#[derive(Debug)]
pub(crate) struct Json {
    bytes: bytes::Bytes,
    /// Duplicate keys of a YAML body, as Go's YAML parser reports them.
    twice: Vec<String>,
}

impl Json {
    pub(crate) fn bytes(&self) -> &bytes::Bytes {
        &self.bytes
    }
}

impl From<bytes::Bytes> for Json {
    fn from(bytes: bytes::Bytes) -> Self {
        Json {
            bytes,
            twice: Vec::new(),
        }
    }
}

impl std::ops::Deref for Json {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The media type of a header in lower case; `None` if its parameters are not valid (Go's `mime.ParseMediaType`).
fn media_type(content_type: &str) -> Option<String> {
    let mut parts = content_type.split(';').map(str::trim);
    let of = parts.next().unwrap_or("").to_ascii_lowercase();
    let mut parameters = parts.filter(|part| !part.is_empty());
    parameters
        .all(|part| {
            part.split_once('=')
                .is_some_and(|(name, _)| !name.trim().is_empty())
        })
        .then_some(of)
}

/// The body as JSON, from any media type. `kind` is the expected kind, for errors.
pub(crate) fn to_json(kind: &str, content_type: &str, body: bytes::Bytes) -> Result<Json, Error> {
    let Some(media_type) = media_type(content_type) else {
        return Err(Error::new(415, "UnsupportedMediaType", ACCEPTED));
    };
    match media_type.as_str() {
        "" | "application/json" => Ok(body.into()),
        "application/yaml" => {
            let text =
                std::str::from_utf8(&body).map_err(|e| unrecognized(kind, &format!("yaml: {e}"), &body))?;
            let (value, twice) =
                yaml::read(text).map_err(|why| unrecognized(kind, &format!("yaml: {why}"), &body))?;
            let bytes = serde_json::to_vec(&value).map_err(Error::internal)?.into();
            Ok(Json { bytes, twice })
        }
        "application/vnd.kubernetes.protobuf" => {
            let read = protobuf::read(&body).map_err(|e| match e {
                // Options are decoded as what they are, and not tried as other types.
                protobuf::Error::NoEnvelope if kind == "DeleteOptions" => Error::bad_request(NO_ENVELOPE),
                protobuf::Error::NoEnvelope => unrecognized(kind, NO_ENVELOPE, &body),
                e => Error::bad_request(format!("unable to decode the protobuf body of a {kind}: {e}")),
            })?;
            let bytes = serde_json::to_vec(&read.object).map_err(Error::internal)?;
            Ok(bytes::Bytes::from(bytes).into())
        }
        _ => Err(Error::new(415, "UnsupportedMediaType", ACCEPTED)),
    }
}

/// Why a body is not decoded as an object of the expected kind.
#[derive(Debug)]
pub(crate) enum BodyError {
    /// It is read as an object of a kind, but not of the expected one.
    CannotBeHandled(Box<CannotBeHandled>),
    /// It is not read as an object.
    Rejected(Box<Error>),
}

/// What a body is, and why it is not the expected object.
#[derive(Debug, thiserror::Error)]
#[error("{kind} in version {version:?} cannot be handled as a {expected}: {reason}")]
pub(crate) struct CannotBeHandled {
    kind: String,
    version: String,
    expected: String,
    pub reason: Reason,
}

/// Why a body cannot be handled as the expected object.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Reason {
    /// Fields that strict decoding rejects.
    #[error("strict decoding error: {}", .0.join(", "))]
    Strict(Vec<String>),
    #[error(transparent)]
    Value(DecodeError),
    /// It is of another kind.
    #[error("{0}")]
    Conversion(String),
    #[error("{0}")]
    Syntax(serde_json::Error),
}

impl BodyError {
    /// The reason, without the expected kind.
    pub(crate) fn reason(&self) -> String {
        match self {
            BodyError::CannotBeHandled(error) => error.reason.to_string(),
            BodyError::Rejected(error) => error.message().to_string(),
        }
    }

    /// Whether a value is a text that is not base64.
    pub(crate) fn is_base64(&self) -> bool {
        match self {
            BodyError::CannotBeHandled(error) => {
                matches!(&error.reason, Reason::Value(error) if error.is_base64)
            }
            BodyError::Rejected(_) => false,
        }
    }
}

impl From<BodyError> for Error {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::CannotBeHandled(error) => Error::bad_request(error.to_string()),
            BodyError::Rejected(error) => *error,
        }
    }
}

impl From<Error> for BodyError {
    fn from(error: Error) -> Self {
        BodyError::Rejected(Box::new(error))
    }
}

/// Decodes an object of `kind` from a request body.
pub(crate) fn decode_body(
    ctx: &mut Ctx,
    kind: &Kind,
    body: &Json,
    validation: FieldValidation,
) -> Result<Box<dyn AnyObject>, BodyError> {
    if kind.ops.custom().is_some() {
        check_custom_type(kind, body)?;
    }
    let of = (kind.kind(), kind.api_version());
    decode_with(ctx, (of.0, &of.1), &*kind.ops, body, validation)
}

/// Decodes a JSON object of `kind`.
pub(crate) fn decode(
    ctx: &mut Ctx,
    kind: &Kind,
    json: &[u8],
    validation: FieldValidation,
) -> Result<Box<dyn AnyObject>, BodyError> {
    let body = bytes::Bytes::copy_from_slice(json).into();
    decode_body(ctx, kind, &body, validation)
}

/// Decodes a document that is not an object of a registered kind: a Scale, a Binding, a TokenRequest.
pub(crate) fn decode_document<T: DeserializeOwned>(
    ctx: &mut Ctx,
    kind: &str,
    api_version: &str,
    json: &[u8],
) -> Result<T, Error> {
    let (document, unknown) = codec::read(json).map_err(|e| {
        let version = api_version.rsplit('/').next().unwrap_or(api_version);
        let error = match check_type(kind, api_version, json) {
            Err(error) => error,
            Ok(()) => cannot_be_handled(kind, version, kind, Reason::Value(e)),
        };
        Error::from(error)
    })?;
    for field in unknown {
        ctx.warn(field.to_string());
    }
    Ok(document)
}

/// The same as a JSON tree, for callers that need it before it is decoded.
pub(crate) fn decode_value(kind: &str, api_version: &str, json: &[u8]) -> Result<serde_json::Value, Error> {
    serde_json::from_slice(json).map_err(|e| {
        let version = api_version.rsplit('/').next().unwrap_or(api_version);
        let error = match check_type(kind, api_version, json) {
            Err(error) => error,
            Ok(()) => cannot_be_handled(kind, version, kind, Reason::Syntax(e)),
        };
        Error::from(error)
    })
}

/// Checks apiVersion and kind of a custom resource, which must be given.
fn check_custom_type(kind: &Kind, json: &[u8]) -> Result<(), Error> {
    let expected = kind.api_version();
    // With the parser that decodes it, so that a duplicate key means the same to both.
    let Ok((found, _)) = codec::read::<CustomTypeMeta>(json) else {
        // Decoding reports the error.
        return Ok(());
    };
    if found.kind.is_empty() {
        let text = String::from_utf8_lossy(json);
        return Err(unrecognized(
            kind.kind(),
            &format!("Object 'Kind' is missing in '{text}'"),
            json,
        ));
    }
    if found.api_version != expected {
        return Err(Error::bad_request(format!(
            "the API version in the data ({}) does not match the expected API version ({expected})",
            found.api_version
        )));
    }
    if found.kind != kind.kind() {
        let mut errors = ErrorList::new();
        errors.invalid(
            &Path::new("kind"),
            found.kind.as_str(),
            format!("must be {}", kind.kind()),
        );
        // The error has the name that the body has.
        let mut about = kind.kind_ref(&found.metadata.name);
        about.resource = &found.kind;
        return Err(Error::invalid(about, &errors));
    }
    Ok(())
}

/// Decodes a JSON object by the rules of its kind alone.
pub(crate) fn decode_with(
    ctx: &mut Ctx,
    (kind, api_version): (&str, &str),
    ops: &dyn Ops,
    json: &Json,
    validation: FieldValidation,
) -> Result<Box<dyn AnyObject>, BodyError> {
    let version = api_version.rsplit('/').next().unwrap_or(api_version);
    let decoded = match ops.decode(json) {
        Ok(decoded) => decoded,
        Err(e) => {
            check_type(kind, api_version, json)?;
            return Err(cannot_be_handled(kind, version, kind, Reason::Value(e)));
        }
    };
    let mut strict: Vec<String> = decoded.strict_errors.iter().map(StrictError::to_string).collect();
    match validation {
        FieldValidation::Strict if !strict.is_empty() || !json.twice.is_empty() => {
            if !json.twice.is_empty() {
                let twice = json.twice.join("\n  ");
                strict.insert(0, format!("yaml: unmarshal errors:\n  {twice}"));
            }
            return Err(cannot_be_handled(kind, version, kind, Reason::Strict(strict)));
        }
        FieldValidation::Warn => {
            let all = json.twice.iter().cloned().chain(strict);
            all.for_each(|w| ctx.warn(w));
        }
        _ => {}
    }
    Ok(decoded.object)
}

fn cannot_be_handled(kind: &str, version: &str, expected: &str, reason: Reason) -> BodyError {
    BodyError::CannotBeHandled(Box::new(CannotBeHandled {
        kind: kind.to_string(),
        version: version.to_string(),
        expected: expected.to_string(),
        reason,
    }))
}

fn unrecognized(kind: &str, why: &str, body: &[u8]) -> Error {
    Error::bad_request(format!(
        "the object provided is unrecognized (must be of type {kind}): {why} ({})",
        summary(body)
    ))
}

/// Longest part of a body that an error shows.
const SUMMARY_BYTES: usize = 30;

/// The beginning of a body: as text if it is like JSON, else in hexadecimal.
fn summary(body: &[u8]) -> String {
    let cut = &body[..body.len().min(SUMMARY_BYTES)];
    let more = if cut.len() < body.len() { " ..." } else { "" };
    if body.is_empty() {
        "<empty>".into()
    } else if body.trim_ascii_start().starts_with(b"{") {
        format!("{}{more}", String::from_utf8_lossy(cut))
    } else {
        let hex: String = cut.iter().map(|b| format!("{b:02x}")).collect();
        format!("{hex}{more}")
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct TypeMeta {
    api_version: String,
    kind: String,
}

/// apiVersion, kind and name of a custom resource.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CustomTypeMeta {
    api_version: String,
    kind: String,
    metadata: Named,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    name: String,
}

/// Checks whether a document that could not be decoded is of another type.
fn check_type(kind: &str, api_version: &str, json: &[u8]) -> Result<(), BodyError> {
    let found: TypeMeta = match serde_json::from_slice(json) {
        // A list would be decoded as the members of a struct, in order.
        Ok(_) if json.trim_ascii_start().first() == Some(&b'[') => {
            return Err(unrecognized(kind, &not_an_object(json), json).into());
        }
        Ok(found) => found,
        Err(e) if e.is_data() => match json.trim_ascii_start().first() {
            Some(b'{') => return Ok(()),
            _ => return Err(unrecognized(kind, &not_an_object(json), json).into()),
        },
        Err(e) => {
            let why = format!(
                "couldn't get version/kind; json parse error: {}",
                syntax(json, &e)
            );
            return Err(unrecognized(kind, &why, json).into());
        }
    };
    if found.api_version.matches('/').count() > 1 {
        let why = format!("unexpected GroupVersion string: {}", found.api_version);
        return Err(unrecognized(kind, &why, json).into());
    }
    let found_kind = if found.kind.is_empty() { kind } else { &found.kind };
    let found_version = if found.api_version.is_empty() {
        api_version
    } else {
        &found.api_version
    };
    if found_kind == kind && found_version == api_version {
        return Ok(());
    }
    let short = found_version.rsplit('/').next().unwrap_or(found_version);
    let other = registry::by_kind(found_version, found_kind);
    let expected = registry::by_kind(api_version, kind);
    if let (Some(other), Some(expected)) = (other, expected)
        && other.stored() == expected.stored()
    {
        let message = format!(
            "the API version in the data ({found_version}) does not match the expected API version ({api_version})"
        );
        return Err(Error::bad_request(message).into());
    }
    // The body is decoded as what its apiVersion and kind say, before that is compared with what was expected.
    if let Some(Err(e)) = other.map(|other| other.ops.decode(json)) {
        return Err(cannot_be_handled(found_kind, short, kind, Reason::Value(e)));
    }
    let known = other.is_some() || (found_version == "v1" && found_kind == "List");
    let why = if known {
        let group = |v: &str| match v.rsplit_once('/') {
            Some((group, _)) => group.split('.').next().unwrap_or(group).to_string(),
            None => "core".to_string(),
        };
        format!(
            "converting (v{}.{found_kind}) to ({}.{kind}): unknown conversion",
            short.trim_start_matches('v'),
            group(api_version)
        )
    } else {
        format!(
            "no kind {found_kind:?} is registered for version {found_version:?} in scheme \"pkg/api/legacyscheme/scheme.go:30\""
        )
    };
    Err(cannot_be_handled(
        found_kind,
        short,
        kind,
        Reason::Conversion(why),
    ))
}

fn not_an_object(json: &[u8]) -> String {
    let what = match json.trim_ascii_start().first() {
        Some(b'"') => "string",
        Some(b'[') => "array",
        Some(b't' | b'f') => "bool",
        _ => "number",
    };
    format!(
        "couldn't get version/kind; json parse error: json: cannot unmarshal {what} into Go value of type \
struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}"
    )
}

/// A syntax error as Go's JSON decoder reports it. `error` is serde_json's.
pub(crate) fn syntax(json: &[u8], error: &serde_json::Error) -> String {
    match codec::read::<IgnoredAny>(json) {
        Err(error) => error.message,
        // Its nesting is deeper than serde_json allows.
        Ok(_) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use knarr_api::k8s_openapi::jiff::Timestamp;
    use knarr_api::registry::CONFIG_MAP;

    use super::*;
    use crate::user::User;

    #[test]
    fn bodies_that_are_not_a_config_map_are_rejected() {
        let table: &[(&str, &str)] = &[
            (
                "",
                "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; \
json parse error: unexpected end of JSON input (<empty>)",
            ),
            (
                r#"{"apiVersion":"v1","kind":"Nope","metadata":{"name":"a"}}"#,
                "Nope in version \"v1\" cannot be handled as a ConfigMap: no kind \"Nope\" is registered for version \
\"v1\" in scheme \"pkg/api/legacyscheme/scheme.go:30\"",
            ),
            (
                r#"{"apiVersion":"v1","kind":"List","items":[]}"#,
                "List in version \"v1\" cannot be handled as a ConfigMap: converting (v1.List) to (core.ConfigMap): \
unknown conversion",
            ),
            (
                r#"{"apiVersion":"a/b/c","kind":"ConfigMap","metadata":{"name":"a"}}"#,
                "the object provided is unrecognized (must be of type ConfigMap): unexpected GroupVersion string: \
a/b/c ({\"apiVersion\":\"a/b/c\",\"kind\":\" ...)",
            ),
            (
                r#"{/*x*/"apiVersion":"v1"}"#,
                "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json \
parse error: invalid character '/' looking for beginning of object key string ({/*x*/\"apiVersion\":\"v1\"})",
            ),
        ];
        let mut ctx = Ctx::new(User::anonymous(), Timestamp::UNIX_EPOCH);
        for (body, message) in table {
            let error = decode(&mut ctx, &CONFIG_MAP, body.as_bytes(), FieldValidation::Warn).unwrap_err();
            assert_eq!(Error::from(error).message(), *message);
        }
    }
}
