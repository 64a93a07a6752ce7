//! Dynamic admission control: policies in CEL and webhooks. Mutating ones run first, validating ones once the object is
//! known to be valid. For a subresource with a kind of its own (Binding, Eviction) they get the object of that kind, and
//! are not called again for the write that follows from it.
//!
//! Without policies and webhooks a write is not encoded for them. Admission configurations themselves are exempt, as in
//! Kubernetes: otherwise a wrong one could not be corrected.

mod authorizer;
mod compiled;
mod policy;
mod webhook;

use std::collections::BTreeMap;

use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::core::v1::Namespace;
use knarr_admission::Attributes;
use knarr_api::{AnyObject, Kind, Object, convert, k8s_openapi, registry, scale};
use knarr_apimachinery::Error;
use knarr_apimachinery::codec;
use serde_json::{Value, json};

use knarr_strategy::KindStrategy;
pub(crate) use policy::CompiledPolicies;

use super::{Admission, Operation};
use crate::request::{AdmissionObject, Ctx, Target};
use crate::user::User;

impl Operation {
    pub(crate) fn as_str(self) -> &'static str {
        self.name_and_options().0
    }

    /// Its name in an AdmissionRequest, and the kind of its options if it has any.
    fn name_and_options(self) -> (&'static str, Option<&'static str>) {
        match self {
            Operation::Create => ("CREATE", Some("CreateOptions")),
            Operation::Update => ("UPDATE", Some("UpdateOptions")),
            Operation::Delete => ("DELETE", Some("DeleteOptions")),
            Operation::Connect => ("CONNECT", None),
        }
    }
}

/// Kinds whose objects configure mutating policies and webhooks.
static MUTATING: [&Kind; 2] = [
    &registry::MUTATING_ADMISSION_POLICY_BINDING,
    &registry::MUTATING_WEBHOOK_CONFIGURATION,
];
/// Kinds whose objects configure validating policies and webhooks.
static VALIDATING: [&Kind; 2] = [
    &registry::VALIDATING_ADMISSION_POLICY_BINDING,
    &registry::VALIDATING_WEBHOOK_CONFIGURATION,
];

impl Admission {
    fn has_any(&self, kinds: &[&'static Kind]) -> bool {
        let has_objects = |kind: &&'static Kind| self.cache.of(kind).is_ok_and(|cache| cache.count() > 0);
        kinds.iter().any(has_objects)
    }

    /// Runs the mutating policies and webhooks on the object that is about to be written.
    pub(crate) async fn mutate_by_extensions(
        &self,
        ctx: &mut Ctx,
        write: &super::Attributes<'_>,
        object: Box<dyn AnyObject>,
    ) -> Result<Box<dyn AnyObject>, Error> {
        if ctx.admission_object == AdmissionObject::None || !self.has_any(&MUTATING) {
            return Ok(object);
        }
        let kind = write.target.kind;
        let stored = kind.handled_as();
        let mut attributes = attributes(ctx, write, Some(&*object))?;
        if attributes.is_exempt() {
            return Ok(object);
        }
        let before = attributes.object.clone();
        self.mutate_by_policies(&mut attributes, &ctx.user).await?;
        self.mutate_by_webhooks(ctx, &mut attributes).await?;
        if attributes.object == before {
            return Ok(object);
        }
        if ctx.admission_object == AdmissionObject::Scale {
            return with_replicas(&stored, object, attributes.object);
        }
        let json = serde_json::to_vec(&attributes.object).map_err(Error::internal)?;
        let decoded = kind.ops.decode(&json).map_err(|e| {
            Error::internal(format!(
                "admission changed the object to one that does not decode: {}",
                e.message
            ))
        })?;
        let mut changed = decoded.object;
        kind.strategy().set_defaults(&mut *changed)?;
        convert::typed(kind, &stored, changed)
    }

    /// Runs the validating policies and webhooks on the object that is about to be written, or on a deletion. For a deletion mutating
    /// webhooks are called first, but cannot change anything.
    pub(crate) async fn validate_by_extensions(
        &self,
        ctx: &mut Ctx,
        write: &super::Attributes<'_>,
        object: Option<&dyn AnyObject>,
    ) -> Result<(), Error> {
        if ctx.admission_object == AdmissionObject::None {
            return Ok(());
        }
        if write.operation == Operation::Delete && self.has_any(&MUTATING[1..]) {
            let mut attributes = attributes(ctx, write, object)?;
            if !attributes.is_exempt() {
                self.mutate_by_webhooks(ctx, &mut attributes).await?;
            }
        }
        if !self.has_any(&VALIDATING) {
            return Ok(());
        }
        let attributes = attributes(ctx, write, object)?;
        if attributes.is_exempt() {
            return Ok(());
        }
        self.validate_by_policies(ctx, &attributes).await?;
        self.validate_by_webhooks(ctx, &attributes).await
    }

    /// Runs mutating, then validating policies and webhooks on the request's own object, which is not stored (a Binding,
    /// PodExecOptions). Returns the mutated object.
    pub(crate) async fn admit_request_object(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        operation: Operation,
        object: Value,
    ) -> Result<Value, Error> {
        let object = self.mutate_request_object(ctx, target, operation, object).await?;
        self.validate_request_object(ctx, target, operation, &object)
            .await?;
        Ok(object)
    }

    /// Whether any policy or webhook is configured.
    pub(crate) fn has_extensions(&self) -> bool {
        self.mutates_by_extensions() || self.validates_by_extensions()
    }

    /// Whether any mutating policy or webhook is configured.
    pub(crate) fn mutates_by_extensions(&self) -> bool {
        self.has_any(&MUTATING)
    }

    /// Whether any validating policy or webhook is configured.
    pub(crate) fn validates_by_extensions(&self) -> bool {
        self.has_any(&VALIDATING)
    }

    pub(crate) async fn mutate_request_object(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        operation: Operation,
        object: Value,
    ) -> Result<Value, Error> {
        if !self.has_any(&MUTATING) {
            return Ok(object);
        }
        let mut attributes = request_object_attributes(ctx, target, operation, object);
        if !is_review(target) {
            self.mutate_by_policies(&mut attributes, &ctx.user).await?;
        }
        self.mutate_by_webhooks(ctx, &mut attributes).await?;
        Ok(attributes.object.unwrap_or_default())
    }

    pub(crate) async fn validate_request_object(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        operation: Operation,
        object: &Value,
    ) -> Result<(), Error> {
        if !self.has_any(&VALIDATING) {
            return Ok(());
        }
        let attributes = request_object_attributes(ctx, target, operation, object.clone());
        if !is_review(target) {
            self.validate_by_policies(ctx, &attributes).await?;
        }
        self.validate_by_webhooks(ctx, &attributes).await
    }

    /// The request with its objects in another version of their kind.
    async fn in_version(&self, attributes: &Attributes, kind: &Kind) -> Result<Attributes, Error> {
        let mut out = attributes.clone();
        if attributes.has_objects_of_kind() {
            for value in [&mut out.object, &mut out.old].into_iter().flatten() {
                *value = self.converter.json(&attributes.kind, kind, value).await?;
            }
        }
        Ok(out)
    }

    /// Converts an object of [`Admission::in_version`] back to the version of the request.
    async fn in_request_version(
        &self,
        attributes: &Attributes,
        kind: &Kind,
        object: Value,
    ) -> Result<Value, Error> {
        match attributes.has_objects_of_kind() {
            true => self.converter.json(kind, &attributes.kind, &object).await,
            false => Ok(object),
        }
    }

    fn namespace_labels(&self, name: &str) -> Option<BTreeMap<String, String>> {
        let namespace = self.cache.get(&registry::NAMESPACE, "", name)?;
        Some(namespace.metadata().labels.clone().unwrap_or_default())
    }

    /// The namespace a request is about, as expressions see it.
    fn namespace_object(&self, attributes: &Attributes) -> Option<Value> {
        if attributes.namespace.is_empty() || attributes.kind == registry::NAMESPACE {
            return None;
        }
        let found = self.cache.get(&registry::NAMESPACE, "", &attributes.namespace)?;
        let mut namespace = found.get::<Namespace>()?.clone();
        namespace.metadata.managed_fields = None;
        namespace.metadata.owner_references = None;
        codec::to_plain_value(&namespace).ok()
    }
}

/// Whether the request creates a TokenReview, SubjectAccessReview or the like. Webhooks are called for them, policies are
/// not: a wrong policy could lock all users out.
fn is_review(target: &Target<'_>) -> bool {
    let groups = ["authentication.k8s.io", "authorization.k8s.io"];
    target.subresource.is_empty() && !target.kind.is_stored() && groups.contains(&target.kind.group())
}

/// The error of a policy that denies the request, in the form that built-in plugins use.
fn forbidden(attributes: &Attributes, why: &str) -> Error {
    let meta = attributes.object.as_ref().and_then(|o| o.get("metadata"));
    let text = |field: &str| meta?.get(field)?.as_str().filter(|t| !t.is_empty());
    let name = match attributes.name.as_str() {
        "" => text("name").or_else(|| text("generateName")).unwrap_or("Unknown"),
        name => name,
    };
    Error::forbidden(attributes.kind.resource_ref(name), why)
}

pub(crate) fn json_of(object: &dyn AnyObject) -> Result<Value, Error> {
    let mut json = Vec::with_capacity(1024);
    object.encode_into(&mut json);
    serde_json::from_slice(&json).map_err(Error::internal)
}

/// The attributes of a write. `new` is the object to be written, as it is handled; `None` for deletions.
fn attributes(
    ctx: &Ctx,
    write: &super::Attributes<'_>,
    new: Option<&dyn AnyObject>,
) -> Result<Attributes, Error> {
    let target = write.target;
    let (served, stored) = (target.kind, target.kind.handled_as());
    let scales = ctx.admission_object == AdmissionObject::Scale;
    let shown = |object: &dyn AnyObject| {
        if scales {
            return scale_of(&stored, object.clone_box());
        }
        convert::json(&stored, served, &json_of(object)?)
            .ok_or_else(|| Error::internal(format!("failed to convert object version to {served:?}")))
    };
    let object = new.map(shown).transpose()?;
    let old = write.old.map(|old| shown(old.typed())).transpose()?;
    let name = match (target.name, new) {
        ("", Some(object)) => object.metadata().name.clone().unwrap_or_default(),
        (name, _) => name.to_string(),
    };
    Ok(Attributes {
        operation: write.operation.as_str(),
        kind: served.clone(),
        subresource: if scales { "scale" } else { target.subresource }.to_string(),
        namespace: match *served == registry::NAMESPACE {
            true => name.clone(),
            false => target.namespace.to_string(),
        },
        name,
        object,
        old,
        options: options(ctx, write.operation),
        user: user_info(&ctx.user),
        dry_run: ctx.dry_run,
    })
}

/// The attributes of a request whose object is not stored.
fn request_object_attributes(
    ctx: &Ctx,
    target: &Target<'_>,
    operation: Operation,
    object: Value,
) -> Attributes {
    Attributes {
        operation: operation.as_str(),
        kind: target.kind.clone(),
        subresource: target.subresource.to_string(),
        namespace: target.namespace.to_string(),
        name: target.name.to_string(),
        object: Some(object),
        old: None,
        options: options(ctx, operation),
        user: user_info(&ctx.user),
        dry_run: ctx.dry_run,
    }
}

/// The request's CreateOptions or the like.
fn options(ctx: &Ctx, operation: Operation) -> Value {
    let Some(kind) = operation.name_and_options().1 else {
        return Value::Null;
    };
    let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
    if let Some(manager) = ctx.manager.as_deref().filter(|_| operation != Operation::Delete) {
        options["fieldManager"] = manager.into();
    }
    if ctx.dry_run {
        options["dryRun"] = json!(["All"]);
    }
    options
}

fn scale_of(kind: &Kind, object: Box<dyn AnyObject>) -> Result<Value, Error> {
    let scale = scale::get(kind, &Object::from_typed(kind, object));
    let scale = scale.ok_or_else(|| Error::internal(format!("{} has no scale", kind.kind())))?;
    codec::to_plain_value(&scale).map_err(Error::internal)
}

/// The object with the replicas of its mutated Scale.
fn with_replicas(
    kind: &Kind,
    mut object: Box<dyn AnyObject>,
    scale: Option<Value>,
) -> Result<Box<dyn AnyObject>, Error> {
    let scale: Scale = serde_json::from_value(scale.unwrap_or_default()).map_err(|e| {
        Error::internal(format!(
            "admission changed the Scale to one that does not decode: {e}"
        ))
    })?;
    let replicas = scale.spec.and_then(|s| s.replicas).unwrap_or(0);
    scale::set(kind, &mut *object, replicas);
    Ok(object)
}

fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        info["uid"] = user.uid.as_str().into();
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}
