//! The scheduler on small clusters: objects are written as JSON, results as names and messages.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::Object;
use knarr_api::registry::Registered;
use serde_json::{Value, json};

use super::*;

mod spread_documents;

pub(super) fn shared<T: Registered>(value: Value) -> Shared<T> {
    let typed: T = serde_json::from_value(value).unwrap();
    Shared::new(Arc::new(Object::from_typed(T::kind_of(), Box::new(typed)))).unwrap()
}

/// 4 CPUs, 8 GiB, 10 pods; `with` is merged into it.
fn node(name: &str, with: Value) -> Shared<Node> {
    let mut node = json!({
        "metadata": {"name": name, "uid": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
    });
    overlay(&mut node, with);
    shared(node)
}

fn pod(name: &str, spec: Value) -> Shared<Pod> {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"containers": [{"name": "c"}]},
    });
    overlay(&mut pod, json!({ "spec": spec }));
    shared(pod)
}

fn asking(name: &str, cpu: &str, memory: &str) -> Shared<Pod> {
    let requests = json!({"requests": {"cpu": cpu, "memory": memory}});
    pod(
        name,
        json!({"containers": [{"name": "c", "resources": requests}]}),
    )
}

fn overlay(base: &mut Value, with: Value) {
    match (base, with) {
        (Value::Object(base), Value::Object(with)) => {
            for (key, value) in with {
                overlay(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, with) => *base = with,
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
}

fn cluster(nodes: &[Shared<Node>]) -> Scheduler {
    let mut scheduler = Scheduler::default();
    for node in nodes {
        scheduler.node_changed(node.object().name(), Some(node.clone()), at(0));
    }
    scheduler
}

/// The result of the next attempt: `pod -> node` or `pod: message`.
fn step(scheduler: &mut Scheduler, second: i64) -> String {
    match scheduler.schedule_one(at(second)) {
        None => "nothing".into(),
        Some(Action::Bind { pod, node, .. }) => {
            scheduler.bound(&pod);
            format!("{} -> {node}", pod.object().name())
        }
        Some(Action::Report { pod, message, .. }) => {
            // The message of preemption has its own test.
            let message = message.split(" no new claims").next().unwrap();
            format!("{}: {message}", pod.object().name())
        }
        Some(Action::Preempt {
            pod, node, victims, ..
        }) => {
            let victims: Vec<&str> = victims.iter().map(|v| v.object().name()).collect();
            format!(
                "{} preempts {} on {node}",
                pod.object().name(),
                victims.join(", ")
            )
        }
    }
}

/// How many pods the event has added to the queue.
fn added(scheduler: &Scheduler, event: &'static str, queue: &'static str) -> u64 {
    let pods = scheduler.incoming_pods().get(&(event, queue));
    pods.copied().unwrap_or(0)
}

fn place(nodes: &[Shared<Node>], pod: Shared<Pod>) -> String {
    let mut scheduler = cluster(nodes);
    scheduler.pod_changed(None, Some(&pod), at(0));
    step(&mut scheduler, 0)
}

#[test]
fn requests_that_saturate_the_sums_are_released_with_the_pod() {
    let mut scheduler = cluster(&[node("n", json!({}))]);
    let huge = |name: &str| {
        let requests = json!({"requests": {"cpu": "9223372036854775", "memory": "7Ei"}});
        let container = json!({"name": "c", "resources": requests});
        pod(name, json!({"nodeName": "n", "containers": [container]}))
    };
    for name in ["a", "b"] {
        scheduler.pod_changed(None, Some(&huge(name)), at(0));
    }
    scheduler.pod_changed(None, Some(&asking("p", "1", "1Gi")), at(0));
    let rejected = step(&mut scheduler, 0);
    assert_eq!(
        rejected,
        "p: 0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory."
    );
    for name in ["a", "b"] {
        scheduler.pod_changed(Some(&huge(name)), None, at(2));
    }
    assert_eq!(step(&mut scheduler, 20), "p -> n");
}

#[test]
fn each_plugin_rejects_with_kube_schedulers_message() {
    let tainted = |effect: &str| {
        let taints = json!([{"key": "gpu", "value": "a", "effect": effect}]);
        node("n", json!({"spec": {"taints": taints}}))
    };
    let tolerating = |toleration: Value| pod("p", json!({"tolerations": [toleration]}));
    let affine = |expression: Value| {
        let terms = json!([{"matchExpressions": [expression]}]);
        let required =
            json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
        pod("p", json!({"affinity": {"nodeAffinity": required}}))
    };
    let plain = || node("n", json!({}));
    let zoned = || node("n", json!({"metadata": {"labels": {"zone": "a", "cores": "8"}}}));
    let huge = |amount: &str| {
        let allocatable = json!({"cpu": "4", "memory": "8Gi", "pods": "10", "hugepages-2Mi": amount});
        node("n", json!({"status": {"allocatable": allocatable}}))
    };
    let asking_huge = |name: &str, amount: &str| {
        let amounts = json!({"cpu": "1", name: amount});
        let resources = json!({"requests": amounts, "limits": amounts});
        pod(
            "p",
            json!({"containers": [{"name": "c", "resources": resources}]}),
        )
    };
    let init = |cpu: &str, policy: Option<&str>| {
        let resources = json!({"requests": {"cpu": cpu}});
        json!({"name": "i", "resources": resources, "restartPolicy": policy})
    };
    let unschedulable = "node(s) were unschedulable";
    let taint = "node(s) had untolerated taint(s)";
    let affinity = "node(s) didn't match Pod's node affinity/selector";
    // (node, pod, message)
    let table = [
        (plain(), pod("p", json!({})), ""),
        (
            node("n", json!({"spec": {"unschedulable": true}})),
            pod("p", json!({})),
            unschedulable,
        ),
        (
            node("n", json!({"spec": {"unschedulable": true}})),
            tolerating(json!({"key": "node.kubernetes.io/unschedulable", "operator": "Exists"})),
            "",
        ),
        (tainted("NoSchedule"), pod("p", json!({})), taint),
        (tainted("NoExecute"), pod("p", json!({})), taint),
        (tainted("PreferNoSchedule"), pod("p", json!({})), ""),
        (
            tainted("NoSchedule"),
            tolerating(json!({"key": "gpu", "value": "a"})),
            "",
        ),
        (
            tainted("NoSchedule"),
            tolerating(json!({"key": "gpu", "value": "b"})),
            taint,
        ),
        (
            tainted("NoSchedule"),
            tolerating(json!({"operator": "Exists"})),
            "",
        ),
        (
            tainted("NoSchedule"),
            tolerating(json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute"})),
            taint,
        ),
        (zoned(), pod("p", json!({"nodeSelector": {"zone": "a"}})), ""),
        (
            zoned(),
            pod("p", json!({"nodeSelector": {"zone": "b"}})),
            affinity,
        ),
        (
            zoned(),
            affine(json!({"key": "zone", "operator": "In", "values": ["b", "a"]})),
            "",
        ),
        (
            zoned(),
            affine(json!({"key": "zone", "operator": "NotIn", "values": ["a"]})),
            affinity,
        ),
        (
            plain(),
            affine(json!({"key": "zone", "operator": "NotIn", "values": ["a"]})),
            "",
        ),
        (
            plain(),
            affine(json!({"key": "zone", "operator": "Exists"})),
            affinity,
        ),
        (
            zoned(),
            affine(json!({"key": "zone", "operator": "DoesNotExist"})),
            affinity,
        ),
        (
            zoned(),
            affine(json!({"key": "cores", "operator": "Gt", "values": ["7"]})),
            "",
        ),
        (
            zoned(),
            affine(json!({"key": "cores", "operator": "Lt", "values": ["8"]})),
            affinity,
        ),
        (plain(), asking("p", "4", "8Gi"), ""),
        (plain(), asking("p", "4001m", "1Gi"), "Insufficient cpu"),
        (
            plain(),
            pod("p", json!({"initContainers": [init("5", None)]})),
            "Insufficient cpu",
        ),
        // One after the other: the larger counts.
        (
            plain(),
            pod("p", json!({"initContainers": [init("3", None), init("3", None)]})),
            "",
        ),
        // Sidecars run along with the containers after them.
        (
            plain(),
            pod(
                "p",
                json!({"initContainers": [init("2", Some("Always")), init("3", None)]}),
            ),
            "Insufficient cpu",
        ),
        (
            plain(),
            pod("p", json!({"overhead": {"memory": "9Gi"}})),
            "Insufficient memory",
        ),
        (
            plain(),
            pod(
                "p",
                json!({"containers": [{"name": "c", "resources": {"requests": {"example.com/gpu": "1"}}}]}),
            ),
            "Insufficient example.com/gpu",
        ),
        // Huge pages are counted by page size.
        (huge("4Mi"), asking_huge("hugepages-2Mi", "4Mi"), ""),
        (
            huge("4Mi"),
            asking_huge("hugepages-2Mi", "6Mi"),
            "Insufficient hugepages-2Mi",
        ),
        (
            huge("4Mi"),
            asking_huge("hugepages-1Gi", "1Gi"),
            "Insufficient hugepages-1Gi",
        ),
        (
            node("n", json!({"status": {"allocatable": {"pods": "0"}}})),
            pod("p", json!({})),
            "Too many pods",
        ),
    ];
    for (node, pod, why_not) in table {
        let expected = if why_not.is_empty() {
            "p -> n".to_string()
        } else {
            format!("p: 0/1 nodes are available: 1 {why_not}.")
        };
        assert_eq!(place(&[node], pod.clone()), expected, "{pod:?}");
    }
}

#[test]
fn the_message_counts_each_reason_over_all_nodes() {
    let nodes = [
        node("a", json!({"spec": {"unschedulable": true}})),
        node("b", json!({"status": {"allocatable": {"cpu": "1"}}})),
        node(
            "c",
            json!({"status": {"allocatable": {"cpu": "1", "memory": "1Mi"}}}),
        ),
    ];
    assert_eq!(
        place(&nodes, asking("p", "2", "1Gi")),
        "p: 0/3 nodes are available: 1 Insufficient memory, 1 node(s) were unschedulable, 2 Insufficient cpu."
    );
    assert_eq!(
        place(&[], pod("p", json!({}))),
        "p: no nodes available to schedule pods"
    );
}

#[test]
fn a_host_port_is_used_once_on_each_node() {
    let port = |ip: &str| {
        let port = json!({"containerPort": 80, "hostPort": 80, "hostIP": ip});
        json!({"containers": [{"name": "c", "ports": [port]}]})
    };
    let mut scheduler = cluster(&[node("n", json!({}))]);
    for (name, spec) in [("a", port("10.0.0.1")), ("b", port("10.0.0.2")), ("c", port(""))] {
        scheduler.pod_changed(None, Some(&pod(name, spec)), at(0));
    }
    assert_eq!(step(&mut scheduler, 0), "a -> n");
    assert_eq!(step(&mut scheduler, 0), "b -> n");
    assert_eq!(
        step(&mut scheduler, 0),
        "c: 0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."
    );
}

#[test]
fn the_emptier_the_untainted_and_the_preferred_node_is_the_better_one() {
    let mut full = cluster(&[node("a", json!({})), node("b", json!({}))]);
    let mut there = serde_json::to_value(&*asking("x", "2", "4Gi")).unwrap();
    there["spec"]["nodeName"] = "a".into();
    full.pod_changed(None, Some(&shared(there)), at(0));
    full.pod_changed(None, Some(&asking("p", "1", "1Gi")), at(0));
    assert_eq!(step(&mut full, 0), "p -> b");

    let taints = json!([{"key": "k", "effect": "PreferNoSchedule"}]);
    let nodes = [
        node("a", json!({"spec": {"taints": taints}})),
        node("b", json!({})),
    ];
    assert_eq!(place(&nodes, pod("p", json!({}))), "p -> b");

    let preferred = json!([{
        "weight": 5,
        "preference": {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}]},
    }]);
    let affinity = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}});
    let nodes = [node("a", json!({})), node("b", json!({})), node("c", json!({}))];
    assert_eq!(place(&nodes, pod("p", json!({ "affinity": affinity }))), "p -> b");
}

#[test]
fn scores_are_kube_schedulers() {
    // Computed by hand from the formulas of v1.36. 4 CPUs, 8 GiB; the pod asks for 1 CPU and 4 GiB.
    let mut scheduler = cluster(&[node("n", json!({}))]);
    let pod = scheduler.info(&asking("p", "1", "4Gi"));
    // Fit: (75 + 50) / 2 = 62. Balanced: before 100, after (1 - |0.25 - 0.5| / 2) * 100 = 87, so 50 + (50 + 87 - 100)
    // / 2 = 68. Taints: 3 * 100.
    assert_eq!(scheduler.explain(&pod).totals["n"], 62 + 68 + 300);
    // Without requests: 100 m and 200 MiB are assumed, and balance is left out: (97 + 97) / 2.
    let nothing = scheduler.info(&self::pod("q", json!({})));
    assert_eq!(scheduler.explain(&nothing).totals["n"], 97 + 300);
    assert!(matches!(
        scheduler.schedule(&nothing),
        Decision::Node { feasible: 1, .. }
    ));
}

#[test]
fn the_choice_among_equally_good_nodes_rotates() {
    let nodes = ["a", "b", "c"].map(|n| node(n, json!({"status": {"allocatable": {"pods": "100"}}})));
    let mut scheduler = cluster(&nodes);
    let mut seen = BTreeSet::new();
    for n in 0..3 {
        scheduler.pod_changed(None, Some(&pod(&format!("p{n}"), json!({}))), at(0));
        seen.insert(step(&mut scheduler, 0).split_once(" -> ").unwrap().1.to_string());
    }
    assert_eq!(seen.len(), 3);
}

#[test]
fn p3_higher_priority_first_then_age_and_none_blocks_those_behind() {
    let mut scheduler = cluster(&[node("n", json!({}))]);
    let with = |name: &str, priority: i32, cpu: &str| {
        let mut pod = serde_json::to_value(&*asking(name, cpu, "1Mi")).unwrap();
        pod["spec"]["priority"] = priority.into();
        shared::<Pod>(pod)
    };
    for p in [
        with("old", 0, "1"),
        with("new", 0, "1"),
        with("high", 10, "1"),
        with("huge", 99, "64"),
    ] {
        scheduler.pod_changed(None, Some(&p), at(0));
    }
    let steps: Vec<String> = (0..5).map(|_| step(&mut scheduler, 0)).collect();
    assert_eq!(steps[0], "huge: 0/1 nodes are available: 1 Insufficient cpu.");
    assert_eq!(steps[1..], ["high -> n", "old -> n", "new -> n", "nothing"]);
}

#[test]
fn p3_an_event_that_may_help_requeues_a_pod_after_its_backoff_and_others_do_not() {
    let small = || json!({"status": {"allocatable": {"cpu": "1"}}});
    let mut scheduler = cluster(&[node("n", small())]);
    scheduler.pod_changed(None, Some(&asking("p", "2", "1Mi")), at(0));
    assert!(step(&mut scheduler, 0).starts_with("p: "));
    // A heartbeat, a node that does not help, a pod's status: not requeued.
    scheduler.node_changed("n", Some(node("n", small())), at(20));
    scheduler.node_changed("m", Some(node("m", small())), at(20));
    scheduler.pod_changed(
        Some(&asking("p", "2", "1Mi")),
        Some(&asking("p", "2", "1Mi")),
        at(20),
    );
    assert_eq!(step(&mut scheduler, 20), "nothing");
    scheduler.node_changed("big", Some(node("big", json!({}))), at(20));
    assert_eq!(step(&mut scheduler, 20), "p -> big");
    assert_eq!(added(&scheduler, "NodeAdd", "active"), 1);

    // Not before the backoff of the first attempt has ended.
    scheduler.pod_changed(None, Some(&asking("q", "3", "1Mi")), at(100));
    assert!(step(&mut scheduler, 100).starts_with("q: "));
    scheduler.pod_changed(Some(&asking("p", "2", "1Mi")), None, at(100));
    assert_eq!(step(&mut scheduler, 100), "nothing");
    assert_eq!(scheduler.next_due(), Some(at(101)));
    assert_eq!(step(&mut scheduler, 101), "q -> big");
    assert_eq!(added(&scheduler, "AssignedPodDelete", "backoff"), 1);
    assert_eq!(added(&scheduler, "BackoffComplete", "active"), 1);
}

#[test]
fn p3_the_event_of_a_node_is_the_property_that_matters_to_the_plugin() {
    let small = json!({"cpu": "1", "memory": "8Gi", "pods": "10"});
    let taints = json!([{"key": "gpu", "effect": "NoSchedule"}]);
    // (pod, node before, node after, event)
    let table = [
        (
            asking("p", "2", "1Mi"),
            json!({"status": {"allocatable": small}}),
            json!({"metadata": {"labels": {"zone": "a"}}}),
            "NodeUpdateNodeAllocatable",
        ),
        (
            pod("p", json!({"nodeSelector": {"zone": "a"}})),
            json!({"status": {"allocatable": small}}),
            json!({"metadata": {"labels": {"zone": "a"}}}),
            "NodeUpdateNodeLabel",
        ),
        (
            pod("p", json!({})),
            json!({"spec": {"taints": taints}}),
            json!({"metadata": {"annotations": {"a": "b"}}}),
            "NodeUpdateNodeTaint",
        ),
        (
            pod("p", json!({})),
            json!({"spec": {"unschedulable": true}}),
            json!({}),
            "NodeUpdateNodeTaint",
        ),
    ];
    for (p, before, after, event) in table {
        let mut scheduler = cluster(&[node("n", before)]);
        scheduler.pod_changed(None, Some(&p), at(0));
        assert!(step(&mut scheduler, 0).starts_with("p: "), "{event}");
        scheduler.node_changed("n", Some(node("n", after)), at(20));
        assert_eq!(added(&scheduler, event, "active"), 1, "{event}");
        assert_eq!(step(&mut scheduler, 20), "p -> n");
    }
}

#[test]
fn p3_the_event_of_a_pod_is_the_property_that_has_changed() {
    let before = asking("p", "6", "1Mi");
    let with = |change: Value| {
        let mut pod = serde_json::to_value(&*before).unwrap();
        overlay(&mut pod, change);
        shared::<Pod>(pod)
    };
    let labels = json!({"metadata": {"labels": {"app": "x"}}});
    let tolerations = json!({"spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}});
    let claims = json!([{"name": "a", "resourceClaimName": "p-a"}]);
    for (after, event) in [
        (with(labels), "UnschedulablePodUpdatePodLabel"),
        (asking("p", "5", "1Mi"), "UnschedulablePodUpdatePodScaleDown"),
        (with(tolerations), "UnschedulablePodUpdatePodToleration"),
        (
            with(json!({"spec": {"priority": 5}, "status": {"resourceClaimStatuses": claims}})),
            "UnschedulablePodUpdatePodGeneratedResourceClaim",
        ),
        (with(json!({"spec": {"priority": 5}})), "UnschedulablePodUpdate"),
    ] {
        let mut scheduler = cluster(&[node("n", json!({}))]);
        scheduler.pod_changed(None, Some(&before), at(0));
        assert!(step(&mut scheduler, 0).starts_with("p: "), "{event}");
        scheduler.pod_changed(Some(&before), Some(&after), at(20));
        assert_eq!(added(&scheduler, event, "active"), 1, "{event}");
    }
}

#[test]
fn p3_an_assigned_pod_whose_labels_change_requeues_a_pod_that_avoids_it() {
    let labelled = |app: &str| {
        shared::<Pod>(json!({
            "metadata": {"name": "a", "namespace": "default", "uid": "a", "labels": {"app": app}},
            "spec": {"nodeName": "n", "containers": [{"name": "c"}]},
        }))
    };
    let avoided =
        json!([{"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "kubernetes.io/hostname"}]);
    let affinity = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": avoided}});
    let mut scheduler = cluster(&[node("n", json!({}))]);
    scheduler.pod_changed(None, Some(&labelled("x")), at(0));
    scheduler.pod_changed(None, Some(&pod("p", json!({ "affinity": affinity }))), at(0));
    assert!(step(&mut scheduler, 0).starts_with("p: "));
    scheduler.pod_changed(Some(&labelled("x")), Some(&labelled("y")), at(20));
    assert_eq!(added(&scheduler, "AssignedPodUpdatePodLabel", "active"), 1);
    assert_eq!(step(&mut scheduler, 20), "p -> n");
}

#[test]
fn p4_a_nominated_pod_skips_its_backoff_unless_other_pods_are_due() {
    let with = |name: &str, priority: i32, node: &str| {
        let mut pod = serde_json::to_value(&*asking(name, "3", "1Mi")).unwrap();
        pod["spec"]["priority"] = priority.into();
        pod["spec"]["nodeName"] = node.into();
        shared::<Pod>(pod)
    };
    // Its victim may be deleted before or after the scheduler learns that it was evicted.
    for deleted_first in [false, true] {
        let mut scheduler = cluster(&[node("n", json!({}))]);
        let (low, high) = (with("low", 0, "n"), with("high", 10, ""));
        scheduler.pod_changed(None, Some(&low), at(0));
        scheduler.pod_changed(None, Some(&high), at(0));
        let Some(Action::Preempt { pod, .. }) = scheduler.schedule_one(at(0)) else {
            panic!("low is in the way")
        };
        if deleted_first {
            scheduler.pod_changed(Some(&low), None, at(0));
            assert_eq!(step(&mut scheduler, 0), "nothing");
        }
        scheduler.preempted(&pod, false, at(0));
        if !deleted_first {
            assert_eq!(step(&mut scheduler, 0), "nothing");
            scheduler.pod_changed(Some(&low), None, at(0));
        }
        scheduler.pod_changed(None, Some(&asking("other", "64", "1Mi")), at(0));
        assert!(step(&mut scheduler, 0).starts_with("other: "));
        assert_eq!(
            step(&mut scheduler, 0),
            "high -> n",
            "deleted first: {deleted_first}"
        );
        assert_eq!(step(&mut scheduler, 0), "nothing");
        // If the victim was deleted first, it was also popped while it was not evicted yet.
        let pops = added(&scheduler, "PopFromBackoffQ", "active");
        assert_eq!(pops, 1 + u64::from(deleted_first));
    }
}

#[test]
fn p3_an_unschedulable_pod_is_flushed_after_five_minutes() {
    let mut scheduler = cluster(&[node("n", json!({"status": {"allocatable": {"cpu": "1"}}}))]);
    scheduler.pod_changed(None, Some(&asking("p", "2", "1Mi")), at(0));
    assert!(step(&mut scheduler, 0).starts_with("p: "));
    assert_eq!(step(&mut scheduler, 299), "nothing");
    assert!(step(&mut scheduler, 300).starts_with("p: "));
}

#[test]
fn resources_are_assumed_while_a_pod_is_bound_and_freed_when_that_fails() {
    let mut scheduler = cluster(&[node("n", json!({}))]);
    scheduler.pod_changed(None, Some(&asking("a", "3", "1Mi")), at(0));
    scheduler.pod_changed(None, Some(&asking("b", "3", "1Mi")), at(0));
    let Some(Action::Bind { pod: a, .. }) = scheduler.schedule_one(at(0)) else {
        panic!("a fits")
    };
    assert!(step(&mut scheduler, 0).starts_with("b: 0/1"));
    scheduler.binding_failed(&a, at(2));
    assert_eq!(step(&mut scheduler, 2), "b -> n");
    assert!(
        step(&mut scheduler, 4).starts_with("a: 0/1"),
        "a came back and finds b there"
    );
}

#[test]
fn pods_of_other_schedulers_gated_and_terminating_pods_are_not_scheduled() {
    let mut scheduler = cluster(&[node("n", json!({}))]);
    let deleted = shared(json!({
        "metadata": {"name": "d", "namespace": "default", "uid": "d", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": []},
    }));
    for p in [
        pod("other", json!({"schedulerName": "mine"})),
        pod("gated", json!({"schedulingGates": [{"name": "wait"}]})),
        deleted,
    ] {
        scheduler.pod_changed(None, Some(&p), at(0));
    }
    assert_eq!(step(&mut scheduler, 0), "nothing");
    assert_eq!(added(&scheduler, "UnschedulablePodAdd", "unschedulable"), 1);
    scheduler.pod_changed(
        Some(&pod("gated", json!({"schedulingGates": [{"name": "wait"}]}))),
        Some(&pod("gated", json!({}))),
        at(1),
    );
    assert_eq!(step(&mut scheduler, 1), "gated -> n");
    let event = "UnschedulablePodUpdatePodSchedulingGatesEliminated";
    assert_eq!(added(&scheduler, event, "active"), 1);
}
