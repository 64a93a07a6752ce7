//! PodDisruptionBudgets as preemption reads them, and the evictions that their status does not include yet (SPEC B6).
//!
//! Between the choice of a victim and the next status of its budget there is a moment in which another preemptor still
//! reads the old number of allowed disruptions. With hard budgets the victims of that moment are counted here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::Shared;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::PodUid;
use knarr_apimachinery::labels::Selector;

use crate::pod_info::PodInfo;

/// How long a chosen victim counts if no status of its budget includes it: as long as the disruption controller waits for
/// the deletion of a pod in `status.disruptedPods` (DeletionTimeout).
const PENDING_EVICTION_TIMEOUT: SignedDuration = SignedDuration::from_mins(2);

/// Namespace and name of a PodDisruptionBudget.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BudgetName {
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for BudgetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A PodDisruptionBudget as preemption reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    pub namespace: String,
    pub selector: Selector,
    pub disruptions_allowed: i32,
    /// Pods in `status.disruptedPods`: they count as disrupted already.
    pub disrupted: BTreeSet<String>,
}

impl Budget {
    /// `None`: it has no selector, or an invalid one, and matches no pods.
    fn read(namespace: &str, budget: &PodDisruptionBudget) -> Option<Self> {
        let selector = budget.spec.as_ref()?.selector.as_ref()?;
        let status = budget.status.as_ref();
        let disrupted = status.and_then(|s| s.disrupted_pods.as_ref());
        Some(Budget {
            namespace: namespace.to_string(),
            selector: Selector::from_label_selector(selector).ok()?,
            disruptions_allowed: status.and_then(|s| s.disruptions_allowed).unwrap_or(0),
            disrupted: disrupted
                .into_iter()
                .flatten()
                .map(|(pod, _)| pod.clone())
                .collect(),
        })
    }

    /// Whether the eviction API would count the eviction of the pod. Unlike in kube-scheduler's preemption, an empty
    /// selector matches all pods of the namespace.
    pub fn counts(&self, pod: &Pod) -> bool {
        let meta = &pod.metadata;
        meta.namespace.as_deref() == Some(self.namespace.as_str())
            && self.selector.matches(meta.labels.as_ref())
            && !meta
                .name
                .as_ref()
                .is_some_and(|name| self.disrupted.contains(name))
    }
}

/// A victim that was chosen with hard budgets.
#[derive(Clone, Debug)]
struct PendingEviction {
    /// Those of its budgets whose status does not include the eviction yet.
    budgets: BTreeSet<BudgetName>,
    /// Whether the pod is terminating or deleted: the next status of a budget includes that.
    is_visible: bool,
    /// When it is dropped in any case.
    until: Timestamp,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Budgets {
    all: BTreeMap<BudgetName, Budget>,
    /// By UID.
    pending: BTreeMap<PodUid, PendingEviction>,
    /// Incremented when the result of preemption may have changed.
    pub version: u64,
}

impl Budgets {
    /// A budget was added, updated or deleted (`None`). Whether it may allow more evictions than before.
    pub fn set(&mut self, namespace: &str, name: &str, budget: Option<&PodDisruptionBudget>) -> bool {
        let key = BudgetName {
            namespace: namespace.to_string(),
            name: name.to_string(),
        };
        self.version += 1;
        self.pending.retain(|_, pending| {
            if pending.is_visible {
                pending.budgets.remove(&key);
            }
            !pending.budgets.is_empty()
        });
        match budget.and_then(|b| Budget::read(namespace, b)) {
            Some(new) => {
                let old = self.all.get(&key);
                let may_help = old.is_some_and(|old| {
                    new.disruptions_allowed > old.disruptions_allowed
                        || new.selector != old.selector
                        || new.disrupted != old.disrupted
                });
                self.all.insert(key, new);
                may_help
            }
            None => self.all.remove(&key).is_some(),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Budget> {
        self.all.values()
    }

    /// Whether a budget allows no eviction of the pod now.
    pub fn forbid_eviction(&self, pod: &Shared<Pod>) -> bool {
        self.all
            .values()
            .any(|budget| budget.disruptions_allowed <= 0 && budget.counts(pod))
    }

    /// The budgets that the eviction of these pods would violate, counted together and with the evictions that are
    /// pending. Terminating pods are not evicted again.
    pub fn violated_by(&self, victims: &[Arc<PodInfo>]) -> BTreeSet<BudgetName> {
        let is_new =
            |victim: &&Arc<PodInfo>| !victim.is_terminating() && !self.pending.contains_key(victim.uid());
        let violated = self.all.iter().filter(|(name, budget)| {
            let more = victims
                .iter()
                .filter(is_new)
                .filter(|v| budget.counts(&v.pod))
                .count();
            let pending = self
                .pending
                .values()
                .filter(|p| p.budgets.contains(*name))
                .count();
            let allowed = usize::try_from(budget.disruptions_allowed).unwrap_or(0);
            more > 0 && more + pending > allowed
        });
        violated.map(|(name, _)| name.clone()).collect()
    }

    /// These pods will be evicted: from now on they count.
    pub fn evicting(&mut self, victims: &[Arc<PodInfo>], now: Timestamp) {
        for victim in victims.iter().filter(|v| !v.is_terminating()) {
            let counting = self.all.iter().filter(|(_, budget)| budget.counts(&victim.pod));
            let budgets: BTreeSet<BudgetName> = counting.map(|(name, _)| name.clone()).collect();
            if budgets.is_empty() || self.pending.contains_key(victim.uid()) {
                continue;
            }
            let pending = PendingEviction {
                budgets,
                is_visible: false,
                until: now.checked_add(PENDING_EVICTION_TIMEOUT).unwrap_or(now),
            };
            self.pending.insert(victim.uid().clone(), pending);
            self.version += 1;
        }
    }

    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The pod is terminating or deleted.
    pub fn left(&mut self, uid: &str) {
        if let Some(pending) = self.pending.get_mut(uid) {
            pending.is_visible = true;
        }
    }

    /// Drops pending evictions that no status will include, such as that of a pod that was not healthy. Whether there were
    /// any.
    pub fn drop_expired(&mut self, now: Timestamp) -> bool {
        let before = self.pending.len();
        self.pending.retain(|_, pending| pending.until > now);
        let dropped = self.pending.len() != before;
        self.version += u64::from(dropped);
        dropped
    }
}
