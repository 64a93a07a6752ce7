//! The strategy of a kind (`rest.RESTCreateStrategy` and the like): how its objects are defaulted,
//! prepared for a write, validated, selected and printed.
//!
//! [`Strategy`] is implemented once for each kind, in the kind's own file; [`DynStrategy`] is the same without the
//! Rust type, for the request pipeline. Every method has a default that fits most kinds.

pub(crate) mod deletion;

use std::any::TypeId;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::LazyLock;

use k8s_openapi::api::*;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use knarr_api::Kind;
use knarr_api::any_object::AnyObject;
use knarr_api::api_type::{ApiType, cast, cast_mut};
use knarr_apimachinery::error::Error;
use knarr_apimachinery::field;

use crate::table::{Cell, Column, ColumnOf};

pub use deletion::{DeletionPlan, DeletionRequest};

/// The part of an object that a request updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The object itself: status is kept as it was (for kinds with a status subresource).
    Main,
    /// The status subresource: everything but status is kept as it was.
    Status,
    /// Another subresource that writes into the object (`resize`, `ephemeralcontainers`, `approval`, `finalize` …).
    Other(&'static str),
}

/// How often a kind's own rules check `metadata` in an update, in addition to the checks for every kind (`rest.BeforeUpdate`).
///
/// An error is in `details.causes` once for each check that finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataChecks {
    /// Checks of all rules for a new object's metadata (`ValidateObjectMeta`).
    pub full: usize,
    /// Checks of immutable fields, and of labels, annotations and the like (`ValidateObjectMetaUpdate`).
    pub update: usize,
}

impl MetadataChecks {
    pub const NONE: Self = MetadataChecks { full: 0, update: 0 };
    pub const FULL: Self = MetadataChecks { full: 1, update: 0 };
    pub const UPDATE: Self = MetadataChecks { full: 0, update: 1 };
    pub const BOTH: Self = MetadataChecks { full: 1, update: 1 };
}

/// Restores the metadata that a status update may not change; managedFields were computed before, and stay.
pub(crate) fn keep_metadata(new: &mut ObjectMeta, old: &ObjectMeta) {
    new.deletion_timestamp.clone_from(&old.deletion_timestamp);
    new.generation = old.generation;
    new.labels.clone_from(&old.labels);
    new.annotations.clone_from(&old.annotations);
    new.finalizers.clone_from(&old.finalizers);
    new.owner_references.clone_from(&old.owner_references);
}

/// The rules of a kind. See the module.
pub trait Strategy: ApiType {
    /// Sets the defaults of absent fields, as v1.36 does (`zz_generated.defaults.go` and its callees). Idempotent.
    fn set_defaults(&mut self) {}

    /// Before a create: drops fields that users may not set (status), sets `metadata.generation` where the kind has it.
    fn prepare_for_create(&mut self) {}

    /// Before an update of `part`: keeps the fields that this part may not change, increments generation on a change of spec.
    fn prepare_for_update(&mut self, _old: &Self, _part: Part) {}

    /// Validates a new object (the pipeline has validated its metadata).
    fn validate(&self) -> field::ErrorList {
        field::ErrorList::new()
    }

    /// Validates an update of `part`: immutable fields, and the rules of [`Strategy::validate`].
    fn validate_update(&self, _old: &Self, _part: Part) -> field::ErrorList {
        self.validate()
    }

    /// Warnings for the client's `Warning` header, on create.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// The same on an update of all but the status.
    fn warnings_on_update(&self, _old: &Self) -> Vec<String> {
        self.warnings()
    }

    /// Warnings about a new object that are sent even if it is then rejected.
    fn early_warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Validates a name of this kind; the error messages, none if it is valid.
    fn validate_name(name: &str) -> Vec<String> {
        knarr_apimachinery::names::dns1123_subdomain(name)
    }

    /// Whether an update may create the object (`PUT` to a name that is not there).
    const CREATE_ON_UPDATE: bool = false;

    /// Whether an update without resourceVersion is unconditional.
    const UNCONDITIONAL_UPDATE: bool = true;

    /// Whether a new object without a name gets a UUID as its name.
    const GENERATES_NAME: bool = false;

    /// Whether objects are validated in the version in which they were sent, so that errors have its field names.
    const VALIDATED_AS_SENT: bool = false;

    /// Whether dependents are orphaned when a client names no propagation policy.
    const ORPHANS_BY_DEFAULT: bool = false;

    /// Whether the kind's own rules check a new object's metadata. Where they do not, only the rules for every kind are
    /// checked, and only if they found nothing else.
    const CHECKS_METADATA: bool = true;

    /// The checks of metadata by the kind's own rules in an update of `part`.
    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::UPDATE
    }

    /// Whether a finalizer without a domain must be one of Kubernetes' own (the kinds whose rules are those of
    /// `core/validation`).
    const STANDARD_FINALIZERS: bool = true;

    /// How long the object stays, with a deletionTimestamp, after the first request to delete it, unless its owner deletes it earlier; 0: it
    /// is deleted at once. `None`: the kind has no graceful deletion.
    fn deletion_grace_seconds(&self, _requested: Option<i64>) -> Option<i64> {
        None
    }

    /// Plans the deletion of this object. `marked` is a copy of it, and gets the marks.
    fn plan_deletion(&self, marked: &mut Self, request: &DeletionRequest) -> DeletionPlan {
        deletion::plan(self, marked, request)
    }

    /// Whether an update to this object completes the deletion of `old`: nothing holds it any more.
    fn completes_deletion(&self, old: &Self) -> bool {
        let metadata = k8s_openapi::Metadata::metadata;
        deletion::removes_last_finalizer(metadata(self), metadata(old))
    }

    /// The columns of `kubectl get`, with Kubernetes' names, types, formats and priorities.
    fn columns() -> &'static [Column] {
        crate::table::NAME_AND_CREATED_AT
    }

    /// One row, a cell for each of [`Strategy::columns`].
    fn row(&self, _now: Timestamp) -> Vec<Cell> {
        crate::table::name_and_created_at(k8s_openapi::Metadata::metadata(self))
    }
}

/// A [`Strategy`] without its Rust type. The pipeline calls these; a mismatched type is a bug and answers 500.
pub trait DynStrategy: Send + Sync {
    fn set_defaults(&self, obj: &mut dyn AnyObject) -> Result<(), Error>;
    fn prepare_for_create(&self, obj: &mut dyn AnyObject) -> Result<(), Error>;
    fn prepare_for_update(
        &self,
        obj: &mut dyn AnyObject,
        old: &dyn AnyObject,
        part: Part,
    ) -> Result<(), Error>;
    fn validate(&self, obj: &dyn AnyObject) -> Result<field::ErrorList, Error>;
    fn validate_update(
        &self,
        obj: &dyn AnyObject,
        old: &dyn AnyObject,
        part: Part,
    ) -> Result<field::ErrorList, Error>;
    fn warnings(&self, obj: &dyn AnyObject) -> Result<Vec<String>, Error>;
    fn warnings_on_update(&self, obj: &dyn AnyObject, old: &dyn AnyObject) -> Result<Vec<String>, Error>;
    fn early_warnings(&self, obj: &dyn AnyObject) -> Result<Vec<String>, Error>;
    fn validate_name(&self, name: &str) -> Vec<String>;
    fn create_on_update(&self) -> bool;
    fn unconditional_update(&self) -> bool;
    fn generates_name(&self) -> bool {
        false
    }
    fn validated_as_sent(&self) -> bool {
        false
    }
    fn checks_metadata(&self) -> bool;
    fn metadata_checks(&self, part: Part) -> MetadataChecks;
    fn standard_finalizers(&self) -> bool;
    fn deletion_grace_seconds(&self, _: &dyn AnyObject, _: Option<i64>) -> Result<Option<i64>, Error> {
        Ok(None)
    }
    fn plan_deletion(
        &self,
        obj: &dyn AnyObject,
        marked: &mut dyn AnyObject,
        request: &DeletionRequest,
    ) -> Result<DeletionPlan, Error>;
    fn completes_deletion(&self, obj: &dyn AnyObject, old: &dyn AnyObject) -> Result<bool, Error>;
    fn columns(&self) -> Cow<'_, [ColumnOf<'_>]>;
    fn row(&self, obj: &dyn AnyObject, now: Timestamp) -> Result<Vec<Cell>, Error>;
}

/// The [`DynStrategy`] of `T`.
struct TypedStrategy<T>(PhantomData<fn() -> T>);

impl<T: Strategy + 'static> DynStrategy for TypedStrategy<T> {
    fn set_defaults(&self, obj: &mut dyn AnyObject) -> Result<(), Error> {
        cast_mut::<T>(obj)?.set_defaults();
        Ok(())
    }
    fn prepare_for_create(&self, obj: &mut dyn AnyObject) -> Result<(), Error> {
        cast_mut::<T>(obj)?.prepare_for_create();
        Ok(())
    }
    fn prepare_for_update(
        &self,
        obj: &mut dyn AnyObject,
        old: &dyn AnyObject,
        part: Part,
    ) -> Result<(), Error> {
        let (new, old) = (cast_mut::<T>(obj)?, cast::<T>(old)?);
        new.prepare_for_update(old, part);
        if T::STATUS_KEEPS_METADATA && part == Part::Status {
            keep_metadata(new.metadata_mut(), old.metadata());
        }
        Ok(())
    }
    fn validate(&self, obj: &dyn AnyObject) -> Result<field::ErrorList, Error> {
        Ok(cast::<T>(obj)?.validate())
    }
    fn validate_update(
        &self,
        obj: &dyn AnyObject,
        old: &dyn AnyObject,
        part: Part,
    ) -> Result<field::ErrorList, Error> {
        Ok(cast::<T>(obj)?.validate_update(cast(old)?, part))
    }
    fn warnings(&self, obj: &dyn AnyObject) -> Result<Vec<String>, Error> {
        Ok(cast::<T>(obj)?.warnings())
    }
    fn warnings_on_update(&self, obj: &dyn AnyObject, old: &dyn AnyObject) -> Result<Vec<String>, Error> {
        Ok(cast::<T>(obj)?.warnings_on_update(cast(old)?))
    }
    fn early_warnings(&self, obj: &dyn AnyObject) -> Result<Vec<String>, Error> {
        Ok(cast::<T>(obj)?.early_warnings())
    }
    fn validate_name(&self, name: &str) -> Vec<String> {
        T::validate_name(name)
    }
    fn create_on_update(&self) -> bool {
        T::CREATE_ON_UPDATE
    }
    fn unconditional_update(&self) -> bool {
        T::UNCONDITIONAL_UPDATE
    }
    fn generates_name(&self) -> bool {
        T::GENERATES_NAME
    }
    fn validated_as_sent(&self) -> bool {
        T::VALIDATED_AS_SENT
    }
    fn checks_metadata(&self) -> bool {
        T::CHECKS_METADATA
    }
    fn metadata_checks(&self, part: Part) -> MetadataChecks {
        T::metadata_checks(part)
    }
    fn standard_finalizers(&self) -> bool {
        T::STANDARD_FINALIZERS
    }
    fn deletion_grace_seconds(
        &self,
        obj: &dyn AnyObject,
        requested: Option<i64>,
    ) -> Result<Option<i64>, Error> {
        Ok(cast::<T>(obj)?.deletion_grace_seconds(requested))
    }
    fn plan_deletion(
        &self,
        obj: &dyn AnyObject,
        marked: &mut dyn AnyObject,
        request: &DeletionRequest,
    ) -> Result<DeletionPlan, Error> {
        Ok(cast::<T>(obj)?.plan_deletion(cast_mut(marked)?, request))
    }
    fn completes_deletion(&self, obj: &dyn AnyObject, old: &dyn AnyObject) -> Result<bool, Error> {
        Ok(cast::<T>(obj)?.completes_deletion(cast(old)?))
    }
    fn columns(&self) -> Cow<'_, [ColumnOf<'_>]> {
        Cow::Borrowed(T::columns())
    }
    fn row(&self, obj: &dyn AnyObject, now: Timestamp) -> Result<Vec<Cell>, Error> {
        Ok(cast::<T>(obj)?.row(now))
    }
}

/// The strategies by the types of the kinds' objects.
macro_rules! strategies {
    ($($t:ty),* $(,)?) => {
        static STRATEGIES: LazyLock<BTreeMap<TypeId, &'static dyn DynStrategy>> = LazyLock::new(|| {
            BTreeMap::from([$((
                TypeId::of::<$t>(),
                &TypedStrategy::<$t>(PhantomData) as &'static dyn DynStrategy,
            )),*])
        });
    };
}

strategies! {
    core::v1::Binding,
    core::v1::ComponentStatus,
    core::v1::ConfigMap,
    core::v1::Endpoints,
    core::v1::Event,
    core::v1::LimitRange,
    core::v1::Namespace,
    core::v1::Node,
    core::v1::PersistentVolumeClaim,
    core::v1::PersistentVolume,
    core::v1::Pod,
    core::v1::PodTemplate,
    core::v1::ReplicationController,
    core::v1::ResourceQuota,
    core::v1::Secret,
    core::v1::ServiceAccount,
    core::v1::Service,
    APIService,
    apps::v1::ControllerRevision,
    apps::v1::DaemonSet,
    apps::v1::Deployment,
    apps::v1::ReplicaSet,
    apps::v1::StatefulSet,
    events::v1::Event,
    authentication::v1::SelfSubjectReview,
    authentication::v1::TokenReview,
    authorization::v1::LocalSubjectAccessReview,
    authorization::v1::SelfSubjectAccessReview,
    authorization::v1::SelfSubjectRulesReview,
    authorization::v1::SubjectAccessReview,
    autoscaling::v2::HorizontalPodAutoscaler,
    autoscaling::v1::HorizontalPodAutoscaler,
    batch::v1::CronJob,
    batch::v1::Job,
    certificates::v1::CertificateSigningRequest,
    networking::v1::IngressClass,
    networking::v1::Ingress,
    networking::v1::IPAddress,
    networking::v1::NetworkPolicy,
    networking::v1::ServiceCIDR,
    policy::v1::PodDisruptionBudget,
    rbac::v1::ClusterRoleBinding,
    rbac::v1::ClusterRole,
    rbac::v1::RoleBinding,
    rbac::v1::Role,
    storage::v1::CSIDriver,
    storage::v1::CSINode,
    storage::v1::CSIStorageCapacity,
    storage::v1::StorageClass,
    storage::v1::VolumeAttachment,
    storage::v1::VolumeAttributesClass,
    admissionregistration::v1::MutatingAdmissionPolicy,
    admissionregistration::v1::MutatingAdmissionPolicyBinding,
    admissionregistration::v1::MutatingWebhookConfiguration,
    admissionregistration::v1::ValidatingAdmissionPolicy,
    admissionregistration::v1::ValidatingAdmissionPolicyBinding,
    admissionregistration::v1::ValidatingWebhookConfiguration,
    CustomResourceDefinition,
    scheduling::v1::PriorityClass,
    coordination::v1::Lease,
    node::v1::RuntimeClass,
    discovery::v1::EndpointSlice,
    resource::v1::DeviceClass,
    resource::v1::ResourceClaim,
    resource::v1::ResourceClaimTemplate,
    resource::v1::ResourceSlice,
    flowcontrol::v1::FlowSchema,
    flowcontrol::v1::PriorityLevelConfiguration,
    autoscaling::v1::Scale,
}

/// Finds the strategy of a kind.
pub trait KindStrategy {
    /// The rules of the kind.
    fn strategy(&self) -> &dyn DynStrategy;
}

impl KindStrategy for Kind {
    fn strategy(&self) -> &dyn DynStrategy {
        if let Some(custom) = self.ops.custom() {
            return custom;
        }
        match STRATEGIES.get(&self.ops.type_of_objects()) {
            Some(strategy) => *strategy,
            None => unreachable!("every built-in kind has a strategy"),
        }
    }
}

#[cfg(test)]
mod tests {
    use knarr_api::registry;

    use super::*;

    #[test]
    fn every_built_in_kind_has_a_strategy() {
        for kind in registry::ALL {
            assert!(STRATEGIES.contains_key(&kind.ops.type_of_objects()), "{kind:?}");
        }
    }
}
