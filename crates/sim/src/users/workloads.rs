//! The workloads that users create.

use knarr_api::{Kind, registry};
use serde_json::{Value, json};

use super::NAMESPACE;
use crate::random::Stream;
use crate::switches::Switch;

/// The most of each kind, so few that names collide.
pub(super) const NAMES: u64 = 3;
const BARE_PODS: u64 = 4;
pub(super) const REPLICAS: u64 = 4;

/// Workloads other than a bare pod, with their weights.
pub(super) const KINDS: [(Switch, u64); 4] = [
    (Switch::Deployments, 35),
    (Switch::StatefulSets, 40),
    (Switch::DaemonSets, 10),
    (Switch::Jobs, 15),
];

/// A kind of object that users name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Workload {
    Pod,
    Deployment,
    /// A Deployment of one pod with a disk.
    Single,
    /// A Deployment whose pods have large requests.
    Large,
    StatefulSet,
    DaemonSet,
    Job,
}

/// One that is to be created.
pub(super) struct GeneratedWorkload {
    pub workload: Workload,
    pub name: String,
    pub object: Value,
    pub pods: u64,
    pub summary: String,
}

impl Workload {
    pub fn kind(self) -> &'static Kind {
        match self {
            Workload::Pod => &registry::POD,
            Workload::Deployment | Workload::Single | Workload::Large => &registry::DEPLOYMENT,
            Workload::StatefulSet => &registry::STATEFUL_SET,
            Workload::DaemonSet => &registry::DAEMON_SET,
            Workload::Job => &registry::JOB,
        }
    }

    pub fn scales(self) -> bool {
        matches!(self, Workload::Deployment | Workload::StatefulSet)
    }

    pub fn rolls(self) -> bool {
        self.scales() || matches!(self, Workload::DaemonSet | Workload::Single)
    }

    /// One of the kinds that can be drawn.
    pub(super) fn draw(
        chance: &mut Stream,
        can: impl Fn(Switch) -> bool,
    ) -> Option<(Switch, GeneratedWorkload)> {
        let kind = chance.weighted(&KINDS, can)?;
        let drawn = match kind {
            Switch::Deployments => deployment(chance),
            Switch::StatefulSets => stateful_set(chance),
            Switch::DaemonSets => daemon_set(chance),
            _ => job(chance),
        };
        Some((kind, drawn))
    }
}

pub(super) fn exit_behavior(chance: &mut Stream) -> &'static str {
    match chance.between(0, 3) {
        0 | 1 => "obeys",
        2 => "lingers",
        _ => "ignores",
    }
}

pub(super) fn template(name: &str, spec: Value) -> Value {
    json!({"metadata": {"labels": {"app": name}}, "spec": spec})
}

fn deployment(chance: &mut Stream) -> GeneratedWorkload {
    let name = format!("web{}", chance.between(1, NAMES));
    let pods = chance.between(1, REPLICAS);
    let exit_behavior = exit_behavior(chance);
    let spec = pod_spec(chance, exit_behavior, "Always", false);
    GeneratedWorkload {
        workload: Workload::Deployment,
        object: json!({
            "metadata": {"namespace": NAMESPACE, "name": name},
            "spec": {
                "replicas": pods,
                "selector": {"matchLabels": {"app": name}},
                "template": template(&name, spec),
            },
        }),
        summary: format!("{pods} replicas that {exit_behavior}"),
        pods,
        name,
    }
}

fn stateful_set(chance: &mut Stream) -> GeneratedWorkload {
    let name = format!("db{}", chance.between(1, NAMES));
    stateful_set_of(name, chance)
}

pub(super) fn stateful_set_of(name: String, chance: &mut Stream) -> GeneratedWorkload {
    let pods = chance.between(1, REPLICAS);
    let exit_behavior = exit_behavior(chance);
    let policy = if chance.per_mille(500) {
        "Parallel"
    } else {
        "OrderedReady"
    };
    let init = chance.per_mille(300);
    let spec = pod_spec(chance, exit_behavior, "Always", init);
    GeneratedWorkload {
        workload: Workload::StatefulSet,
        object: json!({
            "metadata": {"namespace": NAMESPACE, "name": name},
            "spec": {
                "replicas": pods,
                "serviceName": name,
                "podManagementPolicy": policy,
                "selector": {"matchLabels": {"app": name}},
                "template": template(&name, spec),
            },
        }),
        summary: format!("{pods} replicas that {exit_behavior}, {policy}"),
        pods,
        name,
    }
}

fn daemon_set(chance: &mut Stream) -> GeneratedWorkload {
    let name = "agent".to_string();
    let exit_behavior = exit_behavior(chance);
    let spec = pod_spec(chance, exit_behavior, "Always", false);
    GeneratedWorkload {
        workload: Workload::DaemonSet,
        object: json!({
            "metadata": {"namespace": NAMESPACE, "name": name},
            "spec": {
                "selector": {"matchLabels": {"app": name}},
                "template": template(&name, spec),
            },
        }),
        summary: format!("pods that {exit_behavior}"),
        pods: 0,
        name,
    }
}

fn job(chance: &mut Stream) -> GeneratedWorkload {
    let name = format!("job{}", chance.between(1, NAMES));
    let pods = chance.between(1, REPLICAS);
    let parallelism = chance.between(1, 2);
    let indexed = chance.per_mille(400);
    let fails = chance.per_mille(200);
    let container = if fails { "fails" } else { "completes" };
    let restart = if chance.per_mille(500) {
        "Never"
    } else {
        "OnFailure"
    };
    let spec = pod_spec(chance, container, restart, false);
    GeneratedWorkload {
        workload: Workload::Job,
        object: json!({
            "metadata": {"namespace": NAMESPACE, "name": name},
            "spec": {
                "completions": pods,
                "parallelism": parallelism,
                "completionMode": if indexed { "Indexed" } else { "NonIndexed" },
                "backoffLimit": 3,
                "template": {"spec": spec},
            },
        }),
        summary: format!("{pods} pods, {parallelism} at a time, each {container} ({restart})"),
        pods,
        name,
    }
}

pub(super) fn pod_name(chance: &mut Stream) -> String {
    format!("pod{}", chance.between(1, BARE_PODS))
}

/// A bare pod, and a description of it.
pub(super) fn pod(chance: &mut Stream, name: &str, finalizer: Option<&str>) -> (Value, String) {
    let (container, restart) = match chance.between(0, 5) {
        0 => ("completes", "Never"),
        1 => ("fails", "Never"),
        2 => ("fails", "OnFailure"),
        _ => (exit_behavior(chance), "Always"),
    };
    let init = chance.per_mille(300);
    let mut pod = json!({
        "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": pod_spec(chance, container, restart, init),
    });
    if let Some(finalizer) = finalizer {
        pod["metadata"]["finalizers"] = json!([finalizer]);
    }
    (pod, format!("{container} ({restart})"))
}

pub(super) fn pod_spec(chance: &mut Stream, main: &str, restart: &str, init: bool) -> Value {
    let container = |name: &str| json!({"name": name, "image": "docker.io/library/app:v1", "imagePullPolicy": "IfNotPresent"});
    let mut spec = json!({
        "terminationGracePeriodSeconds": chance.between(1, 30),
        "restartPolicy": restart,
        "automountServiceAccountToken": false,
        "containers": [container(main)],
    });
    // Container names are unique in a pod.
    if init && main != "completes" {
        spec["initContainers"] = json!([container("completes")]);
    }
    // Some tolerate a lost node for less than five minutes.
    if chance.per_mille(600) {
        let seconds = chance.between(0, 20);
        let toleration = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        spec["tolerations"] = json!([
            toleration("node.kubernetes.io/not-ready"),
            toleration("node.kubernetes.io/unreachable"),
        ]);
    }
    spec
}
