//! Type checking of ValidatingAdmissionPolicies (KEP-3488): the status has a warning for each expression that does not fit the
//! matched kinds. The types of custom resources come from their CustomResourceDefinitions; when one changes, all policies are checked
//! again.

use k8s_openapi::api::admissionregistration::v1::{TypeChecking, ValidatingAdmissionPolicy};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use knarr_admission::policy::type_checking::{Gvk, Kinds, warnings};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey, Shared};
use knarr_cel::check::Declared;

use crate::action::Action;
use crate::controller::{Context, Controller, ObjectChange, View};

/// See the module. Its keys are the policies.
pub struct PolicyStatus;

impl Controller for PolicyStatus {
    fn name(&self) -> &'static str {
        "validatingadmissionpolicy-status"
    }

    fn account(&self) -> &'static str {
        "validatingadmissionpolicy-status-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![
            &registry::VALIDATING_ADMISSION_POLICY,
            &registry::CUSTOM_RESOURCE_DEFINITION,
        ]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::VALIDATING_ADMISSION_POLICY) {
            return vec![key];
        }
        let spec = |object: Option<&knarr_api::Object>| {
            let definition = object?.get::<CustomResourceDefinition>()?;
            Some(definition.spec.clone())
        };
        if spec(changed.old) == spec(changed.new) {
            return Vec::new();
        }
        let policies = view.list(&registry::VALIDATING_ADMISSION_POLICY, "");
        policies.iter().map(|policy| ObjectKey::of(policy)).collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let name = &context.key.name;
        let Some(policy) = context.view.get_as::<ValidatingAdmissionPolicy>("", name) else {
            return Vec::new();
        };
        let Some(spec) = policy.spec.as_ref().filter(|_| context.failure.is_none()) else {
            return Vec::new();
        };
        let definitions = context.view.list_as::<CustomResourceDefinition>("");
        let found = warnings(spec, &Known(&definitions));
        let checked = TypeChecking {
            expression_warnings: Some(found).filter(|found| !found.is_empty()),
        };
        let mut new = (*policy).clone();
        let status = new.status.get_or_insert_default();
        let unchanged = status.type_checking.as_ref() == Some(&checked);
        if unchanged && status.observed_generation == policy.metadata.generation {
            return Vec::new();
        }
        status.type_checking = Some(checked);
        status.observed_generation = policy.metadata.generation;
        vec![Action::update_status(new)]
    }
}

/// The types of built-in kinds, and those of CustomResourceDefinitions.
struct Known<'v>(&'v [Shared<CustomResourceDefinition>]);

impl Kinds for Known<'_> {
    fn of_resource(&self, group: &str, version: &str, resource: &str) -> Vec<Gvk> {
        let in_group = |found: &str| group.is_empty() || found == group;
        let built_in = registry::ALL.iter().filter(|kind| {
            in_group(kind.group())
                && kind.version() == version
                && [kind.plural(), kind.singular()].contains(&resource)
        });
        let built_in = built_in.map(|kind| Gvk {
            group: kind.group().into(),
            version: version.into(),
            kind: kind.kind().into(),
        });
        let custom = self.0.iter().filter(|definition| {
            let names = &definition.spec.names;
            let named = names.plural == resource || names.singular.as_deref() == Some(resource);
            let mut served = definition.spec.versions.iter().filter(|v| v.served);
            in_group(&definition.spec.group) && named && served.any(|v| v.name == version)
        });
        let custom = custom.map(|definition| Gvk {
            group: definition.spec.group.clone(),
            version: version.into(),
            kind: definition.spec.names.kind.clone(),
        });
        built_in.chain(custom).collect()
    }

    fn declared(&self, kind: &Gvk) -> Option<Declared> {
        let api_version = match kind.group.as_str() {
            "" => kind.version.clone(),
            group => format!("{group}/{}", kind.version),
        };
        if let Some(found) = registry::by_kind(&api_version, &kind.kind) {
            return knarr_api::declared::declared(found);
        }
        let definition = self.0.iter().find(|definition| {
            definition.spec.group == kind.group && definition.spec.names.kind == kind.kind
        })?;
        knarr_api::custom::declared_version(definition, &kind.version)
    }
}

#[cfg(test)]
mod tests;
