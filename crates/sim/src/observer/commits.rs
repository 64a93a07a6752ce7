//! Writes to the store: what the trace and the world keep of them, and which rules are checked.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::condition;
use knarr_client::{Object, Term};
use knarr_control::fencing_kinds::{NodeFencing, Phase};

use super::pod_writes::{MOST_WRITES, PERIOD_SECONDS, managers_may_disagree};
use super::{Inner, Observer};
use crate::rules::{n1_addresses, n6_policy, s9_watches};
use crate::stored;
use crate::upgrade::started_by;
use crate::world::{
    Absence, Life, Observation, addresses_of, is_fenced, is_out_of_service, node_of, phase_of,
};

/// The summary of the network agents' reports (SPEC B7).
const PROPAGATION: &str = "core/configmaps/knarr-network/endpoint-propagation";

/// The key prefix of EndpointSlices.
const SLICES: &str = "discovery.k8s.io/endpointslices/";

impl Inner {
    fn count_pod_write(&mut self) {
        let Some(periods) = self.pod_writes.add(self.world.now) else {
            return;
        };
        if !managers_may_disagree(periods, &self.world) {
            let what = format!(
                "{MOST_WRITES} writes of pods within {PERIOD_SECONDS} s: components undo each other's work"
            );
            self.violate("S9", what, None);
        }
    }
}

impl Observer {
    /// A key was written; no value: it was deleted.
    pub fn committed(&self, key: &[u8], revision: u64, value: Option<&[u8]>) {
        let mut inner = self.lock();
        let now = inner.world.now;
        let text = String::from_utf8_lossy(key).into_owned();
        let path = text.trim_start_matches("/registry/");
        let content = value.unwrap_or_default();
        inner.world.commits.add(revision, path, value.is_none());
        inner.world.versions.add(path, revision, now, value);
        if inner.world.resting {
            inner.check_rules(&Observation::Written { key: path });
        }
        if inner.world.metering.take_in(path, value, now) {
            inner.check_rules(&Observation::Metered { key: path });
        }
        if inner.world.definitions.take_in(path, value) {
            inner.check_rules(&Observation::Defined { key: path });
        }
        inner.world.placement.take_in(path, value, now);
        if let Some(name) = path.strip_prefix("core/pods/") {
            inner.count_pod_write();
            let pod = value.and_then(stored::pod).map(Arc::new);
            let line = match &pod {
                Some(pod) => format!("{revision} pod {name} {}", summary(pod)),
                None => format!("{revision} pod {name} is gone"),
            };
            inner.history.add(now, &line, content);
            match pod {
                Some(pod) => pod_written(&mut inner, name, pod),
                None => pod_removed(&mut inner, name),
            }
            return;
        }
        let verb = if value.is_some() { "put" } else { "gone" };
        let node_name = path.strip_prefix("core/nodes/");
        let node = value.filter(|_| node_name.is_some()).and_then(stored::node);
        let slice_key = path.strip_prefix(SLICES);
        let slice: Option<EndpointSlice> = value
            .filter(|_| slice_key.is_some())
            .and_then(|json| serde_json::from_slice(json).ok());
        let more = if path.starts_with("apps/") || path.starts_with("batch/") {
            stored::describe_workload(content)
        } else if path.starts_with("core/events/") {
            stored::describe_event(content)
        } else if let Some(slice) = &slice {
            stored::describe_slice(slice)
        } else if path == PROPAGATION {
            stored::describe_propagation(content)
        } else {
            node.as_ref().map(describe_node).unwrap_or_default()
        };
        inner
            .history
            .add(now, &format!("{revision} {verb} {path}{more}"), content);
        if let Some(node) = path.strip_prefix("coordination.k8s.io/leases/kube-node-lease/") {
            inner.world.renewed.insert(node.to_string(), now);
        }
        // Leases of leaders; a node's lease has nothing that a rule needs.
        let lease = path.strip_prefix("coordination.k8s.io/leases/");
        if let Some(name) = lease.filter(|name| !name.starts_with("kube-node-lease/")) {
            match value.and_then(stored::term) {
                Some(term) => drop(inner.world.terms.insert(name.to_string(), term)),
                None => drop(inner.world.terms.remove(name)),
            }
        }
        match (slice_key, slice) {
            (Some(key), Some(slice)) => drop(inner.world.slices.insert(key.into(), slice)),
            (Some(key), None) => drop(inner.world.slices.remove(key)),
            (None, _) => network_written(&mut inner, path, value),
        }
        if let Some(name) = path.strip_prefix("safety.knarr.io/nodefencings/") {
            fencing_written(&mut inner, name, content);
        }
        if let Some(name) = node_name {
            node_written(&mut inner, name, node);
        }
    }

    /// Keys that a leader wrote, with the term in which it decided.
    pub fn led<'a>(&self, term: &Term, keys: impl Iterator<Item = &'a [u8]>) {
        let mut inner = self.lock();
        for key in keys {
            let key = &String::from_utf8_lossy(key);
            // Admission charges a quota before the request itself is compared with the lease; a charge for nothing is counted off again.
            if key.contains("/resourcequotas/") {
                continue;
            }
            inner.check_rules(&Observation::Led { term, key });
        }
    }

    /// The next commit of a quota is part of a component's request.
    pub fn requested_by_component(&self) {
        self.lock().world.metering.for_component = true;
    }

    /// From now on commits are compared with what clients see.
    pub fn keep_commits(&self) {
        self.lock().world.commits.keep();
    }

    /// A component gets the answer to a write.
    pub fn answered(&self, who: &str, answer: &knarr_client::Result<Arc<Object>>) {
        let Ok(object) = answer else { return };
        let mut inner = self.lock();
        if let Err(what) = s9_watches::is_committed(object, &inner.world.commits) {
            inner.violate("S9", format!("{who}: {what}"), None);
        }
    }
}

fn summary(pod: &Pod) -> String {
    let meta = &pod.metadata;
    let mut text = format!("{} on {:?}", phase_of(pod), node_of(pod));
    if let Some(ready) = condition(pod, "Ready") {
        text.push_str(&format!(", ready: {}", ready.status));
    }
    if let Some(at) = &meta.deletion_timestamp {
        let grace = meta.deletion_grace_period_seconds.unwrap_or_default();
        text.push_str(&format!(", to end by {} ({grace} s)", at.0));
    }
    let uid = meta.uid.as_deref().unwrap_or_default();
    text.push_str(&format!(" [{}]", uid.get(..8).unwrap_or(uid)));
    text
}

/// Whether the node is ready, and its taints.
fn describe_node(node: &Node) -> String {
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let ready = conditions.into_iter().find(|c| c.type_ == "Ready");
    let mut text = match ready {
        Some(ready) => format!(", ready: {}", ready.status),
        None => String::new(),
    };
    for taint in node.spec.iter().flat_map(|s| s.taints.iter().flatten()) {
        text.push_str(&format!(", {}:{}", taint.key, taint.effect));
    }
    text
}

/// The objects that the rules of the network need, but for EndpointSlices.
fn network_written(inner: &mut Inner, path: &str, value: Option<&[u8]>) {
    fn kept<T: serde::de::DeserializeOwned>(
        all: &mut std::collections::BTreeMap<String, T>,
        key: &str,
        value: Option<&[u8]>,
    ) {
        match value.and_then(|json| serde_json::from_slice(json).ok()) {
            Some(object) => drop(all.insert(key.into(), object)),
            None => drop(all.remove(key)),
        }
    }
    let world = &mut inner.world;
    if let Some(key) = path.strip_prefix("core/services/") {
        kept(&mut world.services, key, value);
    } else if let Some(name) = path.strip_prefix("core/namespaces/") {
        let namespace = value.and_then(stored::node);
        let labels = namespace.map(|namespace| namespace.metadata.labels.unwrap_or_default());
        world.namespaces.insert(name.into(), labels.unwrap_or_default());
    } else if let Some(key) = path.strip_prefix("networking.k8s.io/networkpolicies/") {
        let policy: Option<NetworkPolicy> = value.and_then(|json| serde_json::from_slice(json).ok());
        let same = |of: &NetworkPolicy| {
            let meta = &of.metadata;
            key.split_once('/') == meta.namespace.as_deref().zip(meta.name.as_deref())
        };
        world.policies.retain(|_, of| !same(of));
        if let Some(policy) = policy {
            let uid = policy.metadata.uid.clone().unwrap_or_default();
            world.policies.insert(uid, policy);
        }
    } else if let Some(key) = path.strip_prefix("policy/poddisruptionbudgets/") {
        budget_written(inner, key, value);
    }
}

fn budget_written(inner: &mut Inner, key: &str, value: Option<&[u8]>) {
    let budget: Option<PodDisruptionBudget> = value.and_then(|json| serde_json::from_slice(json).ok());
    let before = inner.world.budgets.remove(key);
    let Some(after) = budget else { return };
    let now = inner.world.now;
    let counted = after
        .status
        .iter()
        .flat_map(|s| s.disrupted_pods.iter().flatten());
    let counted = counted.map(|(pod, _)| ((key.to_string(), pod.clone()), now));
    inner.world.disruptions.extend(counted);
    let first_seen = before
        .as_ref()
        .map_or(inner.world.now, |(_, first_seen)| *first_seen);
    inner
        .world
        .budgets
        .insert(key.into(), (after.clone(), first_seen));
    inner.check_rules(&Observation::BudgetWritten {
        before: before.as_ref().map(|(budget, _)| budget),
        after: &after,
    });
}

fn fencing_written(inner: &mut Inner, name: &str, content: &[u8]) {
    let Ok(fencing) = serde_json::from_slice::<NodeFencing>(content) else {
        inner.world.fencings.remove(name);
        return;
    };
    let (now, node) = (inner.world.now, &fencing.spec.node_name);
    let line = format!(
        "fencing of {node}: {:?}, {}",
        fencing.status.phase, fencing.status.message
    );
    inner.history.add(now, &line, b"");
    match fencing.status.phase {
        Phase::Fencing => drop(inner.world.fencings.entry(name.into()).or_insert(now)),
        // The actions after the evidence begin once; the phase Returning may fall back to it.
        Phase::Fenced => {
            if inner.world.fencings.contains_key(name) {
                inner.check_rules(&Observation::Fenced { fencing: name, node });
                inner.world.fencings.remove(name);
            }
        }
        _ => drop(inner.world.fencings.remove(name)),
    }
}

fn node_written(inner: &mut Inner, name: &str, node: Option<Node>) {
    let now = inner.world.now;
    match node {
        Some(node) => {
            if is_out_of_service(&node) {
                inner.world.storage.give_up(name);
                let lives = inner.world.pods.values_mut();
                lives.filter(|life| life.node() == name).for_each(|life| {
                    (life.released, life.given_up, life.declared_dead) = (true, true, true);
                });
            }
            if inner.world.is_fenced(name) && !is_fenced(&node) {
                inner.world.unfenced.insert(name.to_string(), now);
            }
            let ranges = n1_addresses::ranges(&node);
            inner.world.nodes.insert(name.to_string(), node);
            if !ranges.is_empty() && inner.world.ranges.get(name) != Some(&ranges) {
                inner.world.ranges.insert(name.to_string(), ranges);
                inner.check_rules(&Observation::Ranges { node: name });
            }
            inner.world.node_written.insert(name.to_string(), now);
            if let Some(absence) = inner.world.absences.get_mut(name) {
                absence.until.get_or_insert(now);
            }
        }
        None => {
            inner.world.nodes.remove(name);
            inner.world.storage.give_up(name);
            let absence = Absence {
                from: now,
                until: None,
            };
            inner.world.absences.insert(name.to_string(), absence);
            let of_node = |life: &&mut Life| life.node() == name;
            inner
                .world
                .pods
                .values_mut()
                .filter(of_node)
                .for_each(|life| (life.released, life.given_up) = (true, true));
        }
    }
}

fn pod_written(inner: &mut Inner, name: &str, pod: Arc<Pod>) {
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    inner.world.note_addresses(&uid, &pod);
    let before = match inner.world.pods.get_mut(&uid) {
        Some(life) => Some(std::mem::replace(&mut life.pod, pod.clone())),
        None => {
            let life = Life {
                isolated_by: n6_policy::isolating(&inner.world, &pod),
                ..Life::new(pod.clone(), inner.world.now)
            };
            inner.world.pods.insert(uid.clone(), life);
            inner.world.named.insert(name.into(), uid.clone());
            None
        }
    };
    // Bound to a node that does not exist: no kubelet reports it.
    let orphan = !node_of(&pod).is_empty() && !inner.world.nodes.contains_key(node_of(&pod));
    let declared_dead = inner
        .world
        .nodes
        .get(node_of(&pod))
        .is_some_and(is_out_of_service);
    let isolating = match &before {
        Some(_) => n6_policy::isolating(&inner.world, &pod),
        None => BTreeSet::new(),
    };
    let is_requested = inner
        .world
        .pods
        .get(&uid)
        .is_some_and(|life| life.deletion_requested);
    let now = inner.world.now;
    inner
        .world
        .placement
        .pod_written(before.as_deref(), &pod, is_requested, now);
    if let Some(life) = inner.world.pods.get_mut(&uid) {
        if before.is_some() {
            life.isolated_by.retain(|policy| isolating.contains(policy));
        }
        let announced = started_by(&pod);
        if announced != before.as_deref().and_then(started_by) {
            let node = announced.and_then(|id| id.split(' ').next()).map(String::from);
            life.announced = node.map(|node| (node, inner.world.now));
        }
        if pod.metadata.deletion_timestamp.is_some() {
            life.deleted_at.get_or_insert(inner.world.now);
        }
        if !node_of(&pod).is_empty() {
            life.bound_at.get_or_insert(inner.world.now);
        }
        for address in before.as_deref().into_iter().flat_map(addresses_of) {
            if addresses_of(&pod).all(|now_its| now_its != address) {
                life.former_addresses.insert(address, now);
            }
        }
        life.released |= orphan || declared_dead;
        life.given_up |= orphan || declared_dead;
        life.declared_dead |= declared_dead;
    }
    inner.check_rules(&Observation::PodWritten {
        uid: &uid,
        before: before.as_deref(),
        after: &pod,
    });
}

fn pod_removed(inner: &mut Inner, name: &str) {
    let now = inner.world.now;
    let Some(uid) = inner.world.named.remove(name) else {
        return;
    };
    let Some(life) = inner.world.pods.get_mut(&uid) else {
        return;
    };
    life.removed_at = Some(now);
    let last = life.pod.clone();
    inner.world.placement.pod_removed(&last, now);
    inner.check_rules(&Observation::PodRemoved {
        uid: &uid,
        last: &last,
    });
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use k8s_openapi::jiff::Timestamp;
    use knarr_client::TokioClock;
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_deletion_removes_the_pod_that_exists_by_that_name_and_no_earlier_one() {
        let clock = Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH));
        let observer = Observer::new(clock, false, false, Path::new("/none"));
        let pod = |uid: &str| {
            let meta = json!({"name": "a", "namespace": "ns", "uid": uid});
            json!({"metadata": meta, "spec": {"containers": []}}).to_string()
        };
        for (revision, uid, expected) in [
            (1, Some("u1"), vec![("u1", false)]),
            (2, Some("u1"), vec![("u1", false)]),
            (3, None, vec![("u1", true)]),
            (4, None, vec![("u1", true)]),
            (5, Some("u0"), vec![("u0", false), ("u1", true)]),
            (6, None, vec![("u0", true), ("u1", true)]),
        ] {
            let value = uid.map(pod);
            let value = value.as_deref().map(str::as_bytes);
            observer.committed(b"/registry/core/pods/ns/a", revision, value);
            observer.world(|world| {
                let lives = world
                    .pods
                    .iter()
                    .map(|(uid, life)| (uid.as_str(), life.removed()));
                assert_eq!(lives.collect::<Vec<_>>(), expected, "at {revision}");
            });
        }
    }
}
