//! The examples of Kubernetes' page on topology spread constraints (SPEC D5), cluster by cluster and sentence by
//! sentence: which nodes are feasible for the pod `mypod`.

use serde_json::{Value, json};

use super::{at, shared};
use crate::Scheduler;
use crate::scheduler::Explanation;

/// Nodes as `name zone`, with how many pods labelled `foo: bar` are assigned to each. Without a zone: `name`.
fn cluster(nodes: &[(&str, usize)]) -> Scheduler {
    let mut scheduler = Scheduler::default();
    for (node, pods) in nodes {
        let (name, zone) = node.split_once(' ').map_or((*node, None), |(n, z)| (n, Some(z)));
        let mut labels = json!({"node": name});
        // `zone-typo=zoneC` is such a label, too.
        if let Some((key, zone)) = zone.map(|zone| zone.split_once('=').unwrap_or(("zone", zone))) {
            labels[key] = zone.into();
        }
        let object = json!({
            "metadata": {"name": name, "uid": name, "labels": labels},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
        });
        scheduler.node_changed(name, Some(shared(object)), at(0));
        for n in 0..*pods {
            assign(&mut scheduler, name, &format!("{name}-{n}"), "default");
        }
    }
    scheduler
}

fn assign(scheduler: &mut Scheduler, node: &str, name: &str, namespace: &str) {
    let pod = json!({
        "metadata": {"name": name, "namespace": namespace, "uid": name, "labels": {"foo": "bar"}},
        "spec": {"nodeName": node, "containers": [{"name": "pause"}]},
    });
    scheduler.pod_changed(None, Some(&shared(pod)), at(0));
}

fn constraint(key: &str) -> Value {
    json!({
        "maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"foo": "bar"}},
    })
}

fn mypod(constraints: Value) -> Value {
    json!({
        "metadata": {"name": "mypod", "namespace": "default", "uid": "mypod", "labels": {"foo": "bar"}},
        "spec": {
            "topologySpreadConstraints": constraints,
            "containers": [{"name": "pause", "image": "registry.k8s.io/pause:3.1"}],
        },
    })
}

fn explain(scheduler: &mut Scheduler, pod: Value) -> Explanation {
    let info = scheduler.info(&shared(pod));
    scheduler.explain(&info)
}

/// The feasible nodes.
fn takers(scheduler: &mut Scheduler, pod: Value) -> Vec<String> {
    let found = explain(scheduler, pod);
    let takers = found
        .nodes
        .into_iter()
        .filter(|(_, rejection)| rejection.is_none());
    takers.map(|(name, _)| name.to_string()).collect()
}

/// Three pods on four nodes of two zones.
fn four_nodes() -> Scheduler {
    cluster(&[
        ("node1 zoneA", 1),
        ("node2 zoneA", 1),
        ("node3 zoneB", 1),
        ("node4 zoneB", 0),
    ])
}

/// Five pods on three nodes of two zones.
fn three_nodes() -> Scheduler {
    cluster(&[("node1 zoneA", 2), ("node2 zoneA", 1), ("node3 zoneB", 2)])
}

#[test]
fn d5_one_constraint_of_two_and_one_lets_the_pod_only_into_zone_b() {
    let found = takers(&mut four_nodes(), mypod(json!([constraint("zone")])));
    assert_eq!(found, ["node3", "node4"]);
}

#[test]
fn d5_a_larger_max_skew_lets_it_into_zone_a_too() {
    let mut wider = constraint("zone");
    wider["maxSkew"] = 2.into();
    let found = takers(&mut four_nodes(), mypod(json!([wider])));
    assert_eq!(found, ["node1", "node2", "node3", "node4"]);
}

#[test]
fn d5_spread_over_nodes_leaves_node4() {
    let found = takers(&mut four_nodes(), mypod(json!([constraint("node")])));
    assert_eq!(found, ["node4"]);
}

#[test]
fn d5_schedule_anyway_always_places_it_and_prefers_the_domain_with_fewer() {
    let mut soft = constraint("zone");
    soft["whenUnsatisfiable"] = "ScheduleAnyway".into();
    let found = explain(&mut four_nodes(), mypod(json!([soft])));
    assert_eq!(found.totals.len(), 4);
    let spread = &found.scores["PodTopologySpread"];
    assert!(
        spread["node3"] > spread["node1"] && spread["node4"] > spread["node2"],
        "{spread:?}"
    );
}

#[test]
fn d5_two_constraints_are_anded_and_leave_node4() {
    let both = json!([constraint("zone"), constraint("node")]);
    assert_eq!(takers(&mut four_nodes(), mypod(both)), ["node4"]);
}

#[test]
fn d5_conflicting_constraints_keep_the_pod_pending_until_one_gives_way() {
    let mut scheduler = three_nodes();
    let both = || json!([constraint("zone"), constraint("node")]);
    assert_eq!(
        takers(&mut scheduler, mypod(json!([constraint("zone")]))),
        ["node3"]
    );
    assert_eq!(
        takers(&mut scheduler, mypod(json!([constraint("node")]))),
        ["node2"]
    );
    let found = explain(&mut scheduler, mypod(both()));
    assert!(found.totals.is_empty());
    assert_eq!(
        found.diagnosis.unschedulable(),
        "0/3 nodes are available: 3 node(s) didn't match pod topology spread constraints."
    );
    let mut wider = both();
    wider[0]["maxSkew"] = 2.into();
    assert_eq!(takers(&mut scheduler, mypod(wider)), ["node2"]);
    let mut softer = both();
    softer[1]["whenUnsatisfiable"] = "ScheduleAnyway".into();
    assert_eq!(takers(&mut scheduler, mypod(softer)), ["node3"]);
}

#[test]
fn d5_zone_c_that_the_pod_excludes_is_not_a_domain() {
    let five = || {
        cluster(&[
            ("node1 zoneA", 1),
            ("node2 zoneA", 1),
            ("node3 zoneB", 1),
            ("node4 zoneB", 0),
            ("node5 zoneC", 0),
        ])
    };
    let plain = mypod(json!([constraint("zone")]));
    assert_eq!(takers(&mut five(), plain.clone()), ["node5"], "zone C has none");
    let expression = json!({"key": "zone", "operator": "NotIn", "values": ["zoneC"]});
    let terms = json!([{"matchExpressions": [expression]}]);
    let mut affine = plain.clone();
    affine["spec"]["affinity"] = json!({"nodeAffinity":
        {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
    assert_eq!(takers(&mut five(), affine.clone()), ["node3", "node4"]);
    // As the page says of nodeAffinityPolicy: if it is ignored, zone C counts with 0 pods.
    affine["spec"]["topologySpreadConstraints"][0]["nodeAffinityPolicy"] = "Ignore".into();
    assert_eq!(takers(&mut five(), affine), Vec::<String>::new());
    let mut selecting = plain;
    selecting["spec"]["nodeSelector"] = json!({"zone": "zoneB"});
    assert_eq!(
        takers(&mut five(), selecting),
        ["node3", "node4"],
        "nodeSelector likewise"
    );
}

#[test]
fn d5_only_pods_of_the_same_namespace_count() {
    let mut scheduler = cluster(&[("node1 zoneA", 0), ("node2 zoneB", 0)]);
    assign(&mut scheduler, "node1", "elsewhere-1", "other");
    assign(&mut scheduler, "node1", "elsewhere-2", "other");
    let found = takers(&mut scheduler, mypod(json!([constraint("zone")])));
    assert_eq!(found, ["node1", "node2"]);
}

#[test]
fn d5_pods_on_a_node_without_the_key_do_not_count_and_it_gets_none() {
    let mut scheduler = cluster(&[("node1", 2), ("node2 zoneA", 1), ("node3 zoneB", 2)]);
    assert_eq!(
        takers(&mut scheduler, mypod(json!([constraint("zone")]))),
        ["node2"],
        "two pods are disregarded, so it is scheduled to zone A"
    );
    let mut mistyped = cluster(&[
        ("node1 zoneA", 1),
        ("node2 zoneA", 1),
        ("node3 zoneB", 1),
        ("node4 zoneB", 0),
        ("node5 zone-typo=zoneC", 0),
    ]);
    let found = explain(&mut mistyped, mypod(json!([constraint("zone")])));
    let rejection = found.nodes["node5"].as_ref().map(|r| r.reasons.join(", "));
    assert_eq!(
        rejection.as_deref(),
        Some("node(s) didn't match pod topology spread constraints (missing required label)")
    );
    let takers: Vec<&str> = found.totals.keys().map(|name| name.as_str()).collect();
    assert_eq!(takers, ["node3", "node4"]);
}

#[test]
fn d5_a_pod_that_its_own_selector_does_not_match_leaves_the_skew_as_it_is() {
    let mut scheduler = four_nodes();
    let mut stranger = mypod(json!([constraint("zone")]));
    stranger["metadata"]["labels"] = json!({});
    for round in 0..3 {
        let uid = format!("stranger-{round}");
        stranger["metadata"]["name"] = uid.clone().into();
        stranger["metadata"]["uid"] = uid.into();
        let takers = takers(&mut scheduler, stranger.clone());
        assert!(takers.contains(&"node4".to_string()), "{takers:?}");
        let mut bound = stranger.clone();
        bound["spec"]["nodeName"] = "node4".into();
        scheduler.pod_changed(None, Some(&shared(bound)), at(0));
    }
    let found = takers(&mut scheduler, mypod(json!([constraint("zone")])));
    assert_eq!(found, ["node3", "node4"], "zone A has two still and zone B one");
}

#[test]
fn d5_pods_on_tainted_nodes_count() {
    let mut scheduler = cluster(&[("node1 zoneA", 0), ("node3 zoneB", 0)]);
    let tainted = json!({
        "metadata": {"name": "node2", "uid": "node2", "labels": {"node": "node2", "zone": "zoneA"}},
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
    });
    scheduler.node_changed("node2", Some(shared(tainted)), at(0));
    assign(&mut scheduler, "node2", "old", "default");
    let mut honors = mypod(json!([constraint("zone")]));
    assert_eq!(takers(&mut scheduler, honors.clone()), ["node3"]);
    honors["spec"]["topologySpreadConstraints"][0]["nodeTaintsPolicy"] = "Honor".into();
    assert_eq!(takers(&mut scheduler, honors), ["node1", "node3"]);
}

#[test]
fn d5_match_label_keys_distinguish_revisions() {
    let mut scheduler = cluster(&[("node1 zoneA", 0), ("node2 zoneB", 0)]);
    for (name, node, hash) in [("a", "node1", "1"), ("b", "node2", "1"), ("c", "node1", "2")] {
        let pod = json!({
            "metadata": {"name": name, "namespace": "default", "uid": name,
                "labels": {"app": "foo", "pod-template-hash": hash}},
            "spec": {"nodeName": node, "containers": [{"name": "pause"}]},
        });
        scheduler.pod_changed(None, Some(&shared(pod)), at(0));
    }
    let of = |hash: &str, keys: Value| {
        let mut spread = constraint("zone");
        spread["labelSelector"] = json!({"matchLabels": {"app": "foo"}});
        spread["matchLabelKeys"] = keys;
        let mut pod = mypod(json!([spread]));
        pod["metadata"]["labels"] = json!({"app": "foo", "pod-template-hash": hash});
        pod
    };
    let keys = || json!(["pod-template-hash"]);
    assert_eq!(
        takers(&mut scheduler, of("2", keys())),
        ["node2"],
        "its own revision only"
    );
    assert_eq!(takers(&mut scheduler, of("1", keys())), ["node1", "node2"]);
    assert_eq!(
        takers(&mut scheduler, of("1", json!([]))),
        ["node2"],
        "all of them"
    );
}
