//! What a plan is made from: the scheduler's snapshot of the cluster with what a rebalancer reads beyond it. Objects are
//! shared with the caller's caches. The order of the objects does not matter.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ReplicationController, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::jiff::Timestamp;
use knarr_api::kinds::pod::is_terminal;
use knarr_api::{Object, Shared, k8s_openapi};
use knarr_apimachinery::ids::NodeName;
use knarr_apimachinery::labels::Selector;
use knarr_scheduler::plugins::cross_node_preemption;
use knarr_scheduler::pod_info::{Classes, Labels, node_name, nominated_node_name};
use knarr_scheduler::resources::Resources;
use knarr_scheduler::{Cluster, NodeInfo, Profile};

use crate::annotations::opt_in;
use crate::reason::Reason;
use crate::workload::Owners;
pub use crate::workload::Workload;

/// A pod that was moved earlier: it counts in the budgets for an hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    pub at: Timestamp,
    /// The node that it was moved away from.
    pub node: NodeName,
    pub workload: Workload,
}

/// Measured usage (metrics.k8s.io).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub nodes: BTreeMap<NodeName, Resources>,
    /// By namespace and name.
    pub pods: BTreeMap<(String, String), Resources>,
}

/// A PodDisruptionBudget as the eviction API reads it.
#[derive(Clone, Debug)]
pub(crate) struct DisruptionBudget {
    pub namespace: String,
    pub name: String,
    pub selector: Selector,
    /// 0 while its status is older than its spec.
    pub allowed: u32,
}

impl DisruptionBudget {
    pub fn selects(&self, namespace: &str, labels: Option<&Labels>) -> bool {
        self.namespace == namespace && self.selector.matches(labels)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Snapshot {
    pub(crate) profiles: Vec<Arc<Profile>>,
    pub(crate) cluster: Cluster,
    classes: Classes,
    /// Failed and succeeded pods.
    pub(crate) finished: Vec<Shared<Pod>>,
    pub(crate) disruption_budgets: Vec<DisruptionBudget>,
    owners: Owners,
    /// Namespaces whose annotation says whether their pods may be moved.
    opted: BTreeMap<String, bool>,
    pub(crate) priority_classes: BTreeMap<String, i32>,
    pub(crate) usage: Usage,
    pub(crate) evictions: Vec<Eviction>,
    pub(crate) held: BTreeMap<Workload, Reason>,
    pub(crate) now: Timestamp,
}

impl Snapshot {
    /// From the scheduler's profiles (at least one) and the objects of a cluster; kinds that do not matter are skipped.
    pub fn new(profiles: Vec<Profile>, objects: &[Arc<Object>], now: Timestamp) -> Self {
        let mut snapshot = Snapshot {
            profiles: profiles.into_iter().map(Arc::new).collect(),
            cluster: Cluster::default(),
            classes: Classes::default(),
            finished: Vec::new(),
            disruption_budgets: Vec::new(),
            owners: Owners::default(),
            opted: BTreeMap::new(),
            priority_classes: BTreeMap::new(),
            usage: Usage::default(),
            evictions: Vec::new(),
            held: BTreeMap::new(),
            now,
        };
        let mut nodes: BTreeMap<&str, Shared<Node>> = BTreeMap::new();
        let mut pods: Vec<(&str, &str, Shared<Pod>)> = Vec::new();
        for object in objects {
            let (namespace, name) = (object.namespace(), object.name());
            if let Ok(pod) = Shared::<Pod>::new(object.clone()) {
                pods.push((namespace, name, pod));
            } else if let Ok(node) = Shared::<Node>::new(object.clone()) {
                nodes.insert(name, node);
            } else {
                snapshot.add_related_object(object);
            }
        }
        // The same index of a node and number of a class, however the objects are ordered.
        snapshot
            .disruption_budgets
            .sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        for (name, node) in nodes {
            snapshot.cluster.set_node(name, Some(node));
        }
        pods.sort_unstable_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)));
        for (_, _, pod) in pods {
            snapshot.add_pod(pod);
        }
        snapshot
    }

    /// With measured usage, for strategies that read it.
    pub fn with_usage(mut self, usage: Usage) -> Self {
        self.usage = usage;
        self
    }

    /// With the evictions of the last hour; older ones are ignored.
    pub fn with_evictions(mut self, evictions: Vec<Eviction>) -> Self {
        self.evictions = evictions;
        self
    }

    /// Replaces what differs between the policies that are planned from one snapshot: the evictions of the last hour, and
    /// the workloads whose pods are not moved for now, with the reason.
    pub fn set_memory(&mut self, evictions: Vec<Eviction>, held: BTreeMap<Workload, Reason>) {
        self.evictions = evictions;
        self.held = held;
    }

    fn add_related_object(&mut self, object: &Arc<Object>) {
        let (namespace, name) = (object.namespace(), object.name());
        if let Some(change) = knarr_scheduler::volumes::Change::of(None, Some(object)) {
            self.cluster.volumes_mut().apply(&change);
        } else if let Some(change) =
            knarr_scheduler::dynamic_resources::claims::Change::of(None, Some(object))
        {
            self.cluster.devices_changed(&change);
        } else if let Some(of) = object.get::<Namespace>() {
            self.cluster.set_namespace(name, Some(of));
            if let Some(may) = opt_in(of.metadata.annotations.as_ref()) {
                self.opted.insert(name.to_string(), may);
            }
        } else if let Some(of) = object.get::<Service>() {
            self.cluster.set_service(namespace, name, Some(of));
        } else if let Some(of) = object.get::<ReplicaSet>() {
            self.cluster.set_replica_set(namespace, name, Some(of));
            self.owners.add(namespace, name, of);
        } else if let Some(of) = object.get::<StatefulSet>() {
            self.cluster.set_stateful_set(namespace, name, Some(of));
        } else if let Some(of) = object.get::<ReplicationController>() {
            self.cluster.set_replication_controller(namespace, name, Some(of));
        } else if let Some(of) = object.get::<PriorityClass>() {
            self.priority_classes
                .insert(name.to_string(), of.value.unwrap_or(0));
        } else if let Some(of) = object.get::<PodDisruptionBudget>() {
            self.disruption_budgets.extend(disruption_budget(of));
        }
    }

    fn add_pod(&mut self, pod: Shared<Pod>) {
        if is_terminal(&pod) {
            self.finished.push(pod);
            return;
        }
        let info = Arc::new(self.classes.info(&pod));
        let (node, nominated) = (node_name(&pod), nominated_node_name(&pod));
        if !node.is_empty() {
            self.cluster.add_pod(node, &info);
        } else if !nominated.is_empty() {
            let keeps_domains = self
                .profile_of(&pod)
                .is_some_and(|profile| cross_node_preemption::is_requested(profile, &info));
            if keeps_domains {
                self.cluster.nominate_in_domains(nominated, &info);
            } else {
                self.cluster.nominate(nominated, &info);
            }
        }
    }

    /// `None`: the pod has no controller.
    pub(crate) fn workload(&self, pod: &Pod) -> Option<Workload> {
        self.owners.workload(pod)
    }

    /// What the annotation of the pod's namespace says.
    pub(crate) fn namespace_opt_in(&self, namespace: &str) -> Option<bool> {
        self.opted.get(namespace).copied()
    }

    /// The scheduler's profile for the pod; `None`: another scheduler is responsible for it.
    pub(crate) fn profile_of(&self, pod: &Pod) -> Option<&Arc<Profile>> {
        let name = pod.spec.as_ref()?.scheduler_name.as_deref();
        let name = name.filter(|name| !name.is_empty());
        let name = name.unwrap_or(knarr_scheduler::profile::DEFAULT_SCHEDULER_NAME);
        self.profiles.iter().find(|p| p.scheduler_name == name)
    }
}

/// The kinds of the pod's owners.
pub(crate) fn owner_kinds(pod: &Pod) -> impl Iterator<Item = &str> {
    let owners = pod.metadata.owner_references.iter().flatten();
    owners.map(|owner| owner.kind.as_str())
}

fn disruption_budget(of: &PodDisruptionBudget) -> Option<DisruptionBudget> {
    let selector = of.spec.as_ref()?.selector.as_ref()?;
    let status = of.status.as_ref();
    let observed = status.and_then(|s| s.observed_generation);
    let is_current = of
        .metadata
        .generation
        .is_none_or(|g| observed.is_some_and(|o| o >= g));
    let allowed = status.and_then(|s| s.disruptions_allowed).unwrap_or(0);
    Some(DisruptionBudget {
        namespace: of.metadata.namespace.clone().unwrap_or_default(),
        name: of.metadata.name.clone().unwrap_or_default(),
        selector: Selector::from_label_selector(selector).ok()?,
        allowed: u32::try_from(allowed).unwrap_or(0) * u32::from(is_current),
    })
}

/// Whether the node's condition Ready is True, or it has none (nodes without a kubelet, in tests and dumps).
pub(crate) fn is_ready(node: &NodeInfo) -> bool {
    let status = node.node.as_ref().and_then(|n| n.status.as_ref());
    let conditions = status.and_then(|s| s.conditions.as_ref());
    let mut ready = conditions.into_iter().flatten().filter(|c| c.type_ == "Ready");
    ready.next().is_none_or(|c| c.status == "True")
}

/// The names of the claims that the pod uses, those of its ephemeral volumes included.
pub(crate) fn claims(pod: &Pod) -> BTreeSet<String> {
    let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_ref());
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let of = volumes.into_iter().flatten();
    of.filter_map(|volume| {
        let claim = volume.persistent_volume_claim.as_ref();
        let ephemeral = volume
            .ephemeral
            .as_ref()
            .map(|_| format!("{name}-{}", volume.name));
        claim.map(|c| c.claim_name.clone()).or(ephemeral)
    })
    .collect()
}
