//! Changes simulated in small clusters.

use knarr_api::well_known::ZONE;
use serde_json::{Value, json};

use super::*;

mod scale_down;

fn object<T: Registered>(value: Value) -> Arc<Object> {
    let typed: T = serde_json::from_value(value).unwrap();
    Arc::new(Object::from_typed(T::kind_of(), Box::new(typed)))
}

fn node(name: &str, zone: &str, cpu: &str) -> Arc<Object> {
    let labels = json!({"kubernetes.io/hostname": name, ZONE: zone});
    object::<Node>(json!({
        "metadata": {"name": name, "uid": name, "labels": labels},
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"}},
    }))
}

/// `owner` is `Kind/name`, or empty.
fn pod(name: &str, node: &str, cpu: &str, priority: i32, owner: &str) -> Arc<Object> {
    let mut metadata = json!({"name": name, "namespace": "default", "uid": name, "labels": {"app": "web"}});
    if let Some((kind, name)) = owner.split_once('/') {
        metadata["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": kind, "name": name,
            "uid": name, "controller": true}]);
    }
    let container = json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
    let mut spec = json!({"containers": [container], "priority": priority});
    if !node.is_empty() {
        spec["nodeName"] = node.into();
    }
    object::<Pod>(json!({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}))
}

fn snapshot(objects: Vec<Arc<Object>>) -> Snapshot {
    Snapshot::new(Scheduler::default(), &objects, Timestamp::UNIX_EPOCH)
}

/// The result as lines.
fn lines(what: &WhatIf) -> Vec<String> {
    let mut lines = Vec::new();
    for p in &what.placements {
        let from = p.from.as_deref().unwrap_or("new");
        lines.push(format!("{}: {from} -> {}", p.pod, p.to));
    }
    for v in &what.victims {
        lines.push(format!("{} leaves {} for {}", v.pod, v.node, v.by));
    }
    let groups = [
        ("pending", &what.pending),
        ("gone", &what.gone),
        ("blocked", &what.blocked),
    ];
    for (group, said) in groups {
        lines.extend(said.iter().map(|s| format!("{group} {}: {}", s.pod, s.words)));
    }
    lines
}

#[test]
fn b2_a_drain_moves_controlled_pods_and_lists_the_others() {
    let what = snapshot(vec![
        node("n1", "a", "4"),
        node("n2", "b", "2"),
        pod("web-1", "n1", "1", 0, "ReplicaSet/web"),
        pod("big-1", "n1", "3", 0, "ReplicaSet/big"),
        pod("agent-1", "n1", "0", 0, "DaemonSet/agent"),
        pod("bare", "n1", "0", 0, ""),
    ])
    .what_if(&Change::Drain { node: "n1".into() })
    .unwrap();
    let found = lines(&what);
    assert_eq!(found[0], "default/web-1: n1 -> n2");
    assert!(
        found[1].starts_with("pending default/big-1: 0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable."),
        "{found:?}"
    );
    assert_eq!(
        found[2..],
        ["gone default/bare: it is evicted; it has no controller and is not created again"]
    );
}

#[test]
fn b2_a_budget_without_allowed_disruptions_blocks_the_drain() {
    let budget = object::<PodDisruptionBudget>(json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "b"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1},
    }));
    let what = snapshot(vec![
        node("n1", "a", "4"),
        node("n2", "b", "4"),
        budget,
        pod("web-1", "n1", "1", 0, "ReplicaSet/web"),
    ])
    .what_if(&Change::Drain { node: "n1".into() })
    .unwrap();
    assert_eq!(
        lines(&what),
        ["blocked default/web-1: its disruption budget allows no eviction"]
    );
}

#[test]
fn b2_the_pods_of_a_lost_zone_are_scheduled_to_the_others() {
    let what = snapshot(vec![
        node("n1", "a", "4"),
        node("n2", "a", "4"),
        node("n3", "b", "2"),
        pod("web-1", "n1", "1", 0, "ReplicaSet/web"),
        pod("web-2", "n2", "1", 0, "ReplicaSet/web"),
        pod("web-3", "n3", "1", 0, "ReplicaSet/web"),
        pod("other", "", "9", 0, ""),
    ])
    .what_if(&Change::LoseZone { zone: "a".into() })
    .unwrap();
    let found = lines(&what);
    assert_eq!(what.placements.len(), 1, "{found:?}");
    assert_eq!(what.placements[0].to, "n3");
    // `other` was pending before.
    assert_eq!(what.pending.len(), 1, "{found:?}");
    assert!(what.pending[0].pod.starts_with("default/web-"), "{found:?}");
}

#[test]
fn b2_a_workload_is_scaled_up_and_down() {
    let cluster = || {
        let set = object::<ReplicaSet>(json!({
            "metadata": {"name": "web-abc", "namespace": "default", "uid": "rs", "ownerReferences":
                [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d", "controller": true}]},
            "spec": {"selector": {"matchLabels": {"app": "web"}}},
        }));
        snapshot(vec![
            set,
            node("n1", "a", "2"),
            node("n2", "b", "2"),
            pod("web-abc-1", "n1", "1", 0, "ReplicaSet/web-abc"),
            pod("web-abc-2", "n1", "1", 0, "ReplicaSet/web-abc"),
        ])
    };
    let scale = |replicas| Change::Scale {
        kind: "Deployment".into(),
        namespace: "default".into(),
        name: "web".into(),
        replicas,
    };
    let up = cluster().what_if(&scale(5)).unwrap();
    let found = lines(&up);
    assert_eq!(
        found[..2],
        ["default/web (new 1): new -> n2", "default/web (new 2): new -> n2"]
    );
    assert!(
        found[2].starts_with("pending default/web (new 3): 0/2 nodes are available: 2 Insufficient cpu."),
        "{found:?}"
    );
    let down = cluster().what_if(&scale(1)).unwrap();
    assert_eq!(down.gone.len(), 1);
    assert_eq!(
        down.gone[0].words,
        "it is deleted by the scale-down; it was on n1"
    );
    let missing = Change::Scale {
        kind: "Deployment".into(),
        namespace: "default".into(),
        name: "missing".into(),
        replicas: 1,
    };
    let error = cluster().what_if(&missing).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Deployment default/missing not found, and no pod of it"
    );
}

#[test]
fn b2_p4_a_higher_priority_class_preempts_others() {
    let class = object::<PriorityClass>(json!({"metadata": {"name": "high", "uid": "c"}, "value": 100}));
    let cluster = || {
        snapshot(vec![
            class.clone(),
            node("n1", "a", "2"),
            node("n2", "b", "1"),
            pod("low", "n1", "2", 0, ""),
            pod("small", "n2", "1", 0, ""),
            pod("waits", "", "2", 0, ""),
        ])
    };
    let priority = |class: &str| Change::Priority {
        namespace: "default".into(),
        pod: "waits".into(),
        class: class.into(),
    };
    let what = cluster().what_if(&priority("high")).unwrap();
    assert_eq!(
        lines(&what),
        [
            "default/waits: new -> n1",
            "default/low leaves n1 for default/waits",
            "gone default/low: it is preempted; it has no controller and is not created again",
        ]
    );
    let error = cluster().what_if(&priority("none")).unwrap_err();
    assert_eq!(error, Error::NotFound("priority class none".into()));
}

#[test]
fn b2_b6_a_class_with_hard_budgets_preempts_no_pod_whose_budget_forbids_it() {
    let class = |name: &str, annotations: Value| {
        object::<PriorityClass>(
            json!({"metadata": {"name": name, "uid": name, "annotations": annotations}, "value": 100}),
        )
    };
    let cluster = || {
        snapshot(vec![
            node("n1", "a", "4"),
            object::<PodDisruptionBudget>(json!({
                "metadata": {"name": "web", "namespace": "default", "uid": "b"},
                "spec": {"selector": {"matchLabels": {"app": "web"}}},
                "status": {"disruptionsAllowed": 0},
            })),
            class("gentle", json!({"knarr.io/preemption-budgets": "Hard"})),
            class("plain", json!({})),
            pod("low", "n1", "4", 0, ""),
            pod("waits", "", "4", 0, ""),
        ])
    };
    let victims = |class: &str| {
        let change = Change::Priority {
            namespace: "default".into(),
            pod: "waits".into(),
            class: class.into(),
        };
        cluster().what_if(&change).unwrap().victims.len()
    };
    assert_eq!((victims("plain"), victims("gentle")), (1, 0));
}

#[test]
fn b2_b5_victims_of_a_cross_node_preemption_are_listed_with_their_nodes() {
    let configuration = crate::config::parse(
        "
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- pluginConfig:
  - name: knarr.io/Preemption
    args: {crossNode: true}
",
    );
    let term = json!({"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "web"}}});
    let spec = json!({"priority": 0, "containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}});
    let waits = object::<Pod>(json!({
        "metadata": {"name": "waits", "namespace": "default", "uid": "waits",
            "annotations": {"knarr.io/cross-node-preemption": "true"}},
        "spec": spec,
    }));
    let mut full: Pod = serde_json::from_slice(pod("full", "n2", "3", 1000, "").json()).unwrap();
    full.metadata.labels = None;
    let objects = vec![
        node("n1", "a", "4"),
        node("n2", "a", "4"),
        object::<PriorityClass>(json!({"metadata": {"name": "high", "uid": "c"}, "value": 100})),
        Arc::new(Object::from_typed(Pod::kind_of(), Box::new(full))),
        pod("low", "n2", "1", 0, ""),
        waits,
    ];
    let what = Snapshot::new(
        configuration.unwrap().scheduler(),
        &objects,
        Timestamp::UNIX_EPOCH,
    )
    .what_if(&Change::Priority {
        namespace: "default".into(),
        pod: "waits".into(),
        class: "high".into(),
    })
    .unwrap();
    assert_eq!(
        lines(&what),
        [
            "default/waits: new -> n1",
            "default/low leaves n2 for default/waits",
            "gone default/low: it is preempted; it has no controller and is not created again",
        ]
    );
}

#[test]
fn b2_a_workload_without_pods_is_scaled_after_its_template() {
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {
        "priorityClassName": "low",
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "3"}}}]}});
    let web = json!({"metadata": {"name": "web", "namespace": "default"}, "spec": {
        "replicas": 0, "selector": {"matchLabels": {"app": "web"}}, "template": template}});
    let objects = || {
        let low = json!({"metadata": {"name": "low"}, "value": -10});
        vec![
            node("n1", "a", "4"),
            pod("other", "n1", "1", 0, "ReplicaSet/other"),
            object::<Deployment>(web.clone()),
            object::<PriorityClass>(low),
        ]
    };
    let scale = |name: &str| {
        snapshot(objects()).what_if(&Change::Scale {
            kind: "Deployment".into(),
            namespace: "default".into(),
            name: name.into(),
            replicas: 2,
        })
    };
    let what = scale("web").unwrap();
    let said = lines(&what);
    assert_eq!(said[0], "default/web (new 1): new -> n1");
    assert!(
        said[1].starts_with("pending default/web (new 2): 0/1 nodes are available"),
        "{said:?}"
    );
    assert_eq!(
        said.len(),
        2,
        "it is less important than the pods there: {said:?}"
    );
    assert_eq!(
        scale("api"),
        Err(Error::NoWorkload("Deployment default/api".into()))
    );
}

#[test]
fn b2_evictions_are_scheduled_wave_by_wave_and_finished_pods_are_deleted() {
    let mut finished = object::<Pod>(json!({
        "metadata": {"name": "done", "namespace": "default", "uid": "done"},
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
        "status": {"phase": "Failed"},
    }));
    // Of the two nodes with room for `first`, n3 has more of it.
    let objects = |finished: Arc<Object>| {
        vec![
            node("n1", "a", "2"),
            node("n2", "b", "2"),
            node("n3", "c", "4"),
            pod("first", "n1", "2", 0, "ReplicaSet/first"),
            pod("second", "n2", "1", 0, "ReplicaSet/second"),
            pod("bare", "n3", "1", 0, ""),
            finished,
        ]
    };
    let waves = |waves: &[&[&str]]| Change::Evict {
        waves: waves
            .iter()
            .map(|wave| wave.iter().map(|uid| PodUid::from(*uid)).collect())
            .collect(),
    };
    let change = waves(&[&["first", "done"], &["bare", "gone-before"], &["first"]]);
    let what = snapshot(objects(finished.clone())).what_if(&change).unwrap();
    assert_eq!(
        lines(&what),
        [
            "default/first: n1 -> n3",
            // Named again, it is the replacement that is evicted: without `bare` n3 is the emptiest node still.
            "default/first: n3 -> n3",
            "gone default/bare: it is evicted; it has no controller and is not created again",
            "gone default/done: it has finished; it is deleted",
        ]
    );
    // A finished pod of a controller is not created again.
    finished = object::<Pod>(json!({
        "metadata": {"name": "done", "namespace": "default", "uid": "done", "ownerReferences": [
            {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j", "controller": true}]},
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
        "status": {"phase": "Succeeded"},
    }));
    let what = snapshot(objects(finished)).what_if(&waves(&[&["done"]])).unwrap();
    assert_eq!(
        lines(&what),
        ["gone default/done: it has finished; it is deleted"]
    );
}
