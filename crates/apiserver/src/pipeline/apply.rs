//! Server-side apply (KEP-555): a PATCH with the fields that somebody wants to have set, and no others.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusCause;
use knarr_api::codec::StrictError;
use knarr_api::managed_fields::{
    Applied, Conflicts, Conversions, LAST_APPLIED, ManagerId, Operation, Refused, blank, last_applied_fields,
};
use knarr_api::{AnyObject, Error, Kind, Object, codec, k8s_openapi};
use serde_json::Value;

use super::decode::{FieldValidation, decode};
use super::managed_fields::{OnFailure, bare, of};
use super::patch::reason;
use super::update::Updated;
use super::{Ctx, MODIFIED, Target, WRITE_ATTEMPTS, seconds, yaml};
use crate::cache::Written;
use crate::server::Server;

/// Whose client-side configuration is taken over.
const KUBECTL: &str = "kubectl";

/// What somebody applies, read.
pub(crate) struct ApplyBody {
    pub(crate) config: Value,
    /// What the strict reader has against it.
    mistakes: Vec<String>,
}

/// How it is applied.
pub(crate) struct ApplyOptions {
    pub manager: String,
    pub force: bool,
    pub validation: FieldValidation,
}

impl ApplyBody {
    /// YAML, which JSON is too.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Error> {
        let wrong = |why: String| Error::bad_request(format!("error decoding YAML: {why}"));
        let (config, mistakes) = match codec::read::<Value>(body) {
            Ok((config, mistakes)) => {
                let said = mistakes.iter().map(|mistake| {
                    let (StrictError::Twice(path) | StrictError::Unknown(path)) = mistake;
                    let key = path.rsplit('.').next().unwrap_or(path);
                    format!(
                        "line {}: key {key:?} already set in map",
                        line_of_second(body, key)
                    )
                });
                (config, said.collect())
            }
            Err(_) => {
                let text = std::str::from_utf8(body).map_err(|e| wrong(e.to_string()))?;
                yaml::read(text)
                    .map_err(|why| wrong(format!("error converting YAML to JSON: yaml: {why}")))?
            }
        };
        let form = match &config {
            Value::Object(_) | Value::Null => return Ok(ApplyBody { config, mistakes }),
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

    /// What is applied must say that it is of this kind.
    pub(crate) fn check_type(&self, kind: &Kind) -> Result<(), Error> {
        if self.text("/kind") == kind.kind() && self.text("/apiVersion") == kind.api_version() {
            return Ok(());
        }
        Err(Error::bad_request(format!("invalid object type: {}", self.gvk())))
    }

    /// The answer to one whose configuration was refused.
    pub(crate) fn refusal(&self, refused: Refused) -> Error {
        match refused {
            Refused::Conflicts(conflicts) => conflict_error(&conflicts),
            Refused::Mistakes(mistakes) => {
                let said = match &mistakes[..] {
                    [one] => one.clone(),
                    many => format!("errors:\n  {}", many.join("\n  ")),
                };
                let (namespace, name) = (self.text("/metadata/namespace"), self.text("/metadata/name"));
                let gvk = self.gvk();
                let said = format!("failed to create typed patch object ({namespace}/{name}; {gvk}): {said}");
                Error::new(500, "", said)
            }
        }
    }
}

/// In which line a key of a JSON text stands for the second time.
fn line_of_second(body: &[u8], key: &str) -> usize {
    let text = String::from_utf8_lossy(body);
    let quoted = format!("{key:?}");
    let second = text.match_indices(&quoted).nth(1).map_or(0, |(at, _)| at);
    1 + text[..second].matches('\n').count()
}

impl Server {
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
        // Who holds what is decided here, and not by what the write then changes.
        ctx.manager = None;
        for _ in 0..WRITE_ATTEMPTS {
            match self.stored(ctx, target).await? {
                Some(stored) => {
                    let shown = self.converter.object(&stored, target.kind).await?;
                    let new = self.configured(ctx, target, Some(&shown), body, options).await?;
                    if let Written::Done(object) = self.update_once(ctx, target, &stored, new).await? {
                        let object = self.converter.object(&object, target.kind).await?;
                        return Ok(Updated {
                            object,
                            created: false,
                        });
                    }
                }
                None if !target.subresource.is_empty() => return Err(Error::not_found(target.about())),
                None => {
                    let uid = body.text("/metadata/uid");
                    if !uid.is_empty() {
                        let why = format!(
                            "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                        );
                        return Err(Error::conflict(target.about(), &why));
                    }
                    self.authorize_create(ctx, target)?;
                    let mut new = self.configured(ctx, target, None, body, options).await?;
                    super::update::check_name(target, &*new)?;
                    // Whatever version was meant, none is there.
                    new.metadata_mut().resource_version = None;
                    match self.create(ctx, target, new).await {
                        // Somebody else was faster: applied to what they made.
                        Err(e) if e.reason() == "AlreadyExists" => {}
                        made => {
                            let object = made?;
                            return Ok(Updated {
                                object,
                                created: true,
                            });
                        }
                    }
                }
            }
        }
        Err(Error::conflict(target.about(), MODIFIED))
    }

    /// The object with the configuration applied to it, its managers included.
    async fn configured(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        live: Option<&Arc<Object>>,
        body: &ApplyBody,
        options: &ApplyOptions,
    ) -> Result<Box<dyn AnyObject>, Error> {
        let kind = target.kind;
        let before = match live {
            Some(live) => bare(live.json())?,
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
                Err(Refused::Conflicts(conflicts)) if options.manager == KUBECTL => {
                    match unsettled(&conflicts, last_applied_fields(kind, &before)) {
                        Some(left) => Err(Refused::Conflicts(left)),
                        None => apply(true),
                    }
                }
                other => other,
            }
        };
        let applied = self.with_conversions(OnFailure::Fail, apply).await?;
        let applied = applied.map_err(|why| body.refusal(why))?;
        judge(ctx, body, options.validation)?;
        finish(ctx, target, &before, body, options, applied)
    }
}

/// The conflicts that are left when fields a client-side apply set are no conflict; `None` if none is.
fn unsettled(
    conflicts: &Conflicts,
    allowed: Option<knarr_api::managed_fields::FieldSet>,
) -> Option<Conflicts> {
    let allowed = allowed.unwrap_or_default();
    let left = conflicts
        .0
        .iter()
        .map(|(id, set)| (id.clone(), set.clone().difference(&allowed)));
    let left: std::collections::BTreeMap<_, _> = left.filter(|(_, set)| !set.is_empty()).collect();
    (!left.is_empty()).then_some(Conflicts(left))
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

/// Warns of the configuration's own mistakes, or refuses them.
fn judge(ctx: &mut Ctx, body: &ApplyBody, validation: FieldValidation) -> Result<(), Error> {
    match validation {
        FieldValidation::Strict if !body.mistakes.is_empty() => Err(Error::bad_request(format!(
            "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  {}",
            body.mistakes.join("\n  ")
        ))),
        FieldValidation::Warn => {
            body.mistakes.iter().for_each(|m| ctx.warn(m.as_str()));
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
    // The version is the configuration's, if it names one; else whatever there is is meant.
    let given = body.text("/metadata/resourceVersion");
    meta.resource_version = Some(given.to_string()).filter(|v| !v.is_empty());
    Ok(new)
}

/// An object that its schema takes and its type does not: a time that is none, a text that is no base64.
fn not_typed(body: &ApplyBody, error: &Error) -> Error {
    let (namespace, name, gvk) = (
        body.text("/metadata/namespace"),
        body.text("/metadata/name"),
        body.gvk(),
    );
    let why = reason(error.message());
    let from_json = if why.contains("base64") {
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
    fn what_cannot_be_applied_is_told_so() {
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
        assert_eq!(body.mistakes, ["line 2: key \"k\" already set in map"]);
        assert_eq!(body.config["data"]["k"], 2);
    }
}
