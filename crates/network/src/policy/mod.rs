//! Which connections NetworkPolicies allow, and the nftables elements that enforce it (SPEC N6).
//!
//! What is enforced on a node are the policies that select pods of this node: ingress where the pod is the destination,
//! egress where it is the source. Pods of other nodes matter as peers only.
//!
//! - [`Policies`] holds Namespaces, Pods, NetworkPolicies and the attachments of local pods, and yields a [`Change`].
//! - The layout is in [`ruleset`]: a verdict map leads from the address of an isolated local pod to the chain of its
//!   *group*. Pods to which the same rules apply share a group, and groups share sets of peers, so the number of chains,
//!   sets and rules depends on the number of different policies that select local pods, and not on the number of pods. A
//!   peer that is added, changed or removed is one element in each set that it belongs to.
//! - Chains and sets are never changed into others: a changed policy makes a new chain, and the pods' elements in the
//!   verdict maps move to it, with all other changes of elements, in one transaction. So nothing in between is ever in force.
//!
//! Unknown pods are denied: an attached pod whose object is not known yet, or which [`Policies::release`] was not
//! called for, is isolated in both directions.
//!
//! Decisions where the API leaves room:
//!
//! - Connections that are established when a policy comes go on, as with Calico and kube-network-policies' default
//!   (Cilium ends them). Replies and related ICMP errors always pass.
//! - A pod may always talk to itself, also through a Service, and traffic between a pod and its own node always passes
//!   (<https://kubernetes.io/docs/concepts/services-networking/network-policies/>). The exception is DNS, which the node
//!   answers: for egress rules the cluster DNS addresses are those of a pod with the label `k8s-app: kube-dns` in
//!   `kube-system`.
//! - Protocols without ports (ICMP) are allowed by rules without ports only.
//! - Pods in the host network are not selected, and match as peers by `ipBlock` only.

mod addresses;
mod compile;
mod explain;
mod limits;
mod peers;
mod pod;
mod ports;
mod ruleset;
mod spec;
mod state;
#[cfg(test)]
mod tests;
mod verdicts;

pub use addresses::Ranges;
pub use explain::{Endpoint, Explanation, Outcome, Side, Verdict};
pub use limits::{MAX_PEERS_PER_GROUP, MAX_PEERS_PER_NAMESPACE, MAX_PORT_SETS_PER_GROUP};
pub use peers::{PodSelector, SetKey};
pub use pod::{Attachment, NamedPort, PodKey};
pub use ports::{PortRange, PortSet};
pub use ruleset::{
    Chain, ChainRule, Config, EGRESS, FIXED_SETS, INGRESS, Ruleset, SELF, Set, SetType, skeleton,
};
pub use spec::{Direction, Peer, Policy, PolicyKey, Ports, Rule};
pub use state::{Change, Counts, Operation, Policies, Problem};
pub use verdicts::{PodVerdicts, PortVerdicts};
