//! Server-side apply (KEP-555): a PATCH with the fields that a field manager wants to set, and no others.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusCause;
use knarr_api::managed_fields::{
    Applied, ApplyError, Conflicts, Conversions, LAST_APPLIED, ManagerId, Operation, blank,
    last_applied_fields,
};
use knarr_api::{AnyObject, Kind, Object, k8s_openapi};
use knarr_apimachinery::codec::StrictError;
use knarr_apimachinery::{Error, codec};
use serde_json::Value;

use super::decode::{BodyError, FieldValidation, decode};
use super::managed_fields::{OnFailure, of, without_managed_fields};
use super::metadata::check_name;
use super::update::Updated;
use super::{Pipeline, seconds, yaml};
use crate::cache::{MODIFIED, WRITE_ATTEMPTS, Written};
use crate::request::{Ctx, Target};

/// The field manager whose client-side apply configuration is migrated.
const KUBECTL: &str = "kubectl";

/// A parsed apply configuration.
pub(crate) struct ApplyBody {
    pub(crate) config: Value,
    /// Fields that strict decoding rejects.
    strict_errors: Vec<String>,
}

/// The options of an apply.
pub(crate) struct ApplyOptions {
    pub manager: String,
    pub force: bool,
    pub validation: FieldValidation,
}

impl ApplyBody {
    /// Parses YAML, of which JSON is a part.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Error> {
        let wrong = |why: String| Error::bad_request(format!("error decoding YAML: {why}"));
        let (config, strict_errors) = match codec::read::<Value>(body) {
            Ok((config, strict_errors)) => {
                let message = strict_errors.iter().map(|error| {
                    let (StrictError::DuplicateField(path) | StrictError::UnknownField(path)) = error;
                    let key = path.rsplit('.').next().unwrap_or(path);
                    format!(
                        "line {}: key {key:?} already set in map",
                        line_of_second(body, key)
                    )
                });
                (config, message.collect())
            }
            Err(_) => {
                let text = std::str::from_utf8(body).map_err(|e| wrong(e.to_string()))?;
                yaml::read(text)
                    .map_err(|why| wrong(format!("error converting YAML to JSON: yaml: {why}")))?
            }
        };
        let form = match &config {
            Value::Object(_) | Value::Null => {
                return Ok(ApplyBody {
                    config,
                    strict_errors,
                });
            }
            Value::Array(_) => "array",
            Value::String(_) => "string",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
        };
        Err(wrong(format!(
            "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {form} into Go value of type \
map[string]interface {{}}"
        )))
    }

    fn text(&self, pointer: &str) -> &str {
        self.config.pointer(pointer).and_then(Value::as_str).unwrap_or("")
    }

    /// Group, version and kind as Go prints them.
    fn gvk(&self) -> String {
        let (version, kind) = (self.text("/apiVersion"), self.text("/kind"));
        let version = match version.contains('/') {
            true => version.to_string(),
            false => format!("/{version}"),
        };
        format!("{version}, Kind={kind}")
    }

    /// The configuration must have this apiVersion and kind.
    pub(crate) fn check_type(&self, kind: &Kind) -> Result<(), Error> {
        if self.text("/kind") == kind.kind() && self.text("/apiVersion") == kind.api_version() {
            return Ok(());
        }
        Err(Error::bad_request(format!("invalid object type: {}", self.gvk())))
    }

    /// The error for a configuration that could not be applied.
    pub(crate) fn apply_error(&self, error: ApplyError) -> Error {
        match error {
            ApplyError::Conflicts(conflicts) => conflict_error(&conflicts),
            ApplyError::Schema(errors) => {
                let message = match &errors[..] {
                    [one] => one.clone(),
                    many => format!("errors:\n  {}", many.join("\n  ")),
                };
                let (namespace, name) = (self.text("/metadata/namespace"), self.text("/metadata/name"));
                let gvk = self.gvk();
                let message =
                    format!("failed to create typed patch object ({namespace}/{name}; {gvk}): {message}");
                Error::new(500, "", message)
            }
        }
    }
}

/// The line of a JSON text in which a key occurs for the second time.
fn line_of_second(body: &[u8], key: &str) -> usize {
    let text = String::from_utf8_lossy(body);
    let quoted = format!("{key:?}");
    let second = text.match_indices(&quoted).nth(1).map_or(0, |(at, _)| at);
    1 + text[..second].matches('\n').count()
}

impl Pipeline {
    pub(crate) async fn apply(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        body: &ApplyBody,
        options: &ApplyOptions,
    ) -> Result<Updated, Error> {
        body.check_type(target.kind)?;
        if body
            .config
            .pointer("/metadata/managedFields")
            .is_some_and(|m| !m.is_null())
        {
            return Err(Error::bad_request("metadata.managedFields must be nil"));
        }
        // Apply itself computes the managed fields; the write must not track them again.
        ctx.manager = None;
        for _ in 0..WRITE_ATTEMPTS {
            match self.stored(ctx, target).await? {
                Some(stored) => {
                    let shown = self.converter.object(&stored, target.kind).await?;
                    let new = self
                        .apply_configuration(ctx, target, Some(&shown), body, options)
                        .await?;
                    if let Written::Done(object) = self.update_once(ctx, target, &stored, new).await? {
                        let object = self.converter.object(&object, target.kind).await?;
                        return Ok(Updated {
                            object,
                            created: false,
                        });
                    }
                }
                None if !target.subresource.is_empty() => {
                    return Err(Error::not_found(target.resource_ref()));
                }
                None => {
                    let uid = body.text("/metadata/uid");
                    if !uid.is_empty() {
                        let why = format!(
                            "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                        );
                        return Err(Error::conflict(target.resource_ref(), &why));
                    }
                    self.authorize_create(ctx, target)?;
                    let mut new = self.apply_configuration(ctx, target, None, body, options).await?;
                    check_name(target, &*new)?;
                    // Whatever resourceVersion was given, no object exists.
                    new.metadata_mut().resource_version = None;
                    match self.create(ctx, target, new).await {
                        // Another client created it in between: applied to that object.
                        Err(e) if e.reason() == "AlreadyExists" => {}
                        created => {
                            let object = created?;
                            return Ok(Updated {
                                object,
                                created: true,
                            });
                        }
                    }
                }
            }
        }
        Err(Error::conflict(target.resource_ref(), MODIFIED))
    }

    /// The object with the configuration applied to it, with its managed fields.
    async fn apply_configuration(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        live: Option<&Arc<Object>>,
        body: &ApplyBody,
        options: &ApplyOptions,
    ) -> Result<Box<dyn AnyObject>, Error> {
        let kind = target.kind;
        let before = match live {
            Some(live) => without_managed_fields(live.json())?,
            None => blank(kind).clone(),
        };
        let managed = of(live.map(|l| &**l));
        let by = ManagerId::new(&options.manager, Operation::Apply, kind, target.subresource);
        let now = seconds(ctx.now);
        let apply = |conversions: &mut Conversions| {
            let mut apply = |force| {
                let managed = managed.clone();
                let objects = (&before, &body.config);
                managed.apply_with(kind, objects, by.clone(), (force, now), conversions)
            };
            match apply(options.force) {
                Err(ApplyError::Conflicts(conflicts)) if options.manager == KUBECTL => {
                    match remaining_conflicts(&conflicts, last_applied_fields(kind, &before)) {
                        Some(remaining) => Err(ApplyError::Conflicts(remaining)),
                        None => apply(true),
                    }
                }
                other => other,
            }
        };
        let applied = self.with_conversions(OnFailure::Fail, apply).await?;
        let applied = applied.map_err(|why| body.apply_error(why))?;
        report_strict_errors(ctx, body, options.validation)?;
        finish(ctx, target, &before, body, options, applied)
    }
}

/// The conflicts that remain without the fields that a client-side apply set; `None` if none remains.
fn remaining_conflicts(
    conflicts: &Conflicts,
    allowed: Option<knarr_api::managed_fields::FieldSet>,
) -> Option<Conflicts> {
    let allowed = allowed.unwrap_or_default();
    let remaining = conflicts
        .0
        .iter()
        .map(|(id, set)| (id.clone(), set.clone().difference(&allowed)));
    let remaining: std::collections::BTreeMap<_, _> = remaining.filter(|(_, set)| !set.is_empty()).collect();
    (!remaining.is_empty()).then_some(Conflicts(remaining))
}

fn conflict_error(conflicts: &Conflicts) -> Error {
    let mut error = Error::new(409, "Conflict", conflicts.to_string());
    let causes = conflicts.0.iter().flat_map(|(id, set)| {
        let cause = |path| StatusCause {
            reason: Some("FieldManagerConflict".into()),
            message: Some(format!("conflict with {id}")),
            field: Some(path),
        };
        set.paths().into_iter().map(cause).collect::<Vec<_>>()
    });
    error.status_mut().details.get_or_insert_default().causes = Some(causes.collect());
    error
}

/// Reports the configuration's duplicate fields as warnings, or as an error, by `fieldValidation`.
fn report_strict_errors(ctx: &mut Ctx, body: &ApplyBody, validation: FieldValidation) -> Result<(), Error> {
    match validation {
        FieldValidation::Strict if !body.strict_errors.is_empty() => Err(Error::bad_request(format!(
            "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  {}",
            body.strict_errors.join("\n  ")
        ))),
        FieldValidation::Warn => {
            body.strict_errors.iter().for_each(|m| ctx.warn(m.as_str()));
            Ok(())
        }
        _ => Ok(()),
    }
}

fn finish(
    ctx: &mut Ctx,
    target: &Target<'_>,
    before: &Value,
    body: &ApplyBody,
    options: &ApplyOptions,
    applied: Applied,
) -> Result<Box<dyn AnyObject>, Error> {
    let mut object = applied.object.unwrap_or_else(|| before.clone());
    let annotations = object
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut);
    if options.manager == KUBECTL
        && let Some(annotations) = annotations
        && annotations
            .get(LAST_APPLIED)
            .and_then(Value::as_str)
            .is_some_and(|a| !a.is_empty())
    {
        let mut config = body.config.clone();
        if let Some(own) = config
            .pointer_mut("/metadata/annotations")
            .and_then(Value::as_object_mut)
        {
            own.remove(LAST_APPLIED);
        }
        annotations.insert(LAST_APPLIED.into(), format!("{config}\n").into());
    }
    let json = serde_json::to_vec(&object).map_err(Error::internal)?;
    let mut new =
        decode(ctx, target.kind, &json, FieldValidation::Ignore).map_err(|e| not_typed(body, &e))?;
    let meta = new.metadata_mut();
    meta.managed_fields = applied.managed.encode();
    // The resourceVersion of the configuration, if it has one; else the update is unconditional.
    let given = body.text("/metadata/resourceVersion");
    meta.resource_version = Some(given.to_string()).filter(|v| !v.is_empty());
    Ok(new)
}

/// The error for an object that is valid by its schema but cannot be decoded as its type: a time that does not parse, a text that is not base64.
fn not_typed(body: &ApplyBody, error: &BodyError) -> Error {
    let (namespace, name, gvk) = (
        body.text("/metadata/namespace"),
        body.text("/metadata/name"),
        body.gvk(),
    );
    let why = error.reason();
    let from_json = if error.is_base64() {
        "error decoding from json: "
    } else {
        ""
    };
    let message = format!(
        "failed to convert new object ({namespace}/{name}; {gvk}) to proper version: unable to convert unstructured object to {gvk}: \
         {from_json}{why}"
    );
    Error::new(500, "", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_that_cannot_be_applied_are_rejected() {
        for (body, message) in [
            (
                "[]",
                "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal array into Go \
value of type map[string]interface {}",
            ),
            (
                "7",
                "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal number into Go \
value of type map[string]interface {}",
            ),
        ] {
            let error = ApplyBody::parse(body.as_bytes()).err().expect(body);
            assert_eq!((error.code(), error.message()), (400, message));
        }
        assert_eq!(
            ApplyBody::parse(b"").unwrap_or_else(|e| panic!("{e}")).gvk(),
            "/, Kind="
        );
        let yaml =
            ApplyBody::parse(b"apiVersion: apps/v1\nkind: Deployment\n").unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(yaml.gvk(), "apps/v1, Kind=Deployment");
    }

    #[test]
    fn keys_given_twice_are_known_with_their_line() {
        let body = ApplyBody::parse(b"{\"data\":{\"k\":1,\n\"k\":2}}").unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(body.strict_errors, ["line 2: key \"k\" already set in map"]);
        assert_eq!(body.config["data"]["k"], 2);
    }
}
