//! Which nodes each plugin rejects, and kube-scheduler's messages of it.

use super::*;

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
