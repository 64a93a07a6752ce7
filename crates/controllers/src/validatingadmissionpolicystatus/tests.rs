//! The steps of Kubernetes' conformance tests on type checking, one after the other.

use k8s_openapi::api::admissionregistration::v1::ExpressionWarning;
use serde_json::{Value, json};

use super::*;
use crate::world::{World, at, lines};

fn policy(name: &str, group: &str, resource: &str, validations: Value) -> ValidatingAdmissionPolicy {
    let policy = json!({"metadata": {"name": name, "generation": 1}, "spec": {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"],
            "resources": [resource]}]},
        "validations": validations}});
    serde_json::from_value(policy).unwrap()
}

/// Runs the controller until it has no more actions; returns the warnings.
fn checked(world: &mut World, name: &str) -> Vec<ExpressionWarning> {
    let actions = world.run(&PolicyStatus, ("", name), at(0));
    world.take(&actions);
    assert!(
        lines(&world.run(&PolicyStatus, ("", name), at(1))).is_empty(),
        "it is done once"
    );
    let view: &dyn View = world;
    let policy = view.get_as::<ValidatingAdmissionPolicy>("", name).unwrap();
    let status = policy.status.clone().unwrap();
    assert_eq!(status.observed_generation, policy.metadata.generation);
    status
        .type_checking
        .unwrap()
        .expression_warnings
        .unwrap_or_default()
}

#[test]
fn validation_expressions_are_type_checked() {
    let mut world = World::default();
    let right = json!([{"expression": "object.spec.replicas > 1"}]);
    world.put(policy("correct", "apps", "deployments", right));
    assert_eq!(checked(&mut world, "correct"), []);
    let confused = json!([{"expression": "object.spec.replicas > '1'",
        "messageExpression": "'wants replicas > 1, got ' + object.spec.replicas"}]);
    world.put(policy("confused", "apps", "deployments", confused));
    let found = checked(&mut world, "confused");
    let fields: Vec<&str> = found.iter().map(|w| w.field_ref.as_str()).collect();
    assert_eq!(
        fields,
        [
            "spec.validations[0].expression",
            "spec.validations[0].messageExpression"
        ]
    );
    assert_eq!(
        found[0].warning,
        "apps/v1, Kind=Deployment: ERROR: <input>:1:22: found no matching overload for '_>_' applied to '(int, string)'\n \
         | object.spec.replicas > '1'\n | .....................^\n"
    );
    assert!(
        found[1]
            .warning
            .contains("found no matching overload for '_+_' applied to '(string, int)'")
    );
}

fn crontabs(spec: Value) -> CustomResourceDefinition {
    let definition = json!({"metadata": {"name": "crontabs.stable.example.com", "generation": 1},
        "spec": {"group": "stable.example.com", "scope": "Namespaced",
            "names": {"plural": "crontabs", "singular": "crontab", "kind": "CronTab"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                {"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}}}}]}});
    serde_json::from_value(definition).unwrap()
}

#[test]
fn expressions_on_custom_kinds_are_type_checked() {
    let group = "stable.example.com";
    let mut world = World::default();
    world.put(crontabs(
        json!({"cronSpec": {"type": "string"}, "replicas": {"type": "integer"}}),
    ));
    let right = json!([{"expression": "object.spec.replicas > 1 && object.metadata.labels.a == 'x'"}]);
    world.put(policy("correct", group, "crontabs", right));
    assert_eq!(checked(&mut world, "correct"), []);
    let confused =
        json!([{"expression": "object.spec.replicas > '1'"}, {"expression": "object.spec.maxRetries < 10"}]);
    world.put(policy("confused", group, "crontabs", confused));
    let found = checked(&mut world, "confused");
    assert_eq!(found.len(), 2);
    assert!(
        found[0]
            .warning
            .contains("found no matching overload for '_>_' applied to '(int, string)'")
    );
    assert_eq!(found[1].field_ref, "spec.validations[1].expression");
    assert!(found[1].warning.contains("undefined field 'maxRetries'"));
    // The field is added, and the warning is removed.
    world.put(crontabs(
        json!({"replicas": {"type": "integer"}, "maxRetries": {"type": "integer"}}),
    ));
    assert_eq!(checked(&mut world, "confused").len(), 1);
}

#[test]
fn a_definition_that_changes_enqueues_every_policy() {
    let mut world = World::default();
    world.put(policy("p", "apps", "deployments", json!([])));
    let old = world.put(crontabs(json!({})));
    let new = world.put(crontabs(json!({"a": {"type": "string"}})));
    let keys = |old, new| {
        let changed = ObjectChange {
            kind: &registry::CUSTOM_RESOURCE_DEFINITION,
            old: Some(old),
            new: Some(new),
        };
        PolicyStatus.keys(&world, changed)
    };
    assert_eq!(keys(&old, &new), [ObjectKey::new("", "p")]);
    assert_eq!(keys(&new, &new), []);
}
