//! The true state of the simulated cluster, which no component can see: the store's pods and nodes and every process
//! on every node, at one moment.

mod storage;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::{DISRUPTION_TARGET, condition};
use knarr_client::{DeleteOptions, Term};
use knarr_kubelet::self_fencing::{SelfFencing, TERM_AFTER};
use knarr_network::nft::Table;
use knarr_node::runtime::fake::End;

use crate::clocks::Rate;
use crate::commits::Commits;
use crate::definitions::Definitions;
use crate::metering::Metering;
use crate::placement::Placement;
use crate::policy_verdict::Tables;
use crate::versions::NetworkVersions;
pub(crate) use storage::{DiskUser, Holder, Step, Storage, Ties};

/// The taint by which an administrator declares a node dead.
pub(crate) const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// That taint's value when the fencing controller sets it.
const FENCED: &str = "fenced";

/// More pods at once than users want here: what one manager creates, the other deletes, but each terminates for as long as its grace period.
pub(crate) const POD_COUNT: usize = 500;
/// The controller manager that ignores the lease, where there is one.
pub(crate) const WITHOUT_LEASE: &str = "control-c";

/// The response to a DNS query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DnsResponse {
    /// Empty, if the name exists without addresses.
    Addresses(BTreeSet<IpAddr>),
    NoName,
    /// SERVFAIL.
    NotReady,
}

/// One container's processes.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub node: String,
    pub id: String,
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub container: String,
    pub sandbox: String,
    /// Its sandbox broke: it may be terminated for that, with its pod's own grace period, before the pod is deleted.
    pub is_sandbox_broken: bool,
    /// When TERM was first sent.
    pub stop_requested: Option<Timestamp>,
}

#[cfg(test)]
impl Process {
    /// The process `1` of this container of the pod `u` on `n1`.
    pub fn example(container: &str) -> Self {
        Process {
            node: "n1".into(),
            id: "1".into(),
            uid: "u".into(),
            namespace: "default".into(),
            name: "a".into(),
            container: container.into(),
            sandbox: "s".into(),
            is_sandbox_broken: false,
            stop_requested: None,
        }
    }
}

/// One pod (UID), also after it was removed from the store.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub pod: Arc<Pod>,
    pub first_seen: Timestamp,
    /// When it was bound to its node.
    pub bound_at: Option<Timestamp>,
    /// When its deletion was written.
    pub deleted_at: Option<Timestamp>,
    /// When it was removed from the store.
    pub removed_at: Option<Timestamp>,
    /// Its node's answer is not waited for: a user used force, or the node was deleted or declared dead.
    pub released: bool,
    /// A user or a fence agent has declared its node dead.
    pub given_up: bool,
    /// That was declared with the out-of-service taint.
    pub declared_dead: bool,
    /// A component has requested its deletion (an eviction, a scale-down).
    pub deletion_requested: bool,
    /// Containers that exited with 0 by themselves, each with its sandbox.
    pub completed: BTreeSet<(String, String)>,
    /// The node whose kubelet wrote last that it starts the pod, and when that was.
    pub announced: Option<(String, Timestamp)>,
    /// UIDs of the policies that have isolated it since it was created.
    pub isolated_by: BTreeSet<String>,
    /// The addresses that it had in earlier sandboxes, and when others took their places in its status.
    pub former_addresses: BTreeMap<IpAddr, Timestamp>,
}

/// A sandbox's lease in the pod network.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub addresses: Vec<IpAddr>,
    /// The agent has reported that the policies of its pod are in force.
    pub is_attached: bool,
}

impl Life {
    /// A pod that has just been created.
    pub fn new(pod: Arc<Pod>, first_seen: Timestamp) -> Self {
        Life {
            pod,
            first_seen,
            bound_at: None,
            deleted_at: None,
            removed_at: None,
            released: false,
            given_up: false,
            declared_dead: false,
            deletion_requested: false,
            completed: BTreeSet::new(),
            announced: None,
            isolated_by: BTreeSet::new(),
            former_addresses: BTreeMap::new(),
        }
    }

    pub fn removed(&self) -> bool {
        self.removed_at.is_some()
    }

    pub fn node(&self) -> &str {
        node_of(&self.pod)
    }
}

/// One incarnation of a node's kubelet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kubelet {
    pub began: Timestamp,
    /// It is of the previous version.
    pub is_former: bool,
}

/// The power switch of a host.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Switch {
    pub off: bool,
    /// The last moment when it was off.
    pub last_off: Option<Timestamp>,
}

/// A disk that every node could open.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    /// It is for one pod, not for one node.
    pub one_pod: bool,
    /// Who has it open, and since when.
    pub open: BTreeMap<Holder, Timestamp>,
}

/// The last time that a Node object did not exist.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Absence {
    pub from: Timestamp,
    pub until: Option<Timestamp>,
}

#[derive(Default)]
pub(crate) struct World {
    pub now: Timestamp,
    /// By UID.
    pub pods: BTreeMap<String, Life>,
    /// The UIDs of the pods that exist, by namespace and name as in their keys in the store.
    pub named: BTreeMap<String, String>,
    /// The UIDs of the pods that have, or once had, each address in their status.
    pub addressed: BTreeMap<IpAddr, BTreeSet<String>>,
    pub nodes: BTreeMap<String, Node>,
    /// When each node's lease last moved.
    pub renewed: BTreeMap<String, Timestamp>,
    /// The same as nodes know it, by their component's name.
    pub lease_renewals: BTreeMap<String, LeaseRenewal>,
    /// When each was last written.
    pub node_written: BTreeMap<String, Timestamp>,
    /// When the fencing controller's taint was last removed from each.
    pub unfenced: BTreeMap<String, Timestamp>,
    /// The desired state has been reached for long enough: nothing is left to do.
    pub resting: bool,
    /// The term of each leader lease, by its namespace and name.
    pub terms: BTreeMap<String, Term>,
    /// Nodes whose objects have been deleted, also when they exist again.
    pub absences: BTreeMap<String, Absence>,
    /// Since when a component has been free of faults: its link, its runtime, its process; none if it is not.
    pub well_since: BTreeMap<String, Option<Timestamp>>,
    /// The earlier spans in which it was.
    pub well_spans: BTreeMap<String, Vec<(Timestamp, Timestamp)>>,
    pub disks: BTreeMap<String, Disk>,
    /// The switches of hosts that were ever used.
    pub switches: BTreeMap<String, Switch>,
    /// Since when agents have been acting on a node, by the NodeFencing's name.
    pub fencings: BTreeMap<String, Timestamp>,
    /// By node, the last that was started.
    pub kubelets: BTreeMap<String, Kubelet>,
    /// When the last started kubelet of a node received each pod for the first time, by node and uid.
    pub received: BTreeMap<String, BTreeMap<String, Timestamp>>,
    /// Containers that a kubelet of the previous version created, by node and id.
    pub made_by_former: BTreeSet<(String, String)>,
    /// The rates of nodes' clocks, in histories in which they differ.
    pub rates: BTreeMap<String, Rate>,
    /// The longest duration of a call of each node's runtime.
    pub slowest: BTreeMap<String, SignedDuration>,
    /// Which pods self-fencing terminates.
    pub self_fencing: SelfFencing,
    /// The addresses that each node's kernel sends new connections to.
    pub kernels: BTreeMap<String, BTreeSet<IpAddr>>,
    /// By node and sandbox id, while something may run there.
    pub leases: BTreeMap<(String, String), Lease>,
    /// Nodes' podCIDRs, also the last ones of deleted nodes.
    pub ranges: BTreeMap<String, BTreeSet<IpNet>>,
    /// By uid.
    pub policies: BTreeMap<String, NetworkPolicy>,
    /// By their keys in the store, with the time of the first write of each.
    pub budgets: BTreeMap<String, (PodDisruptionBudget, Timestamp)>,
    /// By budget and pod: when a budget last counted a pod's eviction.
    pub disruptions: BTreeMap<(String, String), Timestamp>,
    /// The contents of the namespace with quotas.
    pub metering: Metering,
    /// Definitions that users created, their objects, and the dependents of these.
    pub definitions: Definitions,
    /// The namespace of knarr's own placement.
    pub placement: Placement,
    /// Their labels.
    pub namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// By their keys in the store.
    pub services: BTreeMap<String, Service>,
    pub slices: BTreeMap<String, EndpointSlice>,
    /// The policies and Services in the kernels.
    pub policy_tables: Tables,
    pub proxy_tables: BTreeMap<String, Table>,
    /// The commits of the store, if there are readers.
    pub commits: Commits,
    /// Services and EndpointSlices of all revisions, if they are kept.
    pub versions: NetworkVersions,
    /// The revisions of Services and EndpointSlices that each node's kernel has.
    pub reached: BTreeMap<String, (u64, u64)>,
    /// The last answers of DNS on each node, by node and name.
    pub answers: BTreeMap<(String, String), DnsResponse>,
    /// Nodes whose DNS has answered since their agent was started.
    pub has_answered: BTreeSet<String>,
    /// The staged volumes of nodes.
    pub storage: Storage,
    /// By node and container id.
    pub processes: BTreeMap<(String, String), Process>,
}

/// What a node knows about its lease.
pub(crate) struct LeaseRenewal {
    /// When it sent the last renewal that was answered.
    pub sent: Timestamp,
    /// The end of the last silence that was long enough for self-fencing.
    pub silent_until: Option<Timestamp>,
}

/// The longest duration of an attempt to renew the lease, and a second.
const TRIED_FOR: SignedDuration = SignedDuration::from_secs(11);

impl World {
    /// The rate of this node's clock.
    pub fn rate(&self, node: &str) -> Rate {
        self.rates.get(node).copied().unwrap_or(Rate::EVEN)
    }

    /// After this time without a renewal the node may have begun to terminate pods: of the 25 s that its clock counts
    /// ([`TERM_AFTER`]), what is left when an attempt to renew was answered late.
    pub fn may_fence_itself_after(&self, node: &str) -> SignedDuration {
        let begin = SignedDuration::try_from(self.rate(node).passes(TERM_AFTER));
        begin.unwrap_or_default() - TRIED_FOR
    }

    /// Records the addresses of a pod that was written.
    pub fn note_addresses(&mut self, uid: &str, pod: &Pod) {
        for address in addresses_of(pod) {
            let uids = self.addressed.entry(address).or_default();
            if !uids.contains(uid) {
                uids.insert(uid.to_string());
            }
        }
    }

    /// The pods that have this address in their status, or once had it, also after they were removed.
    pub fn ever_with_address(&self, address: IpAddr) -> impl Iterator<Item = &Life> {
        let uids = self.addressed.get(&address).into_iter().flatten();
        uids.filter_map(|uid| self.pods.get(uid))
    }

    /// Whether a node that is cut off must terminate this pod (SPEC B4).
    pub fn is_fenced_by_its_node(&self, uid: &str, pod: &Pod) -> bool {
        self.self_fencing.applies_to(pod, self.has_disk_open(uid))
    }

    fn has_disk_open(&self, uid: &str) -> bool {
        let of_pod = |holder: &Holder| holder.uid == uid;
        self.disks.values().any(|disk| disk.open.keys().any(of_pod))
    }

    /// Whether PodGC may remove this pod while it runs: it was being deleted while its node was fenced, the node was switched
    /// on again, and the pod may run twice, so that its kubelet starts it before it reports Ready (docs/safety.md, rules 1 and 2).
    pub fn may_run_when_removed(&self, uid: &str) -> bool {
        let Some((life, deleted)) = self.pods.get(uid).and_then(|life| Some((life, life.deleted_at?))) else {
            return false;
        };
        let node = life.node();
        let was_fenced = self.is_fenced(node) || self.unfenced.get(node).is_some_and(|at| *at >= deleted);
        let switch = self.switches.get(node).copied().unwrap_or_default();
        let is_on_again = !switch.off && switch.last_off.is_some();
        was_fenced && is_on_again && !SelfFencing::AtMostOne.applies_to(&life.pod, self.has_disk_open(uid))
    }

    pub fn of_pod<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = &'a Process> {
        self.processes.values().filter(move |p| p.uid == uid)
    }

    pub fn has_manager_without_lease(&self) -> bool {
        self.well_since.contains_key(WITHOUT_LEASE)
    }

    /// Since when all of these components have been free of faults; none if one is not.
    pub fn all_well_since(&self, of: impl Fn(&str) -> bool) -> Option<Timestamp> {
        let mut since = Some(Timestamp::MIN);
        for (_, at) in self.well_since.iter().filter(|(name, _)| of(name)) {
            since = since.zip(*at).map(|(a, b)| a.max(b));
        }
        since
    }

    /// Whether each of these components was free of faults for this long at one time between the two moments.
    pub fn each_was_well(
        &self,
        of: impl Fn(&str) -> bool,
        between: Range<Timestamp>,
        long: SignedDuration,
    ) -> bool {
        self.well_since
            .iter()
            .filter(|(name, _)| of(name))
            .all(|(name, since)| {
                let ended = self.well_spans.get(name).into_iter().flatten().copied();
                let mut spans = ended.chain(since.map(|since| (since, self.now)));
                spans
                    .any(|(begin, end)| end.min(between.end).duration_since(begin.max(between.start)) >= long)
            })
    }

    /// Whether the fencing controller has declared this node dead.
    pub fn is_fenced(&self, node: &str) -> bool {
        self.nodes.get(node).is_some_and(is_fenced)
    }

    pub fn is_released(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|life| life.released)
    }
}

/// What the rules see, after the world was updated.
pub(crate) enum Observation<'a> {
    PodWritten {
        uid: &'a str,
        before: Option<&'a Pod>,
        after: &'a Pod,
    },
    PodRemoved {
        uid: &'a str,
        last: &'a Pod,
    },
    Started(&'a Process),
    /// TERM is sent, the first time.
    Asked(&'a Process),
    Ended(&'a Process, End),
    /// This fencing of a node is reported as succeeded.
    Fenced {
        fencing: &'a str,
        node: &'a str,
    },
    /// A sandbox got addresses.
    Leased {
        node: &'a str,
        sandbox: &'a str,
    },
    /// A node got podCIDRs.
    Ranges {
        node: &'a str,
    },
    /// The policies in force in a node's kernel have changed.
    Policed {
        node: &'a str,
    },
    Opened {
        disk: &'a str,
        by: &'a Holder,
    },
    /// A leader's write is committed.
    Led {
        term: &'a Term,
        key: &'a str,
    },
    /// A key is written or deleted, while nothing is left to do.
    Written {
        key: &'a str,
    },
    BudgetWritten {
        before: Option<&'a PodDisruptionBudget>,
        after: &'a PodDisruptionBudget,
    },
    /// A node's kernel has the state that its agent computed from the revisions that it has reached.
    Programmed {
        node: &'a str,
    },
    /// DNS on a node has answered.
    Resolved {
        node: &'a str,
        question: &'a str,
        answer: &'a DnsResponse,
    },
    /// A volume's step on its way to or from a node.
    Stored(&'a Step),
    /// An object or a quota of the namespace with quotas is written or deleted.
    Metered {
        key: &'a str,
    },
    /// A users' definition, one of its objects, or a dependent is written or deleted.
    Defined {
        key: &'a str,
    },
    /// The rebalancer requests the eviction of a pod.
    MoveAsked {
        name: &'a str,
    },
    /// A second has passed.
    Tick,
    /// A component requests the deletion of a pod.
    DeleteAsked {
        by: &'a str,
        name: &'a str,
        options: &'a DeleteOptions,
    },
}

/// The addresses in the pod's status.
pub(crate) fn addresses_of(pod: &Pod) -> impl Iterator<Item = IpAddr> {
    let ips = pod.status.iter().flat_map(|s| s.pod_ips.iter().flatten());
    ips.filter_map(|ip| ip.ip.parse().ok())
}

pub(crate) fn node_of(pod: &Pod) -> &str {
    let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref());
    node.unwrap_or_default()
}

pub(crate) fn phase_of(pod: &Pod) -> &str {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    phase.unwrap_or_default()
}

/// The reason of its condition DisruptionTarget.
pub(crate) fn disrupted_by(pod: &Pod) -> Option<&str> {
    let target = condition(pod, DISRUPTION_TARGET).filter(|c| c.status == "True")?;
    target.reason.as_deref()
}

/// The UID of its controller, if that is of this kind.
pub(crate) fn owner<'a>(pod: &'a Pod, kind: &str) -> Option<&'a str> {
    let owner = controller(pod).filter(|o| o.kind == kind);
    owner.map(|o| o.uid.as_str())
}

/// The pod's controller.
pub(crate) fn controller(pod: &Pod) -> Option<&OwnerReference> {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    owners.find(|o| o.controller == Some(true))
}

/// Whether a user has set the out-of-service taint.
pub(crate) fn is_out_of_service(node: &Node) -> bool {
    out_of_service(node).is_some_and(|value| value != FENCED)
}

/// Whether the fencing controller has set it.
pub(crate) fn is_fenced(node: &Node) -> bool {
    out_of_service(node) == Some(FENCED)
}

fn out_of_service(node: &Node) -> Option<&str> {
    let mut taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
    let taint = taints.find(|taint| taint.key == OUT_OF_SERVICE)?;
    Some(taint.value.as_deref().unwrap_or_default())
}

pub(crate) fn is_ready(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.any(|c| c.type_ == "Ready" && c.status == "True")
}

/// Whether the node reports its status, and the node lifecycle controller has not set it to Unknown since.
pub(crate) fn is_reporting(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.any(|c| c.type_ == "Ready" && matches!(c.status.as_str(), "True" | "False"))
}
