//! What users add to admission: policies in CEL and webhooks, each first those that change a write and, once it is
//! known to be valid, those that judge it.
//!
//! Where none is configured a write passes without its JSON being made. Configurations themselves are never guarded:
//! nobody could mend them.

mod authorizer;
mod call;
mod policy;
mod webhook;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use knarr_api::admission::Attributes;
use knarr_api::{AnyObject, Error, Kind, Object, convert, k8s_openapi, registry};
use serde_json::{Value, json};

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
}

impl Operation {
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Operation::Create => ("CREATE", "CreateOptions"),
            Operation::Update => ("UPDATE", "UpdateOptions"),
            Operation::Delete => ("DELETE", "DeleteOptions"),
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

impl Server {
    fn has_any(&self, kinds: [&'static Kind; 2]) -> bool {
        let counts = |kind| self.cache.of(kind).is_ok_and(|cache| cache.count() > 0);
        kinds.into_iter().any(counts)
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
        if !self.has_any([
            &registry::MUTATING_ADMISSION_POLICY_BINDING,
            &registry::MUTATING_WEBHOOK_CONFIGURATION,
        ]) {
            return Ok(object);
        }
        let write = Write {
            operation,
            object: Some(&*object),
            old: old.map(|o| &**o),
        };
        let stored = crate::keys::stored_kind(target.kind);
        let mut attributes = attributes(ctx, target, &write)?;
        if attributes.is_exempt() {
            return Ok(object);
        }
        let before = attributes.object.clone();
        self.mutate_by_policies(&mut attributes, &ctx.user)?;
        self.mutate_by_webhooks(ctx, &mut attributes).await?;
        if attributes.object == before {
            return Ok(object);
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
        convert::typed(target.kind, stored, changed)
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
        if self.has_any([
            &registry::MUTATING_WEBHOOK_CONFIGURATION,
            &registry::MUTATING_WEBHOOK_CONFIGURATION,
        ]) {
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
        if !self.has_any([
            &registry::VALIDATING_ADMISSION_POLICY_BINDING,
            &registry::VALIDATING_WEBHOOK_CONFIGURATION,
        ]) {
            return Ok(());
        }
        let attributes = attributes(ctx, target, write)?;
        if attributes.is_exempt() {
            return Ok(());
        }
        self.judge_by_policies(ctx, &attributes)?;
        self.judge_by_webhooks(ctx, &attributes).await
    }

    fn namespace_labels(&self, name: &str) -> Option<BTreeMap<String, String>> {
        let namespace = self.cache.get(&registry::NAMESPACE, "", name)?;
        Some(namespace.metadata().labels.clone().unwrap_or_default())
    }

    /// The namespace a request is about, as expressions see it.
    fn namespace_object(&self, attributes: &Attributes) -> Option<Value> {
        if attributes.namespace.is_empty() || *attributes.kind == registry::NAMESPACE {
            return None;
        }
        let found = self.cache.get(&registry::NAMESPACE, "", &attributes.namespace)?;
        let mut namespace = found.get::<Namespace>()?.clone();
        namespace.metadata.managed_fields = None;
        namespace.metadata.owner_references = None;
        serde_json::to_value(namespace).ok()
    }
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

fn json_of(object: &dyn AnyObject) -> Result<Value, Error> {
    let mut json = Vec::with_capacity(1024);
    object.encode_into(&mut json);
    serde_json::from_slice(&json).map_err(Error::internal)
}

fn attributes(ctx: &Ctx, target: &Target<'_>, write: &Write<'_>) -> Result<Attributes, Error> {
    let (served, stored) = (target.kind, crate::keys::stored_kind(target.kind));
    let shown = |object: Value| {
        convert::json(stored, served, &object)
            .ok_or_else(|| Error::internal(format!("failed to convert object version to {served:?}")))
    };
    let object = write.object.map(json_of).transpose()?.map(shown).transpose()?;
    let old = write.old.map(|old| json_of(old.typed())).transpose()?;
    let old = old.map(shown).transpose()?;
    let name = match (target.name, write.object) {
        ("", Some(object)) => object.metadata().name.clone().unwrap_or_default(),
        (name, _) => name.to_string(),
    };
    let (operation, options_kind) = write.operation.words();
    let mut options = json!({"kind": options_kind, "apiVersion": "meta.k8s.io/v1"});
    if let Some(manager) = ctx
        .manager
        .as_deref()
        .filter(|_| write.operation != Operation::Delete)
    {
        options["fieldManager"] = manager.into();
    }
    if ctx.dry_run {
        options["dryRun"] = json!(["All"]);
    }
    Ok(Attributes {
        operation,
        kind: served,
        subresource: target.subresource.to_string(),
        namespace: match *served == registry::NAMESPACE {
            true => name.clone(),
            false => target.namespace.to_string(),
        },
        name,
        object,
        old,
        options,
        user: user_info(&ctx.user),
        dry_run: ctx.dry_run,
    })
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
