//! Declared domains (SPEC B3): keeps the status of TopologyDomains objects, from which the scheduler reads the domains of a
//! topology key that have no nodes, and those that are lost.
//!
//! A domain is declared by `spec.domains`, by a MachineDeployment of Cluster API (`spec.machineDeployments`), or by a node group that has,
//! or had, nodes there; a group without nodes is remembered in the status for `spec.forgetAfterSeconds`. A domain is lost when none of its
//! nodes has been Ready for `spec.lostAfterSeconds`, and until one of its nodes is Ready again, even if the nodes are deleted meanwhile. If
//! no domain of the key has a Ready node, more likely the control plane is partitioned, and no domain is lost.
//!
//! It reads nodes, MachineDeployments and its own kind, writes its own status, and nothing else. Without objects it does not read nodes.

mod conditions;
pub mod kinds;
mod machine_deployments;
mod observed;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::{Kind, Object, Shared, k8s_openapi, registry};
use knarr_apimachinery::time::seconds;

use crate::action::{Action, reference};
use crate::controller::View;
use crate::node::condition;
use conditions::Message;
use kinds::{DOMAINS_MAX, Domain, GROUPS_MAX, NodeTemplate, Source, State, Status, TopologyDomains};
use machine_deployments::Declared;
pub use machine_deployments::{MachineDeployments, is_kind as is_machine_deployment};
use observed::{Observed, observe};

/// The kinds that it watches, MachineDeployments excepted.
pub fn watches() -> [&'static Kind; 2] {
    [TopologyDomains::kind(), &registry::NODE]
}

/// Whether a change can change a status: heartbeats and the controller's own writes cannot.
pub fn is_relevant(old: Option<&Object>, new: Option<&Object>) -> bool {
    let (Some(old), Some(new)) = (old, new) else {
        return true;
    };
    let (Some(was), Some(is)) = (old.get::<Node>(), new.get::<Node>()) else {
        // What MachineDeployments declare is in their annotations, too.
        let (was, is) = (old.metadata(), new.metadata());
        return was.generation != is.generation
            || was.annotations != is.annotations
            || was.labels != is.labels;
    };
    let ready = |node: &Node| condition(node, "Ready").map(|c| c.status.clone());
    let taints = |node: &Node| node.spec.as_ref().and_then(|s| s.taints.clone());
    was.metadata.labels != is.metadata.labels || ready(was) != ready(is) || taints(was) != taints(is)
}

/// Whether there are objects, so that time alone can change a status.
pub fn has_objects(view: &dyn View) -> bool {
    !view.list(TopologyDomains::kind(), "").is_empty()
}

/// An object and what it was parsed from.
struct Parsed {
    object: Arc<Object>,
    domains: TopologyDomains,
}

/// Syncs the status of all objects. An object that does not parse is skipped.
pub fn sync(view: &dyn View, machine_deployments: &MachineDeployments, now: Timestamp) -> Vec<Vec<Action>> {
    let objects = view.list(TopologyDomains::kind(), "");
    if objects.is_empty() {
        return Vec::new();
    }
    let parsed = objects.into_iter().filter_map(|object| {
        let domains = TopologyDomains::of(&object)?;
        Some(Parsed { object, domains })
    });
    let all: Vec<Parsed> = parsed
        .filter(|p| p.domains.metadata.deletion_timestamp.is_none())
        .collect();
    let nodes: Vec<Shared<Node>> = view.list_as("");
    let oldest = oldest_by_key(&all);
    let mut lists = Vec::new();
    for Parsed { object, domains } in &all {
        let owner = oldest.get(domains.spec.topology_key.as_str()).copied();
        let mut status = match owner.filter(|owner| *owner != domains.name()) {
            Some(owner) => in_conflict(domains, owner, now),
            None => declared(domains, &nodes, machine_deployments.declared(domains), now),
        };
        status.observed_generation = domains.metadata.generation;
        if status == domains.status {
            continue;
        }
        let events = events(object, &domains.status, &status);
        let next = TopologyDomains {
            status,
            ..domains.clone()
        };
        match next.to_object() {
            Ok(object) => {
                let update = Action::Update {
                    kind: TopologyDomains::kind().clone(),
                    object,
                    subresource: "status",
                };
                lists.push([update].into_iter().chain(events).collect());
            }
            // A status that does not encode is a bug; the object keeps its status.
            Err(error) => debug_assert!(false, "{error}"),
        }
    }
    lists
}

/// The name of the object that declares each key: the oldest; of two of one second the first by name.
fn oldest_by_key(all: &[Parsed]) -> BTreeMap<&str, &str> {
    let mut ordered: Vec<&TopologyDomains> = all.iter().map(|p| &p.domains).collect();
    ordered.sort_by_key(|d| {
        (
            d.metadata.creation_timestamp.as_ref().map(|t| t.0),
            d.name().to_string(),
        )
    });
    let mut oldest = BTreeMap::new();
    for domains in ordered {
        oldest
            .entry(domains.spec.topology_key.as_str())
            .or_insert(domains.name());
    }
    oldest
}

/// The status of an object that is not used. What it had remembered is forgotten: it may be wrong when it is used again.
fn in_conflict(domains: &TopologyDomains, owner: &str, now: Timestamp) -> Status {
    Status {
        domains: Vec::new(),
        conditions: conditions::set(domains, &Message::Conflict { owner }, None, now),
        ..Status::default()
    }
}

/// The status of the object that declares its key.
fn declared(
    domains: &TopologyDomains,
    nodes: &[Shared<Node>],
    of_machine_deployments: Declared,
    now: Timestamp,
) -> Status {
    let Declared { templates, finding } = of_machine_deployments;
    let observed = observe(&domains.spec, nodes, now);
    let known = |name: &str| domains.status.domains.iter().find(|d| d.name == name);
    let mut groups_left = GROUPS_MAX.saturating_sub(templates.values().map(Vec::len).sum());
    let mut found: Vec<Domain> = Vec::new();
    let mut left_out = 0;
    for name in names(domains, &templates, &observed) {
        let there = observed.get(name);
        let of_spec = spec_template(domains, name);
        let of_machine_deployments = templates.get(name);
        let mut groups = group_templates(domains, known(name), there, now);
        let source = match (&of_spec, of_machine_deployments, groups.is_empty()) {
            (Some(_), _, _) => Source::Spec,
            (None, Some(_), _) => Source::MachineDeployment,
            (None, None, false) => Source::NodeGroup,
            (None, None, true) => Source::Nodes,
        };
        if source == Source::Nodes && there.is_none() {
            continue;
        }
        if found.len() == DOMAINS_MAX {
            left_out += 1;
            continue;
        }
        groups.truncate(groups_left);
        groups_left -= groups.len();
        let mut node_templates: Vec<NodeTemplate> = of_spec.into_iter().collect();
        node_templates.extend(of_machine_deployments.into_iter().flatten().cloned());
        node_templates.extend(groups);
        found.push(Domain {
            name: name.to_string(),
            source,
            node_templates,
            ..Domain::default()
        });
    }
    let any_ready = observed.values().any(|o| o.ready_nodes > 0);
    let lost_after = domains.spec.lost_after_seconds.filter(|_| any_ready);
    let lost_after = lost_after.map(SignedDuration::from_secs);
    for domain in &mut found {
        let name = domain.name.clone();
        set_state(domain, known(&name), observed.get(name.as_str()), lost_after, now);
    }
    let lost = found.iter().filter(|d| d.state == State::Lost);
    let message = Message::Used {
        counted: found.iter().filter(|d| d.counted).count(),
        lost: lost.map(|d| d.name.as_str()).collect(),
        left_out,
    };
    Status {
        conditions: conditions::set(domains, &message, finding, now),
        domains: found,
        ..Status::default()
    }
}

/// The names of all domains: those of the spec first, then those of MachineDeployments, those with nodes, and those that are remembered.
fn names<'a>(
    domains: &'a TopologyDomains,
    of_machine_deployments: &'a BTreeMap<String, Vec<NodeTemplate>>,
    observed: &BTreeMap<&'a str, Observed>,
) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    let of_spec = domains.spec.domains.iter().map(|d| d.name.as_str());
    let remembered = domains.status.domains.iter().map(|d| d.name.as_str());
    let mut seen = BTreeSet::new();
    let declared = of_spec.chain(of_machine_deployments.keys().map(String::as_str));
    for name in declared.chain(observed.keys().copied()).chain(remembered) {
        if seen.insert(name) {
            names.push(name);
        }
    }
    names
}

/// The template of a domain that the spec declares.
fn spec_template(domains: &TopologyDomains, name: &str) -> Option<NodeTemplate> {
    let spec = domains.spec.domains.iter().find(|d| d.name == name);
    spec.map(|d| NodeTemplate {
        labels: d.labels.clone(),
        taints: d.taints.clone(),
        capacity: d.capacity.clone(),
        ..NodeTemplate::default()
    })
}

/// The templates of a domain's node groups.
fn group_templates(
    domains: &TopologyDomains,
    known: Option<&Domain>,
    there: Option<&Observed>,
    now: Timestamp,
) -> Vec<NodeTemplate> {
    if domains.spec.node_group_label.is_empty() {
        return Vec::new();
    }
    let mut groups: BTreeMap<String, NodeTemplate> = BTreeMap::new();
    for template in known.into_iter().flat_map(|d| &d.node_templates) {
        // Those of other sources are not remembered.
        if template.node_group.is_empty() {
            continue;
        }
        let mut template = template.clone();
        let since = template.without_nodes_since.get_or_insert_with(|| seconds(now));
        let forget_after = SignedDuration::from_secs(domains.spec.forget_after_seconds);
        if now.duration_since(since.0) < forget_after {
            groups.insert(template.node_group.clone(), template);
        }
    }
    // Groups with nodes are as their nodes are now.
    for template in there.into_iter().flat_map(|o| o.groups.values()) {
        groups.insert(template.node_group.clone(), template.clone());
    }
    groups.into_values().collect()
}

/// Sets whether the domain counts. `lost_after` is `None` if no domain is to be lost.
fn set_state(
    domain: &mut Domain,
    known: Option<&Domain>,
    there: Option<&Observed>,
    lost_after: Option<SignedDuration>,
    now: Timestamp,
) {
    domain.nodes = there.map_or(0, |o| o.nodes);
    domain.ready_nodes = there.map_or(0, |o| o.ready_nodes);
    domain.counted = true;
    if domain.ready_nodes > 0 {
        domain.state = State::Ready;
        return;
    }
    let since_before = known
        .and_then(|k| k.without_ready_nodes_since.as_ref())
        .map(|t| t.0);
    let was_lost = known.is_some_and(|k| k.state == State::Lost) && lost_after.is_some();
    let of_nodes = there.map(|o| {
        let had_ready = known.is_some_and(|k| k.ready_nodes > 0 && k.nodes > o.nodes);
        // The last Ready node may have been deleted: when the others ceased to be Ready is too early then.
        if had_ready { now } else { o.last_ready }
    });
    let since = match (was_lost, of_nodes) {
        (true, _) | (false, None) => since_before.unwrap_or(now),
        (false, Some(of_nodes)) => since_before.map_or(of_nodes, |before| before.max(of_nodes)),
    };
    domain.without_ready_nodes_since = Some(seconds(since));
    let is_due = lost_after.is_some_and(|wait| now.duration_since(since) >= wait);
    domain.state = match there {
        _ if was_lost => State::Lost,
        Some(_) if is_due => State::Lost,
        Some(_) => State::NotReady,
        None => State::Absent,
    };
    domain.counted = domain.state != State::Lost;
}

/// An event for each domain that is lost, or has been.
fn events(object: &Object, before: &Status, after: &Status) -> Vec<Action> {
    let about = reference(object);
    let state = |status: &Status, name: &str| {
        let found = status.domains.iter().find(|d| d.name == name);
        found.map(|d| d.state)
    };
    let changed = after.domains.iter().filter_map(|domain| {
        let name = &domain.name;
        let was_lost = state(before, name) == Some(State::Lost);
        match (was_lost, domain.state == State::Lost) {
            (false, true) => Some(Action::warning(
                &about,
                "DomainLost",
                format!("No node of {name} is Ready: its pods do not count for the global minimum of topology spread"),
            )),
            (true, false) => Some(Action::event(&about, "DomainCounted", format!("{name} counts again"))),
            _ => None,
        }
    });
    changed.collect()
}
