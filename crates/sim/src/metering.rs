//! What the namespace with ResourceQuotas holds and what its quotas say, after every commit, counted without the code that
//! admission and the controller count with.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{LimitRange, Pod, ResourceQuota};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::quantity::Quantity;

use crate::stored;
use crate::world::is_finished;

/// The namespace.
pub(crate) const NAMESPACE: &str = "metered";
/// The amounts that its quotas limit.
pub(crate) const PODS: &str = "pods";
pub(crate) const CPU: &str = "requests.cpu";
pub(crate) const CONFIG_MAPS: &str = "configmaps";
const COUNTED: [&str; 3] = [PODS, CPU, CONFIG_MAPS];

/// In thousandths, by the name of the amount.
type Amounts = BTreeMap<String, i64>;

/// One object that counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Usage {
    amounts: Amounts,
    /// From then on a pod that is being deleted may count no more.
    may_leave: Option<Timestamp>,
}

/// How a quota limits one amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// In thousandths.
    pub hard: i64,
    /// Since when the quota's status has some limit of this amount.
    pub since: Timestamp,
    /// The limit before the last change, and when that was.
    pub before: Option<(i64, Timestamp)>,
}

/// A ResourceQuota as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quota {
    uid: String,
    pub wanted: Amounts,
    pub limits: BTreeMap<String, Limit>,
    pub used: Amounts,
    /// What was raised by the last write of it, from what.
    pub raised: Amounts,
    /// When each amount was last counted by the controller: set for the first time, or to less than before.
    pub counted: BTreeMap<String, Timestamp>,
}

/// A LimitRange of containers as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// In thousandths of a CPU: what a container requests at most.
    pub most: Option<i64>,
    /// A container that requests nothing is given something.
    pub gives: bool,
    /// Since when it is as it is.
    pub since: Timestamp,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metering {
    objects: BTreeMap<String, Usage>,
    pub quotas: BTreeMap<String, Quota>,
    pub ranges: BTreeMap<String, Range>,
    /// The amounts of which the last write made more.
    pub added: BTreeSet<String>,
    /// The pod that the last write created.
    pub created: Option<Pod>,
}

fn milli(list: Option<&BTreeMap<String, Wire>>) -> Amounts {
    let read = |wire: &Wire| Quantity::of(wire).ok().map(|quantity| quantity.milli_value());
    let all = list.into_iter().flatten();
    all.filter_map(|(name, wire)| Some((name.clone(), read(wire)?)))
        .filter(|(name, _)| COUNTED.contains(&name.as_str()))
        .collect()
}

/// What the first container requests, for no pod of the namespace has another.
pub(crate) fn requested_cpu(pod: &Pod) -> Option<i64> {
    let container = pod.spec.as_ref()?.containers.first()?;
    let requests = container.resources.as_ref()?.requests.as_ref()?;
    let cpu = requests.get("cpu")?;
    Some(Quantity::of(cpu).ok()?.milli_value())
}

fn usage_of_pod(pod: &Pod) -> Usage {
    if is_finished(pod) {
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
        let counted = used.iter().filter_map(|(name, is)| {
            let at = match was(name) {
                Some(was) if was <= *is => *before?.counted.get(name)?,
                _ => now,
            };
            Some((name.clone(), at))
        });
        Quota {
            counted: counted.collect(),
            wanted: milli(quota.spec.as_ref().and_then(|s| s.hard.as_ref())),
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
            let cpu = |list: Option<&BTreeMap<String, Wire>>| {
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
    /// Takes one key in as the store has it now. Whether it is one of this namespace that counts.
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
        match kind {
            "pods" => {
                let pod = value.and_then(stored::pod);
                let usage = pod.as_ref().map(usage_of_pod);
                self.created = pod.filter(|_| !self.objects.contains_key(path));
                self.put(path, usage);
            }
            "configmaps" => {
                let usage = value.map(|_| Usage {
                    amounts: BTreeMap::from([(CONFIG_MAPS.to_string(), 1_000)]),
                    may_leave: None,
                });
                self.put(path, usage);
            }
            "resourcequotas" => {
                let quota = value.and_then(|json| serde_json::from_slice(json).ok());
                let quota = quota.map(|quota| Quota::of(&quota, self.quotas.get(name), now));
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

    fn put(&mut self, path: &str, usage: Option<Usage>) {
        let before = match usage.clone() {
            Some(usage) => self.objects.insert(path.into(), usage),
            None => self.objects.remove(path),
        };
        let before = before.unwrap_or_default().amounts;
        for (name, is) in usage.unwrap_or_default().amounts {
            if before.get(&name).is_none_or(|was| *was < is) {
                self.added.insert(name);
            }
        }
    }

    /// How much of an amount there is for certain, in thousandths.
    pub fn total(&self, name: &str, now: Timestamp) -> i64 {
        let counts = |usage: &&Usage| usage.may_leave.is_none_or(|at| now < at);
        let counted = self.objects.values().filter(counts);
        counted.filter_map(|usage| usage.amounts.get(name)).sum()
    }
}
