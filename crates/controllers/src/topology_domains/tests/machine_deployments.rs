//! Domains that MachineDeployments of Cluster API declare.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::*;
use crate::world::custom_kind;

const ANNOTATION: &str = "capacity.cluster-autoscaler.kubernetes.io/";
const MAX_SIZE: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size";

/// A MachineDeployment of the Cluster `prod` in the namespace `capi`, scaled to zero, with other fields as given.
fn machine_deployment(world: &mut World, name: &str, zone: &str, with: &Value) {
    let mut json = json!({
        "apiVersion": "cluster.x-k8s.io/v1", "kind": "MachineDeployment",
        "metadata": {"name": name, "namespace": "capi", "uid": name, "resourceVersion": "1"},
        "spec": {"clusterName": "prod", "replicas": 0, "template": {"spec": {"failureDomain": zone}}},
    });
    merge(&mut json, with);
    world.put_json(kind(), &json.to_string());
}

fn merge(base: &mut Value, with: &Value) {
    match (base, with) {
        (Value::Object(base), Value::Object(with)) => {
            for (key, value) in with {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, with) => *base = with.clone(),
    }
}

fn kind() -> &'static Kind {
    static KIND: LazyLock<Kind> =
        LazyLock::new(|| custom_kind("cluster.x-k8s.io", "machinedeployments", "MachineDeployment"));
    &KIND
}

fn declare_prod(world: &mut World) {
    let of = json!({"namespace": "capi", "clusterName": "prod"});
    declare(world, "zones", 0, &json!({"machineDeployments": of}));
}

fn sync_listed(world: &mut World, second: i64) {
    let listed = MachineDeployments::Listed(world.list(kind(), ""));
    sync_with(world, &listed, second);
}

fn read_condition(world: &World) -> String {
    condition_of(world, "zones", "MachineDeploymentsRead")
}

#[test]
fn b3_a_machine_deployment_that_is_scaled_to_zero_declares_its_failure_domain() {
    let mut world = World::default();
    node(&mut world, "a1", "a", None);
    let annotations = json!({
        format!("{ANNOTATION}cpu"): "8",
        format!("{ANNOTATION}memory"): "32Gi",
        format!("{ANNOTATION}maxPods"): "110",
        format!("{ANNOTATION}gpu-type"): "example.com/gpu",
        format!("{ANNOTATION}gpu-count"): "2",
        format!("{ANNOTATION}labels"): "disk=ssd, kubernetes.io/arch=arm64,empty=",
        format!("{ANNOTATION}taints"): "gpu=yes:NoSchedule,spot:PreferNoSchedule",
        MAX_SIZE: "5",
    });
    let of_machines = json!({
        "node-role.kubernetes.io/worker": "", "own.node-restriction.kubernetes.io/pool": "gpu", "team": "x",
    });
    machine_deployment(
        &mut world,
        "gpu",
        "b",
        &json!({"metadata": {"annotations": annotations}, "spec": {"template": {"metadata": {"labels": of_machines}}}}),
    );
    machine_deployment(&mut world, "workers", "a", &json!({"spec": {"replicas": 1}}));
    declare_prod(&mut world);
    sync_listed(&mut world, 10);
    assert_eq!(
        status(&world),
        [
            "a MachineDeployment Ready 1(1)",
            "b MachineDeployment Absent 0(0) since 10",
        ]
    );
    let found = read(&world, "zones").status.domains;
    assert_eq!(
        serde_json::to_value(&found[1].node_templates).unwrap(),
        json!([{
            "machineDeployment": "capi/gpu",
            "labels": {"disk": "ssd", "kubernetes.io/arch": "arm64", "empty": "",
                "node-role.kubernetes.io/worker": "", "own.node-restriction.kubernetes.io/pool": "gpu"},
            "taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"},
                {"key": "spot", "effect": "PreferNoSchedule"}],
            "capacity": {"cpu": "8", "memory": "32Gi", "pods": "110", "example.com/gpu": "2"},
        }])
    );
    assert_eq!(
        read_condition(&world),
        "True Read: 2 MachineDeployments declare 2 domains"
    );
    // Without it the domain is none.
    world.remove(kind(), "capi", "gpu");
    sync_listed(&mut world, 20);
    assert_eq!(status(&world), ["a MachineDeployment Ready 1(1)"]);
}

#[test]
fn b3_only_machine_deployments_of_the_cluster_from_which_nodes_follow_declare_domains() {
    let mut world = World::default();
    node(&mut world, "a1", "a", None);
    let zero = json!({MAX_SIZE: "0"});
    for (name, with) in [
        ("counts", json!({})),
        ("of-another-cluster", json!({"spec": {"clusterName": "test"}})),
        ("in-another-namespace", json!({"metadata": {"namespace": "team"}})),
        (
            "is-being-deleted",
            json!({"metadata": {"deletionTimestamp": time(5), "finalizers": ["x/y"]}}),
        ),
        (
            "is-paused-and-counts",
            json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}}, "spec": {"paused": true}}),
        ),
        ("never-has-nodes", json!({"metadata": {"annotations": zero}})),
        (
            "has-a-node-and-counts",
            json!({"metadata": {"annotations": zero}, "spec": {"replicas": 1}}),
        ),
    ] {
        machine_deployment(&mut world, name, name, &with);
    }
    declare_prod(&mut world);
    sync_listed(&mut world, 10);
    assert_eq!(
        status(&world),
        [
            "counts MachineDeployment Absent 0(0) since 10",
            "has-a-node-and-counts MachineDeployment Absent 0(0) since 10",
            "is-paused-and-counts MachineDeployment Absent 0(0) since 10",
            "a Nodes Ready 1(1)",
        ]
    );
}

#[test]
fn b3_a_selector_chooses_machine_deployments_and_an_invalid_one_chooses_none() {
    let mut world = World::default();
    let labels = json!({"metadata": {"labels": {"spread": "yes"}}});
    machine_deployment(&mut world, "one", "a", &labels);
    machine_deployment(&mut world, "two", "b", &json!({}));
    let of = |selector: &Value| json!({"machineDeployments": {"namespace": "capi", "clusterName": "prod", "selector": selector}});
    declare(
        &mut world,
        "zones",
        0,
        &of(&json!({"matchLabels": {"spread": "yes"}})),
    );
    sync_listed(&mut world, 10);
    assert_eq!(status(&world), ["a MachineDeployment Absent 0(0) since 10"]);
    let invalid = json!({"matchExpressions": [{"key": "spread", "operator": "In"}]});
    declare(&mut world, "zones", 0, &of(&invalid));
    sync_listed(&mut world, 20);
    assert!(status(&world).is_empty());
    let condition = read_condition(&world);
    let expected = "False InvalidSelector: spec.machineDeployments.selector: ";
    assert!(condition.starts_with(expected), "{condition}");
}

#[test]
fn b3_the_label_of_the_topology_key_comes_before_the_failure_domain() {
    let mut world = World::default();
    let annotation = format!("{ANNOTATION}labels");
    let with = json!({"metadata": {"annotations": {annotation: "zone=region-1-a,kubernetes.io/hostname=n"}}});
    machine_deployment(&mut world, "one", "1", &with);
    declare_prod(&mut world);
    sync_listed(&mut world, 10);
    let found = read(&world, "zones").status.domains;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].name, "region-1-a");
    assert!(found[0].node_templates[0].labels.is_empty());
}

#[test]
fn b3_a_machine_deployment_that_cannot_be_read_declares_nothing_and_is_named() {
    for (with, expected) in [
        (
            json!({"spec": {"template": {"spec": {"failureDomain": ""}}}}),
            "spec.template.spec.failureDomain: neither it nor a label of the nodes has the domain",
        ),
        (
            json!({"spec": {"template": {"spec": {"failureDomain": "a zone"}}}}),
            "spec.template.spec.failureDomain: found \"a zone\", expected the value of a node label",
        ),
        (json!({"spec": {"replicas": "none"}}), "it does not parse"),
        (
            json!({"metadata": {"annotations": {MAX_SIZE: "-1"}}}),
            "metadata.annotations[cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size]: found \"-1\", \
             expected a number of Machines",
        ),
        (
            json!({"metadata": {"annotations": {"capacity.cluster-autoscaler.kubernetes.io/cpu": "-8"}}}),
            "metadata.annotations[capacity.cluster-autoscaler.kubernetes.io/cpu]: found \"-8\", \
             expected a quantity that is not negative",
        ),
        (
            json!({"metadata": {"annotations": {"capacity.cluster-autoscaler.kubernetes.io/labels": "a=b,c"}}}),
            "metadata.annotations[capacity.cluster-autoscaler.kubernetes.io/labels]: found \"c\", \
             expected labels as key=value,key=value",
        ),
        (
            json!({"metadata": {"annotations": {"capacity.cluster-autoscaler.kubernetes.io/taints": "a=b:Never"}}}),
            "metadata.annotations[capacity.cluster-autoscaler.kubernetes.io/taints]: found \"a=b:Never\", \
             expected taints as key=value:effect,key:effect",
        ),
    ] {
        let mut world = World::default();
        machine_deployment(&mut world, "broken", "b", &with);
        machine_deployment(&mut world, "good", "c", &json!({}));
        declare_prod(&mut world);
        sync_listed(&mut world, 10);
        assert_eq!(status(&world), ["c MachineDeployment Absent 0(0) since 10"]);
        assert_eq!(
            read_condition(&world),
            format!(
                "False InvalidMachineDeployments: 1 MachineDeployments declare 1 domains; 1 are not used, such as \
                 broken: {expected}"
            )
        );
    }
}

#[test]
fn b3_without_cluster_api_the_condition_says_so_and_while_it_is_not_listed_what_was_read_counts() {
    let mut world = World::default();
    machine_deployment(&mut world, "one", "c", &json!({}));
    declare_prod(&mut world);
    sync_listed(&mut world, 10);
    sync_with(&mut world, &MachineDeployments::NotSynced, 20);
    assert_eq!(status(&world), ["c MachineDeployment Absent 0(0) since 10"]);
    let condition = read_condition(&world);
    assert!(condition.starts_with("Unknown NotSynced: "), "{condition}");
    sync_with(&mut world, &MachineDeployments::NotServed, 30);
    assert!(status(&world).is_empty());
    assert_eq!(
        read_condition(&world),
        "False NotServed: no CustomResourceDefinition of MachineDeployment (cluster.x-k8s.io) is established"
    );
    assert_eq!(
        condition_of(&world, "zones", "Ready"),
        "True Declared: 0 domains count"
    );
}

#[test]
fn b3_machine_deployments_are_bounded_and_leave_the_declared_domains() {
    let mut world = World::default();
    for i in 0..GROUPS_MAX + 6 {
        machine_deployment(&mut world, &format!("md-{i:03}"), "c", &json!({}));
    }
    machine_deployment(&mut world, "z", "z", &json!({}));
    let of = json!({"namespace": "capi", "clusterName": "prod"});
    let spec = json!({"machineDeployments": of, "domains": [{"name": "d"}], "nodeGroupLabel": "group"});
    node(&mut world, "a1", "a", None);
    declare(&mut world, "zones", 0, &spec);
    sync_listed(&mut world, 10);
    assert_eq!(
        status(&world),
        [
            "d Spec Absent 0(0) since 10",
            "c MachineDeployment Absent 0(0) since 10",
            "z MachineDeployment Absent 0(0) since 10",
            "a NodeGroup Ready 1(1)",
        ]
    );
    let found = read(&world, "zones").status.domains;
    let templates: Vec<usize> = found.iter().map(|d| d.node_templates.len()).collect();
    assert_eq!(templates, [1, GROUPS_MAX - 1, 1, 0]);
    assert_eq!(
        read_condition(&world),
        "True Read: 64 MachineDeployments declare 2 domains; 7 are left out: at most 64 are used"
    );
}

#[test]
fn b3_a_change_of_annotations_wakes_the_controller() {
    let mut world = World::default();
    machine_deployment(&mut world, "one", "c", &json!({}));
    assert!(is_machine_deployment(kind()));
    let before = world.get(kind(), "capi", "one").unwrap();
    let status = json!({"status": {"replicas": 0}});
    machine_deployment(&mut world, "one", "c", &status);
    assert!(!is_relevant(
        Some(&before),
        Some(&world.get(kind(), "capi", "one").unwrap())
    ));
    let annotations = json!({"metadata": {"annotations": {MAX_SIZE: "0"}}});
    machine_deployment(&mut world, "one", "c", &annotations);
    assert!(is_relevant(
        Some(&before),
        Some(&world.get(kind(), "capi", "one").unwrap())
    ));
}
