//! The contents of the namespace with ResourceQuotas and the status of its quotas, after every commit, counted
//! without the code that admission and the controller count with.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{LimitRange, Pod, ResourceQuota};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::is_terminal;
use knarr_apimachinery::quantity::Quantity;

use crate::stored;

pub(crate) const NAMESPACE: &str = "metered";
/// The amounts that its quotas limit.
pub(crate) const PODS: &str = "pods";
pub(crate) const CPU: &str = "requests.cpu";
pub(crate) const CONFIG_MAPS: &str = "configmaps";
const COUNTED: [&str; 3] = [PODS, CPU, CONFIG_MAPS];

/// What is stored so long after a quota's first count may have been admitted before.
const KNOWN_BY_SERVERS: SignedDuration = SignedDuration::from_secs(60);

/// In thousandths, by the name of the amount.
type Amounts = BTreeMap<String, i64>;

/// One object that counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Usage {
    amounts: Amounts,
    /// From then on a terminating pod may not count any more.
    may_leave: Option<Timestamp>,
}

/// The limit of one amount in a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// In thousandths.
    pub hard: i64,
    /// Since when the quota's status has a limit of this amount.
    pub since: Timestamp,
    /// The limit before the last change, and when that was.
    pub before: Option<(i64, Timestamp)>,
}

/// A ResourceQuota as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quota {
    uid: String,
    pub expected: Amounts,
    pub limits: BTreeMap<String, Limit>,
    pub used: Amounts,
    /// The amounts that its last write raised, with the value before.
    pub raised: Amounts,
    /// The controller's last count of each amount.
    pub counts: BTreeMap<String, Count>,
    /// What was charged for objects that are not stored yet.
    pending: Amounts,
}

/// A count of the quota controller: it set the amount for the first time, or to less than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    pub at: Timestamp,
    /// By how much it was too low, and what was charged then for objects that were not stored yet: v1.36's
    /// `syncResourceQuota` counts the informers' objects and overwrites the charge.
    pub missed: i64,
    /// There was no count before: what was admitted before the quota was known is not charged.
    is_first: bool,
}

/// A LimitRange of containers as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// The most CPU that a container may request, in thousandths.
    pub most: Option<i64>,
    /// A container without a request gets a default.
    pub gives: bool,
    /// Since when it is unchanged.
    pub since: Timestamp,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metering {
    objects: BTreeMap<String, Usage>,
    pub quotas: BTreeMap<String, Quota>,
    pub ranges: BTreeMap<String, Range>,
    /// The next write of a quota is for a component: the count of the quota controller, or the charge for what another creates.
    pub for_component: bool,
    /// The amounts that the last write raised.
    pub added: BTreeSet<String>,
    /// The pod that the last write created.
    pub created: Option<Pod>,
}

fn milli(list: Option<&BTreeMap<String, ApiQuantity>>) -> Amounts {
    let read = |raw: &ApiQuantity| Quantity::of(raw).ok().map(|quantity| quantity.milli_value());
    let all = list.into_iter().flatten();
    all.filter_map(|(name, raw)| Some((name.clone(), read(raw)?)))
        .filter(|(name, _)| COUNTED.contains(&name.as_str()))
        .collect()
}

/// The request of the first container; no pod of the namespace has another.
pub(crate) fn requested_cpu(pod: &Pod) -> Option<i64> {
    let container = pod.spec.as_ref()?.containers.first()?;
    let requests = container.resources.as_ref()?.requests.as_ref()?;
    let cpu = requests.get("cpu")?;
    Some(Quantity::of(cpu).ok()?.milli_value())
}

fn usage_of_pod(pod: &Pod) -> Usage {
    if is_terminal(pod) {
        return Usage::default();
    }
    let cpu = requested_cpu(pod).unwrap_or_default();
    Usage {
        amounts: BTreeMap::from([(PODS.to_string(), 1_000), (CPU.to_string(), cpu)]),
        may_leave: pod.metadata.deletion_timestamp.as_ref().map(|at| at.0),
    }
}

impl Quota {
    fn of(quota: &ResourceQuota, before: Option<&Quota>, now: Timestamp) -> Self {
        let uid = quota.metadata.uid.clone().unwrap_or_default();
        let before = before.filter(|before| before.uid == uid);
        let status = quota.status.clone().unwrap_or_default();
        let limit = |(name, hard): (String, i64)| {
            let limit = match before.and_then(|before| before.limits.get(&name)) {
                Some(limit) if limit.hard == hard => *limit,
                Some(limit) => Limit {
                    hard,
                    since: limit.since,
                    before: Some((limit.hard, now)),
                },
                None => Limit {
                    hard,
                    since: now,
                    before: None,
                },
            };
            (name, limit)
        };
        let used = milli(status.used.as_ref());
        let was = |name: &String| before.and_then(|before| before.used.get(name)).copied();
        let raised = used.iter().filter_map(|(name, is)| {
            let was = was(name)?;
            (was < *is).then(|| (name.clone(), was))
        });
        Quota {
            counts: before.map(|before| before.counts.clone()).unwrap_or_default(),
            pending: before.map(|before| before.pending.clone()).unwrap_or_default(),
            expected: milli(quota.spec.as_ref().and_then(|s| s.hard.as_ref())),
            limits: milli(status.hard.as_ref()).into_iter().map(limit).collect(),
            raised: raised.collect(),
            used,
            uid,
        }
    }
}

impl Range {
    fn of(range: &LimitRange, before: Option<&Range>, now: Timestamp) -> Self {
        let items = range.spec.iter().flat_map(|spec| spec.limits.iter());
        let (mut most, mut gives) = (None, false);
        for item in items.filter(|item| item.type_ == "Container") {
            let cpu = |list: Option<&BTreeMap<String, ApiQuantity>>| {
                let cpu = list.and_then(|list| list.get("cpu"))?;
                Some(Quantity::of(cpu).ok()?.milli_value())
            };
            most = cpu(item.max.as_ref()).or(most);
            gives |= cpu(item.default_request.as_ref()).is_some();
        }
        let since = match before {
            Some(before) if (before.most, before.gives) == (most, gives) => before.since,
            _ => now,
        };
        Range { most, gives, since }
    }
}

impl Metering {
    /// Applies the write of one key. Returns whether it is an object of this namespace that counts.
    pub fn take_in(&mut self, path: &str, value: Option<&[u8]>, now: Timestamp) -> bool {
        let Some((kind, rest)) = path.strip_prefix("core/").and_then(|rest| rest.split_once('/')) else {
            return false;
        };
        let Some(name) = rest
            .strip_prefix(NAMESPACE)
            .and_then(|name| name.strip_prefix('/'))
        else {
            return false;
        };
        self.added.clear();
        self.created = None;
        self.quotas.values_mut().for_each(|quota| quota.raised.clear());
        let for_component = std::mem::take(&mut self.for_component);
        match kind {
            "pods" => {
                let pod = value.and_then(stored::pod);
                let usage = pod.as_ref().map(usage_of_pod);
                self.created = pod.filter(|_| !self.objects.contains_key(path));
                self.put(path, usage, now);
            }
            "configmaps" => {
                let usage = value.map(|_| Usage {
                    amounts: BTreeMap::from([(CONFIG_MAPS.to_string(), 1_000)]),
                    may_leave: None,
                });
                self.put(path, usage, now);
            }
            "resourcequotas" => {
                let quota = value.and_then(|json| serde_json::from_slice(json).ok());
                let mut quota = quota.map(|quota| Quota::of(&quota, self.quotas.get(name), now));
                if let Some(quota) = &mut quota {
                    self.count(name, quota, for_component, now);
                    // A controller's informers may be behind, as upstream's: it counts what has been deleted.
                    if for_component {
                        quota.raised.clear();
                    }
                }
                match quota {
                    Some(quota) => drop(self.quotas.insert(name.into(), quota)),
                    None => drop(self.quotas.remove(name)),
                }
            }
            "limitranges" => {
                let range = value.and_then(|json| serde_json::from_slice(json).ok());
                match range.map(|range| Range::of(&range, self.ranges.get(name), now)) {
                    Some(range) => drop(self.ranges.insert(name.into(), range)),
                    None => drop(self.ranges.remove(name)),
                }
            }
            _ => return false,
        }
        true
    }

    /// Separates the charges and the counts of a quota's new version.
    fn count(&self, name: &str, quota: &mut Quota, for_component: bool, now: Timestamp) {
        let before = self.quotas.get(name).filter(|before| before.uid == quota.uid);
        for (name, used) in &quota.used {
            let was = before.and_then(|before| before.used.get(name)).copied();
            let pending = quota.pending.entry(name.clone()).or_default();
            let total = self.total(name, now);
            match was {
                Some(was) if was <= *used => {
                    *pending += used - was;
                    continue;
                }
                // The charge of a request that failed is taken back.
                Some(was) if !for_component => {
                    *pending = (*pending - (was - used)).max(0);
                    continue;
                }
                Some(_) => {}
                None => *pending = (used - total).max(0),
            }
            let count = Count {
                at: now,
                missed: *pending + (total - used).max(0),
                is_first: was.is_none(),
            };
            quota.counts.insert(name.clone(), count);
        }
    }

    /// So much of an amount is stored, for which a quota was charged, or which was admitted before it was known.
    fn stored(&mut self, name: &str, amount: i64, now: Timestamp) {
        for quota in self.quotas.values_mut() {
            let pending = quota.pending.entry(name.to_string()).or_default();
            let uncharged = (amount - *pending).max(0);
            *pending = (*pending - amount).max(0);
            let first = quota.counts.get_mut(name).filter(|count| count.is_first);
            if let Some(count) = first.filter(|count| now.duration_since(count.at) < KNOWN_BY_SERVERS) {
                count.missed += uncharged;
            }
        }
    }

    fn put(&mut self, path: &str, usage: Option<Usage>, now: Timestamp) {
        let before = match usage.clone() {
            Some(usage) => self.objects.insert(path.into(), usage),
            None => self.objects.remove(path),
        };
        let before = before.unwrap_or_default().amounts;
        for (name, is) in usage.unwrap_or_default().amounts {
            let was = before.get(&name).copied();
            if was.is_none_or(|was| was < is) {
                self.stored(&name, is - was.unwrap_or_default(), now);
                self.added.insert(name);
            }
        }
    }

    /// How much of an amount is certainly used, in thousandths.
    pub fn total(&self, name: &str, now: Timestamp) -> i64 {
        let counts = |usage: &&Usage| usage.may_leave.is_none_or(|at| now < at);
        let counted = self.objects.values().filter(counts);
        counted.filter_map(|usage| usage.amounts.get(name)).sum()
    }
}
