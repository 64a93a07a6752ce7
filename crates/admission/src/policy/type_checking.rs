//! Type checking of a ValidatingAdmissionPolicy's expressions against the kinds it matches: warnings in its status. They
//! do not change what the policy does.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{
    ExpressionWarning, NamedRuleWithOperations, ValidatingAdmissionPolicySpec,
};
use knarr_cel::check::{Declared, Environment, Type};
use knarr_cel::compile;

use super::environment::{Composition, authorizer, of_request};

/// Most kinds that the expressions of one policy are checked for.
const KINDS_MAX: usize = 10;

/// A kind by its group, version and name, in the order of those.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gvk {
    pub group: String,
    pub version: String,
    pub kind: String,
}

/// The kinds that the server knows.
pub trait Kinds {
    /// The kinds of this resource. An empty group means any.
    fn of_resource(&self, group: &str, version: &str, resource: &str) -> Vec<Gvk>;

    /// The type of a kind's objects; `None` where that is not known.
    fn declared(&self, kind: &Gvk) -> Option<Declared>;
}

/// The warnings for the expressions of a policy (`status.typeChecking.expressionWarnings`).
pub fn warnings(spec: &ValidatingAdmissionPolicySpec, kinds: &dyn Kinds) -> Vec<ExpressionWarning> {
    let params = param_kind(spec);
    let params = params.map(|kind| {
        kinds
            .declared(&kind)
            .map_or(ParamType::Unknown, ParamType::Declared)
    });
    let environments: Vec<(Gvk, Environment)> = matched_kinds(spec, kinds)
        .into_iter()
        .filter_map(|kind| {
            let object = kinds.declared(&kind)?;
            let environment = environment(spec, &object, params.as_ref());
            Some((kind, environment))
        })
        .collect();
    let mut all = Vec::new();
    for (i, validation) in spec.validations.iter().flatten().enumerate() {
        let mut check = |field: &str, text: &str| {
            if let Some(warning) = warning(text, &environments) {
                all.push(ExpressionWarning {
                    field_ref: format!("spec.validations[{i}].{field}"),
                    warning,
                });
            }
        };
        check("expression", &validation.expression);
        match validation.message_expression.as_deref() {
            None | Some("") => {}
            Some(message) => check("messageExpression", message),
        }
    }
    all
}

/// The compile errors of the expression, for each kind that it has one for.
fn warning(text: &str, environments: &[(Gvk, Environment)]) -> Option<String> {
    let warnings = environments.iter().filter_map(|(kind, environment)| {
        let why = compile(text, environment).err()?;
        let Gvk { group, version, kind } = kind;
        Some(format!("{group}/{version}, Kind={kind}: {why}\n"))
    });
    let warnings: Vec<String> = warnings.collect();
    (!warnings.is_empty()).then(|| warnings.join("\n"))
}

/// The type of a policy's parameters.
enum ParamType {
    Unknown,
    Declared(Declared),
}

/// The environment of expressions for objects of one kind. `params`: the type of the parameters, if there are any.
fn environment(
    spec: &ValidatingAdmissionPolicySpec,
    object: &Declared,
    params: Option<&ParamType>,
) -> Environment {
    let mut environment = of_request()
        .with_declared("object", object)
        .with_declared("oldObject", object)
        .with("authorizer", authorizer());
    environment = match params {
        None => environment,
        Some(ParamType::Unknown) => environment.with("params", Type::Dyn),
        Some(ParamType::Declared(declared)) => environment.with_declared("params", declared),
    };
    let mut variables = Composition::default();
    for variable in spec.variables.iter().flatten() {
        // A variable that does not compile is dyn; the error is reported by the expressions that use it.
        let _ = variables.add(&variable.name, &variable.expression, &environment);
    }
    variables.in_environment(&environment)
}

fn param_kind(spec: &ValidatingAdmissionPolicySpec) -> Option<Gvk> {
    let of = spec.param_kind.as_ref()?;
    let api_version = of.api_version.as_deref().unwrap_or_default();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let found = Gvk {
        group: group.into(),
        version: version.into(),
        kind: of.kind.clone().unwrap_or_default(),
    };
    (!version.contains('/')).then_some(found)
}

/// The kinds that a policy matches. Rules with wildcards count for none.
fn matched_kinds(spec: &ValidatingAdmissionPolicySpec, kinds: &dyn Kinds) -> BTreeSet<Gvk> {
    let mut found = BTreeSet::new();
    let rules = spec
        .match_constraints
        .iter()
        .flat_map(|m| m.resource_rules.iter().flatten());
    for rule in rules {
        let mut count = 0;
        for (group, version, resource) in named(rule) {
            for kind in kinds.of_resource(&group, &version, &resource) {
                found.insert(kind);
                count += 1;
                if count == KINDS_MAX {
                    return found;
                }
            }
        }
    }
    found
}

fn named(rule: &NamedRuleWithOperations) -> Vec<(String, String, String)> {
    let sorted = |names: &Option<Vec<String>>| {
        let mut names = names.clone().unwrap_or_default();
        names.sort_unstable();
        names
    };
    let (groups, versions) = (sorted(&rule.api_groups), sorted(&rule.api_versions));
    if groups.iter().chain(&versions).any(|name| name.contains('*')) {
        return Vec::new();
    }
    let mut resources = sorted(&rule.resources);
    resources.retain(|name| !name.contains(['*', '/']));
    let mut all = Vec::new();
    for group in &groups {
        for version in &versions {
            for resource in &resources {
                all.push((group.clone(), version.clone(), resource.clone()));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    struct Two;

    impl Kinds for Two {
        fn of_resource(&self, group: &str, version: &str, resource: &str) -> Vec<Gvk> {
            let kind = match resource {
                "as" => "A",
                "bs" => "B",
                _ => return Vec::new(),
            };
            vec![Gvk {
                group: group.into(),
                version: version.into(),
                kind: kind.into(),
            }]
        }

        fn declared(&self, kind: &Gvk) -> Option<Declared> {
            let field = match kind.kind.as_str() {
                "A" => ("n", Declared::simple(Type::Int, 1, 0)),
                "B" => ("n", Declared::string()),
                _ => return None,
            };
            Some(Declared::object(&kind.kind, [field]))
        }
    }

    fn warnings_of(more: Value) -> Vec<(String, String)> {
        let mut spec = json!({"matchConstraints": {"resourceRules": [
            {"apiGroups": ["g"], "apiVersions": ["v1"], "resources": ["bs", "as", "as/status"], "operations": ["*"]}]}});
        knarr_api::patch::merge::apply(&mut spec, &more);
        let spec = serde_json::from_value(spec).unwrap();
        let found = warnings(&spec, &Two);
        found.into_iter().map(|w| (w.field_ref, w.warning)).collect()
    }

    #[test]
    fn expressions_are_checked_for_every_kind_of_the_policy() {
        let of = |expression: &str| warnings_of(json!({"validations": [{"expression": expression}]}));
        assert_eq!(of("has(object.n) && request.userInfo.username != ''"), []);
        assert_eq!(
            of("object.n > 1"),
            [(
                "spec.validations[0].expression".to_string(),
                "g/v1, Kind=B: ERROR: <input>:1:10: found no matching overload for '_>_' applied to '(string, int)'\n | object.n > 1\n | .........^\n"
                    .to_string()
            )]
        );
        let both = of("object.m == oldObject.n");
        assert_eq!(
            both[0]
                .1
                .lines()
                .filter(|l| l.contains("Kind="))
                .collect::<Vec<_>>(),
            [
                "g/v1, Kind=A: ERROR: <input>:1:7: undefined field 'm'",
                "g/v1, Kind=B: ERROR: <input>:1:7: undefined field 'm'"
            ]
        );
        assert!(
            both[0].1.contains("^\n\ng/v1, Kind=B"),
            "a blank line separates two warnings"
        );
    }

    #[test]
    fn variables_parameters_and_messages_are_checked_too() {
        let found = warnings_of(json!({
        "paramKind": {"apiVersion": "g/v1", "kind": "A"},
        "variables": [{"name": "s", "expression": "string(object.n)"}, {"name": "t", "expression": "variables.s + 'x'"}],
        "validations": [
            {"expression": "variables.t == 'x' && params.n == 1"},
            {"expression": "variables.t == 1", "messageExpression": "'a' + params.n"},
        ]}));
        let fields: Vec<&str> = found.iter().map(|(field, _)| field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "spec.validations[1].expression",
                "spec.validations[1].messageExpression"
            ]
        );
        assert!(found[1].1.contains("applied to '(string, int)'"), "{found:?}");
    }

    #[test]
    fn rules_with_wildcards_are_not_type_checked() {
        for rule in [
            json!({"apiGroups": ["*"], "apiVersions": ["v1"], "resources": ["as"]}),
            json!({"apiGroups": ["g"], "apiVersions": ["*"], "resources": ["as"]}),
            json!({"apiGroups": ["g"], "apiVersions": ["v1"], "resources": ["*", "as/*", "cs"]}),
        ] {
            let found = warnings_of(json!({"matchConstraints": {"resourceRules": [rule]},
                "validations": [{"expression": "object.m"}]}));
            assert_eq!(found, [], "{rule}");
        }
    }
}
