//! What is true in the simulated cluster, as nobody in it can see it: the store's pods and nodes and every process
//! on every node, at one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_client::{DeleteOptions, Term};
use knarr_kubelet::self_fencing::{BEGIN, SelfFencing};
use knarr_network::nft::Table;
use knarr_node::runtime::fake::End;

use crate::clocks::Rate;
use crate::commits::Commits;
use crate::definitions::Definitions;
use crate::disks::Holder;
use crate::metering::Metering;
use crate::policy_table::Tables;
use crate::rules::n5_names::Answered;
use crate::rules::s7_staging::{Step, Storage};
use crate::versions::NetworkVersions;

/// The taint by which an administrator says that a node is down.
pub(crate) const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// That taint's value where fencing says it.
const FENCED: &str = "fenced";

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
    /// Its sandbox broke: it may be ended for that, with its pod's own grace, before anybody deletes the pod.
    pub homeless: bool,
    /// When TERM was first sent.
    pub asked: Option<Timestamp>,
}

/// One pod (uid), also after it left the store.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub pod: Arc<Pod>,
    pub first_seen: Timestamp,
    /// When it was bound to its node.
    pub bound_at: Option<Timestamp>,
    /// When its deletion was written.
    pub deleted_at: Option<Timestamp>,
    /// When it left the store.
    pub removed_at: Option<Timestamp>,
    /// Somebody has said that this node's word is not waited for: a user's force, or the deletion of its node.
    pub released: bool,
    /// It was said by a user of its node, that it is gone for good.
    pub given_up: bool,
    /// That was said with the taint by which administrators say it.
    pub vouched: bool,
    /// A component has asked for its end (an eviction, a scale-down).
    pub asked_to_go: bool,
    /// Containers that ended with 0 by themselves, each with the sandbox it ran in.
    pub completed: BTreeSet<(String, String)>,
    /// The node whose kubelet wrote last that it starts it, and when that was.
    pub announced: Option<(String, Timestamp)>,
    /// Uids of the policies that isolate it from strangers since it was created.
    pub isolated_by: BTreeSet<String>,
}

/// What a sandbox has of the pod network.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub addresses: Vec<IpAddr>,
    /// The agent says that its pod's policies are in force.
    pub is_attached: bool,
}

impl Life {
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
    /// It is of the version before.
    pub is_former: bool,
}

/// A machine's power.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Switch {
    pub off: bool,
    /// The last moment it was known to be off.
    pub last_off: Option<Timestamp>,
}

/// A disk that every node could open.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    /// It is for one pod, not for one node.
    pub one_pod: bool,
    /// Since when.
    pub open: BTreeMap<Holder, Timestamp>,
}

/// A node object's absence, the last one there was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Missed {
    pub from: Timestamp,
    pub until: Option<Timestamp>,
}

#[derive(Default)]
pub(crate) struct World {
    pub now: Timestamp,
    /// By uid.
    pub pods: BTreeMap<String, Life>,
    pub nodes: BTreeMap<String, Node>,
    /// When each node's lease last moved.
    pub renewed: BTreeMap<String, Timestamp>,
    /// The same as nodes know it, by their component's name.
    pub heard: BTreeMap<String, Heard>,
    /// When each was last written.
    pub node_written: BTreeMap<String, Timestamp>,
    /// Everything is as it was wanted, and has been for long enough: nothing is left to be done.
    pub resting: bool,
    /// In which term each lease of leaders is, by its namespace and name.
    pub terms: BTreeMap<String, Term>,
    /// Nodes whose objects have been deleted, also when they are there again.
    pub missed: BTreeMap<String, Missed>,
    /// Since when nothing is wrong with a component: its link, its runtime, its being there; none if something is.
    pub well_since: BTreeMap<String, Option<Timestamp>>,
    /// When it was so before, spans that have ended.
    pub well_spans: BTreeMap<String, Vec<(Timestamp, Timestamp)>>,
    pub disks: BTreeMap<String, Disk>,
    /// Machines' switches, of those that were ever used.
    pub switches: BTreeMap<String, Switch>,
    /// Since when agents have been at work at a node, by the NodeFencing's name.
    pub fencings: BTreeMap<String, Timestamp>,
    /// By their nodes, those that were started last.
    pub kubelets: BTreeMap<String, Kubelet>,
    /// Containers that a kubelet of the version before made, by node and id.
    pub made_by_former: BTreeSet<(String, String)>,
    /// How fast nodes' clocks count, in histories in which they do not all count as fast as time passes.
    pub rates: BTreeMap<String, Rate>,
    /// How long a call of each node's runtime takes at most.
    pub slowest: BTreeMap<String, SignedDuration>,
    /// Which pods nodes end by themselves.
    pub self_fencing: SelfFencing,
    /// The addresses that each node's kernel sends new connections to.
    pub kernels: BTreeMap<String, BTreeSet<IpAddr>>,
    /// By node and sandbox id, while something may run there.
    pub leases: BTreeMap<(String, String), Lease>,
    /// Nodes' podCIDRs, those that they had last where there is no such node.
    pub ranges: BTreeMap<String, BTreeSet<IpNet>>,
    /// By uid.
    pub policies: BTreeMap<String, NetworkPolicy>,
    /// By their keys in the store, with when each was first seen.
    pub budgets: BTreeMap<String, (PodDisruptionBudget, Timestamp)>,
    /// What the namespace with quotas has.
    pub metering: Metering,
    /// Definitions that users created, their objects, and what belongs to these.
    pub definitions: Definitions,
    /// Their labels.
    pub namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// By their keys in the store.
    pub services: BTreeMap<String, Service>,
    pub slices: BTreeMap<String, EndpointSlice>,
    /// What the kernels have of policies, and of Services.
    pub policy_tables: Tables,
    pub proxy_tables: BTreeMap<String, Table>,
    /// What the store committed, where readers follow it.
    pub commits: Commits,
    /// Services and EndpointSlices of all revisions, where they are kept.
    pub versions: NetworkVersions,
    /// The revisions of Services and EndpointSlices that each node's kernel follows.
    pub reached: BTreeMap<String, (u64, u64)>,
    /// What DNS on each node answered last, by node and name.
    pub answers: BTreeMap<(String, String), Answered>,
    /// Nodes whose DNS has answered since their agent was started.
    pub has_answered: BTreeSet<String>,
    /// What nodes have of volumes that are staged.
    pub storage: Storage,
    /// By node and container id.
    pub processes: BTreeMap<(String, String), Process>,
}

/// What a node knows of its lease.
pub(crate) struct Heard {
    /// When it sent the last renewal that was answered.
    pub sent: Timestamp,
    /// When a silence that was long enough for it to end pods was over, the last one.
    pub silent_until: Option<Timestamp>,
}

/// What a try to renew the lease takes at most, and a second.
const TRIED_FOR: SignedDuration = SignedDuration::from_secs(11);

impl World {
    /// How fast this node's clock counts.
    pub fn rate(&self, node: &str) -> Rate {
        self.rates.get(node).copied().unwrap_or(Rate::EVEN)
    }

    /// After which silence this node may have begun to end pods: of the 25 s that its clock counts ([`BEGIN`]), what is left
    /// when a try to renew was answered late.
    pub fn may_fence_itself_after(&self, node: &str) -> SignedDuration {
        let begin = SignedDuration::try_from(self.rate(node).passes(BEGIN));
        begin.unwrap_or_default() - TRIED_FOR
    }

    /// Whether a node that is cut off must end this pod (SPEC B4).
    pub fn is_fenced_by_its_node(&self, uid: &str, pod: &Pod) -> bool {
        let of_pod = |holder: &Holder| holder.uid == uid;
        let exclusive = self.disks.values().any(|disk| disk.open.keys().any(of_pod));
        self.self_fencing.ends(pod, exclusive)
    }

    pub fn of_pod<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = &'a Process> {
        self.processes.values().filter(move |p| p.uid == uid)
    }

    /// Since when all of these components have been well; none if one is not.
    pub fn all_well_since(&self, of: impl Fn(&str) -> bool) -> Option<Timestamp> {
        let mut since = Some(Timestamp::MIN);
        for (_, at) in self.well_since.iter().filter(|(name, _)| of(name)) {
            since = since.zip(*at).map(|(a, b)| a.max(b));
        }
        since
    }

    /// Whether each of these components was well for this long at one time between the two moments.
    pub fn each_was_well(
        &self,
        of: impl Fn(&str) -> bool,
        (from, to): (Timestamp, Timestamp),
        long: SignedDuration,
    ) -> bool {
        self.well_since
            .iter()
            .filter(|(name, _)| of(name))
            .all(|(name, since)| {
                let ended = self.well_spans.get(name).into_iter().flatten().copied();
                let mut spans = ended.chain(since.map(|since| (since, self.now)));
                spans.any(|(begin, end)| end.min(to).duration_since(begin.max(from)) >= long)
            })
    }

    /// Whether fencing vouches for this node.
    pub fn is_fenced(&self, node: &str) -> bool {
        self.nodes.get(node).is_some_and(is_fenced)
    }

    pub fn is_released(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|life| life.released)
    }
}

/// What the rules are shown, after the world has taken it in.
pub(crate) enum Seen<'a> {
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
    /// This fencing of a node is said to have succeeded.
    Fenced {
        fencing: &'a str,
        node: &'a str,
    },
    /// A sandbox has been given addresses.
    Leased {
        node: &'a str,
        sandbox: &'a str,
    },
    /// A node has been given podCIDRs.
    Ranges {
        node: &'a str,
    },
    /// What is in force of policies in a node's kernel has changed.
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
    /// A key is written or goes, while nothing is left to be done.
    Written {
        key: &'a str,
    },
    BudgetWritten {
        before: Option<&'a PodDisruptionBudget>,
        after: &'a PodDisruptionBudget,
    },
    /// A node's kernel has what its agent has made of the revisions that it has reached.
    Programmed {
        node: &'a str,
    },
    /// DNS on a node has answered.
    Resolved {
        node: &'a str,
        question: &'a str,
        answer: &'a Answered,
    },
    /// A volume's step on its way to or from a node.
    Stored(&'a Step),
    /// An object or a quota of the namespace with quotas is written, or deleted.
    Metered {
        key: &'a str,
    },
    /// A definition of users, one of its objects, or what belongs to one is written, or deleted.
    Defined {
        key: &'a str,
    },
    /// A second has passed.
    Tick,
    /// A component asks the API to delete a pod.
    DeleteAsked {
        by: &'a str,
        name: &'a str,
        options: &'a DeleteOptions,
    },
}

pub(crate) fn node_of(pod: &Pod) -> &str {
    let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref());
    node.unwrap_or_default()
}

pub(crate) fn phase_of(pod: &Pod) -> &str {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    phase.unwrap_or_default()
}

/// The reason why it was disrupted, which its condition DisruptionTarget gives.
pub(crate) fn disrupted_by(pod: &Pod) -> Option<&str> {
    let mut conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let condition = conditions.find(|c| c.type_ == "DisruptionTarget" && c.status == "True")?;
    condition.reason.as_deref()
}

pub(crate) fn is_finished(pod: &Pod) -> bool {
    matches!(phase_of(pod), "Succeeded" | "Failed")
}

/// The uid of the controller of this kind that it belongs to.
pub(crate) fn owner<'a>(pod: &'a Pod, kind: &str) -> Option<&'a str> {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    let owner = owners.find(|o| o.controller == Some(true) && o.kind == kind);
    owner.map(|o| o.uid.as_str())
}

/// Whether a user vouches for it.
pub(crate) fn is_out_of_service(node: &Node) -> bool {
    out_of_service(node).is_some_and(|value| value != FENCED)
}

/// Whether fencing does.
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

/// Whether it has said itself how it is, and nobody else since that it is lost.
pub(crate) fn is_heard(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.any(|c| c.type_ == "Ready" && matches!(c.status.as_str(), "True" | "False"))
}
