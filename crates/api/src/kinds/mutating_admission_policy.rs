//! MutatingAdmissionPolicy: how writes are changed, as expressions. Those are not compiled here.

use k8s_openapi::api::admissionregistration::v1::MutatingAdmissionPolicy;
use k8s_openapi::jiff::Timestamp;

use super::checks::{count_generation, text};
use super::webhook::set_match_defaults;
use crate::field::{Errors, Path};
use crate::strategy::{Part, Strategy};
use crate::table::{self, Cell, Column};

impl Strategy for MutatingAdmissionPolicy {
    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        spec.failure_policy.get_or_insert_with(|| "Fail".into());
        if let Some(resources) = &mut spec.match_constraints {
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
        let spec = self.spec.clone().unwrap_or_default();
        let path = Path::new("spec");
        const POLICIES: &[&str] = &["Fail", "Ignore"];
        match text(&spec.failure_policy) {
            "" => errors.required(&path.child("failurePolicy"), ""),
            policy if !POLICIES.contains(&policy) => {
                errors.not_supported_in_order(&path.child("failurePolicy"), policy, POLICIES);
            }
            _ => {}
        }
        let at = path.child("matchConstraints");
        match &spec.match_constraints {
            None => errors.required(&at, ""),
            Some(resources) if resources.resource_rules.as_ref().is_none_or(|r| r.is_empty()) => {
                errors.required(&at.child("resourceRules"), "");
            }
            Some(_) => {}
        }
        if spec.mutations.as_ref().is_none_or(|m| m.is_empty()) {
            errors.required(
                &path.child("mutations"),
                "mutations must contain at least one item",
            );
        }
        errors
    }

    const UNCONDITIONAL_UPDATE: bool = false;

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::integer("Mutations"),
            Column::string("ParamKind"),
            table::AGE,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let spec = self.spec.clone().unwrap_or_default();
        let kind = spec
            .param_kind
            .map(|k| format!("{}/{}", text(&k.api_version), text(&k.kind)));
        vec![
            table::name(&self.metadata),
            spec.mutations.map_or(0, |c| c.len()).into(),
            table::or(kind.as_deref(), "<unset>").into(),
            table::created(&self.metadata, now),
        ]
    }
}
