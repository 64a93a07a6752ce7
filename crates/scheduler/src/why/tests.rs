//! The explanations of pods on small clusters, and that the suggested changes do help.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::*;

fn shared<T: Registered>(value: Value) -> Shared<T> {
    let typed: T = serde_json::from_value(value).unwrap();
    Shared::new(std::sync::Arc::new(Object::from_typed(
        T::kind_of(),
        Box::new(typed),
    )))
    .unwrap()
}

fn node(name: &str, zone: &str, cpu: &str, spec: Value) -> Shared<Node> {
    let labels = json!({"kubernetes.io/hostname": name, "zone": zone});
    shared(json!({
        "metadata": {"name": name, "uid": name, "labels": labels},
        "spec": spec,
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"}},
    }))
}

fn pod(name: &str, cpu: &str, mut spec: Value) -> Shared<Pod> {
    let container = json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
    if spec["containers"].is_null() {
        spec["containers"] = json!([container]);
    }
    shared(json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": "web"}},
        "spec": spec,
    }))
}

fn cluster(nodes: &[Shared<Node>], pods: &[Shared<Pod>]) -> Scheduler {
    let mut scheduler = Scheduler::default();
    for node in nodes {
        scheduler.node_changed(node.object().name(), Some(node.clone()), Timestamp::UNIX_EPOCH);
    }
    for pod in pods {
        scheduler.pod_changed(None, Some(pod), Timestamp::UNIX_EPOCH);
    }
    scheduler
}

/// Rejections and suggestions, as lines.
fn explained(nodes: &[Shared<Node>], pods: &[Shared<Pod>], of: &Shared<Pod>) -> (Vec<String>, Vec<String>) {
    let why = why(&mut cluster(nodes, pods), of);
    let rejected = why.rejected.iter();
    let rejected = rejected.map(|r| format!("{}: {}: {}", r.plugin, r.words, r.nodes.join(",")));
    let help = why.help.iter().map(|h| format!("{} -> {}", h.change, h.node));
    (rejected.collect(), help.collect())
}

#[test]
fn b1_every_rejection_has_a_message_and_the_least_change_is_proved() {
    let plain = || node("n1", "a", "4", json!({}));
    let cordoned = || node("n2", "b", "4", json!({"unschedulable": true}));
    let taints = json!({"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]});
    let tainted = || node("n3", "a", "4", taints.clone());
    let assigned = pod("old", "3", json!({"nodeName": "n1"}));
    let spread = json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}}}]);
    let apart = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}]}});
    let unmatched = json!([{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]);
    let wants = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": unmatched}}});
    let small = || vec![pod("old", "100m", json!({"nodeName": "n1"}))];
    // (nodes, pods, pod, rejections, suggestions)
    let table = [
        (
            vec![plain(), cordoned(), tainted()],
            vec![assigned.clone()],
            pod("p", "2500m", json!({})),
            vec![
                "NodeResourcesFit: has left only 1 cpu of the 2500m requested: n1",
                "NodeUnschedulable: is cordoned: n2",
                "TaintToleration: has the taint gpu=yes:NoSchedule, which the pod does not tolerate: n3",
            ],
            vec![
                "uncordon n2 -> n2",
                "tolerate the taint gpu=yes:NoSchedule -> n3",
                "request 1 cpu in all -> n1",
            ],
        ),
        (
            vec![plain()],
            vec![],
            pod("p", "6", json!({})),
            vec!["NodeResourcesFit: has only 4 cpu of the 6 requested: n1"],
            vec!["request 4 cpu in all -> n1"],
        ),
        (
            vec![plain()],
            vec![],
            pod("p", "1", json!({"nodeSelector": {"zone": "a", "disk": "ssd"}})),
            vec!["NodeAffinity: node(s) didn't match Pod's node affinity/selector: n1"],
            vec!["leave disk=ssd out of the node selector -> n1"],
        ),
        (
            vec![plain()],
            vec![],
            pod("p", "1", json!({"affinity": wants})),
            vec!["NodeAffinity: node(s) didn't match Pod's node affinity/selector: n1"],
            vec!["require no node affinity -> n1"],
        ),
        (
            vec![plain(), cordoned()],
            small(),
            pod("p", "1", json!({"topologySpreadConstraints": spread})),
            vec![
                "NodeUnschedulable: is cordoned: n2",
                "PodTopologySpread: node(s) didn't match pod topology spread constraints: n1",
            ],
            vec![
                "uncordon n2 -> n2",
                "make the spread over zone ScheduleAnyway -> n1",
            ],
        ),
        (
            vec![plain()],
            small(),
            pod("p", "1", json!({"affinity": apart})),
            vec!["InterPodAffinity: node(s) didn't match pod anti-affinity rules: n1"],
            vec!["require no pod anti-affinity -> n1"],
        ),
        // No single change helps: two together do.
        (
            vec![tainted()],
            vec![],
            pod("p", "1", json!({"nodeSelector": {"disk": "ssd"}})),
            vec!["TaintToleration: has the taint gpu=yes:NoSchedule, which the pod does not tolerate: n3"],
            vec!["tolerate the taint gpu=yes:NoSchedule and leave disk=ssd out of the node selector -> n3"],
        ),
    ];
    for (nodes, pods, pod, rejected, help) in table {
        let found = explained(&nodes, &pods, &pod);
        assert_eq!(found.0, rejected);
        assert_eq!(found.1, help);
    }
}

#[test]
fn b1_a_pod_that_does_not_wait_for_a_node_has_its_own_verdict() {
    let n = || node("n1", "a", "4", json!({}));
    let verdict = |pod: Shared<Pod>| why(&mut cluster(&[n()], &[]), &pod).verdict;
    assert_eq!(
        verdict(pod("p", "1", json!({"nodeName": "n1"}))),
        Verdict::Bound { node: "n1".into() }
    );
    assert_eq!(
        verdict(pod(
            "p",
            "1",
            json!({"schedulingGates": [{"name": "wait.example.com"}]})
        )),
        Verdict::Gated {
            gates: vec!["wait.example.com".into()]
        }
    );
    assert_eq!(
        verdict(pod("p", "1", json!({"schedulerName": "other"}))),
        Verdict::NotMine {
            scheduler_name: "other".into()
        }
    );
    assert_eq!(verdict(pod("p", "1", json!({}))), Verdict::Fits { nodes: 1 });
    let Verdict::Waits { message } = verdict(pod("p", "9", json!({}))) else {
        panic!("it does not fit");
    };
    assert!(
        message.starts_with("0/1 nodes are available: 1 Insufficient cpu."),
        "{message}"
    );
}

#[test]
fn b1_p4_the_victims_of_preemption_are_named() {
    let low = pod("low", "3", json!({"nodeName": "n1", "priority": 0}));
    let high = pod("high", "2", json!({"priority": 10}));
    let why = why(&mut cluster(&[node("n1", "a", "4", json!({}))], &[low]), &high);
    assert_eq!(
        why.preemption.as_deref(),
        Some("n1 would fit after the eviction of default/low")
    );
}

/// Applies a suggestion to a copy of the pod and the nodes, as a user who follows it would.
fn follow(words: &str, nodes: &mut [Value], pod: &mut Value) {
    for words in words.split(" and ") {
        if let Some(name) = words.strip_prefix("uncordon ") {
            let node = nodes.iter_mut().find(|n| n["metadata"]["name"] == name).unwrap();
            node["spec"]["unschedulable"] = false.into();
        } else if let Some(taint) = words.strip_prefix("tolerate the taint ") {
            let (key, effect) = taint.split_once(':').unwrap();
            let (key, value) = key.split_once('=').unwrap_or((key, ""));
            let toleration = json!({"key": key, "value": value, "operator": "Equal", "effect": effect});
            let tolerations = &mut pod["spec"]["tolerations"];
            if tolerations.is_null() {
                *tolerations = json!([]);
            }
            tolerations.as_array_mut().unwrap().push(toleration);
        } else if let Some(selector) = words.strip_prefix("leave ") {
            let (key, _) = selector.split_once('=').unwrap();
            pod["spec"]["nodeSelector"].as_object_mut().unwrap().remove(key);
        } else if let Some(amount) = words.strip_prefix("request ") {
            let amount = amount.strip_suffix(" cpu in all").unwrap();
            pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = amount.into();
        } else if words == "make the spread over zone ScheduleAnyway" {
            pod["spec"]["topologySpreadConstraints"][0]["whenUnsatisfiable"] = "ScheduleAnyway".into();
        } else if words == "require no pod anti-affinity" {
            pod["spec"]["affinity"] = Value::Null;
        } else {
            panic!("what is to be done? {words}");
        }
    }
}

fn bit(of: u32, at: u32) -> bool {
    of >> at & 1 == 1
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig {
        cases: 256,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(36),
        ..proptest::prelude::ProptestConfig::default()
    })]

    #[test]
    fn b1_a_suggested_change_makes_the_pod_schedulable(
        nodes in proptest::collection::vec(0..64_u32, 1..4),
        assigned in proptest::collection::vec(0..3_usize, 0..5),
        wants in 0..64_u32,
    ) {
        let mut nodes: Vec<Value> = (0..).zip(&nodes).map(|(n, of)| {
            let name = format!("n{n}");
            let taint = |on: bool, effect: &str| on.then(|| json!({"key": "gpu", "value": "yes", "effect": effect}));
            let taints: Vec<Value> = taint(bit(*of, 1), "NoSchedule").into_iter().collect();
            let mut labels = json!({"kubernetes.io/hostname": name, "disk": if bit(*of, 2) { "ssd" } else { "hdd" }});
            if bit(*of, 3) || bit(*of, 4) {
                labels["zone"] = if bit(*of, 3) { "a" } else { "b" }.into();
            }
            json!({
                "metadata": {"name": name, "uid": name, "labels": labels},
                "spec": {"unschedulable": bit(*of, 0), "taints": taints},
                "status": {"allocatable": {"cpu": if bit(*of, 5) { "4" } else { "2" }, "memory": "8Gi", "pods": "10"}},
            })
        }).collect();
        let there: Vec<Shared<Pod>> = (0..).zip(&assigned).map(|(n, at)| {
            let node = format!("n{}", at % nodes.len());
            pod(&format!("there-{n}"), "500m", json!({"nodeName": node}))
        }).collect();
        let selector = json!({"matchLabels": {"app": "web"}});
        let mut spec = json!({});
        if bit(wants, 0) {
            spec["nodeSelector"] = json!({"disk": "ssd"});
        }
        if bit(wants, 1) {
            spec["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "zone",
                "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}]);
        }
        if bit(wants, 2) {
            let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": selector});
            spec["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
        }
        let cpu = ["100m", "1", "3", "5"][(wants >> 3) as usize % 4];
        let container = json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
        spec["containers"] = json!([container]);
        let wanted = json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "p", "labels": {"app": "web"}}, "spec": spec,
        });
        let typed = |nodes: &[Value]| -> Vec<Shared<Node>> { nodes.iter().cloned().map(shared).collect() };
        let explained = why(&mut cluster(&typed(&nodes), &there), &shared(wanted.clone()));
        let before = nodes.clone();
        for help in explained.help {
            let mut changed = wanted.clone();
            nodes.clone_from(&before);
            follow(&help.change, &mut nodes, &mut changed);
            let mut scheduler = cluster(&typed(&nodes), &there);
            scheduler.pod_changed(None, Some(&shared(changed)), Timestamp::UNIX_EPOCH);
            let step = scheduler.schedule_one(Timestamp::UNIX_EPOCH);
            let bound = matches!(&step, Some(crate::Action::Bind { .. }));
            proptest::prop_assert!(bound, "{} does not help: {:?}", help.change, step);
        }
    }
}
