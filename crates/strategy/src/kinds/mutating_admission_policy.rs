//! MutatingAdmissionPolicy: CEL expressions that mutate the objects of requests.

use k8s_openapi::api::admissionregistration::v1::{MutatingAdmissionPolicy, MutatingAdmissionPolicySpec};
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_cel::check::Type;

use super::admission_policy::{
    PolicyScope, check_conditions, check_match_constraints, check_mutable_operations, check_param_kind,
    check_variables,
};
use super::checks::{text, update_generation};
use super::webhook::set_match_defaults;
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy, facts};

fn check_expressions(spec: &MutatingAdmissionPolicySpec, path: &Path, errors: &mut ErrorList) {
    let has_params = spec.param_kind.is_some();
    let mut scope = PolicyScope::new(has_params, true);
    check_param_kind(spec.param_kind.as_ref(), path, errors);
    check_conditions(spec.match_conditions.as_deref(), has_params, path, errors);
    check_variables(spec.variables.as_deref(), &mut scope, path, errors);
    for (i, mutation) in spec.mutations.iter().flatten().enumerate() {
        let at = path.child("mutations").index(i);
        let apply = mutation.apply_configuration.as_ref().map(|a| &a.expression);
        let patch = mutation.json_patch.as_ref().map(|p| &p.expression);
        let object = Type::Struct("Object".into());
        let patches = Type::list(Type::Struct("JSONPatch".into()));
        let (field, expression, result_type, other, other_field) = match mutation.patch_type.as_str() {
            "ApplyConfiguration" => ("applyConfiguration", apply, object, patch, "jsonPatch"),
            "JSONPatch" => ("jsonPatch", patch, patches, apply, "applyConfiguration"),
            "" => {
                errors.required(&at.child("patchType"), "");
                continue;
            }
            unknown => {
                const TYPES: &[&str] = &["ApplyConfiguration", "JSONPatch"];
                errors.not_supported(&at.child("patchType"), unknown, TYPES);
                continue;
            }
        };
        let kind = &mutation.patch_type;
        match expression {
            None => {
                let detail = format!("must be specified when patchType is {kind}");
                errors.required(&at.child(field), detail);
            }
            Some(expression) => {
                let at = at.child(field).child("expression");
                match expression.as_deref().unwrap_or_default().trim() {
                    "" => errors.required(&at, ""),
                    text => scope.check_mutation(text, result_type, &at, errors),
                }
            }
        }
        if other.is_some() {
            let detail = format!("must not be specified when patchType is {kind}");
            errors.invalid(
                &at.child(other_field),
                format!("{{{other_field}}}").as_str(),
                detail,
            );
        }
    }
}

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
        update_generation(&mut self.metadata, &old.metadata, changed);
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let spec = self.spec.clone().unwrap_or_default();
        let path = Path::new("spec");
        facts::check(&mut errors, &path, &spec, &["failurePolicy"]);
        check_match_constraints(spec.match_constraints.as_ref(), &path, &mut errors);
        check_mutable_operations(
            spec.match_constraints.as_ref(),
            &path.child("matchConstraints"),
            &mut errors,
        );
        if spec.mutations.as_ref().is_none_or(|m| m.is_empty()) {
            errors.required(
                &path.child("mutations"),
                "mutations must contain at least one item",
            );
        }
        check_expressions(&spec, &path, &mut errors);
        facts::check(&mut errors, &path, &spec, &["reinvocationPolicy"]);
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> ErrorList {
        // Expressions of an unchanged spec are not validated again.
        if self.spec == old.spec {
            return ErrorList::new();
        }
        self.validate()
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

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::FULL
    }

    const STANDARD_FINALIZERS: bool = false;
}
