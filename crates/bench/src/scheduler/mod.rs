//! The scheduler: nodes and pods are those of kube-scheduler's own performance tests, nodes of 4 CPUs and 32 GiB in three
//! zones, pods that ask for 100m and 500 MB. Placed through the API ([`cluster`]) and by the deciding core alone
//! ([`core`]). Besides, decisions of preemption across nodes ([`cross_node`]) and plans of a rebalancer ([`rebalance`]).

pub mod cluster;
pub mod core;
pub mod cross_node;
pub mod rebalance;

use serde_json::{Value, json};

/// One workload: so many pods of one kind exist before so many of another are measured.
pub struct Workload {
    pub name: &'static str,
    pub nodes: usize,
    pub initial: (usize, fn(usize) -> Value),
    pub measured: (usize, fn(usize) -> Value),
    /// Pods that fit nowhere and come first.
    pub stuck: usize,
    /// Pods per second that were promised.
    pub target: Option<f64>,
    /// The throughput of kube-scheduler v1.36.2 on such a host.
    pub kubernetes: Option<f64>,
}

impl Workload {
    fn new(
        name: &'static str,
        initial: (usize, fn(usize) -> Value),
        measured: (usize, fn(usize) -> Value),
    ) -> Self {
        Workload {
            name,
            nodes: 5_000,
            initial,
            measured,
            stuck: 0,
            target: None,
            kubernetes: None,
        }
    }

    fn must_reach(self, target: f64) -> Self {
        Workload {
            target: Some(target),
            ..self
        }
    }

    fn kube_scheduler(self, per_second: f64) -> Self {
        Workload {
            kubernetes: Some(per_second),
            ..self
        }
    }

    fn nodes(self, nodes: usize) -> Self {
        Workload { nodes, ..self }
    }

    pub fn title(&self) -> String {
        format!(
            "{}: {} nodes, {} pods before, {} measured",
            self.name,
            self.nodes,
            self.initial.0 + self.stuck,
            self.measured.0
        )
    }
}

fn basic_workload() -> Workload {
    Workload::new("basic", (1_000, basic), (10_000, basic))
}

/// Low pods fill the nodes, and each node has room for one high pod without three of them.
fn preemption_workload(nodes: usize) -> Workload {
    Workload::new("preemption", (4 * nodes, low), (nodes.min(5_000), high)).nodes(nodes)
}

fn spread_workloads(nodes: usize) -> [Workload; 2] {
    let of = |name, pod| Workload::new(name, (5_000, basic), (5_000, pod)).nodes(nodes);
    [of("spread hard", spread_hard), of("spread soft", spread_soft)]
}

/// What is placed through the API: the seven that kube-scheduler was measured with, and growth.
pub fn through_api() -> Vec<Workload> {
    vec![
        basic_workload().must_reach(5_000.0).kube_scheduler(249.0),
        Workload::new("spread hard", (5_000, basic), (5_000, spread_hard))
            .must_reach(4_000.0)
            .kube_scheduler(129.0),
        Workload::new("spread soft", (5_000, basic), (5_000, spread_soft))
            .must_reach(3_000.0)
            .kube_scheduler(137.0),
        Workload::new("anti-affinity", (1_000, anti_affinity), (2_000, anti_affinity))
            .must_reach(3_000.0)
            .kube_scheduler(89.0),
        Workload::new("preferred affinity", (5_000, preferred), (5_000, preferred))
            .must_reach(3_000.0)
            .kube_scheduler(72.0),
        preemption_workload(5_000)
            .must_reach(2_000.0)
            .kube_scheduler(168.0),
        Workload {
            stuck: 100,
            ..Workload::new("unschedulable", (0, basic), (10_000, basic))
        }
        .must_reach(4_000.0)
        .kube_scheduler(140.0),
        basic_workload().nodes(500),
        basic_workload().nodes(50_000),
    ]
}

/// The largest cluster there is to be: some gigabytes and some minutes.
pub fn large() -> Workload {
    Workload::new("large", (1_000_000, basic), (10_000, basic))
        .nodes(100_000)
        .must_reach(2_000.0)
}

/// How many nodes growth is shown with.
const GROWTH: [usize; 3] = [500, 5_000, 50_000];

/// What the core alone places: growth first, each kind on more and more nodes.
pub fn core_alone() -> Vec<Workload> {
    let basic = GROWTH.map(|nodes| match nodes {
        5_000 => basic_workload().must_reach(50_000.0),
        _ => basic_workload().nodes(nodes),
    });
    let mut all: Vec<Workload> = basic.into_iter().collect();
    all.extend(GROWTH.into_iter().flat_map(spread_workloads));
    all.extend(GROWTH.map(preemption_workload));
    all.extend([
        Workload::new("spread hard and anti-affinity", (1_000, both), (2_000, both)).must_reach(10_000.0),
        Workload::new("anti-affinity", (1_000, anti_affinity), (2_000, anti_affinity)),
        Workload::new("preferred affinity", (5_000, preferred), (5_000, preferred)),
        Workload {
            stuck: 100,
            ..Workload::new("unschedulable", (0, self::basic), (10_000, self::basic))
        },
    ]);
    all
}

fn node(n: usize) -> Value {
    let name = format!("node-{n}");
    let zone = format!("zone-{}", n % 3);
    json!({
        "metadata": {"name": name, "uid": name, "labels": {
            "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone, "kubernetes.io/os": "linux",
        }},
        "status": {"allocatable": {"cpu": "4", "memory": "32Gi", "pods": "110"}},
    })
}

fn pod(name: String, cpu: &str, labels: Value, more: Value) -> Value {
    let requests = json!({"requests": {"cpu": cpu, "memory": "500M"}});
    let mut spec = json!({
        "schedulerName": "default-scheduler",
        "containers": [{"name": "pause", "image": "registry.k8s.io/pause:3.10", "resources": requests}],
    });
    if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more);
    }
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": labels},
        "spec": spec,
        "status": {"startTime": "2026-01-01T00:00:00Z"},
    })
}

fn basic(n: usize) -> Value {
    pod(format!("pod-{n}"), "100m", json!({}), json!({}))
}

fn spread(n: usize, when: &str) -> Value {
    let constraint = json!({
        "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": when,
        "labelSelector": {"matchLabels": {"app": "spread"}},
    });
    let more = json!({"topologySpreadConstraints": [constraint]});
    pod(format!("spread-{n}"), "100m", json!({"app": "spread"}), more)
}

fn spread_hard(n: usize) -> Value {
    spread(n, "DoNotSchedule")
}

fn spread_soft(n: usize) -> Value {
    spread(n, "ScheduleAnyway")
}

fn term() -> Value {
    json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "green"}}})
}

fn anti_affinity(n: usize) -> Value {
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term()]});
    let more = json!({"affinity": {"podAntiAffinity": required}});
    pod(format!("anti-{n}"), "100m", json!({"app": "green"}), more)
}

fn both(n: usize) -> Value {
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term()]});
    let constraint = json!({
        "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "green"}},
    });
    let more = json!({
        "affinity": {"podAntiAffinity": required}, "topologySpreadConstraints": [constraint],
    });
    pod(format!("both-{n}"), "100m", json!({"app": "green"}), more)
}

fn preferred(n: usize) -> Value {
    let terms = json!([{"weight": 1, "podAffinityTerm": term()}]);
    let more =
        json!({"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}});
    pod(format!("near-{n}"), "100m", json!({"app": "green"}), more)
}

fn low(n: usize) -> Value {
    pod(
        format!("low-{n}"),
        "900m",
        json!({}),
        json!({"priority": 0, "priorityClassName": "low", "terminationGracePeriodSeconds": 0}),
    )
}

fn high(n: usize) -> Value {
    pod(
        format!("high-{n}"),
        "3",
        json!({}),
        json!({"priority": 10, "priorityClassName": "high"}),
    )
}

/// The classes of the above, and their values.
const PRIORITIES: [(&str, i32); 3] = [("low", 0), ("high", 10), ("stuck", 100)];

fn stuck(n: usize) -> Value {
    pod(
        format!("stuck-{n}"),
        "64",
        json!({}),
        json!({"priority": 100, "priorityClassName": "stuck"}),
    )
}
