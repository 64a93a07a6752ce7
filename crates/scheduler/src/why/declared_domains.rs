//! What `knarr why` says of declared domains (SPEC B3): those in which a node for the pod is missing, and those that are
//! lost. Without TopologyDomains it says nothing.

use crate::Scheduler;
use crate::node_info::NodeInfo;
use crate::plugins;
use crate::plugins::pod_topology_spread::is_eligible;
use crate::pod_info::{PodInfo, SpreadConstraint};
use crate::profile::Profile;
use crate::resources::Resources;
use crate::topology_domains::Domain;

/// A sentence for each domain that a DoNotSchedule constraint of the pod depends on, in the order of constraints and
/// domains. The cluster's default constraints are not included.
pub(super) fn notes(scheduler: &Scheduler, pod: &PodInfo) -> Vec<String> {
    let cluster = scheduler.cluster();
    let Ok(constraints) = &pod.class.spread else {
        return Vec::new();
    };
    let hard: Vec<&SpreadConstraint> = constraints.iter().filter(|c| c.hard).collect();
    let keys: Vec<String> = hard.iter().map(|c| c.topology_key.clone()).collect();
    let mut notes = Vec::new();
    for constraint in hard {
        let key = &constraint.topology_key;
        let Some(declared) = cluster.topology_domains().of(key) else {
            continue;
        };
        for domain in &declared.domains {
            let eligible = |node: &NodeInfo| is_eligible(&pod.class, constraint, &keys, node);
            let has_nodes = cluster
                .iter()
                .any(|(_, node)| node.label(key) == Some(domain.name()) && eligible(node));
            let templates: Vec<&NodeInfo> = domain.templates().iter().filter(|n| eligible(n)).collect();
            let note = if domain.is_lost() {
                (has_nodes || !templates.is_empty()).then(|| lost(domain))
            } else {
                let absent = !has_nodes && !templates.is_empty();
                absent.then(|| missing_node(scheduler.profile(&pod.pod), pod, &templates))
            };
            let name = domain.name();
            notes.extend(note.map(|note| format!("{key}={name} (TopologyDomains {}) {note}", declared.name)));
        }
    }
    notes
}

fn lost(domain: &Domain) -> String {
    let since = domain.lost_since().map(|since| format!(" since {}", since.0));
    format!(
        "is lost: none of its nodes is Ready{}, and its pods do not count for the global minimum",
        since.unwrap_or_default()
    )
}

/// Whether the pod would fit a node there by the plugins that read one node, too. Of the node's capacity only what is
/// declared is known.
fn missing_node(profile: &Profile, pod: &PodInfo, templates: &[&NodeInfo]) -> String {
    const COUNTS: &str = "has no node for the pod and counts with 0 pods";
    let mut first = None;
    for template in templates {
        let mut node = NodeInfo::clone(template);
        node.allocatable = assumed_capacity(pod, template);
        match plugins::filter(profile, &pod.class, &node) {
            Ok(()) => return format!("{COUNTS}; a node that is added there would fit the pod"),
            Err(rejection) => first = first.or(Some(rejection.reasons.join(", "))),
        }
    }
    let reasons = first.unwrap_or_default();
    format!("{COUNTS}; a node as it is declared would not fit the pod: {reasons}")
}

/// What is declared, and enough for the pod of everything else.
fn assumed_capacity(pod: &PodInfo, template: &NodeInfo) -> Resources {
    let mut capacity = pod.requests().resources.clone();
    capacity.pods = 1;
    let node = template.node.as_ref();
    let declared = node.and_then(|n| n.status.as_ref()?.allocatable.as_ref());
    for name in declared.into_iter().flatten().map(|(name, _)| name) {
        *capacity.entry(name) = template.allocatable.get(name);
    }
    capacity
}
