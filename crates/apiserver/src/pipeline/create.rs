//! Creation of an object.

use std::sync::Arc;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_api::certificates::{IN_PROCESS, REMOTE_ADDRESS};
use knarr_api::field::Errors;
use knarr_api::time::seconds;
use knarr_api::{AnyObject, Error, Kind, Object, convert, k8s_openapi, meta, registry};

use super::{Ctx, Origin, Target, stamps};
use crate::admission::{Attributes, Operation, extension};
use crate::authz::{self, Selectors};
use crate::cache::Written;
use crate::seams;
use crate::server::Server;

/// The signer whose requests are approved by where they came from.
const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
/// How often another random name is tried when one is taken.
const NAME_ATTEMPTS: usize = 8;

/// An object of the version of a request in the version as which it is handled. The schemas of a custom kind's versions may
/// have other defaults: what is stored has those of the version in which it is stored.
pub(super) fn handled(
    served: &Kind,
    handled: &Kind,
    object: Box<dyn AnyObject>,
) -> Result<Box<dyn AnyObject>, Error> {
    let mut object = convert::typed(served, handled, object)?;
    if served != handled
        && let Some(custom) = handled.ops.custom()
    {
        custom.set_defaults_of_version(&mut *object)?;
    }
    Ok(object)
}

impl Server {
    /// What an update or apply asks for besides its own verb where it creates (SPEC A2): `create`, with the object's name,
    /// as kube-apiserver's `withAuthorization`. It is asked before admission, which may call webhooks.
    pub(super) fn authorize_create(&self, ctx: &Ctx, target: &Target<'_>) -> Result<(), Error> {
        if ctx.by_server {
            return Ok(());
        }
        let attributes = authz::Attributes::of_target("create", target, Selectors::default());
        match self.authorizer.allows(&ctx.user, &attributes) {
            true => Ok(()),
            false => Err(authz::refused(&*self.authorizer, &ctx.user, &attributes)),
        }
    }

    /// Creates `object`, a value of `target.kind`. `target.name` is empty or must be the object's.
    pub(crate) async fn create(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        mut object: Box<dyn AnyObject>,
    ) -> Result<Arc<Object>, Error> {
        check_namespace(target, &mut *object)?;
        self.catch_up(ctx).await?;
        self.check_definition(target.kind)?;
        let served = target.kind;
        let meta = object.metadata_mut();
        meta.self_link = None;
        meta.deletion_timestamp = None;
        meta.deletion_grace_period_seconds = None;
        meta.creation_timestamp = Some(seconds(ctx.now));
        meta.uid = Some(seams::uid(&*self.entropy));
        meta::drop_empty(meta);
        dedup_owners(ctx, meta);
        let generate_name = meta.generate_name.clone().filter(|g| !g.is_empty());
        let has_generate_name = generate_name.is_some();
        let generate = generate_name.filter(|_| meta.name.as_deref().unwrap_or("").is_empty());
        served.ops.set_defaults(&mut *object)?;
        stamps::default_times(&mut *object, ctx.now);
        self.track(ctx, target, None, &mut *object).await?;
        let mut object = handled(served, &served.handled_as(), object)?;
        let attributes = Attributes {
            target,
            operation: Operation::Create,
            old: None,
        };
        self.admit(ctx, &attributes, &mut *object)?;
        let create = extension::Operation::Create;
        let object = self.mutate(ctx, target, create, object, None).await?;

        let Some(prefix) = generate else {
            let name = object.metadata().name.clone().unwrap_or_default();
            return match self.create_named(ctx, target, object).await? {
                Written::Done(made) => self.converter.object(&made, served).await,
                Written::Conflict => Err(self.exists(target, &name, has_generate_name)),
            };
        };
        let mut taken = String::new();
        for _ in 0..NAME_ATTEMPTS {
            let mut candidate = object.clone_box();
            taken = seams::generated_name(&*self.entropy, &prefix);
            candidate.metadata_mut().name = Some(taken.clone());
            if let Written::Done(made) = self.create_named(ctx, target, candidate).await? {
                return self.converter.object(&made, served).await;
            }
        }
        Err(self.exists(target, &taken, true))
    }

    /// The answer to the creation of an object whose name is taken, by one that is being deleted perhaps.
    fn exists(&self, target: &Target<'_>, name: &str, generated: bool) -> Error {
        let about = target.kind.about(name);
        let mut error = match generated {
            true => Error::generated_name_exists(about),
            false => Error::already_exists(about),
        };
        let found = self.cache.get(target.kind, target.namespace, name);
        if found.is_some_and(|object| object.metadata().deletion_timestamp.is_some()) {
            let message = format!("object is being deleted: {}", error.message());
            error.status_mut().message = Some(message);
        }
        error
    }

    /// `Conflict`: the name is taken.
    async fn create_named(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        mut object: Box<dyn AnyObject>,
    ) -> Result<Written<Arc<Object>>, Error> {
        let served = target.kind;
        let kind = &served.handled_as();
        kind.ops.prepare_for_create(&mut *object)?;
        let meta = object.metadata_mut();
        // The one kind whose strategy finds a name for itself.
        if *kind == registry::LIMIT_RANGE && meta.name.as_deref().unwrap_or("").is_empty() {
            meta.name = Some(seams::uid(&*self.entropy));
        }
        record_requester(ctx, &mut *object);
        let reserved = self.allocations.for_create(kind, &mut *object, &self.cache)?;
        let name = object.metadata().name.clone().unwrap_or_default();
        let mut mistakes = Errors::new();
        // The one kind whose mistakes are told in the names of the version that was sent.
        let rules = match *served == registry::EVENTS_EVENT {
            true => served,
            false => kind,
        };
        if rules.ops.checks_metadata() {
            mistakes.extend(meta::validate(rules, object.metadata()));
        }
        if rules == kind {
            mistakes.extend(kind.ops.validate(&*object)?);
        } else {
            let shown = convert::typed(kind, rules, object.clone_box())?;
            mistakes.extend(rules.ops.validate(&*shown)?);
        }
        if mistakes.is_empty() {
            mistakes.extend(meta::validate_common(rules, object.metadata()));
        }
        mistakes.extend(self.authorize_admin_access(target, None, &*object));
        mistakes.extend(self.authorize_params(ctx, None, &*object));
        self.restrict_node_write(ctx, target, None, &*object)?;
        self.restrict_network_agent(ctx, target, &name)?;
        self.check_escalation(ctx, target, None, &*object)?;
        for warning in kind.ops.early_warnings(&*object)? {
            ctx.warn(warning);
        }
        if !mistakes.is_empty() {
            return Err(Error::invalid(served.about_kind(&name), &mistakes));
        }
        for warning in kind.ops.warnings(&*object)? {
            ctx.warn(warning);
        }
        let write = extension::Write {
            operation: extension::Operation::Create,
            object: Some(&*object),
            old: None,
        };
        self.judge(ctx, target, &write).await?;
        let attributes = Attributes {
            target,
            operation: Operation::Create,
            old: None,
        };
        let charged = self.validate(ctx, &attributes, &*object).await?;
        // Asked last, as by Kubernetes' storage: what admission denies it denies whatever the version.
        let version = object.metadata_mut().resource_version.take();
        if version
            .as_ref()
            .is_some_and(|v| v.parse::<u64>().is_ok_and(|v| v != 0))
        {
            let error = "resourceVersion should not be set on objects to be created";
            return self.settle(charged, Err(Error::new(500, "", error))).await;
        }
        if self.cache.get(kind, target.namespace, &name).is_some() {
            return self.settle(charged, Ok(Written::Conflict)).await;
        }
        if ctx.dry_run {
            // What is no version of an object is not replaced by one where nothing is stored.
            object.metadata_mut().resource_version = version;
            return Ok(Written::Done(Arc::new(Object::from_typed(kind, object))));
        }
        let written = self.write_converted(kind, object, 0, ctx.term.as_ref()).await;
        drop(reserved);
        self.settle(charged, written).await
    }
}

/// A request for a certificate says who requests it and, where its signer decides by that, from where, whatever its sender wrote.
fn record_requester(ctx: &Ctx, object: &mut dyn AnyObject) {
    if let Some(csr) = object.as_any_mut().downcast_mut::<CertificateSigningRequest>() {
        let user = &ctx.user;
        csr.spec.username = Some(user.name.clone()).filter(|n| !n.is_empty());
        csr.spec.uid = Some(user.uid.clone()).filter(|u| !u.is_empty());
        csr.spec.groups = Some(user.groups.clone()).filter(|g| !g.is_empty());
        let mut extra = user.extra.clone();
        // Only the server says this.
        extra.remove(REMOTE_ADDRESS);
        if csr.spec.signer_name == KUBELET_SERVING {
            let origin = match ctx.origin {
                Origin::Unknown => None,
                Origin::InProcess => Some(IN_PROCESS.to_string()),
                Origin::Remote(address) => Some(address.to_canonical().to_string()),
            };
            extra.extend(origin.map(|o| (REMOTE_ADDRESS.to_string(), vec![o])));
        }
        csr.spec.extra = Some(extra).filter(|e| !e.is_empty());
    }
}

/// Leaves out owner references that are given twice, with a warning (`dedupOwnerReferencesAndAddWarning`).
pub(super) fn dedup_owners(ctx: &mut Ctx, meta: &mut ObjectMeta) {
    let Some(owners) = &mut meta.owner_references else {
        return;
    };
    let mut kept: Vec<OwnerReference> = Vec::with_capacity(owners.len());
    let mut twice: Vec<String> = Vec::new();
    for owner in owners.drain(..) {
        if !kept.contains(&owner) {
            kept.push(owner);
        } else if !twice.contains(&owner.uid) {
            twice.push(owner.uid);
        }
    }
    *owners = kept;
    if !twice.is_empty() {
        ctx.warn(format!(
            ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may \
             reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
            twice.join(", ")
        ));
    }
}

/// The namespace and name of body and URL must agree; what the body leaves out the URL fills in.
pub(crate) fn check_namespace(target: &Target<'_>, object: &mut dyn AnyObject) -> Result<(), Error> {
    let meta = object.metadata_mut();
    if target.kind.namespaced() {
        match meta.namespace.as_deref().unwrap_or("") {
            "" => meta.namespace = Some(target.namespace.to_string()),
            same if same == target.namespace => {}
            _ => {
                return Err(Error::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
        }
    } else {
        // As `EnsureObjectNamespaceMatchesRequestNamespace` does: an object without a namespace loses the one it names.
        meta.namespace = None;
    }
    if meta.namespace.as_deref() == Some("") {
        meta.namespace = None;
    }
    Ok(())
}
