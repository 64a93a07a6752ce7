//! The kind TopologyDomains: a definition that an API server accepts, and what its schema rejects.

#![allow(clippy::unwrap_used)]

use knarr_api::{AnyObject, registry};
use knarr_controllers::topology_domains::kinds::{TopologyDomains, definition};
use knarr_strategy::{KindStrategy, Part};
use serde_json::{Value, json};

fn decode(spec: &Value) -> Box<dyn AnyObject> {
    let json = json!({"metadata": {"name": "zones"}, "spec": spec});
    let decoded = TopologyDomains::kind().ops.decode(json.to_string().as_bytes());
    decoded.unwrap().object
}

/// The errors of creating it, each with its field and what was expected.
fn errors(spec: &Value) -> Vec<String> {
    let errors = TopologyDomains::kind()
        .strategy()
        .validate(&*decode(spec))
        .unwrap();
    let lines = errors.iter().map(|error| format!("{error}"));
    // That rules were not checked, as in Kubernetes, where the schema rejects it before.
    lines.filter(|line| !line.starts_with("<nil>")).collect()
}

#[test]
fn b3_an_api_server_accepts_the_definition_of_topology_domains() {
    let mut crd = definition();
    crd.status.get_or_insert_default().stored_versions = Some(vec!["v1alpha1".into()]);
    let kind = &registry::CUSTOM_RESOURCE_DEFINITION;
    let errors = kind.strategy().validate(&crd).unwrap();
    assert!(errors.is_empty(), "{errors}");
}

#[test]
fn b3_topology_domains_with_every_field_are_accepted() {
    let spec = json!({
        "topologyKey": "topology.kubernetes.io/zone",
        "domains": [
            {"name": "eu-1a"},
            {"name": "eu-1b",
                "labels": {"disk": "ssd", "empty": "", "topology.kubernetes.io/zone": "eu-1b"},
                "taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}, {"key": "gpu", "effect": "NoExecute"}],
                "capacity": {"cpu": "500m", "memory": "32Gi", "example.com/gpu": "0"}},
        ],
        "nodeGroupLabel": "node-restriction.kubernetes.io/pool",
        "machineDeployments": {"namespace": "capi", "clusterName": "prod",
            "selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "In", "values": ["d"]}]}},
        "forgetAfterSeconds": 60,
        "lostAfterSeconds": 300,
    });
    assert_eq!(errors(&spec), [""; 0]);
    let object = knarr_api::Object::from_typed(TopologyDomains::kind(), decode(&spec));
    let read = TopologyDomains::of(&object).unwrap();
    assert_eq!(
        serde_json::to_value(&read.spec).unwrap(),
        spec,
        "no field is pruned"
    );
}

#[test]
fn b3_topology_domains_are_rejected_with_the_field_of_the_error() {
    let domain = |with: Value| json!({"topologyKey": "zone", "domains": [{"name": "a"}, with]});
    for (spec, field, expected) in [
        (json!({"topologyKey": ""}), "spec.topologyKey", ""),
        (json!({"topologyKey": "a/b/c"}), "spec.topologyKey", ""),
        (
            domain(json!({"name": "b", "capacity": {"memory": "32 GB"}})),
            "spec.domains[1].capacity[memory]",
            "must be a quantity that is not negative",
        ),
        (
            domain(json!({"name": "b", "capacity": {"cpu": "-1"}})),
            "spec.domains[1].capacity[cpu]",
            "must be a quantity that is not negative",
        ),
        (
            domain(json!({"name": "b", "labels": {"zone": "a"}})),
            "spec.domains",
            "a domain that has the label zone must have its name as the value",
        ),
        (
            domain(json!({"name": "b", "labels": {"disk": "a b"}})),
            "spec.domains[1].labels.disk",
            "",
        ),
        (domain(json!({"name": "a"})), "spec.domains[1]", "Duplicate value"),
        (domain(json!({"name": "a b"})), "spec.domains[1].name", ""),
        (
            domain(json!({"name": "b", "taints": [{"key": "k", "effect": "Never"}]})),
            "spec.domains[1].taints[0].effect",
            "",
        ),
        (
            domain(
                json!({"name": "b", "taints": [{"key": "k", "effect": "NoExecute"}, {"key": "k", "effect": "NoExecute"}]}),
            ),
            "spec.domains[1].taints[1]",
            "Duplicate value",
        ),
        (
            json!({"topologyKey": "zone", "lostAfterSeconds": -1}),
            "spec.lostAfterSeconds",
            "",
        ),
        (
            json!({"topologyKey": "zone", "lostAfterSeconds": 400_000_000}),
            "spec.lostAfterSeconds",
            "",
        ),
        (
            json!({"topologyKey": "zone", "forgetAfterSeconds": 0}),
            "spec.forgetAfterSeconds",
            "",
        ),
        (
            json!({"topologyKey": "zone", "machineDeployments": {"namespace": "capi"}}),
            "spec.machineDeployments.clusterName",
            "",
        ),
    ] {
        let found = errors(&spec);
        assert!(!found.is_empty(), "{spec}");
        for error in &found {
            assert!(error.starts_with(&format!("{field}: ")), "{spec}: {error}");
            assert!(error.contains(expected), "{spec}: {error}");
        }
    }
}

#[test]
fn b3_an_update_of_topology_domains_is_validated_as_well() {
    let old = decode(&json!({"topologyKey": "zone", "domains": [{"name": "a"}]}));
    let new =
        decode(&json!({"topologyKey": "zone", "domains": [{"name": "a", "capacity": {"cpu": "many"}}]}));
    let strategy = TopologyDomains::kind().strategy();
    let errors = strategy.validate_update(&*new, &*old, Part::Main).unwrap();
    let fields: Vec<String> = errors.into_iter().map(|error| error.field).collect();
    assert_eq!(fields, ["spec.domains[0].capacity[cpu]"]);
}
