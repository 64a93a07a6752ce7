//! What validating and mutating admission policies have in common: parameters, variables, conditions, and which
//! variables their expressions may speak of.

use k8s_openapi::api::admissionregistration::v1::{MatchCondition, ParamKind, Variable};

use super::checks::text;
use crate::admission::policy::environment::{Composition, Given, compiled, environment};
use crate::cel::check::{Environment, Type};
use crate::field::{Errors, Path};
use crate::names;

/// What the expressions of a policy may speak of.
pub struct PolicyScope {
    given: Given,
    /// `None` where there are no variables at all.
    variables: Option<Composition>,
}

impl PolicyScope {
    pub fn new(has_params: bool, has_variables: bool) -> Self {
        PolicyScope {
            given: Given {
                params: has_params,
                authorizer: true,
                patches: false,
            },
            variables: has_variables.then(Composition::default),
        }
    }

    fn environment(&self, given: Given) -> Environment {
        let environment = environment(given);
        match &self.variables {
            Some(variables) => variables.in_environment(&environment),
            None => environment,
        }
    }

    /// Whether the text gives one of these types.
    pub fn check(&self, text: &str, wanted: &[Type], at: &Path, errors: &mut Errors) {
        check_in(&self.environment(self.given), text, wanted, at, errors);
    }

    /// The same of a message, which may not ask who may do what.
    pub fn check_message(&self, text: &str, at: &Path, errors: &mut Errors) {
        let given = Given {
            authorizer: false,
            ..self.given
        };
        check_in(&self.environment(given), text, &[Type::String], at, errors);
    }

    /// The same of a mutation, which may make objects and patches.
    pub fn check_mutation(&self, text: &str, wanted: Type, at: &Path, errors: &mut Errors) {
        let given = Given {
            patches: true,
            ..self.given
        };
        check_in(&self.environment(given), text, &[wanted], at, errors);
    }
}

fn check_in(environment: &Environment, text: &str, wanted: &[Type], at: &Path, errors: &mut Errors) {
    if let Err(why) = compiled(text, environment, wanted) {
        errors.invalid(at, text, why);
    }
}

pub fn check_param_kind(kind: Option<&ParamKind>, path: &Path, errors: &mut Errors) {
    let Some(kind) = kind else { return };
    let at = path.child("paramKind");
    match text(&kind.api_version) {
        "" => errors.required(&at.child("apiVersion"), ""),
        version => {
            let parts: Vec<&str> = version.split('/').collect();
            let (group, version_only) = match parts[..] {
                [version] => ("", version),
                [group, version] => (group, version),
                _ => {
                    let why = format!("unexpected GroupVersion string: {version}");
                    return errors.invalid(&at.child("apiVersion"), version, why);
                }
            };
            if !group.is_empty() {
                for why in names::dns1123_subdomain(group) {
                    errors.invalid(&at.child("apiVersion"), group, why);
                }
            }
            for why in names::dns1035_label(version_only) {
                errors.invalid(&at.child("apiVersion"), version_only, why);
            }
        }
    }
    match text(&kind.kind) {
        "" => errors.required(&at.child("kind"), ""),
        kind => {
            for why in names::dns1035_label(&kind.to_lowercase()) {
                let why = format!("may have mixed case, but should otherwise match: {why}");
                errors.invalid(&at.child("kind"), kind, why);
            }
        }
    }
}

/// Checks the variables one after the other; each is known to those after it.
pub fn check_variables(
    variables: &Option<Vec<Variable>>,
    scope: &mut PolicyScope,
    path: &Path,
    errors: &mut Errors,
) {
    let environment = environment(scope.given);
    for (i, variable) in variables.iter().flatten().enumerate() {
        let at = path.child("variables").index(i);
        match variable.name.trim() {
            "" => errors.required(&at.child("name"), "name is not specified"),
            _ if !names::c_identifier(&variable.name).is_empty() => {
                let words = "must be a valid CEL identifier";
                errors.invalid(&at.child("name"), variable.name.as_str(), words);
            }
            _ => {}
        }
        let (text, at) = (variable.expression.as_str(), at.child("expression"));
        if text.trim().is_empty() {
            errors.required(&at, "expression is not specified");
            continue;
        }
        let known = scope.variables.get_or_insert_default();
        if let Err(why) = known.add(&variable.name, text, &environment) {
            errors.invalid(&at, text, format!("compilation failed: {why}"));
        }
    }
}

/// Most conditions of one policy or webhook.
const CONDITIONS_MAX: usize = 64;

pub fn check_conditions(
    conditions: &Option<Vec<MatchCondition>>,
    has_params: bool,
    path: &Path,
    errors: &mut Errors,
) {
    let at = path.child("matchConditions");
    // Conditions know no variables: they are asked first.
    let environment = environment(Given {
        params: has_params,
        authorizer: true,
        patches: false,
    });
    let conditions = conditions.as_deref().unwrap_or_default();
    if conditions.len() > CONDITIONS_MAX {
        errors.too_many(&at, conditions.len(), CONDITIONS_MAX);
    }
    for (i, condition) in conditions.iter().enumerate() {
        let at = at.index(i);
        match condition.expression.trim() {
            "" => errors.required(&at.child("expression"), ""),
            text => check_in(&environment, text, &[Type::Bool], &at.child("expression"), errors),
        }
        if condition.name.is_empty() {
            errors.required(&at.child("name"), "");
        } else {
            for why in names::qualified_name(&condition.name) {
                errors.invalid(&at.child("name"), condition.name.as_str(), why);
            }
        }
        if conditions.iter().take(i).any(|c| c.name == condition.name) {
            errors.duplicate(&at.child("name"), &condition.name);
        }
    }
}
