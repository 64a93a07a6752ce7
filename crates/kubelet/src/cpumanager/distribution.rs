//! Taking CPUs evenly from several NUMA nodes when one has too few (`distribute-cpus-across-numa`, KEP 2902).
//!
//! Of all sets of as few NUMA nodes as possible the one is taken that leaves the free CPUs of the node most balanced:
//! with the smallest standard deviation per NUMA node.

use std::collections::BTreeMap;

use super::assignment::{Accumulator, NotEnough, Sorting, take_packed};
use super::cpuset::CpuSet;
use super::{CpuTopology, Level};

/// On nodes with more NUMA nodes CPUs are packed: the number of sets to compare grows with 3 to the power of the nodes.
const NODES_MAX: usize = 12;

/// A set of NUMA nodes, and those of them that give one group more than the others.
struct Choice {
    balance: f64,
    nodes: Vec<u32>,
    extra: Vec<u32>,
}

/// Takes `count` CPUs in groups of `group`: the threads of a core, or 1.
pub fn take_distributed(
    topology: &CpuTopology,
    available: &CpuSet,
    count: usize,
    group: usize,
    sorting: Sorting,
) -> Result<CpuSet, NotEnough> {
    let packed = || take_packed(topology, available, count, sorting, false);
    let group = group.max(1);
    let free = Accumulator::new(topology, available, count);
    if count == 0 || !count.is_multiple_of(group) {
        return packed();
    }
    let nodes = free.sorted(Level::NumaNode);
    let all = topology.count(Level::NumaNode).max(1);
    if nodes.len() > NODES_MAX {
        return packed();
    }
    let groups_per_node = topology.cpus().len().div_ceil(group).div_ceil(all).max(1);
    let needed = count.div_ceil(group);
    let free_of: BTreeMap<u32, usize> = nodes
        .iter()
        .map(|node| (*node, free.free_in(Level::NumaNode, *node).len()))
        .collect();
    for size in needed.div_ceil(groups_per_node)..=needed.min(nodes.len()) {
        if let Some(choice) = best_of_size(&free_of, &nodes, size, count, group) {
            return Ok(take(free, &choice, count, group, sorting).unwrap_or(packed()?));
        }
    }
    packed()
}

fn best_of_size(
    free: &BTreeMap<u32, usize>,
    nodes: &[u32],
    size: usize,
    count: usize,
    group: usize,
) -> Option<Choice> {
    let mut best: Option<Choice> = None;
    for combination in combinations(nodes, size) {
        if best.as_ref().is_some_and(|b| b.balance == 0.0) {
            break;
        }
        let Some((balance, extra)) = balance_of(free, &combination, count, group) else {
            continue;
        };
        if best.as_ref().is_none_or(|b| balance < b.balance) {
            best = Some(Choice {
                balance,
                nodes: combination,
                extra,
            });
        }
    }
    best
}

/// How many CPUs each of so many nodes gives at least.
fn share(count: usize, nodes: usize, group: usize) -> usize {
    count / nodes.max(1) / group * group
}

/// The balance of the node's free CPUs if the CPUs come from these NUMA nodes, and which of them give one group more.
/// `None` if they have too few.
fn balance_of(
    free: &BTreeMap<u32, usize>,
    nodes: &[u32],
    count: usize,
    group: usize,
) -> Option<(f64, Vec<u32>)> {
    let of = |node: &u32| free.get(node).copied().unwrap_or(0);
    let groups: usize = nodes.iter().map(|node| of(node) / group).sum();
    let share = share(count, nodes.len(), group);
    if groups * group < count || nodes.iter().any(|node| of(node) < share) {
        return None;
    }
    let mut left = free.clone();
    for node in nodes {
        left.entry(*node).and_modify(|n| *n -= share);
    }
    let remainder = count - share * nodes.len();
    if remainder == 0 {
        return Some((deviation(&left), Vec::new()));
    }
    let has_group = |node: &&u32| left.get(node).is_some_and(|n| *n >= group);
    let giving: Vec<u32> = nodes.iter().filter(has_group).copied().collect();
    let mut best: Option<(f64, Vec<u32>)> = None;
    for size in (1..=giving.len()).rev() {
        for subset in combinations(&giving, size) {
            let Some(left) = after_remainder(&left, &subset, remainder, group) else {
                continue;
            };
            let balance = deviation(&left);
            if best.as_ref().is_none_or(|(least, _)| balance < *least) {
                best = Some((balance, subset));
            }
        }
    }
    best
}

/// The free CPUs after the NUMA nodes give the remainder in turns, one group at a time. `None` if they have too few.
fn after_remainder(
    left: &BTreeMap<u32, usize>,
    nodes: &[u32],
    mut remainder: usize,
    group: usize,
) -> Option<BTreeMap<u32, usize>> {
    let mut left = left.clone();
    while remainder > 0 {
        let before = remainder;
        for node in nodes {
            if let Some(n) = left.get_mut(node).filter(|n| remainder > 0 && **n >= group) {
                *n -= group;
                remainder = remainder.saturating_sub(group);
            }
        }
        if remainder == before {
            return None;
        }
    }
    Some(left)
}

fn take(
    mut cpus: Accumulator<'_>,
    choice: &Choice,
    count: usize,
    group: usize,
    sorting: Sorting,
) -> Option<CpuSet> {
    let share = share(count, choice.nodes.len(), group);
    for node in &choice.nodes {
        cpus.take_packed_in(*node, share, sorting)?;
    }
    while cpus.needed > 0 {
        let before = cpus.needed;
        for node in &choice.extra {
            if cpus.needed > 0 && cpus.free_in(Level::NumaNode, *node).len() >= group {
                cpus.take_packed_in(*node, group, sorting)?;
            }
        }
        if cpus.needed == before {
            return None;
        }
    }
    Some(cpus.taken)
}

impl Accumulator<'_> {
    fn take_packed_in(&mut self, node: u32, count: usize, sorting: Sorting) -> Option<()> {
        let free = self.free_in(Level::NumaNode, node);
        let taken = take_packed(self.topology, &free, count, sorting, false).ok()?;
        self.take(taken);
        Some(())
    }
}

/// The standard deviation, rounded to thousandths so that equal ones compare as equal.
pub(super) fn deviation(values: &BTreeMap<u32, usize>) -> f64 {
    let count = values.len().max(1) as f64;
    let mean = values.values().sum::<usize>() as f64 / count;
    let squares: f64 = values.values().map(|v| (*v as f64 - mean).powi(2)).sum();
    ((squares / count).sqrt() * 1000.0).round() / 1000.0
}

/// All choices of `size` of these, in the order in which they are given. There are no more than 2^[`NODES_MAX`].
fn combinations(of: &[u32], size: usize) -> Vec<Vec<u32>> {
    if size == 0 {
        return vec![Vec::new()];
    }
    let Some((first, rest)) = of.split_first() else {
        return Vec::new();
    };
    let mut all = combinations(rest, size - 1);
    all.iter_mut().for_each(|chosen| chosen.insert(0, *first));
    all.extend(combinations(rest, size));
    all
}
