//! Which nodes run a DaemonSet's pods: the scheduling rules that apply to them, and the pod that is pinned to its node.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, PodTemplateSpec, Toleration,
};
use knarr_api::Object;
use knarr_api::k8s_openapi;
use knarr_api::kinds::node_selector::{Selected, meets_required};
use knarr_api::well_known::NOT_READY;
use knarr_apimachinery::ids::NodeName;

use crate::node::eviction::tolerates;
use crate::pod;

const NAME: &str = "metadata.name";
/// The taints of node conditions, which daemon pods tolerate.
const TOLERATED: [(&str, &str); 6] = [
    (NOT_READY, "NoExecute"),
    (crate::node::UNREACHABLE, "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
const NETWORK_UNAVAILABLE: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

/// Whether a node should run a DaemonSet's pod (kube-controller-manager's NodeShouldRunDaemonPod).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The node should have a pod.
    pub should_run: bool,
    /// A pod on the node may continue to run.
    pub may_stay: bool,
}

/// The pod spec with the tolerations of daemon pods.
pub fn with_daemon_tolerations(template: &PodTemplateSpec) -> PodSpec {
    let mut spec = template.spec.clone().unwrap_or_default();
    let network = (spec.host_network == Some(true)).then_some(NETWORK_UNAVAILABLE);
    let tolerations = spec.tolerations.get_or_insert_default();
    for (key, effect) in TOLERATED.into_iter().chain(network) {
        let toleration = Toleration {
            key: Some(key.into()),
            operator: Some("Exists".into()),
            effect: Some(effect.into()),
            ..Toleration::default()
        };
        // A toleration with tolerationSeconds is replaced: daemon pods tolerate these taints for ever.
        let same = |t: &&mut Toleration| {
            let value = |t: &Toleration| t.value.clone().unwrap_or_default();
            t.key == toleration.key
                && t.effect == toleration.effect
                && t.operator == toleration.operator
                && value(t) == value(&toleration)
        };
        match tolerations.iter_mut().find(same) {
            Some(known) => *known = toleration,
            None => tolerations.push(toleration),
        }
    }
    spec
}

/// Whether the node should run a pod of this spec (with its tolerations).
pub fn placement(spec: &PodSpec, node: &Node) -> Placement {
    let name = node.metadata.name.as_deref().unwrap_or("");
    let required_name = spec.node_name.as_deref().unwrap_or("");
    if !(required_name.is_empty() || required_name == name) || !matches_affinity(spec, node) {
        return Placement {
            should_run: false,
            may_stay: false,
        };
    }
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let untolerated = |effects: &[&str]| {
        let mut taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
        taints.any(|taint| {
            effects.contains(&taint.effect.as_str()) && !tolerations.iter().any(|t| tolerates(t, taint))
        })
    };
    Placement {
        should_run: !untolerated(&["NoSchedule", "NoExecute"]),
        may_stay: !untolerated(&["NoExecute"]),
    }
}

fn matches_affinity(spec: &PodSpec, node: &Node) -> bool {
    let selected = Selected {
        name: node.metadata.name.as_deref().unwrap_or(""),
        labels: node.metadata.labels.as_ref(),
    };
    meets_required(spec, selected)
}

/// The node that a daemon pod is bound to, or was created for.
pub fn target_node(pod: &Pod) -> Option<&str> {
    let name = pod::node_name(pod);
    if !name.is_empty() {
        return Some(name);
    }
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    let mut fields = required
        .node_selector_terms
        .iter()
        .flat_map(|t| t.match_fields.iter().flatten());
    let pinned = fields.find(|r| r.key == NAME && r.operator == "In")?;
    match pinned.values.as_deref() {
        Some([name]) => Some(name),
        _ => None,
    }
}

/// The pod for one node. The scheduler binds it; its affinity allows this node only.
pub fn new_pod(owner: &Object, set: &DaemonSet, spec: &PodSpec, hash: &str, node: &NodeName) -> Option<Pod> {
    let template = &set.spec.as_ref()?.template;
    let mut pod = pod::from_template(owner, template);
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(crate::history::REVISION_HASH.into(), hash.into());
    if let Some(generation) = super::template_generation(set) {
        labels.insert(super::TEMPLATE_GENERATION_LABEL.into(), generation.to_string());
    }
    let mut spec = spec.clone();
    let affinity = spec.affinity.get_or_insert_default();
    let affinity = affinity.node_affinity.get_or_insert_default();
    affinity.required_during_scheduling_ignored_during_execution = Some(NodeSelector {
        node_selector_terms: vec![NodeSelectorTerm {
            match_expressions: None,
            match_fields: Some(vec![NodeSelectorRequirement {
                key: NAME.into(),
                operator: "In".into(),
                values: Some(vec![node.into()]),
            }]),
        }],
    });
    pod.spec = Some(spec);
    Some(pod)
}
