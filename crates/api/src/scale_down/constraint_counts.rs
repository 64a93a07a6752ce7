//! The matching pods in each domain of the topology spread constraints, counted as the scheduler counts them (SPEC D1–D3): pods of the
//! namespace that are neither terminating nor finished, on nodes that have the topology keys and that the node inclusion
//! policies include.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod, PodSpec, TopologySpreadConstraint};

use crate::Shared;
use crate::kinds::node_selector::{Selected, meets_required, required_node_affinity};
use crate::kinds::pod::topology_spread::SpreadConstraint;
use crate::kinds::pod::{is_active, node_name};
use crate::kinds::toleration::untolerated;

/// The most different constraints that are counted, and the most of one pod that are read. More make no better spread: pods of
/// one set have the same constraints, mostly one or two.
pub const MAX_CONSTRAINTS: usize = 16;

/// What the counts are taken from.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    /// All nodes.
    pub nodes: Vec<Shared<Node>>,
    /// All pods of the namespace, those of the set included.
    pub pods: Vec<Shared<Pod>>,
}

/// The domain of a pod for each constraint; `None`: the constraint does not count it.
pub type Domains = Vec<Option<usize>>;

/// How far a domain is above the others, over all constraints; the pods of the greatest are deleted first.
///
/// DoNotSchedule comes before ScheduleAnyway, as in the scheduler, which filters before it scores. Of DoNotSchedule the excess over
/// maxSkew comes first: it is the violation. The constraints of one kind are added up, since the API gives none precedence: the
/// scheduler requires all of them, and its score is a sum, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Surplus {
    /// By how much the skews of DoNotSchedule are above maxSkew.
    excess: i64,
    hard_skew: i64,
    soft_skew: i64,
}

/// What the counts of a constraint depend on: pods that differ in nothing of this have the same constraints.
#[derive(Debug)]
struct Source<'a> {
    pod: &'a Pod,
    constraints: Vec<SpreadConstraint>,
}

impl<'a> Source<'a> {
    fn of(pod: &'a Pod) -> Self {
        let constraints = pod.spec.iter().flat_map(declared).take(MAX_CONSTRAINTS);
        let labels = pod.metadata.labels.as_ref();
        // The API server has validated the selectors; a constraint whose selector does not parse counts nothing.
        let read = constraints.filter_map(|c| SpreadConstraint::read(c, labels).ok());
        Source {
            pod,
            constraints: read.collect(),
        }
    }

    /// Whether the other pod has the same constraints, without parsing them.
    fn is_of(&self, other: &Pod) -> bool {
        self.pod.metadata.labels == other.metadata.labels
            && self.has_same_nodes(other)
            && match (&self.pod.spec, &other.spec) {
                (Some(a), Some(b)) => a.topology_spread_constraints == b.topology_spread_constraints,
                (a, b) => a.is_none() && b.is_none(),
            }
    }

    fn has_same_nodes(&self, other: &Pod) -> bool {
        match (&self.pod.spec, &other.spec) {
            (Some(a), Some(b)) => {
                a.node_selector == b.node_selector
                    && a.tolerations == b.tolerations
                    && required_node_affinity(a) == required_node_affinity(b)
            }
            (a, b) => a.is_none() && b.is_none(),
        }
    }

    fn is_same(&self, other: &Source<'_>) -> bool {
        self.constraints == other.constraints && self.has_same_nodes(other.pod)
    }
}

fn declared(spec: &PodSpec) -> impl Iterator<Item = &TopologySpreadConstraint> {
    spec.topology_spread_constraints.iter().flatten()
}

/// Whether the pod has topology spread constraints of its own.
pub fn has_constraints(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|s| declared(s).next().is_some())
}

/// One constraint with its counts.
#[derive(Debug)]
struct Counted {
    constraint: SpreadConstraint,
    /// The domain of each node; `None`: the node does not count.
    domain_of_node: Vec<Option<usize>>,
    /// The matching pods in each domain.
    pods: Vec<i64>,
    /// How many domains there are with each number of pods.
    histogram: BTreeMap<i64, usize>,
}

impl Counted {
    fn new(constraint: SpreadConstraint, source: &Source<'_>, nodes: &[Shared<Node>]) -> Self {
        let of_kind = source.constraints.iter().filter(|c| c.hard == constraint.hard);
        let keys: Vec<&str> = of_kind.map(|c| c.topology_key.as_str()).collect();
        let mut domains: BTreeMap<&str, usize> = BTreeMap::new();
        let domain_of_node = nodes.iter().map(|node| {
            let value = domain(&constraint, source.pod, &keys, node)?;
            let next = domains.len();
            Some(*domains.entry(value).or_insert(next))
        });
        let domain_of_node: Vec<Option<usize>> = domain_of_node.collect();
        Counted {
            domain_of_node,
            pods: vec![0; domains.len()],
            histogram: BTreeMap::from([(0, domains.len())]),
            constraint,
        }
    }

    fn change(&mut self, domain: usize, by: i64) {
        let Some(pods) = self.pods.get_mut(domain) else {
            return;
        };
        let before = *pods;
        let after = before + by;
        *pods = after;
        if let Some(number) = self.histogram.get_mut(&before) {
            *number -= 1;
            if *number == 0 {
                self.histogram.remove(&before);
            }
        }
        *self.histogram.entry(after).or_default() += 1;
    }

    /// The fewest pods in a domain, empty domains included (the global minimum of the scheduler).
    fn minimum(&self) -> i64 {
        if self.pods.len() < self.constraint.min_domains {
            return 0;
        }
        self.histogram.keys().next().copied().unwrap_or(0)
    }

    fn add_to(&self, domain: usize, surplus: &mut Surplus) {
        let Some(count) = self.pods.get(domain) else {
            return;
        };
        let skew = count - self.minimum();
        if self.constraint.hard {
            surplus.excess += (skew - self.constraint.max_skew).max(0);
        }
        // To delete a pod of an emptiest domain makes the skew of all others worse: a pod that does not count comes before it.
        let skew = if skew == 0 && self.pods.len() > 1 {
            -1
        } else {
            skew
        };
        match self.constraint.hard {
            true => surplus.hard_skew += skew,
            false => surplus.soft_skew += skew,
        }
    }
}

/// The node's domain, if the node counts for this constraint of the pod: it has the keys of all constraints of the same kind.
fn domain<'n>(constraint: &SpreadConstraint, pod: &Pod, keys: &[&str], node: &'n Node) -> Option<&'n str> {
    let selected = Selected {
        name: node.metadata.name.as_deref().unwrap_or(""),
        labels: node.metadata.labels.as_ref(),
    };
    let domain = selected.label(&constraint.topology_key)?;
    let spec = pod.spec.as_ref()?;
    let taints = node
        .spec
        .as_ref()
        .and_then(|s| s.taints.as_deref())
        .unwrap_or_default();
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let counts = keys.iter().all(|key| selected.label(key).is_some())
        && (!constraint.honor_node_affinity || meets_required(spec, selected))
        && (!constraint.honor_node_taints || untolerated(tolerations, taints).is_none());
    counts.then_some(domain)
}

/// The constraints of a set's pods, with their counts.
#[derive(Debug)]
pub struct ConstraintCounts<'a> {
    constraints: Vec<Counted>,
    /// Indices in the topology's nodes.
    nodes: BTreeMap<&'a str, usize>,
}

impl<'a> ConstraintCounts<'a> {
    /// Of the constraints that `pods` have: the first [`MAX_CONSTRAINTS`] different ones, in the order of the pods.
    pub fn new(pods: &[Shared<Pod>], topology: &'a Topology) -> Self {
        let mut sources: Vec<Source<'_>> = Vec::new();
        let mut number = 0;
        for pod in pods.iter().filter(|pod| has_constraints(pod)) {
            if number >= MAX_CONSTRAINTS {
                break;
            }
            if sources.iter().any(|source| source.is_of(pod)) {
                continue;
            }
            let source = Source::of(pod);
            if !sources.iter().any(|known| known.is_same(&source)) {
                number += source.constraints.len();
                sources.push(source);
            }
        }
        let constraints = sources
            .iter()
            .flat_map(|source| source.constraints.iter().map(move |c| (source, c)))
            .take(MAX_CONSTRAINTS)
            .map(|(source, constraint)| Counted::new(constraint.clone(), source, &topology.nodes));
        let nodes = topology.nodes.iter().enumerate();
        let nodes = nodes.map(|(index, node)| (node.object().name(), index));
        let mut counts = ConstraintCounts {
            constraints: constraints.collect(),
            nodes: nodes.collect(),
        };
        for pod in topology.pods.iter().filter(|pod| is_active(pod)) {
            counts.change(&counts.domains(pod), 1);
        }
        counts
    }

    /// Where the constraints count the pod.
    pub fn domains(&self, pod: &Pod) -> Domains {
        let node = self.nodes.get(node_name(pod)).copied();
        let labels = pod.metadata.labels.as_ref();
        let domain = |counted: &Counted| {
            let domain = counted.domain_of_node.get(node?).copied().flatten()?;
            counted.constraint.counts(labels).then_some(domain)
        };
        self.constraints.iter().map(domain).collect()
    }

    fn change(&mut self, domains: &Domains, by: i64) {
        for (counted, domain) in self.constraints.iter_mut().zip(domains) {
            if let Some(domain) = domain {
                counted.change(*domain, by);
            }
        }
    }

    /// Takes a pod out of its domains.
    pub fn remove(&mut self, domains: &Domains) {
        self.change(domains, -1);
    }

    /// How far these domains are above the others.
    pub fn surplus(&self, domains: &Domains) -> Surplus {
        let mut surplus = Surplus::default();
        for (counted, domain) in self.constraints.iter().zip(domains) {
            if let Some(domain) = domain {
                counted.add_to(*domain, &mut surplus);
            }
        }
        surplus
    }
}
