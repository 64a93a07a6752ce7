//! The known policies, pods and namespaces, and the resulting state of the kernel.

mod change;
mod groups;
mod members;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use knarr_api::k8s_openapi;

use self::change::Pending;
use self::groups::{GroupId, Groups, SetId, Sets};
use super::compile::{Compiled, Shortfall, compile};
use super::limits::MAX_PEERS_PER_NAMESPACE;
use super::peers::Labels;
use super::pod::{Attachment, NamedPort, Pod, PodKey, ProfileKey};
use super::ruleset::Config;
use super::spec::{Direction, Policy, PolicyKey};
use crate::catalog::{Interner, Protocol};

pub use self::change::{Change, Operation};

/// What happens to connections of a local pod in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Isolation {
    Open,
    /// Not known yet.
    Denied,
    Group(GroupId),
}

#[derive(Clone, Debug)]
struct Local {
    attachment: Attachment,
    is_released: bool,
    ingress: Isolation,
    egress: Isolation,
    shortfalls: BTreeSet<(Arc<str>, Shortfall)>,
}

#[derive(Clone, Debug)]
struct Kept {
    policy: Policy,
    weight: usize,
    /// It exceeded a limit: its rules were left out.
    is_reduced: bool,
}

#[derive(Clone, Debug, Default)]
struct NamespacePolicies {
    by_name: BTreeMap<Arc<str>, Kept>,
    weight: usize,
}

/// Pods with the same labels in the same namespace.
#[derive(Clone, Debug, Default)]
struct Profile {
    pods: BTreeSet<PodKey>,
    sets: BTreeSet<SetId>,
}

/// Something about a policy that its author should know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Problem {
    /// Policies of the namespace are more than [`MAX_PEERS_PER_NAMESPACE`]; this one allows nothing.
    NamespaceLimit,
    /// More is allowed for a pod than is compiled; some of it is denied.
    PodLimit { pod: PodKey },
    /// A pod that the policy selects has no port of this name.
    NoSuchPort {
        pod: PodKey,
        protocol: Protocol,
        name: Box<str>,
    },
}

/// Values for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub policies: usize,
    pub pods: usize,
    pub local_pods: usize,
    /// Local pods that are isolated in at least one direction.
    pub isolated_pods: usize,
    pub groups: usize,
    pub sets: usize,
}

/// See the module `policy`.
#[derive(Debug)]
pub struct Policies {
    config: Config,
    interner: Interner,
    namespaces: BTreeMap<Arc<str>, Labels>,
    policies: BTreeMap<Arc<str>, NamespacePolicies>,
    pods: BTreeMap<PodKey, Pod>,
    profiles: BTreeMap<Arc<ProfileKey>, Profile>,
    /// Pods that have the address by the API; the last one counts.
    owners: BTreeMap<IpAddr, Vec<PodKey>>,
    locals: BTreeMap<Arc<str>, Local>,
    /// Sandboxes of local pods.
    sandboxes: BTreeMap<PodKey, BTreeSet<Arc<str>>>,
    /// Sandboxes with the address; the last one counts.
    local_addresses: BTreeMap<IpAddr, Vec<Arc<str>>>,
    /// Sandboxes whose rules have to be compiled again.
    dirty: BTreeSet<Arc<str>>,
    sets: Sets,
    groups: Groups,
    pending: Pending,
}

/// Where DNS would run if it was in pods.
const DNS_NAMESPACE: &str = "kube-system";
/// No pod can have this name.
const DNS_POD: &str = "(cluster DNS)";
const DNS_LABEL: (&str, &str) = ("k8s-app", "kube-dns");

/// As in the manifests of CoreDNS.
fn dns_ports() -> [NamedPort; 2] {
    [("dns", Protocol::Udp), ("dns-tcp", Protocol::Tcp)].map(|(name, protocol)| NamedPort {
        name: name.into(),
        protocol,
        number: 53,
    })
}

impl Policies {
    /// Sets and chains are numbered from `first_number` on: above those that an earlier process has left.
    pub fn new(config: Config, first_number: u64) -> Self {
        let mut interner = Interner::default();
        let namespace = interner.get(DNS_NAMESPACE);
        let dns = Pod {
            profile: Arc::new(ProfileKey {
                namespace: namespace.clone(),
                labels: Labels::from([(DNS_LABEL.0.into(), DNS_LABEL.1.into())]),
            }),
            uid: "".into(),
            mirror_of: None,
            addresses: config.dns.clone().into(),
            ports: dns_ports().into(),
        };
        let mut policies = Policies {
            config,
            interner,
            namespaces: BTreeMap::new(),
            policies: BTreeMap::new(),
            pods: BTreeMap::new(),
            profiles: BTreeMap::new(),
            owners: BTreeMap::new(),
            locals: BTreeMap::new(),
            sandboxes: BTreeMap::new(),
            local_addresses: BTreeMap::new(),
            dirty: BTreeSet::new(),
            sets: Sets::default(),
            groups: Groups::numbered_from(first_number),
            pending: Pending::default(),
        };
        let key = PodKey {
            namespace,
            name: DNS_POD.into(),
        };
        policies.put_pod(&key, Some(dns));
        policies
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn apply_namespace(&mut self, namespace: &core::Namespace) {
        if let Some(name) = &namespace.metadata.name {
            let labels = namespace.metadata.labels.clone().unwrap_or_default();
            self.put_namespace(name, Some(labels));
        }
    }

    pub fn remove_namespace(&mut self, name: &str) {
        self.put_namespace(name, None);
        self.interner.shrink();
    }

    pub fn namespace_names(&self) -> impl Iterator<Item = &str> {
        self.namespaces.keys().map(|name| &**name)
    }

    pub fn apply_pod(&mut self, pod: &core::Pod) {
        let (Some(namespace), Some(name)) = (&pod.metadata.namespace, &pod.metadata.name) else {
            return;
        };
        let key = PodKey {
            namespace: self.interner.get(namespace),
            name: name.as_str().into(),
        };
        let new = Pod::of(pod, key.namespace.clone());
        self.put_pod(&key, Some(new));
    }

    pub fn remove_pod(&mut self, namespace: &str, name: &str) {
        self.put_pod(&PodKey::new(namespace, name), None);
    }

    /// The pods that the API has; some may be on other nodes.
    pub fn pod_keys(&self) -> impl Iterator<Item = &PodKey> {
        self.pods.keys().filter(|key| &*key.name != DNS_POD)
    }

    /// Whether this very pod has been seen; without a uid, one of this name.
    pub fn knows_pod(&self, key: &PodKey, uid: Option<&str>) -> bool {
        self.pods.get(key).is_some_and(|pod| pod.is(uid))
    }

    pub fn apply_policy(&mut self, policy: &NetworkPolicy) {
        let (Some(namespace), Some(name)) = (&policy.metadata.namespace, &policy.metadata.name) else {
            return;
        };
        let namespace = self.interner.get(namespace);
        let new = Policy::of(policy, &namespace);
        let weight = new.weight();
        let of = self.policies.entry(namespace.clone()).or_default();
        let old = of.by_name.get(&**name);
        let others = of.weight - old.map_or(0, |old| old.weight);
        let is_reduced = others.saturating_add(weight) > MAX_PEERS_PER_NAMESPACE;
        let kept = Kept {
            policy: match is_reduced {
                true => new.without_rules(),
                false => new,
            },
            weight: if is_reduced { 0 } else { weight },
            is_reduced,
        };
        of.weight = others + kept.weight;
        if old.is_none_or(|old| old.policy != kept.policy) {
            Self::mark(&mut self.dirty, &self.sandboxes, &namespace);
        }
        of.by_name.insert(name.as_str().into(), kept);
    }

    pub fn remove_policy(&mut self, namespace: &str, name: &str) {
        let Some(of) = self.policies.get_mut(namespace) else {
            return;
        };
        let Some(old) = of.by_name.remove(name) else {
            return;
        };
        of.weight -= old.weight;
        if of.by_name.is_empty() {
            self.policies.remove(namespace);
        }
        Self::mark(&mut self.dirty, &self.sandboxes, namespace);
    }

    pub fn policy_keys(&self) -> impl Iterator<Item = PolicyKey> {
        self.policies.iter().flat_map(|(namespace, of)| {
            of.by_name.keys().map(|name| PolicyKey {
                namespace: namespace.clone(),
                name: name.clone(),
            })
        })
    }

    /// Policies whose rules were left out and may fit now: to be read and applied again.
    pub fn reduced_policies(&self) -> Vec<PolicyKey> {
        let namespaces = self.policies.iter();
        let reduced = namespaces.flat_map(|(namespace, of)| {
            let reduced = of.by_name.iter().filter(|(_, kept)| kept.is_reduced);
            reduced.map(|(name, _)| PolicyKey {
                namespace: namespace.clone(),
                name: name.clone(),
            })
        });
        reduced.collect()
    }

    /// A sandbox of this node has addresses now. It is isolated until its pod is known and it has been released.
    pub fn attach(&mut self, attachment: Attachment) {
        self.detach(&attachment.sandbox);
        let sandbox = attachment.sandbox.clone();
        if let Some(pod) = &attachment.pod {
            let of = self.sandboxes.entry(pod.clone()).or_default();
            of.insert(sandbox.clone());
        }
        let isolation = match attachment.pod {
            Some(_) => Isolation::Denied,
            None => Isolation::Open,
        };
        let addresses = attachment.addresses.clone();
        let local = Local {
            attachment,
            is_released: false,
            ingress: isolation,
            egress: isolation,
            shortfalls: BTreeSet::new(),
        };
        self.change_local(&addresses, |this| {
            for address in &addresses {
                let sandboxes = this.local_addresses.entry(*address).or_default();
                sandboxes.push(sandbox.clone());
            }
            this.locals.insert(sandbox, local);
        });
    }

    /// From now on its pod's rules are in force, and not isolation in both directions.
    pub fn release(&mut self, sandbox: &str) {
        if let Some((sandbox, _)) = self.locals.get_key_value(sandbox) {
            let sandbox = sandbox.clone();
            if let Some(local) = self.locals.get_mut(&sandbox) {
                local.is_released = true;
            }
            self.dirty.insert(sandbox);
        }
    }

    pub fn detach(&mut self, sandbox: &str) {
        let Some(local) = self.locals.get(sandbox) else {
            return;
        };
        let addresses = local.attachment.addresses.clone();
        let mut removed_local = None;
        self.change_local(&addresses, |this| {
            removed_local = this.locals.remove(sandbox);
            for address in &addresses {
                if let Some(sandboxes) = this.local_addresses.get_mut(address) {
                    sandboxes.retain(|other| **other != *sandbox);
                    if sandboxes.is_empty() {
                        this.local_addresses.remove(address);
                    }
                }
            }
        });
        let Some(removed_local) = removed_local else {
            return;
        };
        if let Some(pod) = &removed_local.attachment.pod
            && let Some(of) = self.sandboxes.get_mut(pod)
        {
            of.remove(sandbox);
            if of.is_empty() {
                self.sandboxes.remove(pod);
            }
        }
        self.dirty.remove(sandbox);
        for isolation in [removed_local.ingress, removed_local.egress] {
            self.let_go(isolation);
        }
    }

    pub fn sandboxes(&self) -> impl Iterator<Item = &Arc<str>> {
        self.locals.keys()
    }

    /// Whether a set is in use that pods of other nodes may belong to.
    pub fn needs_pods(&self) -> bool {
        self.sets.needs_pods()
    }

    /// All problems, of policies that select local pods.
    pub fn problems(&self) -> BTreeSet<(PolicyKey, Problem)> {
        let has_local_pods = |key: &PolicyKey| {
            let first = PodKey::new(&key.namespace, "");
            let next = self.sandboxes.range(first..).next();
            next.is_some_and(|(pod, _)| pod.namespace == key.namespace)
        };
        let reduced = self.reduced_policies().into_iter().filter(has_local_pods);
        let mut problems: BTreeSet<_> = reduced.map(|key| (key, Problem::NamespaceLimit)).collect();
        for local in self.locals.values() {
            let Some(pod) = &local.attachment.pod else {
                continue;
            };
            for (name, shortfall) in &local.shortfalls {
                let key = PolicyKey {
                    namespace: pod.namespace.clone(),
                    name: name.clone(),
                };
                let problem = match shortfall.clone() {
                    Shortfall::TooMany => Problem::PodLimit { pod: pod.clone() },
                    Shortfall::NoSuchPort { protocol, name } => Problem::NoSuchPort {
                        pod: pod.clone(),
                        protocol,
                        name,
                    },
                };
                problems.insert((key, problem));
            }
        }
        problems
    }

    pub fn counts(&self) -> Counts {
        let is_isolated = |local: &&Local| [local.ingress, local.egress] != [Isolation::Open; 2];
        Counts {
            policies: self.policies.values().map(|of| of.by_name.len()).sum(),
            pods: self.pod_keys().count(),
            local_pods: self.locals.len(),
            isolated_pods: self.locals.values().filter(is_isolated).count(),
            groups: self.groups.len(),
            sets: self.sets.len(),
        }
    }

    /// All policies of a namespace, by name.
    pub(super) fn policies_of(&self, namespace: &str) -> impl Iterator<Item = (&Arc<str>, &Policy)> {
        let of = self.policies.get(namespace).into_iter();
        of.flat_map(|of| of.by_name.iter().map(|(name, kept)| (name, &kept.policy)))
    }

    pub(super) fn pod(&self, key: &PodKey) -> Option<&Pod> {
        self.pods.get(key)
    }

    /// The pod that has the address.
    pub(super) fn owner(&self, address: IpAddr) -> Option<&PodKey> {
        self.owners.get(&address)?.last()
    }

    pub(super) fn namespace_labels(&self, namespace: &str) -> Option<&Labels> {
        self.namespaces.get(namespace)
    }

    fn mark(
        dirty: &mut BTreeSet<Arc<str>>,
        sandboxes: &BTreeMap<PodKey, BTreeSet<Arc<str>>>,
        namespace: &str,
    ) {
        let first = PodKey::new(namespace, "");
        let of = sandboxes.range(first..);
        let of = of.take_while(|(pod, _)| *pod.namespace == *namespace);
        dirty.extend(of.flat_map(|(_, sandboxes)| sandboxes.iter().cloned()));
    }

    /// Compiles the rules of a sandbox's pod.
    fn compile(&mut self, sandbox: &Arc<str>) {
        let Some(local) = self.locals.get(sandbox) else {
            return;
        };
        let Some(key) = local.attachment.pod.clone() else {
            return;
        };
        let uid = local.attachment.uid.as_deref();
        let pod = self.pods.get(&key).filter(|pod| local.is_released && pod.is(uid));
        let mut shortfalls = BTreeSet::new();
        let compiled = pod.map(|pod| {
            let of = self.policies.get(&key.namespace).into_iter();
            let selecting: Vec<(&Arc<str>, &Policy)> = of
                .flat_map(|of| &of.by_name)
                .filter(|(_, kept)| kept.policy.selects(&pod.profile.labels))
                .map(|(name, kept)| (name, &kept.policy))
                .collect();
            [Direction::Ingress, Direction::Egress].map(|direction| {
                let selecting = selecting.iter().copied();
                compile(direction, selecting, &pod.ports, &mut shortfalls)
            })
        });
        let [ingress, egress] = match compiled {
            None => [Isolation::Denied; 2],
            Some([ingress, egress]) => [
                self.isolation(Direction::Ingress, ingress),
                self.isolation(Direction::Egress, egress),
            ],
        };
        let mut before = [Isolation::Open; 2];
        let addresses = match self.locals.get(sandbox) {
            Some(local) => local.attachment.addresses.clone(),
            None => Vec::new(),
        };
        self.change_local(&addresses, |this| {
            if let Some(local) = this.locals.get_mut(sandbox) {
                before = [local.ingress, local.egress];
                local.ingress = ingress;
                local.egress = egress;
                local.shortfalls = shortfalls;
            }
        });
        for isolation in before {
            self.let_go(isolation);
        }
    }

    fn isolation(&mut self, direction: Direction, compiled: Compiled) -> Isolation {
        match compiled {
            Compiled::Open => Isolation::Open,
            Compiled::Rules(rules) => Isolation::Group(self.hold(direction, rules)),
        }
    }

    fn let_go(&mut self, isolation: Isolation) {
        if let Isolation::Group(group) = isolation {
            self.release_group(group);
        }
    }
}
