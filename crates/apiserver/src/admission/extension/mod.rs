//! What users add to admission: policies in CEL and webhooks, each first those that change a write and, once it is
//! known to be valid, those that judge it. Subresources that speak a kind of their own are asked about with an object
//! of that kind; what they then write is not asked about again.
//!
//! Where none is configured a write passes without its JSON being made. Configurations themselves are never guarded:
//! nobody could mend them.

mod authorizer;
mod call;
mod policy;
mod webhook;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::core::v1::Namespace;
use knarr_api::admission::Attributes;
use knarr_api::{AnyObject, Error, Kind, Object, convert, k8s_openapi, registry, scale};
use serde_json::{Value, json};

pub(crate) use call::{WebhookClient, call_webhook, dialled, innermost};
pub(crate) use policy::Policies;

use crate::pipeline::{Ctx, Target};
use crate::server::Server;
use crate::user::User;

/// What is done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    /// Its name, and the kind of its options if it has any.
    fn words(self) -> (&'static str, Option<&'static str>) {
        match self {
            Operation::Create => ("CREATE", Some("CreateOptions")),
            Operation::Update => ("UPDATE", Some("UpdateOptions")),
            Operation::Delete => ("DELETE", Some("DeleteOptions")),
            Operation::Connect => ("CONNECT", None),
        }
    }
}

/// A write with its object as it is now.
pub(crate) struct Write<'a> {
    pub operation: Operation,
    /// As stored; `None` for deletions.
    pub object: Option<&'a dyn AnyObject>,
    /// As stored; `None` for creations.
    pub old: Option<&'a Object>,
}

/// What of a write policies and webhooks are asked about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shown {
    /// The object that is written.
    #[default]
    Object,
    /// Its scale: that is what the client sent.
    Scale,
    /// Nothing: they were asked about what the write is part of (a Binding, an Eviction).
    Nothing,
}

/// Kinds whose objects change a write.
static MUTATING: [&Kind; 2] = [
    &registry::MUTATING_ADMISSION_POLICY_BINDING,
    &registry::MUTATING_WEBHOOK_CONFIGURATION,
];
/// Kinds whose objects judge one.
static VALIDATING: [&Kind; 2] = [
    &registry::VALIDATING_ADMISSION_POLICY_BINDING,
    &registry::VALIDATING_WEBHOOK_CONFIGURATION,
];

impl Server {
    fn has_any(&self, kinds: &[&'static Kind]) -> bool {
        let counts = |kind: &&'static Kind| self.cache.of(kind).is_ok_and(|cache| cache.count() > 0);
        kinds.iter().any(counts)
    }

    /// Lets policies and webhooks change the object that is about to be written.
    pub(crate) async fn mutate(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        operation: Operation,
        object: Box<dyn AnyObject>,
        old: Option<&Arc<Object>>,
    ) -> Result<Box<dyn AnyObject>, Error> {
        if ctx.shown == Shown::Nothing || !self.has_any(&MUTATING) {
            return Ok(object);
        }
        let write = Write {
            operation,
            object: Some(&*object),
            old: old.map(|o| &**o),
        };
        let stored = target.kind.handled_as();
        let mut attributes = attributes(ctx, target, &write)?;
        if attributes.is_exempt() {
            return Ok(object);
        }
        let before = attributes.object.clone();
        self.mutate_by_policies(&mut attributes, &ctx.user).await?;
        self.mutate_by_webhooks(ctx, &mut attributes).await?;
        if attributes.object == before {
            return Ok(object);
        }
        if ctx.shown == Shown::Scale {
            return rescaled(&stored, object, attributes.object);
        }
        let json = serde_json::to_vec(&attributes.object).map_err(Error::internal)?;
        let decoded = target.kind.ops.decode(&json).map_err(|e| {
            Error::internal(format!(
                "what admission made of the object is none: {}",
                e.message
            ))
        })?;
        let mut changed = decoded.object;
        target.kind.ops.set_defaults(&mut *changed)?;
        convert::typed(target.kind, &stored, changed)
    }

    /// The same for a deletion, which nobody can change, but be told of.
    pub(crate) async fn judge_deletion(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        old: &Object,
    ) -> Result<(), Error> {
        let write = Write {
            operation: Operation::Delete,
            object: None,
            old: Some(old),
        };
        if ctx.shown == Shown::Nothing {
            return Ok(());
        }
        if self.has_any(&MUTATING[1..]) {
            let mut attributes = attributes(ctx, target, &write)?;
            if !attributes.is_exempt() {
                self.mutate_by_webhooks(ctx, &mut attributes).await?;
            }
        }
        self.judge(ctx, target, &write).await
    }

    /// Lets policies and webhooks refuse what is about to be written.
    pub(crate) async fn judge(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        write: &Write<'_>,
    ) -> Result<(), Error> {
        if ctx.shown == Shown::Nothing || !self.has_any(&VALIDATING) {
            return Ok(());
        }
        let attributes = attributes(ctx, target, write)?;
        if attributes.is_exempt() {
            return Ok(());
        }
        self.judge_by_policies(ctx, &attributes).await?;
        self.judge_by_webhooks(ctx, &attributes).await
    }

    /// Lets policies and webhooks change, and then refuse, what a subresource is asked with that speaks a kind of its
    /// own (a Binding, PodExecOptions). What they leave of it.
    pub(crate) async fn admit_part(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        operation: Operation,
        object: Value,
    ) -> Result<Value, Error> {
        let object = self.mutate_part(ctx, target, operation, object).await?;
        self.judge_part(ctx, target, operation, &object).await?;
        Ok(object)
    }

    /// Whether anybody might have to be asked about what is not stored.
    pub(crate) fn asks_about_parts(&self) -> bool {
        self.has_any(&MUTATING) || self.has_any(&VALIDATING)
    }

    pub(crate) async fn mutate_part(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        operation: Operation,
        object: Value,
    ) -> Result<Value, Error> {
        if !self.has_any(&MUTATING) {
            return Ok(object);
        }
        let mut attributes = part_attributes(ctx, target, operation, object);
        if !is_review(target) {
            self.mutate_by_policies(&mut attributes, &ctx.user).await?;
        }
        self.mutate_by_webhooks(ctx, &mut attributes).await?;
        Ok(attributes.object.unwrap_or_default())
    }

    pub(crate) async fn judge_part(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        operation: Operation,
        object: &Value,
    ) -> Result<(), Error> {
        if !self.has_any(&VALIDATING) {
            return Ok(());
        }
        let attributes = part_attributes(ctx, target, operation, object.clone());
        if !is_review(target) {
            self.judge_by_policies(ctx, &attributes).await?;
        }
        self.judge_by_webhooks(ctx, &attributes).await
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

    /// An object that [`Server::in_version`] made, in the version of the request.
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
        serde_json::to_value(namespace).ok()
    }
}

/// Whether it is a question about who somebody is or what he may do. Webhooks are told of these, policies are not: one
/// that is wrong could lock everybody out.
fn is_review(target: &Target<'_>) -> bool {
    let groups = ["authentication.k8s.io", "authorization.k8s.io"];
    target.subresource.is_empty() && !target.kind.is_stored() && groups.contains(&target.kind.group())
}

/// A refusal of a policy, in the form in which a plugin refuses.
fn forbidden(attributes: &Attributes, why: &str) -> Error {
    let meta = attributes.object.as_ref().and_then(|o| o.get("metadata"));
    let text = |field: &str| meta?.get(field)?.as_str().filter(|t| !t.is_empty());
    let name = match attributes.name.as_str() {
        "" => text("name").or_else(|| text("generateName")).unwrap_or("Unknown"),
        name => name,
    };
    Error::forbidden(attributes.kind.about(name), why)
}

pub(crate) fn json_of(object: &dyn AnyObject) -> Result<Value, Error> {
    let mut json = Vec::with_capacity(1024);
    object.encode_into(&mut json);
    serde_json::from_slice(&json).map_err(Error::internal)
}

fn attributes(ctx: &Ctx, target: &Target<'_>, write: &Write<'_>) -> Result<Attributes, Error> {
    let (served, stored) = (target.kind, target.kind.handled_as());
    let scales = ctx.shown == Shown::Scale;
    let shown = |object: &dyn AnyObject| {
        if scales {
            return scale_of(&stored, object.clone_box());
        }
        convert::json(&stored, served, &json_of(object)?)
            .ok_or_else(|| Error::internal(format!("failed to convert object version to {served:?}")))
    };
    let object = write.object.map(shown).transpose()?;
    let old = write.old.map(|old| shown(old.typed())).transpose()?;
    let name = match (target.name, write.object) {
        ("", Some(object)) => object.metadata().name.clone().unwrap_or_default(),
        (name, _) => name.to_string(),
    };
    Ok(Attributes {
        operation: write.operation.words().0,
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

/// Of a request whose object is none that is stored.
fn part_attributes(ctx: &Ctx, target: &Target<'_>, operation: Operation, object: Value) -> Attributes {
    Attributes {
        operation: operation.words().0,
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
    let Some(kind) = operation.words().1 else {
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
    let scale = scale.ok_or_else(|| Error::internal(format!("a {} without a scale", kind.kind())))?;
    serde_json::to_value(scale).map_err(Error::internal)
}

/// The object with as many replicas as its changed scale says.
fn rescaled(
    kind: &Kind,
    mut object: Box<dyn AnyObject>,
    scale: Option<Value>,
) -> Result<Box<dyn AnyObject>, Error> {
    let scale: Scale = serde_json::from_value(scale.unwrap_or_default())
        .map_err(|e| Error::internal(format!("what admission made of the scale is none: {e}")))?;
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
