//! What limits how many pods are moved: the policy's budgets per hour, the PodDisruptionBudgets, and how many pods of one
//! workload are replaced at the same time. The last two do not limit the plan but split it into waves.

use std::collections::BTreeMap;

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::NodeName;

use crate::policy::Budgets;
use crate::reason::{BudgetOf, Reason};
use crate::snapshot::{DisruptionBudget, Snapshot, Workload};

/// The time that the policy's budgets are for.
const HOUR: SignedDuration = SignedDuration::from_hours(1);

/// How much of the policy's budgets is used.
#[derive(Debug)]
pub(crate) struct Ledger {
    policy: String,
    limits: Budgets,
    total: u32,
    nodes: BTreeMap<NodeName, u32>,
    namespaces: BTreeMap<String, u32>,
    workloads: BTreeMap<Workload, u32>,
}

impl Ledger {
    pub fn new(policy: &str, limits: &Budgets, snapshot: &Snapshot) -> Self {
        let mut ledger = Ledger {
            policy: policy.to_string(),
            limits: limits.clone(),
            total: 0,
            nodes: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            workloads: BTreeMap::new(),
        };
        let recent = snapshot.evictions.iter();
        for eviction in recent.filter(|e| snapshot.now.duration_since(e.at) < HOUR) {
            ledger.spend(&eviction.node, &eviction.workload);
        }
        ledger
    }

    /// Whether no further pod can be moved at all.
    pub fn is_exhausted(&self) -> bool {
        self.limits.per_hour.is_some_and(|limit| self.total >= limit)
    }

    /// Why one more pod of the workload must not be moved away from the node.
    pub fn forbids(&self, node: &NodeName, workload: &Workload) -> Option<Reason> {
        let over = |of, name: &str, used: u32, limit: Option<u32>| {
            let limit = limit.filter(|limit| used >= *limit)?;
            let name = name.to_string();
            Some(Reason::Budget {
                of,
                name,
                used,
                limit,
            })
        };
        let namespace = &workload.namespace;
        let of_workload = self.workloads.get(workload).copied().unwrap_or(0);
        over(BudgetOf::Policy, &self.policy, self.total, self.limits.per_hour)
            .or_else(|| {
                let used = self.nodes.get(node).copied().unwrap_or(0);
                over(BudgetOf::Node, node, used, self.limits.per_node)
            })
            .or_else(|| {
                let used = self.namespaces.get(namespace).copied().unwrap_or(0);
                over(BudgetOf::Namespace, namespace, used, self.limits.per_namespace)
            })
            .or_else(|| {
                let limit = self.limits.per_workload.filter(|limit| of_workload >= *limit)?;
                Some(Reason::Budget {
                    of: BudgetOf::Workload,
                    name: workload.to_string(),
                    used: of_workload,
                    limit,
                })
            })
    }

    pub fn spend(&mut self, node: &NodeName, workload: &Workload) {
        self.total += 1;
        *self.nodes.entry(node.clone()).or_default() += 1;
        *self.namespaces.entry(workload.namespace.clone()).or_default() += 1;
        *self.workloads.entry(workload.clone()).or_default() += 1;
    }
}

/// Why the PodDisruptionBudgets with these positions, which select a pod, allow no disruption of it.
pub(crate) fn forbidden_by(budgets: &[DisruptionBudget], selecting: &[usize]) -> Option<Reason> {
    let mut all = selecting.iter().filter_map(|at| budgets.get(*at));
    let first = all.next()?;
    let mut names: Vec<String> = all.map(|budget| budget.name.clone()).collect();
    if !names.is_empty() {
        names.insert(0, first.name.clone());
        return Some(Reason::SeveralDisruptionBudgets { names });
    }
    (first.allowed == 0).then(|| Reason::DisruptionBudget {
        name: first.name.clone(),
    })
}

/// Splits the moves into waves: within one, no PodDisruptionBudget and no workload has more disruptions than it allows,
/// and no replacement is moved again. Waves follow the order of the moves.
#[derive(Debug)]
pub(crate) struct Waves {
    at_once_per_workload: u32,
    wave: u32,
    workloads: BTreeMap<Workload, u32>,
    budgets: BTreeMap<usize, u32>,
}

impl Waves {
    pub fn new(at_once_per_workload: u32) -> Self {
        Waves {
            at_once_per_workload: at_once_per_workload.max(1),
            wave: 1,
            workloads: BTreeMap::new(),
            budgets: BTreeMap::new(),
        }
    }

    /// The wave of the next move; `after` is the wave in which the same pod was moved before.
    pub fn place(
        &mut self,
        workload: &Workload,
        budgets: &[DisruptionBudget],
        selecting: &[usize],
        after: Option<u32>,
    ) -> u32 {
        let of_workload = self.workloads.get(workload).copied().unwrap_or(0);
        let is_full = |at: &usize| {
            let used = self.budgets.get(at).copied().unwrap_or(0);
            budgets.get(*at).is_some_and(|budget| used >= budget.allowed)
        };
        let must_wait = of_workload >= self.at_once_per_workload
            || selecting.iter().any(is_full)
            || after.is_some_and(|after| after >= self.wave);
        if must_wait {
            self.wave += 1;
            self.workloads.clear();
            self.budgets.clear();
        }
        *self.workloads.entry(workload.clone()).or_default() += 1;
        for at in selecting {
            *self.budgets.entry(*at).or_default() += 1;
        }
        self.wave
    }
}
