//! ValidatingAdmissionPolicyBinding: the resources that a policy applies to, and its parameters.

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};

use super::admission_policy::{check_match_resources, check_param_ref, shown_param_ref};
use super::checks::{dns_subdomain, update_generation};
use super::webhook::set_match_defaults;
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

impl Strategy for ValidatingAdmissionPolicyBinding {
    fn set_defaults(&mut self) {
        let spec = &mut self.spec;
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
        let spec = self.spec.clone();
        let path = Path::new("spec");
        if spec.policy_name.is_empty() {
            errors.required(&path.child("policyName"), "");
        } else {
            dns_subdomain(&mut errors, &path.child("policyName"), &spec.policy_name);
        }
        check_param_ref(spec.param_ref.as_ref(), &path, &mut errors);
        if let Some(resources) = &spec.match_resources {
            check_match_resources(resources, &path.child("matchResources"), &mut errors);
        }
        let at = path.child("validationActions");
        let actions = &spec.validation_actions;
        if actions.is_empty() {
            errors.required(&at, "at least one validation action is required");
        }
        const ACTIONS: &[&str] = &["Audit", "Deny", "Warn"];
        for (i, action) in actions.iter().enumerate() {
            if !ACTIONS.contains(&action.as_str()) {
                errors.not_supported_in_order(&at.index(i), action, ACTIONS);
            }
            if actions[..i].contains(action) {
                errors.duplicate(&at.index(i), action);
            }
        }
        let has = |action: &str| actions.iter().any(|a| a == action);
        if has("Deny") && has("Warn") {
            errors.invalid(
                &at,
                super::checks::json(actions),
                "must not contain both Deny and Warn (repeating the same validation failure information in the API \
                 response and headers serves no purpose)",
            );
        }
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
        let spec = self.spec.clone();
        vec![
            table::name(&self.metadata),
            spec.policy_name.as_str().into(),
            shown_param_ref(spec.param_ref.as_ref()).into(),
            table::created(&self.metadata, now),
        ]
    }

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::FULL
    }

    const STANDARD_FINALIZERS: bool = false;
}
