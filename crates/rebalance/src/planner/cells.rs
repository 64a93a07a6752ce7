//! Which pods violate a rule, in the order in which they are tried. Pods of one class on one node are alike: they are one
//! cell.

use std::cmp::Reverse;

use knarr_scheduler::cluster::NodeIndex;
use knarr_scheduler::plugins::node_affinity::meets_required;

use super::Planner;
use crate::policy::StrategySet;
use crate::protection::prefers_no_eviction;
use crate::rules::utilization::Gate;
use crate::rules::{ClassNumber, pod};

/// A rule that pods are moved for, the most important first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Driver {
    RequiredNodeAffinity,
    NodeTaints,
    PodAntiAffinity(usize),
    PodAffinity(usize),
    DoNotSchedule(usize),
    ScheduleAnyway(usize),
    PreferredNodeAffinity,
    Duplicates(usize),
    Low(usize),
    High(usize),
    /// The strategies on pods alone.
    Pods,
}

impl Driver {
    /// Whether other pods do not matter to the rule.
    pub fn is_on_one_pod(self) -> bool {
        matches!(
            self,
            Driver::RequiredNodeAffinity | Driver::NodeTaints | Driver::PreferredNodeAffinity | Driver::Pods
        )
    }

    /// As [`crate::policy::Rule::name`].
    pub fn name(self) -> &'static str {
        match self {
            Driver::RequiredNodeAffinity | Driver::PreferredNodeAffinity => "NodeAffinity",
            Driver::NodeTaints => "NodeTaints",
            Driver::PodAntiAffinity(_) => "PodAntiAffinity",
            Driver::PodAffinity(_) => "PodAffinity",
            Driver::DoNotSchedule(_) | Driver::ScheduleAnyway(_) => "TopologySpread",
            Driver::Duplicates(_) => "Duplicates",
            Driver::Low(_) => "LowNodeUtilization",
            Driver::High(_) => "HighNodeUtilization",
            Driver::Pods => "PodLifeTime",
        }
    }
}

/// Pods of one class on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub class: ClassNumber,
    pub node: NodeIndex,
    /// How much they violate the rule.
    severity: u64,
    pods: u32,
}

impl Planner<'_> {
    pub(super) fn drivers(&self) -> Vec<Driver> {
        let rules = &self.rules;
        let mut drivers = vec![Driver::RequiredNodeAffinity, Driver::NodeTaints];
        drivers.extend((0..rules.anti_affinity.len()).map(Driver::PodAntiAffinity));
        drivers.extend((0..rules.affinity.len()).map(Driver::PodAffinity));
        let spread = || rules.spread.iter().enumerate();
        let hard = spread().filter(|(_, rule)| rule.constraint.hard);
        drivers.extend(hard.map(|(at, _)| Driver::DoNotSchedule(at)));
        let soft = spread().filter(|(_, rule)| !rule.constraint.hard);
        drivers.extend(soft.map(|(at, _)| Driver::ScheduleAnyway(at)));
        drivers.push(Driver::PreferredNodeAffinity);
        drivers.extend((0..rules.duplicates.len()).map(Driver::Duplicates));
        drivers.extend((0..rules.low.len()).map(Driver::Low));
        drivers.extend((0..rules.high.len()).map(Driver::High));
        drivers.push(Driver::Pods);
        let first = self.first_driver % drivers.len();
        drivers.rotate_left(first);
        drivers
    }

    /// The domain of the rule that the node is in, where the rule has domains of many nodes.
    pub(super) fn domain(&self, driver: Driver, node: NodeIndex) -> Option<u32> {
        match driver {
            Driver::DoNotSchedule(rule) | Driver::ScheduleAnyway(rule) => {
                self.rules.spread[rule].domain(node)
            }
            _ => None,
        }
    }

    /// The cells of all rules, in order, are divided into runs of at most as many as simulations may fail. In each turn the plan
    /// begins with another run, so that each cell has its turn.
    pub(super) fn begin_with(&mut self, turn: usize) {
        if turn == 0 {
            return;
        }
        let most = self.limits.failed_simulations.max(1);
        let mut runs: Vec<(usize, usize)> = Vec::new();
        let mut room = 0;
        for (at, driver) in self.drivers().into_iter().enumerate() {
            let cells = self.cells(driver).len();
            if cells > room {
                runs.extend((0..cells).step_by(most).map(|cell| (at, cell)));
                room = most;
            }
            room = room.saturating_sub(cells);
        }
        if let Some((driver, cell)) = runs.get(turn % runs.len().max(1)).copied() {
            (self.first_driver, self.first_cell) = (driver, cell);
        }
    }

    /// See the module.
    pub(super) fn cells(&self, driver: Driver) -> Vec<Cell> {
        let rules = &self.rules;
        let cluster = &self.simulation.cluster;
        let masks = &rules.masks;
        let mut cells = match driver {
            Driver::DoNotSchedule(rule) | Driver::ScheduleAnyway(rule) => {
                let of = &rules.spread[rule];
                if of.value() == 0 {
                    return Vec::new();
                }
                let mask = masks.spread(of.constraint.hard);
                self.of_classes(&rules.spread_classes[rule], mask, |_, node| {
                    of.excess(node).into()
                })
            }
            Driver::PodAntiAffinity(rule) => {
                let of = &rules.anti_affinity[rule];
                if of.value() == 0 {
                    return Vec::new();
                }
                let classes = &rules.anti_affinity_classes[rule];
                self.of_classes(classes, masks.pod_anti_affinity, |class, node| {
                    let mut roles = rules.classes[class].anti_affinity.iter();
                    let role = roles.find(|(at, _)| *at == rule).map(|(_, role)| *role);
                    role.map_or(0, |role| of.pairs(cluster, node, role))
                })
            }
            Driver::PodAffinity(rule) => {
                let of = &rules.affinity[rule];
                if of.value() == 0 {
                    return Vec::new();
                }
                let classes = &rules.affinity_classes[rule];
                self.of_classes(classes, masks.pod_affinity, |class, node| {
                    let mut roles = rules.classes[class].affinity.iter();
                    let role = roles.find(|(at, _)| *at == rule).map(|(_, role)| *role);
                    role.map_or(0, |role| of.lonely(cluster, node, role))
                })
            }
            Driver::Duplicates(rule) => {
                let of = &rules.duplicates[rule];
                if of.value() == 0 {
                    return Vec::new();
                }
                let classes = &rules.duplicates_classes[rule];
                self.of_classes(classes, masks.duplicates, |_, node| of.excess(node))
            }
            Driver::Low(rule) => {
                if self.gates.low.get(rule) != Some(&Gate::Open) {
                    return Vec::new();
                }
                let (position, of) = &rules.low[rule];
                let over = of.overutilized(rules.load(cluster));
                self.of_nodes(*position, over.into_iter())
            }
            Driver::High(rule) => {
                if self.gates.high.get(rule) != Some(&Gate::Open) {
                    return Vec::new();
                }
                let (position, of) = &rules.high[rule];
                let under = of.underutilized(cluster).into_iter();
                // The nodes with the fewest pods are the first to become free.
                self.of_nodes(*position, under.map(|(pods, node)| (u64::MAX - pods, node)))
            }
            Driver::RequiredNodeAffinity => self.of_all(masks.required_node_affinity, |class, node| {
                let class = &rules.classes[class].class;
                u64::from(!meets_required(class, cluster.at(node)))
            }),
            Driver::NodeTaints => self.of_all(masks.node_taints, |class, node| {
                let info = cluster.at(node);
                if info.taints().is_empty() {
                    return 0;
                }
                let class = &rules.classes[class];
                let of = rules
                    .taints
                    .iter()
                    .filter(|(at, _)| class.strategies.contains(*at));
                of.map(|(_, taints)| pod::untolerated(taints, &class.class, info))
                    .sum()
            }),
            Driver::PreferredNodeAffinity => self.of_all(masks.preferred_node_affinity, |class, node| {
                let class = &rules.classes[class];
                let missed = pod::missed_weight(&class.class, cluster.at(node));
                missed.saturating_sub(class.least_missed_weight)
            }),
            Driver::Pods => {
                if self.replaced_for.is_empty() {
                    return Vec::new();
                }
                self.of_all(masks.pods, |class, node| {
                    let class = rules.classes[class].class.id;
                    let pods = cluster.at(node).pods().iter();
                    let mut pods = pods.filter(|p| p.class.id == class);
                    u64::from(pods.any(|p| self.replaced_for.contains_key(p.uid())))
                })
            }
        };
        cells.sort_by_cached_key(|cell| {
            let class = &rules.classes[cell.class].class;
            (
                self.prefers_no_eviction(cell),
                Reverse(cell.severity),
                class.priority,
                cell.class,
                Reverse(cell.pods),
                cell.node,
            )
        });
        if !cells.is_empty() {
            let first = self.first_cell % cells.len();
            cells.rotate_left(first);
        }
        cells
    }

    fn of_classes(
        &self,
        classes: &[ClassNumber],
        mask: StrategySet,
        severity: impl Fn(ClassNumber, NodeIndex) -> u64,
    ) -> Vec<Cell> {
        let mut cells = Vec::new();
        for number in classes {
            let class = &self.rules.classes[*number];
            if !class.strategies.meets(mask) {
                continue;
            }
            let nodes = class.nodes.iter().map(|(node, pods)| Cell {
                class: *number,
                node: *node,
                severity: severity(*number, *node),
                pods: *pods,
            });
            cells.extend(nodes.filter(|cell| cell.severity > 0));
        }
        cells
    }

    fn of_all(&self, mask: StrategySet, severity: impl Fn(ClassNumber, NodeIndex) -> u64) -> Vec<Cell> {
        if mask.is_empty() {
            return Vec::new();
        }
        let all: Vec<ClassNumber> = (0..self.rules.classes.len()).collect();
        self.of_classes(&all, mask, severity)
    }

    fn of_nodes(&self, position: usize, nodes: impl Iterator<Item = (u64, NodeIndex)>) -> Vec<Cell> {
        let mut cells = Vec::new();
        for (severity, node) in nodes {
            for group in self.simulation.cluster.at(node).groups() {
                let pods = group.count - group.terminating;
                let number = self.rules.number_of(group.class.id);
                let number = number.filter(|n| self.rules.classes[*n].strategies.contains(position));
                if let Some(class) = number.filter(|_| pods > 0) {
                    cells.push(Cell {
                        class,
                        node,
                        severity,
                        pods,
                    });
                }
            }
        }
        cells
    }

    /// Whether all pods of the cell do.
    fn prefers_no_eviction(&self, cell: &Cell) -> bool {
        if !self.has_preferences {
            return false;
        }
        let class = self.rules.classes[cell.class].class.id;
        let pods = self.simulation.cluster.at(cell.node).pods().iter();
        let mut pods = pods.filter(|p| p.class.id == class && !p.is_terminating());
        pods.all(|p| prefers_no_eviction(&p.pod))
    }
}
