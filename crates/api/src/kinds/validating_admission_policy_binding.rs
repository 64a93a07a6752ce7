//! ValidatingAdmissionPolicyBinding: where a policy applies, and with which parameters.

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use k8s_openapi::jiff::Timestamp;

use super::checks::{count_generation, dns_subdomain, text};
use super::webhook::set_match_defaults;
use crate::field::{Errors, Path};
use crate::strategy::{MetadataChecks, Part, Strategy};
use crate::table::{self, Cell, Column};

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
        count_generation(&mut self.metadata, &old.metadata, changed);
    }

    fn validate(&self) -> Errors {
        let mut errors = Errors::new();
        let spec = self.spec.clone();
        let path = Path::new("spec");
        if spec.policy_name.is_empty() {
            errors.required(&path.child("policyName"), "");
        } else {
            dns_subdomain(&mut errors, &path.child("policyName"), &spec.policy_name);
        }
        if let Some(param) = &spec.param_ref {
            let path = path.child("paramRef");
            match (text(&param.name), &param.selector) {
                ("", None) => errors.required(&path, "one of name or selector must be specified"),
                (name, Some(_)) if !name.is_empty() => {
                    errors.forbidden(&path.child("name"), "name and selector are mutually exclusive");
                }
                _ => {}
            }
            const ACTIONS: &[&str] = &["Allow", "Deny"];
            match text(&param.parameter_not_found_action) {
                "" => errors.required(&path.child("parameterNotFoundAction"), ""),
                action if !ACTIONS.contains(&action) => errors.not_supported_in_order(
                    &path.child("parameterNotFoundAction"),
                    action,
                    &["Deny", "Allow"],
                ),
                _ => {}
            }
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
        let param = spec.param_ref.as_ref().map(|param| {
            match (text(&param.namespace), text(&param.name), &param.selector) {
                // Whether the parameter has a namespace cannot be told from here.
                ("", name, _) if !name.is_empty() => format!("*/{name}"),
                (namespace, name, _) if !name.is_empty() => format!("{namespace}/{name}"),
                (_, _, Some(selector)) => table::selector_text(selector),
                _ => "<unset>".into(),
            }
        });
        vec![
            table::name(&self.metadata),
            spec.policy_name.as_str().into(),
            param.unwrap_or_else(|| "<unset>".into()).into(),
            table::created(&self.metadata, now),
        ]
    }

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::WHOLE
    }

    const STANDARD_FINALIZERS: bool = false;
}
