//! MutatingAdmissionPolicyBinding: the resources that a policy applies to, and its parameters.

use k8s_openapi::api::admissionregistration::v1::MutatingAdmissionPolicyBinding;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};

use super::admission_policy::{
    check_match_resources, check_mutable_operations, check_param_ref, shown_param_ref,
};
use super::checks::{dns_subdomain, text, update_generation};
use super::webhook::set_match_defaults;
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

impl Strategy for MutatingAdmissionPolicyBinding {
    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        if let Some(resources) = &mut spec.match_resources {
            set_match_defaults(resources);
        }
    }

    fn prepare_for_create(&mut self) {
        self.metadata.generation = Some(1);
    }

    fn prepare_for_update(&mut self, old: &Self, _part: Part) {
        let changed = self.spec != old.spec;
        update_generation(&mut self.metadata, &old.metadata, changed);
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let spec = self.spec.clone().unwrap_or_default();
        let path = Path::new("spec");
        if text(&spec.policy_name).is_empty() {
            errors.required(&path.child("policyName"), "");
        } else {
            dns_subdomain(&mut errors, &path.child("policyName"), text(&spec.policy_name));
        }
        check_param_ref(spec.param_ref.as_ref(), &path, &mut errors);
        if let Some(resources) = &spec.match_resources {
            check_match_resources(resources, &path.child("matchResources"), &mut errors);
        }
        check_mutable_operations(
            spec.match_resources.as_ref(),
            &path.child("matchResources"),
            &mut errors,
        );
        errors
    }

    const UNCONDITIONAL_UPDATE: bool = false;

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("PolicyName"),
            Column::string("ParamRef"),
            table::AGE,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let spec = self.spec.clone().unwrap_or_default();
        vec![
            table::name(&self.metadata),
            text(&spec.policy_name).into(),
            shown_param_ref(spec.param_ref.as_ref()).into(),
            table::created(&self.metadata, now),
        ]
    }

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::FULL
    }

    const STANDARD_FINALIZERS: bool = false;
}
