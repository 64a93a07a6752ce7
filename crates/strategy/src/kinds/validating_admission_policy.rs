//! ValidatingAdmissionPolicy: CEL expressions that requests must satisfy.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyStatus,
};
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_cel::check::Type;

use super::admission_policy::{
    PolicyScope, check_conditions, check_match_constraints, check_param_kind, check_variables,
};
use super::checks::{conditions, text, update_generation};
use super::webhook::set_match_defaults;
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy, facts};

/// Maximum length of the expression of an audit annotation in bytes.
const ANNOTATION_MAX_BYTES: usize = 5 * 1024;
/// Maximum number of audit annotations of one policy.
const ANNOTATIONS_MAX: usize = 20;

fn validate_status(status: &ValidatingAdmissionPolicyStatus, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let warnings = status
        .type_checking
        .as_ref()
        .and_then(|c| c.expression_warnings.as_deref());
    let at = path.child("typeChecking").child("expressionWarnings");
    for (i, warning) in warnings.unwrap_or_default().iter().enumerate() {
        let at = at.index(i);
        if warning.warning.is_empty() {
            errors.required(&at.child("warning"), "");
        }
        if warning.field_ref.trim().is_empty() {
            errors.required(&at.child("fieldRef"), "");
        }
    }
    conditions(
        &mut errors,
        &path.child("conditions"),
        status.conditions.as_deref(),
    );
    errors
}

fn check_expressions(policy: &ValidatingAdmissionPolicy, path: &Path, errors: &mut ErrorList) {
    let spec = policy.spec.clone().unwrap_or_default();
    let spec = &spec;
    let has_params = spec.param_kind.is_some();
    let has_variables = spec.variables.as_ref().is_some_and(|v| !v.is_empty());
    let mut scope = PolicyScope::new(has_params, has_variables);
    check_param_kind(spec.param_kind.as_ref(), path, errors);
    check_conditions(spec.match_conditions.as_deref(), has_params, path, errors);
    check_variables(spec.variables.as_deref(), &mut scope, path, errors);
    for (i, validation) in spec.validations.iter().flatten().enumerate() {
        let at = path.child("validations").index(i);
        let text = validation.expression.as_str();
        match text.trim() {
            "" => errors.required(&at.child("expression"), "expression is not specified"),
            _ => scope.check(text, &[Type::Bool], &at.child("expression"), errors),
        }
        if let Some(message) = validation.message_expression.as_deref()
            && !message.is_empty()
        {
            let at = at.child("messageExpression");
            match message.trim() {
                "" => errors.invalid(&at, message, "must be non-empty if specified"),
                _ => scope.check_message(message, &at, errors),
            }
        }
        match validation.message.as_deref() {
            Some(message) if !message.is_empty() && message.trim().is_empty() => {
                errors.invalid(&at.child("message"), message, "must be non-empty if specified");
            }
            Some(message) if message.trim().contains(['\n', '\r']) => {
                errors.invalid(&at.child("message"), message, "must not contain line breaks");
            }
            _ => {}
        }
        facts::check(errors, &at, validation, &["reason"]);
    }
    let annotations = spec.audit_annotations.as_deref().unwrap_or_default();
    if annotations.len() > ANNOTATIONS_MAX {
        let detail = format!("must not have more than {ANNOTATIONS_MAX} auditAnnotations");
        let shown = super::checks::json(annotations);
        errors.invalid(&path.child("auditAnnotations"), shown, detail);
    }
    let mut keys: Vec<&str> = Vec::new();
    for (i, annotation) in annotations.iter().enumerate() {
        let at = path.child("auditAnnotations").index(i);
        // The key of the annotation in the audit log.
        match super::checks::text(&policy.metadata.name) {
            "" => errors.invalid(
                &at.child("key"),
                annotation.key.as_str(),
                "requires metadata.name be non-empty",
            ),
            name => {
                let whole = format!("{name}/{}", annotation.key);
                for detail in knarr_apimachinery::names::qualified_name(&whole) {
                    errors.invalid(&at.child("key"), whole.as_str(), detail);
                }
            }
        }
        let text = annotation.value_expression.trim();
        let value = at.child("valueExpression");
        if text.is_empty() {
            errors.required(&value, "valueExpression is not specified");
        } else if text.len() > ANNOTATION_MAX_BYTES {
            let detail = format!("must not exceed {ANNOTATION_MAX_BYTES} bytes in length");
            errors.required(&value, detail);
        } else {
            scope.check(text, &[Type::String, Type::Null], &value, errors);
        }
        if keys.contains(&annotation.key.as_str()) {
            errors.duplicate(&at.child("key"), &annotation.key);
        }
        keys.push(&annotation.key);
    }
}

impl Strategy for ValidatingAdmissionPolicy {
    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        spec.failure_policy.get_or_insert_with(|| "Fail".into());
        if let Some(resources) = &mut spec.match_constraints {
            set_match_defaults(resources);
        }
        self.status.get_or_insert_default();
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(Default::default());
        self.metadata.generation = Some(1);
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        let mut changed = false;
        if part == Part::Status {
            self.spec = old.spec.clone();
        } else {
            self.status = old.status.clone();
            changed = self.spec != old.spec;
        }
        update_generation(&mut self.metadata, &old.metadata, changed);
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let spec = self.spec.clone().unwrap_or_default();
        let path = Path::new("spec");
        facts::check(&mut errors, &path, &spec, &["failurePolicy"]);
        check_match_constraints(spec.match_constraints.as_ref(), &path, &mut errors);
        let annotated = spec.audit_annotations.as_ref().is_some_and(|a| !a.is_empty());
        let checked = spec.validations.as_ref().is_some_and(|v| !v.is_empty());
        if !annotated && !checked {
            let detail = "validations or auditAnnotations must contain at least one item";
            errors.required(&path.child("validations"), detail);
            errors.required(&path.child("auditAnnotations"), detail);
        }
        check_expressions(self, &path, &mut errors);
        errors
    }

    fn validate_update(&self, old: &Self, part: Part) -> ErrorList {
        if part == Part::Status {
            let status = self.status.clone().unwrap_or_default();
            return validate_status(&status, &Path::new("status"));
        }
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
            Column::integer("Validations"),
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
            spec.validations.map_or(0, |c| c.len()).into(),
            table::or(kind.as_deref(), "<unset>").into(),
            table::created(&self.metadata, now),
        ]
    }

    fn metadata_checks(part: Part) -> MetadataChecks {
        match part {
            Part::Status => MetadataChecks::NONE,
            Part::Main | Part::Other(_) => MetadataChecks::FULL,
        }
    }

    const STANDARD_FINALIZERS: bool = false;
}
