//! The stages of a write, in their order: it decides which error a client sees first.
//!
//! | stage | create | update | delete | where |
//! |---|---|---|---|---|
//! | metadata of the request | new UID and times | name, namespace, resourceVersion | | `metadata.rs` |
//! | defaults | ✓ | ✓ | | `Strategy::set_defaults`, `stamps.rs` |
//! | managed fields | ✓ | ✓ | | `managed_fields.rs` |
//! | conversion to the version that is handled | ✓ | ✓, keeps the system's metadata | | `metadata.rs` |
//! | mutating admission: plugins, then policies and webhooks | ✓ | ✓ | | `admission/` |
//! | a generated name | ✓ | | | `create.rs` |
//! | preparation | ✓ | ✓ | | `validation.rs` |
//! | allocation of addresses and ports | ✓ | ✓ | | `allocation.rs` |
//! | validation, and permissions for single fields | ✓ | ✓ | | `validation.rs` |
//! | node restriction, network agent | ✓ | ✓ | ✓ | `admission/node_restriction.rs`, `network_agent.rs` |
//! | privilege escalation | ✓ | ✓ | | `authz/escalation.rs` |
//! | rejection of what is invalid; warnings | field errors | field errors | preconditions | `validation.rs` |
//! | protected namespaces | | | ✓ | `admission/namespace_lifecycle.rs` |
//! | validating admission: policies and webhooks, then plugins | ✓ | ✓ | ✓ | `admission/` |
//! | a pod's condition that is set with its deletion | | | ✓ | `disruption.rs` |
//! | quota | ✓ | ✓ | | `admission/resource_quota.rs` |
//! | commit | ✓ | ✓, a removal where nothing holds a terminating object | by the kind's plan | `commit.rs` |
//!
//! Patch and apply are updates (or creations) whose object is computed from the stored one. A subresource that writes into the object
//! (`status`, `scale`, `binding` …) is an update of that part.
//!
//! A create with `generateName` gets a name that no object has. If another write of the object came in between, an update or a deletion passes
//! all stages again, from the newer object.

use k8s_openapi::api::core::v1::Binding;
use knarr_api::k8s_openapi;
use knarr_apimachinery::Error;
use knarr_apimachinery::codec;
use serde_json::Value;

use super::commit::Committed;
use super::write::Write;
use super::{Pipeline, metadata};
use crate::admission::Operation;
use crate::cache::Written;
use crate::metrics::AdmissionType;
use crate::request::{Ctx, Target};

impl Pipeline {
    /// The stages of a create or an update from the client's object to the one that would be stored, but for a generated name.
    pub(super) async fn complete<'a>(&self, ctx: &mut Ctx, mut write: Write<'a>) -> Result<Write<'a>, Error> {
        let attributes = write.attributes();
        metadata::begin(ctx, &mut write, &*self.entropy)?;
        metadata::set_defaults(ctx, &mut write)?;
        self.set_managed_fields(ctx, &mut write).await?;
        write = metadata::convert(write)?;
        let step = self
            .metrics
            .admission_step(AdmissionType::Admit, attributes.operation.as_str());
        self.admission
            .mutate_by_plugins(&attributes, &mut *write.object)?;
        let admission = &self.admission;
        write.object = admission
            .mutate_by_extensions(ctx, &attributes, write.object)
            .await?;
        step.allowed();
        Ok(write)
    }

    /// The stages from there to the store. `Conflict`: the name of a new object is taken, or the object was written since it was read.
    pub(super) async fn store(
        &self,
        ctx: &mut Ctx,
        mut write: Write<'_>,
    ) -> Result<Written<Committed>, Error> {
        let (admission, attributes) = (&self.admission, write.attributes());
        self.prepare(ctx, &mut write)?;
        let reserved = self.allocate(&mut write)?;
        let errors = self.validate(ctx, &write)?;
        admission.restrict_node(ctx, &attributes, write.new_object())?;
        admission.restrict_network_agent(ctx, write.target, write.name())?;
        self.prevent_escalation(ctx, &write)?;
        super::validation::reject_invalid(ctx, &write, errors)?;
        let step = self
            .metrics
            .admission_step(AdmissionType::Validate, attributes.operation.as_str());
        admission.protect_namespaces(&attributes)?;
        admission
            .validate_by_extensions(ctx, &attributes, write.new_object())
            .await?;
        admission.validate_by_plugins(ctx, &attributes, write.new_object())?;
        let write = self.set_pod_condition(ctx, write).await?;
        let quota_charges = admission
            .charge_quotas(ctx, self, &attributes, write.new_object())
            .await?;
        step.allowed();
        let written = self.commit(ctx, write).await;
        drop(reserved);
        quota_charges.finish(self, written).await
    }

    /// The first stages of a request with an object that is not stored: a Binding, an Eviction, a TokenRequest. It is validated and passes
    /// validating admission where it is carried out.
    pub(crate) async fn admit_request(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        body: Value,
    ) -> Result<Value, Error> {
        let namespace = body.pointer("/metadata/namespace").and_then(Value::as_str);
        self.begin_request(ctx, target, namespace).await?;
        self.admit_document(ctx, target, body).await
    }

    /// As [`Pipeline::admit_request`], of a Binding that a component of this process made. It becomes a document only for the policies and
    /// webhooks that may change it; what they return is `Some`.
    pub(crate) async fn admit_binding(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        binding: &Binding,
    ) -> Result<Option<Value>, Error> {
        self.begin_request(ctx, target, binding.metadata.namespace.as_deref())
            .await?;
        if self.admission.mutates_by_extensions() {
            let document = codec::to_plain_value(binding).map_err(Error::internal)?;
            return self.admit_document(ctx, target, document).await.map(Some);
        }
        // Of a Binding the restriction reads nothing.
        self.admission.restrict_node_request(ctx, target, &Value::Null)?;
        Ok(None)
    }

    /// `namespace` is the one that the request's object has.
    async fn begin_request(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        namespace: Option<&str>,
    ) -> Result<(), Error> {
        self.catch_up(ctx).await?;
        self.admission.check_namespace_for_create(target)?;
        metadata::check_namespace_of_request(target, namespace)
    }

    async fn admit_document(&self, ctx: &mut Ctx, target: &Target<'_>, body: Value) -> Result<Value, Error> {
        let body = self
            .admission
            .mutate_request_object(ctx, target, Operation::Create, body)
            .await?;
        self.admission.restrict_node_request(ctx, target, &body)?;
        Ok(body)
    }
}
