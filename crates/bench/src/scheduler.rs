//! The scheduler's deciding core alone: no API, no store, no network. Nodes and pods are those of kube-scheduler's own
//! performance tests: nodes of 4 CPUs and 32 GiB in three zones, pods that ask for 100m and 500 MB.

use std::sync::Arc;

use knarr_api::k8s_openapi::api::core::v1::{Node, Pod};
use knarr_api::k8s_openapi::jiff::Timestamp;
use knarr_api::registry::Registered;
use knarr_api::{Object, Shared};
use knarr_scheduler::{Scheduler, Step};
use serde_json::{Value, json};

/// What one workload came to.
pub struct Found {
    pub workload: String,
    pub pods: usize,
    pub seconds: f64,
}

impl Found {
    pub fn per_second(&self) -> f64 {
        self.pods as f64 / self.seconds.max(1e-9)
    }
}

/// One workload: so many pods of one kind stand before so many of another are measured.
pub struct Workload {
    pub name: &'static str,
    pub nodes: usize,
    pub initial: (usize, fn(usize) -> Value),
    pub measured: (usize, fn(usize) -> Value),
    /// Pods that fit nowhere and come first.
    pub stuck: usize,
    /// Pods per second that were promised.
    pub target: Option<f64>,
}

/// Those of the issue, on 5 000 nodes, and `basic` on fewer and more.
pub fn workloads() -> Vec<Workload> {
    let workload = |name, initial, measured| Workload {
        name,
        nodes: 5_000,
        initial,
        measured,
        stuck: 0,
        target: None,
    };
    vec![
        Workload {
            nodes: 500,
            ..workload("basic", (1_000, basic), (10_000, basic))
        },
        Workload {
            target: Some(50_000.0),
            ..workload("basic", (1_000, basic), (10_000, basic))
        },
        Workload {
            nodes: 50_000,
            ..workload("basic", (1_000, basic), (10_000, basic))
        },
        Workload {
            target: Some(10_000.0),
            ..workload("spread hard and anti-affinity", (1_000, both), (2_000, both))
        },
        workload("spread hard", (5_000, basic), (5_000, spread_hard)),
        workload("spread soft", (5_000, basic), (5_000, spread_soft)),
        workload("anti-affinity", (1_000, anti_affinity), (2_000, anti_affinity)),
        workload("preferred affinity", (5_000, preferred), (5_000, preferred)),
        workload("preemption", (20_000, low), (5_000, high)),
        Workload {
            stuck: 100,
            ..workload("unschedulable", (0, basic), (10_000, basic))
        },
    ]
}

fn shared<T: Registered>(value: Value) -> Result<Shared<T>, String> {
    let typed: T = serde_json::from_value(value).map_err(|e| e.to_string())?;
    let object = Object::from_typed(T::kind_of(), Box::new(typed));
    Shared::new(Arc::new(object)).map_err(|e| e.to_string())
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
    pod(format!("low-{n}"), "900m", json!({}), json!({"priority": 0}))
}

fn high(n: usize) -> Value {
    pod(format!("high-{n}"), "3", json!({}), json!({"priority": 10}))
}

fn stuck(n: usize) -> Value {
    pod(format!("stuck-{n}"), "64", json!({}), json!({"priority": 100}))
}

/// So many reports, and something goes round in circles.
const TOO_MANY: usize = 1_000_000;

/// Carries out what the scheduler says, at once: bound pods are bound, victims go. How many pods were bound.
fn drain(scheduler: &mut Scheduler, clock: &mut Timestamp) -> Result<usize, String> {
    let (mut bound, mut reports) = (0, 0);
    loop {
        let Some(step) = scheduler.step(*clock) else {
            // What is in back-off because of its victims comes when that is over.
            match scheduler.next_due() {
                Some(due) if reports < TOO_MANY => {
                    *clock = due;
                    continue;
                }
                _ => return Ok(bound),
            }
        };
        match step {
            Step::Bind { pod, node, .. } => {
                scheduler.bound(&pod);
                let mut object = Pod::clone(&pod);
                object.spec.get_or_insert_default().node_name = Some(node);
                let object = Object::from_typed(Pod::kind_of(), Box::new(object));
                let now = Shared::new(Arc::new(object)).map_err(|e| e.to_string())?;
                scheduler.pod_changed(Some(&pod), Some(&now), *clock);
                bound += 1;
            }
            Step::Report { .. } => reports += 1,
            Step::Preempt { pod, victims, .. } => {
                scheduler.preempted(&pod, false, *clock);
                for victim in &victims {
                    scheduler.pod_changed(Some(victim), None, *clock);
                }
            }
        }
    }
}

/// Runs one; `seconds` is a clock.
pub fn run(workload: &Workload, seconds: &dyn Fn() -> f64) -> Result<Found, String> {
    let mut scheduler = Scheduler::default();
    let mut clock = Timestamp::UNIX_EPOCH;
    for n in 0..workload.nodes {
        let node = shared::<Node>(node(n))?;
        scheduler.node_changed(node.object().name(), Some(node.clone()), clock);
    }
    let pods = |of: fn(usize) -> Value, from: usize, count: usize| -> Result<Vec<Shared<Pod>>, String> {
        (from..from + count).map(|n| shared(of(n))).collect()
    };
    for pod in pods(stuck, 0, workload.stuck)? {
        scheduler.pod_changed(None, Some(&pod), clock);
    }
    let (count, of) = workload.initial;
    for pod in pods(of, 0, count)? {
        scheduler.pod_changed(None, Some(&pod), clock);
    }
    drain(&mut scheduler, &mut clock)?;
    let (count, of) = workload.measured;
    let measured = pods(of, workload.initial.0, count)?;
    let start = seconds();
    for pod in &measured {
        scheduler.pod_changed(None, Some(pod), clock);
    }
    let bound = drain(&mut scheduler, &mut clock)?;
    if bound != count {
        return Err(format!("{}: {bound} of {count} pods were bound", workload.name));
    }
    Ok(Found {
        workload: format!(
            "{}: {} nodes, {} pods before, {} measured",
            workload.name, workload.nodes, workload.initial.0, count
        ),
        pods: count,
        seconds: seconds() - start,
    })
}
