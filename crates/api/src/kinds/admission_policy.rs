//! What validating and mutating admission policies have in common: parameters, variables, conditions, and which
//! variables their expressions may speak of.

use k8s_openapi::api::admissionregistration::v1::{MatchCondition, ParamKind, Variable};

use super::checks::text;
use crate::admission::policy::KNOWN;
use crate::cel;
use crate::field::{Errors, Path};
use crate::names;

/// What an expression may speak of.
pub struct PolicyScope<'a> {
    pub has_params: bool,
    /// The names of the policy's variables.
    pub variables: &'a [&'a str],
}

impl PolicyScope<'_> {
    /// Whether the text is an expression; `missing` is said of one that is not there.
    pub fn check(&self, text: &str, at: &Path, missing: &str, errors: &mut Errors) {
        if text.is_empty() {
            return errors.required(at, missing);
        }
        let known: Vec<&str> = KNOWN
            .into_iter()
            .filter(|name| *name != "params" || self.has_params)
            .collect();
        match cel::compile(text, &known) {
            Err(why) => errors.invalid(at, text, why),
            Ok(program) => {
                let mut selected = program.selected("variables").filter_map(<[_]>::first);
                if let Some((name, at_byte)) =
                    selected.find(|(name, _)| !self.variables.contains(&name.as_str()))
                {
                    let why = cel::pointed(text, *at_byte, &format!("undefined field '{name}'"));
                    errors.invalid(at, text, format!("compilation failed: {why}"));
                }
            }
        }
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

pub fn check_variables(
    variables: &Option<Vec<Variable>>,
    scope: &PolicyScope<'_>,
    path: &Path,
    errors: &mut Errors,
) {
    for (i, variable) in variables.iter().flatten().enumerate() {
        let at = path.child("variables").index(i);
        match variable.name.as_str() {
            "" => errors.required(&at.child("name"), "name is not specified"),
            name if !names::c_identifier(name).is_empty() => {
                errors.invalid(&at.child("name"), name, "name is not a valid CEL identifier");
            }
            _ => {}
        }
        // One speaks of those before it only.
        let before = PolicyScope {
            variables: scope.variables.get(..i).unwrap_or_default(),
            ..*scope
        };
        let text = variable.expression.trim();
        before.check(
            text,
            &at.child("expression"),
            "expression is not specified",
            errors,
        );
    }
}

/// Most conditions of one policy or webhook.
const CONDITIONS_MAX: usize = 64;

pub fn check_conditions(
    conditions: &Option<Vec<MatchCondition>>,
    scope: &PolicyScope<'_>,
    path: &Path,
    errors: &mut Errors,
) {
    let at = path.child("matchConditions");
    let conditions = conditions.as_deref().unwrap_or_default();
    if conditions.len() > CONDITIONS_MAX {
        errors.too_many(&at, conditions.len(), CONDITIONS_MAX);
    }
    for (i, condition) in conditions.iter().enumerate() {
        let at = at.index(i);
        scope.check(condition.expression.trim(), &at.child("expression"), "", errors);
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
