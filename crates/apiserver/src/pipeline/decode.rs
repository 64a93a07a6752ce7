//! Bodies to objects: JSON, YAML and protobuf, strictly or with warnings.

use knarr_api::codec::{self, StrictError};
use knarr_api::field::{Errors, Path};
use knarr_api::strategy::Ops;
use knarr_api::{AnyObject, Error, Kind, protobuf, registry};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Ctx, yaml};

/// What to do about fields that the kind does not have (`fieldValidation`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

/// What is said of protobuf that does not begin with `k8s` and a zero.
const NO_ENVELOPE: &str =
    "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]";

const ACCEPTED: &str = "the body of the request was in an unknown format - accepted media types include: \
application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// A body as JSON.
#[derive(Debug)]
pub(crate) struct Json {
    bytes: bytes::Bytes,
    /// Keys that its YAML gives twice, in the words of Go's reader.
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

/// The media type of a header in lower case; `None` where its parameters are none (Go's `mime.ParseMediaType`).
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

/// The body as JSON, whatever it came as. `kind` is what it must be, for errors.
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
                // Options are read as what they are, and not tried as other types.
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

/// Decodes an object of `kind` that was sent.
pub(crate) fn decode_body(
    ctx: &mut Ctx,
    kind: &Kind,
    body: &Json,
    validation: FieldValidation,
) -> Result<Box<dyn AnyObject>, Error> {
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
) -> Result<Box<dyn AnyObject>, Error> {
    let body = bytes::Bytes::copy_from_slice(json).into();
    decode_body(ctx, kind, &body, validation)
}

/// Decodes a document that is no object of a kind with rules: a Scale, a Binding, a TokenRequest.
pub(crate) fn decode_document<T: DeserializeOwned>(
    ctx: &mut Ctx,
    kind: &str,
    api_version: &str,
    json: &[u8],
) -> Result<T, Error> {
    let (document, unknown) = codec::read(json).map_err(|e| {
        let version = api_version.rsplit('/').next().unwrap_or(api_version);
        match check_type(kind, api_version, json) {
            Err(why) => why,
            Ok(()) => cannot_be_handled(kind, version, kind, &e.message),
        }
    })?;
    for field in unknown {
        ctx.warn(field.to_string());
    }
    Ok(document)
}

/// The same as a tree, for those who must see it before it is decoded.
pub(crate) fn decode_value(kind: &str, api_version: &str, json: &[u8]) -> Result<serde_json::Value, Error> {
    serde_json::from_slice(json).map_err(|e| {
        let version = api_version.rsplit('/').next().unwrap_or(api_version);
        match check_type(kind, api_version, json) {
            Err(why) => why,
            Ok(()) => cannot_be_handled(kind, version, kind, &e.to_string()),
        }
    })
}

/// Objects of custom kinds say what they are; nothing is filled in for them.
fn check_custom_type(kind: &Kind, json: &[u8]) -> Result<(), Error> {
    let wanted = kind.api_version();
    // With the reader that decodes it, so that a key given twice means the same to both.
    let Ok((found, _)) = codec::read::<CustomTypeMeta>(json) else {
        // Decoding tells what is wrong with it.
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
    if found.api_version != wanted {
        return Err(Error::bad_request(format!(
            "the API version in the data ({}) does not match the expected API version ({wanted})",
            found.api_version
        )));
    }
    if found.kind != kind.kind() {
        let mut mistakes = Errors::new();
        mistakes.invalid(
            &Path::new("kind"),
            found.kind.as_str(),
            format!("must be {}", kind.kind()),
        );
        // It is named as what it says it is.
        let mut about = kind.about_kind(&found.metadata.name);
        about.resource = &found.kind;
        return Err(Error::invalid(about, &mistakes));
    }
    Ok(())
}

/// Decodes a JSON object of a kind by its rules alone.
pub(crate) fn decode_with(
    ctx: &mut Ctx,
    (kind, api_version): (&str, &str),
    ops: &dyn Ops,
    json: &Json,
    validation: FieldValidation,
) -> Result<Box<dyn AnyObject>, Error> {
    let version = api_version.rsplit('/').next().unwrap_or(api_version);
    let decoded = match ops.decode(json) {
        Ok(decoded) => decoded,
        Err(e) => {
            check_type(kind, api_version, json)?;
            return Err(cannot_be_handled(kind, version, kind, &e.message));
        }
    };
    let mut strict: Vec<String> = decoded.mistakes.iter().map(StrictError::to_string).collect();
    match validation {
        FieldValidation::Strict if !strict.is_empty() || !json.twice.is_empty() => {
            if !json.twice.is_empty() {
                let twice = json.twice.join("\n  ");
                strict.insert(0, format!("yaml: unmarshal errors:\n  {twice}"));
            }
            return Err(cannot_be_handled(
                kind,
                version,
                kind,
                &format!("strict decoding error: {}", strict.join(", ")),
            ));
        }
        FieldValidation::Warn => {
            let all = json.twice.iter().cloned().chain(strict);
            all.for_each(|w| ctx.warn(w));
        }
        _ => {}
    }
    Ok(decoded.object)
}

fn cannot_be_handled(found: &str, version: &str, wanted: &str, why: &str) -> Error {
    Error::bad_request(format!(
        "{found} in version {version:?} cannot be handled as a {wanted}: {why}"
    ))
}

fn unrecognized(kind: &str, why: &str, body: &[u8]) -> Error {
    Error::bad_request(format!(
        "the object provided is unrecognized (must be of type {kind}): {why} ({})",
        summary(body)
    ))
}

/// Longest piece of a body that an error shows.
const SUMMARY_BYTES: usize = 30;

/// The beginning of a body: as text where it looks like JSON, else in hexadecimal.
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

/// What a custom object says it is.
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

/// Why a document that did not decode is not of this type at all, if that is why.
fn check_type(kind: &str, api_version: &str, json: &[u8]) -> Result<(), Error> {
    let version = api_version.rsplit('/').next().unwrap_or(api_version);
    let found: TypeMeta = match serde_json::from_slice(json) {
        // A list would be read as its members in order.
        Ok(_) if json.trim_ascii_start().first() == Some(&b'[') => {
            return Err(unrecognized(kind, &not_an_object(json), json));
        }
        Ok(found) => found,
        Err(e) if e.is_data() => match json.trim_ascii_start().first() {
            Some(b'{') => return Ok(()),
            _ => return Err(unrecognized(kind, &not_an_object(json), json)),
        },
        Err(e) => {
            let why = format!(
                "couldn't get version/kind; json parse error: {}",
                syntax(json, &e)
            );
            return Err(unrecognized(kind, &why, json));
        }
    };
    if found.api_version.matches('/').count() > 1 {
        let why = format!("unexpected GroupVersion string: {}", found.api_version);
        return Err(unrecognized(kind, &why, json));
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
    let wanted = registry::by_kind(api_version, kind);
    if let (Some(other), Some(wanted)) = (other, wanted)
        && other.stored() == wanted.stored()
    {
        return Err(Error::bad_request(format!(
            "the API version in the data ({found_version}) does not match the expected API version ({api_version})"
        )));
    }
    // It is read as what it says it is before anybody looks whether that was wanted.
    if let Some(Err(e)) = other.map(|other| other.ops.decode(json)) {
        return Err(cannot_be_handled(found_kind, short, kind, &e.message));
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
    let _ = version;
    Err(cannot_be_handled(found_kind, short, kind, &why))
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

/// A syntax error in Go's words, as far as the place tells.
pub(crate) fn syntax(json: &[u8], error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "unexpected end of JSON input".into();
    }
    let line = json
        .split(|b| *b == b'\n')
        .nth(error.line().saturating_sub(1))
        .unwrap_or(json);
    let at = error.column().saturating_sub(1).min(line.len());
    let Some(found) = line.get(at..).and_then(|rest| rest.first()) else {
        return "unexpected end of JSON input".into();
    };
    let text = error.to_string();
    let place = if text.contains("key must be a string") {
        "looking for beginning of object key string"
    } else if text.contains("expected `:`") {
        "after object key"
    } else if text.contains("expected `,` or `}`") {
        "after object key:value pair"
    } else if text.contains("expected `,` or `]`") {
        "after array element"
    } else if text.contains("trailing characters") {
        "after top-level value"
    } else {
        "looking for beginning of value"
    };
    format!("invalid character {} {place}", quoted(*found))
}

/// A byte as Go's JSON reader shows it.
fn quoted(byte: u8) -> String {
    match byte {
        b'"' => "'\"'".into(),
        0x07 => "'\\a'".into(),
        0x08 => "'\\b'".into(),
        0x0b => "'\\v'".into(),
        0x0c => "'\\f'".into(),
        b'\n' | b'\r' | b'\t' | b'\'' | b'\\' => format!("'{}'", char::from(byte).escape_default()),
        0..0x20 | 0x7f => format!("'\\x{byte:02x}'"),
        // Not printable, as Go sees it.
        0x80..=0xa0 | 0xad => format!("'\\u{byte:04x}'"),
        _ => format!("'{}'", char::from(byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user::User;
    use knarr_api::k8s_openapi::jiff::Timestamp;
    use knarr_api::registry::CONFIG_MAP;

    #[test]
    fn bytes_that_are_no_json_are_shown_as_go_shows_them() {
        for (byte, shown) in [
            (0x1f, r"'\x1f'"),
            (b'\n', r"'\n'"),
            (b'\'', r"'\''"),
            (b'"', "'\"'"),
            (b'x', "'x'"),
            (0x8b, r"'\u008b'"),
            (0xff, "'\u{ff}'"),
        ] {
            assert_eq!(quoted(byte), shown);
        }
    }

    #[test]
    fn bodies_that_are_no_config_map_are_told_so() {
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
            assert_eq!(error.message(), *message);
        }
    }
}
