//! What ValidatingAdmissionPolicy, MutatingAdmissionPolicy and their bindings have in common: parameters, match resources,
//! variables, match conditions, and the environment in which their CEL expressions are compiled.

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, NamedRuleWithOperations, ParamKind, ParamRef, RuleWithOperations,
    Variable,
};
use knarr_admission::policy::environment::{Composition, OptionalVariables, compiled, environment};
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::labels;
use knarr_apimachinery::names;
use knarr_cel::check::{Environment, Type};

use super::admission_rule::check_rule;
use super::checks::{label_selector, text};
use crate::facts;

/// The variables that the CEL expressions of a policy may use.
pub struct PolicyScope {
    given: OptionalVariables,
    /// `None` if the policy has no `variables`.
    variables: Option<Composition>,
}

impl PolicyScope {
    pub fn new(has_params: bool, has_variables: bool) -> Self {
        PolicyScope {
            given: OptionalVariables {
                params: has_params,
                authorizer: true,
                patches: false,
            },
            variables: has_variables.then(Composition::default),
        }
    }

    fn environment(&self, given: OptionalVariables) -> Environment {
        let environment = environment(given);
        match &self.variables {
            Some(variables) => variables.in_environment(&environment),
            None => environment,
        }
    }

    /// Checks that an expression compiles and that its result has one of the expected types.
    pub fn check(&self, text: &str, expected: &[Type], at: &Path, errors: &mut ErrorList) {
        check_in(&self.environment(self.given), text, expected, at, errors);
    }

    /// Checks a message expression, which may not use the `authorizer`.
    pub fn check_message(&self, text: &str, at: &Path, errors: &mut ErrorList) {
        let given = OptionalVariables {
            authorizer: false,
            ..self.given
        };
        check_in(&self.environment(given), text, &[Type::String], at, errors);
    }

    /// Checks a mutation, which may construct objects and JSON patches.
    pub fn check_mutation(&self, text: &str, expected: Type, at: &Path, errors: &mut ErrorList) {
        let given = OptionalVariables {
            patches: true,
            ..self.given
        };
        check_in(&self.environment(given), text, &[expected], at, errors);
    }
}

fn check_in(environment: &Environment, text: &str, expected: &[Type], at: &Path, errors: &mut ErrorList) {
    if let Err(error) = compiled(text, environment, expected) {
        errors.invalid(at, text, error.to_string());
    }
}

pub fn check_param_kind(kind: Option<&ParamKind>, path: &Path, errors: &mut ErrorList) {
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
                    let detail = format!("unexpected GroupVersion string: {version}");
                    return errors.invalid(&at.child("apiVersion"), version, detail);
                }
            };
            if !group.is_empty() {
                for detail in names::dns1123_subdomain(group) {
                    errors.invalid(&at.child("apiVersion"), group, detail);
                }
            }
            for detail in names::dns1035_label(version_only) {
                errors.invalid(&at.child("apiVersion"), version_only, detail);
            }
        }
    }
    match text(&kind.kind) {
        "" => errors.required(&at.child("kind"), ""),
        kind => {
            for message in names::dns1035_label(&kind.to_lowercase()) {
                let detail = format!("may have mixed case, but should otherwise match: {message}");
                errors.invalid(&at.child("kind"), kind, detail);
            }
        }
    }
}

/// Checks the variables in order; each may use those before it.
pub fn check_variables(
    variables: Option<&[Variable]>,
    scope: &mut PolicyScope,
    path: &Path,
    errors: &mut ErrorList,
) {
    let environment = environment(scope.given);
    for (i, variable) in variables.unwrap_or_default().iter().enumerate() {
        let at = path.child("variables").index(i);
        match variable.name.trim() {
            "" => errors.required(&at.child("name"), "name is not specified"),
            _ if !names::c_identifier(&variable.name).is_empty() => {
                let detail = "must be a valid CEL identifier";
                errors.invalid(&at.child("name"), variable.name.as_str(), detail);
            }
            _ => {}
        }
        let (text, at) = (variable.expression.as_str(), at.child("expression"));
        if text.trim().is_empty() {
            errors.required(&at, "expression is not specified");
            continue;
        }
        let known = scope.variables.get_or_insert_default();
        if let Err(error) = known.add(&variable.name, text, &environment) {
            errors.invalid(&at, text, format!("compilation failed: {error}"));
        }
    }
}

/// Maximum number of match conditions of one policy or webhook.
const CONDITIONS_MAX: usize = 64;

pub fn check_conditions(
    conditions: Option<&[MatchCondition]>,
    has_params: bool,
    path: &Path,
    errors: &mut ErrorList,
) {
    let at = path.child("matchConditions");
    // Match conditions are evaluated before the variables and cannot use them.
    let environment = environment(OptionalVariables {
        params: has_params,
        authorizer: true,
        patches: false,
    });
    let conditions = conditions.unwrap_or_default();
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
            for detail in names::qualified_name(&condition.name) {
                errors.invalid(&at.child("name"), condition.name.as_str(), detail);
            }
        }
        let before = &conditions[..i];
        if !condition.name.is_empty() && before.iter().any(|c| c.name == condition.name) {
            errors.duplicate(&at.child("name"), &condition.name);
        }
    }
}

/// Checks `matchConstraints` of a policy: the resource rules are required, since they name the types that the expressions
/// are checked against.
pub fn check_match_constraints(resources: Option<&MatchResources>, path: &Path, errors: &mut ErrorList) {
    let at = path.child("matchConstraints");
    let Some(resources) = resources else {
        return errors.required(&at, "");
    };
    check_match_resources(resources, &at, errors);
    if resources.resource_rules.as_ref().is_none_or(Vec::is_empty) {
        errors.required(&at.child("resourceRules"), "");
    }
}

/// Checks `matchConstraints` of a policy or `matchResources` of a binding.
pub fn check_match_resources(resources: &MatchResources, path: &Path, errors: &mut ErrorList) {
    facts::check(errors, path, resources, &["matchPolicy"]);
    for (field, selector) in [
        ("namespaceSelector", &resources.namespace_selector),
        ("objectSelector", &resources.object_selector),
    ] {
        match selector {
            None => errors.required(&path.child(field), ""),
            Some(selector) => label_selector(errors, &path.child(field), selector),
        }
    }
    for (field, rules) in [
        ("resourceRules", &resources.resource_rules),
        ("excludeResourceRules", &resources.exclude_resource_rules),
    ] {
        for (i, rule) in rules.iter().flatten().enumerate() {
            check_named_rule(rule, &path.child(field).index(i), errors);
        }
    }
}

fn check_named_rule(rule: &NamedRuleWithOperations, path: &Path, errors: &mut ErrorList) {
    let resource_names = rule.resource_names.as_deref().unwrap_or_default();
    for (i, name) in resource_names.iter().enumerate() {
        let at = path.child("resourceNames").index(i);
        errors.all_invalid(&at, name, names::path_segment(name));
        if resource_names[..i].contains(name) {
            errors.duplicate(&at, name);
        }
    }
    let rule = RuleWithOperations {
        api_groups: rule.api_groups.clone(),
        api_versions: rule.api_versions.clone(),
        operations: rule.operations.clone(),
        resources: rule.resources.clone(),
        scope: rule.scope.clone(),
    };
    check_rule(&rule, path, errors);
}

/// A mutating policy may only match operations that carry an object, so not DELETE. `path` is that of the match constraints.
pub fn check_mutable_operations(resources: Option<&MatchResources>, path: &Path, errors: &mut ErrorList) {
    const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "UPDATE"];
    let rules = resources.and_then(|r| r.resource_rules.as_deref());
    let operations = rules
        .unwrap_or_default()
        .iter()
        .flat_map(|r| r.operations.iter().flatten());
    for operation in operations.filter(|o| !OPERATIONS.contains(&o.as_str())) {
        let at = path.child("resourceRules").child("operations");
        errors.not_supported_in_order(&at, operation, OPERATIONS);
    }
}

/// Checks `paramRef` of a binding.
pub fn check_param_ref(param: Option<&ParamRef>, path: &Path, errors: &mut ErrorList) {
    const EXCLUSIVE: &str = "name and selector are mutually exclusive";
    let Some(param) = param else { return };
    let path = path.child("paramRef");
    let name = text(&param.name);
    if !name.is_empty() {
        errors.all_invalid(&path.child("name"), name, names::path_segment(name));
        if param.selector.is_some() {
            errors.forbidden(&path.child("name"), EXCLUSIVE);
        }
    }
    if let Some(selector) = &param.selector {
        label_selector(errors, &path.child("selector"), selector);
        if !name.is_empty() {
            errors.forbidden(&path.child("selector"), EXCLUSIVE);
        }
    }
    if name.is_empty() && param.selector.is_none() {
        errors.required(&path, "one of name or selector must be specified");
    }
    let at = path.child("parameterNotFoundAction");
    match text(&param.parameter_not_found_action) {
        "" => errors.required(&at, ""),
        "Allow" | "Deny" => {}
        action => errors.not_supported_in_order(&at, action, &["Deny", "Allow"]),
    }
}

/// `paramRef` of a binding as `kubectl get` shows it.
pub fn shown_param_ref(param: Option<&ParamRef>) -> String {
    let unset = || "<unset>".to_string();
    param.map_or_else(unset, |param| match (text(&param.namespace), text(&param.name)) {
        (_, "") => param.selector.as_ref().map_or_else(unset, labels::go_string),
        // It is not known here whether the parameter's kind is namespaced.
        ("", name) => format!("*/{name}"),
        (namespace, name) => format!("{namespace}/{name}"),
    })
}
