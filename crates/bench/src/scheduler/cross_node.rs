//! Preemption across nodes (SPEC B5) by the deciding core alone: each decision is one attempt to schedule a pod that pods on several
//! other nodes keep away from every node, with the filters of all nodes and the preemption on one node that come first.

use knarr_api::k8s_openapi::api::core::v1::{Node, Pod};
use knarr_api::k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_scheduler::{Action, config};
use serde_json::{Value, json};

use super::core::shared;
use super::{node, pod};
use crate::process::Result;

/// Nodes, a third of them in each zone.
pub const NODES: usize = 5_000;
/// Decisions, one half because of anti-affinity, one because of topology spread.
pub const DECISIONS: usize = 200;
/// There is at most one preemption across nodes in 10 s.
const PAUSE: SignedDuration = SignedDuration::from_secs(11);
const ZONE: &str = "topology.kubernetes.io/zone";

const PROFILES: &str = "
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- pluginConfig:
  - name: knarr.io/Preemption
    args: {crossNode: true}
";

/// What keeps a preemptor from every node: only the first zone has room, and the pods of its app are there.
#[derive(Clone, Copy)]
enum Rule {
    /// Four pods on four nodes, none of which may be in the preemptor's zone.
    AntiAffinity,
    /// Three pods on three nodes, and none in the other zones, with a maxSkew of 1.
    Spread,
}

impl Rule {
    fn of(n: usize) -> Self {
        if n.is_multiple_of(2) {
            Rule::AntiAffinity
        } else {
            Rule::Spread
        }
    }

    /// The pods of the app that are in the way.
    fn pods(self) -> usize {
        match self {
            Rule::AntiAffinity => 4,
            Rule::Spread => 3,
        }
    }

    fn spec(self, selector: &Value) -> Value {
        match self {
            Rule::AntiAffinity => {
                let term = json!({"topologyKey": ZONE, "labelSelector": selector});
                json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})
            }
            Rule::Spread => json!({"topologySpreadConstraints": [{
                "maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector,
            }]}),
        }
    }
}

fn bound(mut pod: Value, node: usize, priority: i32) -> Value {
    pod["spec"]["nodeName"] = format!("node-{node}").into();
    pod["spec"]["priority"] = priority.into();
    pod
}

fn app(n: usize) -> Value {
    json!({"app": format!("app-{n}")})
}

fn preemptor(n: usize) -> Value {
    let selector = json!({"matchLabels": app(n)});
    let mut pod = pod(format!("high-{n}"), "100m", app(n), Rule::of(n).spec(&selector));
    pod["spec"]["priority"] = 10.into();
    pod["metadata"]["annotations"] = json!({"knarr.io/cross-node-preemption": "true"});
    pod
}

/// Milliseconds of each decision; `seconds` is a clock.
pub fn run(seconds: &dyn Fn() -> f64) -> Result<Vec<f64>> {
    let mut scheduler = config::parse(PROFILES)?.scheduler();
    let mut clock = Timestamp::UNIX_EPOCH;
    for n in 0..NODES {
        let node = shared::<Node>(node(n))?;
        scheduler.node_changed(node.object().name(), Some(node.clone()), clock);
    }
    let mut pods = Vec::new();
    for n in (0..NODES).filter(|n| n % 3 != 0) {
        pods.push(bound(pod(format!("full-{n}"), "4", json!({}), json!({})), n, 100));
    }
    for n in 0..DECISIONS {
        for i in 0..Rule::of(n).pods() {
            // Of the first zone.
            let node = (n * 4 + i) * 3;
            let in_the_way = pod(format!("low-{n}-{i}"), "100m", app(n), json!({}));
            pods.push(bound(in_the_way, node, 0));
        }
    }
    for pod in pods {
        scheduler.pod_changed(None, Some(&shared::<Pod>(pod)?), clock);
    }
    let mut decisions = Vec::new();
    for n in 0..DECISIONS {
        let pending = shared::<Pod>(preemptor(n))?;
        scheduler.pod_changed(None, Some(&pending), clock);
        let begin = seconds();
        let decided = scheduler.schedule_one(clock);
        decisions.push((seconds() - begin) * 1e3);
        let Some(Action::Preempt {
            pod,
            victims,
            is_cross_node: true,
            ..
        }) = decided
        else {
            return Err(format!("high-{n} was not nominated by preemption across nodes").into());
        };
        scheduler.preempted(&pod, true, clock);
        for victim in &victims {
            scheduler.pod_changed(Some(victim), None, clock);
        }
        scheduler.pod_changed(Some(&pending), None, clock);
        clock += PAUSE;
    }
    Ok(decisions)
}
