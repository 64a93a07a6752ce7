//! Why a pod is on its node, or unschedulable (SPEC B1): for every node the plugin that rejects it, with its message,
//! and the smallest change that would make the pod schedulable. A change is only suggested after a dry run with it
//! has found a node; nothing is written.

mod declared_domains;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_api::kinds::pod::is_terminal;
use knarr_api::registry::Registered;
use knarr_api::well_known::UNSCHEDULABLE;
use knarr_api::{Object, Shared, k8s_openapi};
use knarr_apimachinery::ids::NodeName;
use serde::Serialize;

use crate::Scheduler;
use crate::budgets::BudgetName;
use crate::node_info::NodeInfo;
use crate::plugins::default_preemption::Outcome;
use crate::plugins::taint_toleration::untolerated;
use crate::plugins::{
    UnschedulableStatus, inter_pod_affinity, node_affinity, node_ports, node_resources_fit,
    node_unschedulable, pod_topology_spread, taint_toleration,
};
use crate::pod_info::{PodInfo, node_name};
use crate::scheduler::{Decision, Explanation};

/// The most suggestions that are shown.
const SUGGESTIONS_MAX: usize = 5;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    /// `namespace/name`.
    pub pod: String,
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The rejections, most nodes first.
    #[serde(rename = "refused")]
    pub rejected: Vec<RejectedNodes>,
    /// The result of preemption.
    pub preemption: Option<String>,
    /// The declared domains that have no nodes or are lost, as far as the pod's topology spread depends on them (SPEC B3).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<String>,
    /// Each of these alone would make the pod schedulable; none smaller does.
    pub help: Vec<Suggestion>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all_fields = "camelCase")]
pub enum Verdict {
    /// The pod has terminated.
    Finished,
    /// It is bound to the node.
    Bound { node: NodeName },
    /// It has these scheduling gates.
    Gated { gates: Vec<String> },
    /// It names another scheduler.
    NotMine { scheduler_name: String },
    /// So many nodes are feasible; it waits for its turn in the queue.
    Fits { nodes: usize },
    /// No node is feasible; the message of its condition.
    Waits { message: String },
}

/// The nodes that one plugin rejects with one message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RejectedNodes {
    pub plugin: &'static str,
    pub words: String,
    /// By name.
    pub nodes: Vec<NodeName>,
}

/// A change that would make the pod schedulable, and the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Suggestion {
    pub change: String,
    pub node: NodeName,
}

/// A change of the pod (or one that has the same effect for it).
#[derive(Clone, Debug, PartialEq)]
enum Change {
    Uncordon,
    Tolerate(Taint),
    DropSelector(String, String),
    DropNodeAffinity,
    Shrink { resource: String, by: i64, to: i64 },
    Soften(usize, String),
    DropHostPorts,
    DropPodAffinity,
    DropPodAntiAffinity,
}

/// Explains a pod. The snapshot does not change.
pub fn why(scheduler: &mut Scheduler, pod: &Shared<Pod>) -> Why {
    let object = pod.object();
    let mut why = Why {
        pod: format!("{}/{}", object.namespace(), object.name()),
        verdict: Verdict::Finished,
        rejected: Vec::new(),
        preemption: None,
        domains: Vec::new(),
        help: Vec::new(),
    };
    let spec = pod.spec.as_ref();
    let gates: Vec<String> = spec
        .and_then(|s| s.scheduling_gates.as_ref())
        .into_iter()
        .flatten()
        .map(|g| g.name.clone())
        .collect();
    if is_terminal(pod) {
        return why;
    }
    if !node_name(pod).is_empty() {
        let node = node_name(pod).into();
        why.verdict = Verdict::Bound { node };
        return why;
    }
    if let Some(scheduler_name) = spec.and_then(|s| s.scheduler_name.clone())
        && !scheduler.knows_profile(pod)
    {
        why.verdict = Verdict::NotMine { scheduler_name };
        return why;
    }
    if !gates.is_empty() {
        why.verdict = Verdict::Gated { gates };
        return why;
    }
    let info = scheduler.info(pod);
    let found = scheduler.explain(&info);
    let fits = found.totals.len();
    if fits > 0 {
        why.verdict = Verdict::Fits { nodes: fits };
    } else {
        let message = found.diagnosis.message();
        why.verdict = Verdict::Waits { message };
        why.preemption = found
            .preemption
            .as_ref()
            .map(|o| describe_outcome(scheduler, o, &found.budgets_in_the_way));
        why.help = help(scheduler, pod, &info, &found);
    }
    why.rejected = grouped(scheduler, &info, &found);
    why.domains = declared_domains::notes(scheduler, &info);
    why
}

/// `budgets`: the hard ones that exclude nodes.
fn describe_outcome(scheduler: &Scheduler, outcome: &Outcome, budgets: &BTreeSet<BudgetName>) -> String {
    let best = outcome.best();
    match (outcome, best.first()) {
        (Outcome::NoState, _) => "not found".into(),
        (Outcome::NotEligible(why), _) => (*why).into(),
        (Outcome::NoCandidates(why), _) if budgets.is_empty() => why.clone(),
        (Outcome::NoCandidates(why), _) => {
            let budgets: Vec<String> = budgets.iter().map(ToString::to_string).collect();
            format!(
                "{why} Hard PodDisruptionBudgets allow no further disruption: {}",
                budgets.join(", ")
            )
        }
        (_, None) => String::new(),
        (_, Some(candidate)) => {
            let node = &scheduler.cluster().at(candidate.index).name;
            let victims = candidate.victims.iter().map(|v| {
                let object = v.pod.object();
                let name = format!("{}/{}", object.namespace(), object.name());
                match v.node_name() {
                    there if candidate.is_cross_node && there != node => format!("{name} on {there}"),
                    _ => name,
                }
            });
            let victims: Vec<String> = victims.collect();
            format!("{node} would fit after the eviction of {}", victims.join(", "))
        }
    }
}

fn grouped(scheduler: &Scheduler, pod: &PodInfo, found: &Explanation) -> Vec<RejectedNodes> {
    let mut groups: BTreeMap<(&'static str, String), Vec<NodeName>> = BTreeMap::new();
    for (name, rejection) in &found.nodes {
        let Some(rejection) = rejection else { continue };
        let node = scheduler.cluster().get(name);
        let words = node.map_or_else(|| rejection.reasons.join(", "), |n| describe(pod, n, rejection));
        groups
            .entry((rejection.plugin, words))
            .or_default()
            .push(name.clone());
    }
    if let Some(rejection) = &found.rejection {
        let key = (rejection.plugin, rejection.reasons.join(", "));
        groups.insert(key, Vec::new());
    }
    let mut groups: Vec<RejectedNodes> = groups
        .into_iter()
        .map(|((plugin, words), nodes)| RejectedNodes { plugin, words, nodes })
        .collect();
    groups.sort_by_key(|g| std::cmp::Reverse(g.nodes.len()));
    groups
}

/// A rejection with its cause on that node.
fn describe(pod: &PodInfo, node: &NodeInfo, rejection: &UnschedulableStatus) -> String {
    match rejection.plugin {
        taint_toleration::NAME => match untolerated(&pod.class, node) {
            Some(taint) => format!(
                "has the taint {}, which the pod does not tolerate",
                shown_taint(taint)
            ),
            None => rejection.reasons.join(", "),
        },
        node_unschedulable::NAME => "is cordoned".into(),
        node_resources_fit::NAME => {
            let mut words = Vec::new();
            for reason in &rejection.reasons {
                let Some(name) = reason.strip_prefix("Insufficient ") else {
                    words.push(format!("has {} pods, its maximum", node.allocatable.pods));
                    continue;
                };
                let asks = pod.requests().resources.get(name);
                let has = node.allocatable.get(name);
                let free = has.saturating_sub(node.requested.get(name));
                let why = if asks > has { "has only" } else { "has left only" };
                let amount = if asks > has { has } else { free.max(0) };
                words.push(format!(
                    "{why} {} {name} of the {} requested",
                    shown_amount(name, amount),
                    shown_amount(name, asks)
                ));
            }
            words.join(", ")
        }
        _ => rejection.reasons.join(", "),
    }
}

fn shown_taint(taint: &Taint) -> String {
    match taint.value.as_deref().filter(|v| !v.is_empty()) {
        Some(value) => format!("{}={value}:{}", taint.key, taint.effect),
        None => format!("{}:{}", taint.key, taint.effect),
    }
}

/// As a quantity: cpu in millicores, bytes in the largest unit that divides them.
fn shown_amount(name: &str, amount: i64) -> String {
    if name == "cpu" {
        return if amount % 1000 == 0 {
            (amount / 1000).to_string()
        } else {
            format!("{amount}m")
        };
    }
    if !matches!(name, "memory" | "ephemeral-storage") || amount == 0 {
        return amount.to_string();
    }
    for (unit, bytes) in [("Gi", 1_i64 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)] {
        if amount % bytes == 0 {
            return format!("{}{unit}", amount / bytes);
        }
    }
    amount.to_string()
}

/// The single changes that make the pod schedulable; if there is none, the pairs.
fn help(
    scheduler: &mut Scheduler,
    pod: &Shared<Pod>,
    info: &PodInfo,
    found: &Explanation,
) -> Vec<Suggestion> {
    let mut help = Vec::new();
    for change in &changes(scheduler, info, found, false) {
        if help.len() < SUGGESTIONS_MAX {
            help.extend(dry_run(scheduler, pod, &[change]));
        }
    }
    if !help.is_empty() {
        return help;
    }
    // Only the first plugin that rejects a node is known: once that one accepts it, any other may reject it.
    let changes = changes(scheduler, info, found, true);
    for (i, first) in changes.iter().enumerate() {
        for second in &changes[i + 1..] {
            if help.is_empty() {
                help.extend(dry_run(scheduler, pod, &[first, second]));
            }
        }
    }
    help
}

/// The node for the pod with these changes.
fn dry_run(scheduler: &mut Scheduler, pod: &Shared<Pod>, changes: &[&Change]) -> Option<Suggestion> {
    let mut changed: Pod = pod.deep_copy();
    for change in changes {
        change.apply(&mut changed);
    }
    let changed = Object::from_typed(Pod::kind_of(), changed.into_object());
    let changed = Shared::<Pod>::new(changed.into()).ok()?;
    let info = scheduler.info(&changed);
    let Decision::Node { name, .. } = scheduler.schedule(&info) else {
        return None;
    };
    let words: Vec<String> = changes.iter().map(|c| c.describe(&name)).collect();
    Some(Suggestion {
        change: words.join(" and "),
        node: name,
    })
}

/// Changes that may help, the least first: for the plugins that rejected nodes, or for all plugins (`all`).
fn changes(scheduler: &Scheduler, pod: &PodInfo, found: &Explanation, all: bool) -> Vec<Change> {
    let mut changes: Vec<Change> = Vec::new();
    let mut add = |change: Change| {
        if !changes.contains(&change) {
            changes.push(change);
        }
    };
    let mut shrink: BTreeMap<String, i64> = BTreeMap::new();
    let rejected = found.nodes.iter().filter_map(|(name, rejection)| {
        let node = scheduler.cluster().get(name)?;
        Some((node, rejection.as_ref()?))
    });
    let mut plugins: Vec<&'static str> = found.diagnosis.plugins.iter().copied().collect();
    for (node, rejection) in rejected {
        match rejection.plugin {
            node_unschedulable::NAME => add(Change::Uncordon),
            taint_toleration::NAME => {
                if let Some(taint) = untolerated(&pod.class, node) {
                    add(Change::Tolerate(taint.clone()));
                }
            }
            node_resources_fit::NAME => {
                // A node where a single resource is insufficient, and the smallest shortage of it.
                let [only] = rejection.reasons.as_slice() else {
                    continue;
                };
                let Some(name) = only.strip_prefix("Insufficient ") else {
                    continue;
                };
                let free = node
                    .allocatable
                    .get(name)
                    .saturating_sub(node.requested.get(name));
                let lack = pod.requests().resources.get(name).saturating_sub(free);
                let least = shrink.entry(name.to_string()).or_insert(lack);
                *least = lack.min(*least);
            }
            _ => {}
        }
    }
    for (resource, by) in shrink {
        let to = pod.requests().resources.get(&resource).saturating_sub(by);
        if to > 0 {
            add(Change::Shrink { resource, by, to });
        }
    }
    if let Some(rejection) = &found.rejection {
        plugins.push(rejection.plugin);
    }
    let spec = pod.class.spec();
    let against = |plugin| all || plugins.contains(&plugin);
    if against(node_affinity::NAME) {
        for (key, value) in spec.and_then(|s| s.node_selector.as_ref()).into_iter().flatten() {
            add(Change::DropSelector(key.clone(), value.clone()));
        }
        if pod.class.required_node_affinity().is_some() {
            add(Change::DropNodeAffinity);
        }
    }
    if against(pod_topology_spread::NAME) {
        let constraints = spec.and_then(|s| s.topology_spread_constraints.as_ref());
        for (i, constraint) in constraints.into_iter().flatten().enumerate() {
            if constraint.when_unsatisfiable == "DoNotSchedule" {
                add(Change::Soften(i, constraint.topology_key.clone()));
            }
        }
    }
    if against(node_ports::NAME) && !pod.class.host_ports.is_empty() {
        add(Change::DropHostPorts);
    }
    if against(inter_pod_affinity::NAME)
        && let Ok(terms) = &pod.class.affinity
    {
        if !terms.required.is_empty() {
            add(Change::DropPodAffinity);
        }
        if !terms.required_anti.is_empty() {
            add(Change::DropPodAntiAffinity);
        }
    }
    changes
}

impl Change {
    fn describe(&self, node: &NodeName) -> String {
        match self {
            Change::Uncordon => format!("uncordon {node}"),
            Change::Tolerate(taint) => format!("tolerate the taint {}", shown_taint(taint)),
            Change::DropSelector(key, value) => format!("leave {key}={value} out of the node selector"),
            Change::DropNodeAffinity => "require no node affinity".into(),
            Change::Shrink { resource, to, .. } => {
                format!("request {} {resource} in all", shown_amount(resource, *to))
            }
            Change::Soften(_, key) => format!("make the spread over {key} ScheduleAnyway"),
            Change::DropHostPorts => "use no host ports".into(),
            Change::DropPodAffinity => "require no pod affinity".into(),
            Change::DropPodAntiAffinity => "require no pod anti-affinity".into(),
        }
    }

    fn apply(&self, pod: &mut Pod) {
        let Some(spec) = &mut pod.spec else { return };
        match self {
            Change::Uncordon => spec.tolerations.get_or_insert_default().push(Toleration {
                key: Some(UNSCHEDULABLE.into()),
                operator: Some("Exists".into()),
                ..Toleration::default()
            }),
            Change::Tolerate(taint) => spec.tolerations.get_or_insert_default().push(Toleration {
                key: Some(taint.key.clone()),
                operator: Some("Equal".into()),
                value: taint.value.clone(),
                effect: Some(taint.effect.clone()),
                ..Toleration::default()
            }),
            Change::DropSelector(key, _) => {
                if let Some(selector) = &mut spec.node_selector {
                    selector.remove(key);
                }
            }
            Change::DropNodeAffinity => {
                if let Some(affinity) = spec.affinity.as_mut().and_then(|a| a.node_affinity.as_mut()) {
                    affinity.required_during_scheduling_ignored_during_execution = None;
                }
            }
            Change::Shrink { resource, by, .. } => shrink(&mut spec.containers, resource, *by),
            Change::Soften(i, _) => {
                let constraints = spec.topology_spread_constraints.as_mut();
                if let Some(constraint) = constraints.and_then(|c| c.get_mut(*i)) {
                    constraint.when_unsatisfiable = "ScheduleAnyway".into();
                    constraint.min_domains = None;
                }
            }
            Change::DropHostPorts => {
                let init = spec.init_containers.iter_mut().flatten();
                for container in spec.containers.iter_mut().chain(init) {
                    container.ports = None;
                }
            }
            Change::DropPodAffinity => {
                if let Some(affinity) = spec.affinity.as_mut().and_then(|a| a.pod_affinity.as_mut()) {
                    affinity.required_during_scheduling_ignored_during_execution = None;
                }
            }
            Change::DropPodAntiAffinity => {
                if let Some(affinity) = spec.affinity.as_mut().and_then(|a| a.pod_anti_affinity.as_mut()) {
                    affinity.required_during_scheduling_ignored_during_execution = None;
                }
            }
        }
    }
}

/// Reduces the largest container's request of a resource by this much. If the pod's request has another cause (an
/// init container, its overhead), the dry run finds that the change does not help.
fn shrink(containers: &mut [Container], resource: &str, by: i64) {
    let amount = |container: &Container| {
        let requests = container.resources.as_ref().and_then(|r| r.requests.as_ref());
        requests.map_or(0, |list| {
            crate::resources::Resources::from_list(list).get(resource)
        })
    };
    let Some(largest) = containers.iter_mut().max_by_key(|c| amount(c)) else {
        return;
    };
    let left = (amount(largest) - by).max(0);
    let shown = if resource == "cpu" {
        format!("{left}m")
    } else {
        left.to_string()
    };
    let resources = largest.resources.get_or_insert_default();
    let requests = resources.requests.get_or_insert_default();
    requests.insert(resource.to_string(), Quantity(shown));
}

#[cfg(test)]
mod tests;
