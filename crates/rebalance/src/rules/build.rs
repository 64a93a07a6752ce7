//! Finds the rules of a cluster and counts its pods, once for each plan. Which rules count which classes is found by
//! their labels: no rule is compared with the classes that cannot match it.

use std::collections::BTreeMap;
use std::sync::Arc;

use knarr_apimachinery::labels::{Operator, Selector};
use knarr_scheduler::plugins::node_affinity::meets_required;
use knarr_scheduler::plugins::taint_toleration;
use knarr_scheduler::pod_info::{AffinityTerm, Labels, OptionalSelector, PodClass, SpreadConstraint};
use knarr_scheduler::{Cluster, NodeInfo, Profile};

use super::affinity::{AffinityRule, AntiAffinityRule, Role, matches};
use super::domains::DomainsCache;
use super::duplicates::{DuplicatesRule, PossibleNodes};
use super::spread::SpreadRule;
use super::utilization::{HighRule, Load, LowRule, Measured};
use super::{ClassNumber, ClassRules, Masks, RuleRef, Rules, pod};
use crate::constraint::Constraint;
use crate::policy::{Policy, Rule, StrategySet};
use crate::snapshot::{Snapshot, owner_kinds};
use crate::workload::controller;

/// Finds what selects a set of labels.
#[derive(Debug, Default)]
struct SelectorIndex {
    /// By a label that the selector requires.
    by_label: BTreeMap<(String, String), Vec<usize>>,
    others: Vec<usize>,
}

impl SelectorIndex {
    fn insert(&mut self, selector: &OptionalSelector, number: usize) {
        let Some(selector) = selector else { return };
        let required = selector.requirements().iter().find_map(|requirement| {
            let is_equal = matches!(
                requirement.operator(),
                Operator::Equals | Operator::DoubleEquals | Operator::In
            );
            match requirement.values() {
                [only] if is_equal => Some((requirement.key().to_string(), only.clone())),
                _ => None,
            }
        });
        match required {
            Some(label) => self.by_label.entry(label).or_default().push(number),
            None => self.others.push(number),
        }
    }

    /// Those that may select the labels.
    fn candidates<'a>(&'a self, labels: Option<&'a Labels>) -> impl Iterator<Item = usize> + 'a {
        let labels = labels.into_iter().flatten();
        let of = labels.filter_map(|(key, value)| self.by_label.get(&(key.clone(), value.clone())));
        of.flatten().chain(&self.others).copied()
    }
}

/// A key that is equal for classes of the same template, whatever their pods' names, so that the order of a plan does not
/// depend on names that controllers generate.
fn order(class: &PodClass) -> (String, String, String) {
    let owner = controller(class.example.metadata.owner_references.as_ref());
    let owner = owner
        .map(|o| format!("{} {}", o.kind, o.name))
        .unwrap_or_default();
    let rest = format!("{:?}{:?}{:?}", class.labels(), class.priority, class.requests);
    (class.namespace().to_string(), owner, rest)
}

impl Rules {
    /// The rules of the snapshot that matter for the policy. `cluster` is the plan's copy.
    pub fn new(snapshot: &Snapshot, policy: &Policy, cluster: &mut Cluster) -> Self {
        let mut rules = Rules {
            masks: Masks::of(policy),
            classes: Vec::new(),
            numbers: BTreeMap::new(),
            spread: Vec::new(),
            anti_affinity: Vec::new(),
            affinity: Vec::new(),
            duplicates: Vec::new(),
            spread_classes: Vec::new(),
            anti_affinity_classes: Vec::new(),
            affinity_classes: Vec::new(),
            duplicates_classes: Vec::new(),
            low: Vec::new(),
            high: Vec::new(),
            taints: Vec::new(),
            measured: Measured::new(snapshot),
            names: BTreeMap::new(),
        };
        rules.find_classes(snapshot, policy, cluster);
        rules.find_spread(snapshot, cluster);
        rules.find_affinity(cluster);
        rules.find_duplicates(cluster);
        rules.find_node_rules(policy, cluster);
        rules.count(cluster);
        rules
    }

    fn find_classes(&mut self, snapshot: &Snapshot, policy: &Policy, cluster: &Cluster) {
        let mut found: BTreeMap<u32, Arc<PodClass>> = BTreeMap::new();
        for (_, node) in cluster.iter() {
            for group in node.groups() {
                found.entry(group.class.id).or_insert_with(|| group.class.clone());
            }
        }
        let mut found: Vec<Arc<PodClass>> = found.into_values().collect();
        found.sort_by_cached_key(|class| order(class));
        let mut budgets: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, budget) in snapshot.disruption_budgets.iter().enumerate() {
            budgets.entry(&budget.namespace).or_default().push(at);
        }
        for class in found {
            let mut strategies = StrategySet::NONE;
            for (position, (_, strategy)) in policy.strategies().enumerate() {
                let kinds = owner_kinds(&class.example);
                if strategy.scope.includes(class.namespace(), class.labels(), kinds) {
                    strategies.insert(position);
                }
            }
            let here = budgets.get(class.namespace()).into_iter().flatten().copied();
            let selects = |at: &usize| {
                let budget = &snapshot.disruption_budgets[*at];
                budget.selects(class.namespace(), class.labels())
            };
            let disruption_budgets = here.filter(selects).collect();
            self.numbers.insert(class.id, self.classes.len());
            self.classes.push(ClassRules {
                workload: snapshot.workload(&class.example),
                strategies,
                spread: Vec::new(),
                anti_affinity: Vec::new(),
                affinity: Vec::new(),
                duplicates: None,
                disruption_budgets,
                nodes: BTreeMap::new(),
                least_missed_weight: self.least_missed_weight(cluster, &class),
                class,
            });
        }
    }

    fn least_missed_weight(&self, cluster: &Cluster, class: &PodClass) -> u64 {
        let prefers = class
            .node_affinity()
            .is_some_and(|a| a.preferred_during_scheduling_ignored_during_execution.is_some());
        if self.masks.preferred_node_affinity.is_empty() || !prefers {
            return 0;
        }
        let may = |node: &NodeInfo| {
            !node.is_unschedulable()
                && taint_toleration::untolerated(class, node).is_none()
                && meets_required(class, node)
        };
        let nodes = cluster.iter().filter(|(_, node)| may(node));
        let missed = nodes.map(|(_, node)| pod::missed_weight(class, node));
        missed.min().unwrap_or(u64::MAX)
    }

    fn find_spread(&mut self, snapshot: &Snapshot, cluster: &mut Cluster) {
        let mut domains = DomainsCache::default();
        let mut known = BTreeMap::new();
        for number in 0..self.classes.len() {
            let class = self.classes[number].class.clone();
            let Some(profile) = snapshot.profile_of(&class.example).cloned() else {
                continue;
            };
            let (constraints, require_all) = self.constraints(&profile, cluster, &class);
            for hard in [true, false] {
                let of = constraints.iter().filter(|c| c.hard == hard);
                let mut keys = Vec::new();
                if hard || require_all {
                    keys.extend(of.clone().map(|c| cluster.column_of(&c.topology_key)));
                    keys.sort_unstable();
                    keys.dedup();
                }
                for constraint in of {
                    // Pods are not counted for an absent or an empty selector, as in kube-scheduler.
                    let Some(selector) = constraint.selector.as_ref().filter(|s| !s.is_everything()) else {
                        continue;
                    };
                    let nodes = domains.get(cluster, &class, constraint, &keys);
                    let key = (
                        class.namespace().to_string(),
                        selector.to_string(),
                        constraint.topology_key.clone(),
                        (constraint.hard, constraint.max_skew, constraint.min_domains),
                        Arc::as_ptr(&nodes) as usize,
                    );
                    known.entry(key).or_insert_with(|| {
                        self.spread
                            .push(SpreadRule::new(class.namespace(), constraint.clone(), nodes));
                    });
                }
            }
        }
        self.link_spread();
    }

    /// The constraints of the class that count, and whether a node must have the keys of all soft ones.
    fn constraints(
        &self,
        profile: &Profile,
        cluster: &Cluster,
        class: &PodClass,
    ) -> (Vec<SpreadConstraint>, bool) {
        let own = class.spread.as_deref().unwrap_or_default();
        let mut constraints = own.to_vec();
        let soft = !self.masks.schedule_anyway.is_empty();
        let defaults = &profile.spread.default_constraints;
        if own.is_empty()
            && defaults.iter().any(|c| c.hard || soft)
            && let Some(selector) = cluster.default_selector(class)
        {
            constraints = defaults.clone();
            for constraint in &mut constraints {
                constraint.selector = Some(selector.clone());
            }
        }
        constraints.retain(|c| c.hard || soft);
        (constraints, !own.is_empty() || !profile.spread.system)
    }

    fn link_spread(&mut self) {
        let mut indexes: BTreeMap<String, SelectorIndex> = BTreeMap::new();
        for (rule, of) in self.spread.iter().enumerate() {
            let index = indexes.entry(of.namespace.clone()).or_default();
            index.insert(&of.constraint.selector, rule);
        }
        self.spread_classes = vec![Vec::new(); self.spread.len()];
        for (number, class) in self.classes.iter_mut().enumerate() {
            let Some(index) = indexes.get(class.class.namespace()) else {
                continue;
            };
            let labels = class.class.labels();
            let selects = |rule: &usize| {
                let selector = &self.spread[*rule].constraint.selector;
                selector.as_ref().is_some_and(|s: &Selector| s.matches(labels))
            };
            class.spread = index.candidates(labels).filter(selects).collect();
            class.spread.sort_unstable();
            for rule in &class.spread {
                self.spread_classes[*rule].push(number);
            }
        }
    }

    fn find_affinity(&mut self, cluster: &mut Cluster) {
        let mut anti: BTreeMap<String, usize> = BTreeMap::new();
        let mut near: BTreeMap<String, usize> = BTreeMap::new();
        let mut owned: Vec<(Vec<usize>, Option<usize>)> = Vec::new();
        for class in &self.classes {
            let mut own = (Vec::new(), None);
            if let Ok(terms) = &class.class.affinity {
                for term in &terms.required_anti {
                    let rule = *anti.entry(format!("{term:?}")).or_insert_with(|| {
                        self.anti_affinity
                            .push(AntiAffinityRule::new(cluster, term.clone()));
                        self.anti_affinity.len() - 1
                    });
                    own.0.push(rule);
                }
                if !terms.required.is_empty() {
                    let rule = *near.entry(format!("{:?}", terms.required)).or_insert_with(|| {
                        self.affinity.push(AffinityRule::new(cluster, &terms.required));
                        self.affinity.len() - 1
                    });
                    own.1 = Some(rule);
                }
            }
            owned.push(own);
        }
        let (mut anti_index, mut near_index) = (SelectorIndex::default(), SelectorIndex::default());
        for (rule, of) in self.anti_affinity.iter().enumerate() {
            anti_index.insert(&of.term.selector, rule);
        }
        for (rule, of) in self.affinity.iter().enumerate() {
            // A pod must match all terms, so the first finds them.
            near_index.insert(&of.terms[0].selector, rule);
        }
        self.anti_affinity_classes = vec![Vec::new(); self.anti_affinity.len()];
        self.affinity_classes = vec![Vec::new(); self.affinity.len()];
        let terms_match = |term: &AffinityTerm, class: &PodClass| matches(cluster, term, class);
        for (number, (class, own)) in self.classes.iter_mut().zip(owned).enumerate() {
            let labels = class.class.labels();
            let mut roles: BTreeMap<usize, Role> = BTreeMap::new();
            for rule in own.0 {
                roles.entry(rule).or_default().owns = true;
            }
            for rule in anti_index.candidates(labels) {
                if terms_match(&self.anti_affinity[rule].term, &class.class) {
                    roles.entry(rule).or_default().matches = true;
                }
            }
            class.anti_affinity = roles.into_iter().collect();
            let mut roles: BTreeMap<usize, Role> = BTreeMap::new();
            if let Some(rule) = own.1 {
                roles.entry(rule).or_default().owns = true;
            }
            for rule in near_index.candidates(labels) {
                let mut terms = self.affinity[rule].terms.iter();
                if terms.all(|term| terms_match(term, &class.class)) {
                    roles.entry(rule).or_default().matches = true;
                }
            }
            class.affinity = roles.into_iter().collect();
            for (rule, _) in &class.anti_affinity {
                self.anti_affinity_classes[*rule].push(number);
            }
            for (rule, _) in &class.affinity {
                self.affinity_classes[*rule].push(number);
            }
        }
    }

    fn find_duplicates(&mut self, cluster: &Cluster) {
        let mut known: BTreeMap<(String, Vec<String>), usize> = BTreeMap::new();
        for (number, class) in self.classes.iter_mut().enumerate() {
            if !class.strategies.meets(self.masks.duplicates) {
                continue;
            }
            let pod = &class.class.example;
            let Some(owner) = controller(pod.metadata.owner_references.as_ref()) else {
                continue;
            };
            let owner = format!("{} {}/{}", owner.kind, class.class.namespace(), owner.name);
            let mut images = class.class.images.clone();
            images.sort_unstable();
            let rule = *known.entry((owner.clone(), images)).or_insert_with(|| {
                self.duplicates.push(DuplicatesRule::new(owner));
                self.duplicates_classes.push(Vec::new());
                self.duplicates.len() - 1
            });
            class.duplicates = Some(rule);
            self.duplicates_classes[rule].push(number);
        }
        for (index, node) in cluster.iter() {
            for group in node.groups() {
                let number = self.numbers.get(&group.class.id);
                let rule = number.and_then(|number| self.classes[*number].duplicates);
                if let Some(rule) = rule.filter(|_| group.count > group.terminating) {
                    self.duplicates[rule].count(index, group.count - group.terminating);
                }
            }
        }
        let mut possible = PossibleNodes::default();
        for (rule, of) in self.duplicates.iter_mut().enumerate() {
            // Pods of one owner may be of several templates: the most nodes that one of them may run on.
            let classes = self.duplicates_classes[rule].iter();
            let nodes = classes.map(|class| possible.of(cluster, &self.classes[*class].class));
            if let Some(nodes) = nodes.max() {
                of.set_nodes(nodes);
            }
        }
    }

    fn find_node_rules(&mut self, policy: &Policy, cluster: &Cluster) {
        let selects = |node: &NodeInfo| {
            let selector = policy.node_selector.as_ref();
            selector.is_none_or(|s| s.matches(node.labels()))
        };
        for (position, (_, strategy)) in policy.strategies().enumerate() {
            match &strategy.rule {
                Rule::LowNodeUtilization(low) => {
                    let load = Load {
                        cluster,
                        measured: &self.measured,
                    };
                    self.low.push((position, LowRule::new(low, load, selects)));
                }
                Rule::HighNodeUtilization(high) => {
                    let is_fixed = |pod: &knarr_scheduler::PodInfo| {
                        owner_kinds(&pod.pod).any(|kind| matches!(kind, "DaemonSet" | "Node"))
                    };
                    let rule = HighRule::new(high, cluster, selects, is_fixed);
                    self.high.push((position, rule));
                }
                Rule::NodeTaints(taints) => self.taints.push((position, taints.clone())),
                _ => {}
            }
        }
    }

    fn count(&mut self, cluster: &Cluster) {
        for (index, node) in cluster.iter() {
            for group in node.groups() {
                let pods = group.count - group.terminating;
                let number: Option<ClassNumber> = self.numbers.get(&group.class.id).copied();
                let Some(class) = number.map(|n| &mut self.classes[n]).filter(|_| pods > 0) else {
                    continue;
                };
                class.nodes.insert(index, pods);
                for rule in &class.spread {
                    self.spread[*rule].add(index, pods);
                }
                for (rule, role) in &class.anti_affinity {
                    self.anti_affinity[*rule].add(cluster, index, *role, pods);
                }
                for (rule, role) in &class.affinity {
                    self.affinity[*rule].add(cluster, index, *role, pods);
                }
            }
        }
    }

    /// The rule as plans name it.
    pub fn name(&mut self, policy: &Policy, cluster: &Cluster, rule: RuleRef) -> Arc<Constraint> {
        if let Some(known) = self.names.get(&rule) {
            return known.clone();
        }
        let selector = |of: &OptionalSelector| of.as_ref().map(Selector::to_string).unwrap_or_default();
        let constraint = match rule {
            RuleRef::RequiredNodeAffinity => Constraint::RequiredNodeAffinity,
            RuleRef::NodeTaints(_) => Constraint::NodeTaints,
            RuleRef::PodAntiAffinity(at) => {
                let term = &self.anti_affinity[at].term;
                Constraint::PodAntiAffinity {
                    topology_key: term.topology_key.clone(),
                    label_selector: selector(&term.selector),
                }
            }
            RuleRef::PodAffinity(at) => {
                let terms = self.affinity[at].terms.iter();
                let terms = terms.map(|t| format!("{} in {}", selector(&t.selector), t.topology_key));
                Constraint::PodAffinity {
                    label_selector: terms.collect::<Vec<_>>().join(" and "),
                }
            }
            RuleRef::TopologySpread(at) => {
                let SpreadRule {
                    namespace,
                    constraint,
                    ..
                } = &self.spread[at];
                Constraint::TopologySpread {
                    namespace: namespace.clone(),
                    topology_key: constraint.topology_key.clone(),
                    max_skew: constraint.max_skew,
                    when_unsatisfiable: if constraint.hard {
                        "DoNotSchedule"
                    } else {
                        "ScheduleAnyway"
                    },
                    label_selector: selector(&constraint.selector),
                }
            }
            RuleRef::PreferredNodeAffinity => Constraint::PreferredNodeAffinity,
            RuleRef::Duplicates(at) => Constraint::Duplicates {
                owner: self.duplicates[at].owner.clone(),
            },
            RuleRef::Low { rule, resource, node } => {
                let name = self.low[rule].1.resources().nth(resource);
                Constraint::NodeUtilization {
                    node: cluster.at(node).name.clone(),
                    resource: name.map(|(_, name)| name.to_string()).unwrap_or_default(),
                }
            }
            RuleRef::High { node, .. } => Constraint::NodeUnderutilization {
                node: cluster.at(node).name.clone(),
            },
            RuleRef::Pod(position) => match policy.strategies().nth(position).map(|(_, s)| &s.rule) {
                Some(Rule::TooManyRestarts(_)) => Constraint::TooManyRestarts,
                Some(Rule::FailedPods(_)) => Constraint::FailedPods,
                _ => Constraint::PodLifeTime,
            },
        };
        let constraint = Arc::new(constraint);
        self.names.insert(rule, constraint.clone());
        constraint
    }
}
