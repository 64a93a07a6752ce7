//! Topology hints: which zones and nodes an endpoint is for, by `spec.trafficDistribution` (KEP-3015, KEP-4444) or the
//! annotation `service.kubernetes.io/topology-mode: Auto` (KEP-2433).
//!
//! With the annotation each zone gets endpoints in proportion to the CPUs of its ready nodes. Existing hints are kept
//! while they overload no zone, so that the change of one endpoint does not change the hints of others.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointHints, ForNode, ForZone};
use knarr_api::k8s_openapi;
use knarr_apimachinery::quantity::Quantity;

use super::plan::Draft;
use super::zone_of;
use crate::controller::View;
use crate::node::condition;

/// By how much the load of a zone's endpoints may exceed the average (upstream: overloadThreshold).
const OVERLOAD: f64 = 0.2;
const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";
/// The former name of the annotation, which has precedence.
const TOPOLOGY_AWARE_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
/// The CPUs of nodes with one of these labels do not count for their zone.
const EXCLUDED: [&str; 2] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
];
const DISABLED: &str = "TopologyAwareHintsDisabled";
const ENABLED: &str = "TopologyAwareHintsEnabled";

/// Which hints a Service requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    None,
    SameZone,
    SameNode,
    /// Hints in proportion to the zones' CPUs.
    Proportional,
}

pub fn preference(service: &Service) -> Preference {
    let annotations = service.metadata.annotations.as_ref();
    let mode = annotations.and_then(|a| a.get(TOPOLOGY_AWARE_HINTS).or_else(|| a.get(TOPOLOGY_MODE)));
    if mode.is_some_and(|mode| mode == "Auto" || mode == "auto") {
        return Preference::Proportional;
    }
    let spec = service.spec.as_ref();
    match spec.and_then(|s| s.traffic_distribution.as_deref()) {
        Some("PreferClose" | "PreferSameZone") => Preference::SameZone,
        Some("PreferSameNode") => Preference::SameNode,
        _ => Preference::None,
    }
}

/// A node's zone and its CPUs in thousandths. `None` if the node does not count, as it is not ready; an error if it has no zone
/// or no allocatable CPU.
pub fn capacity(node: Option<&Node>) -> Option<Result<(&str, i64), ()>> {
    let node = node?;
    let labels = node.metadata.labels.as_ref();
    let excluded = labels.is_some_and(|l| EXCLUDED.iter().any(|key| l.contains_key(*key)));
    let ready = condition(node, "Ready").is_some_and(|c| c.status == "True");
    if excluded || !ready {
        return None;
    }
    let allocatable = node.status.as_ref().and_then(|s| s.allocatable.as_ref());
    let cpu = allocatable.and_then(|a| Quantity::of(a.get("cpu")?).ok());
    let milli = cpu.map(|c| c.milli_value()).filter(|m| *m > 0);
    Some(zone_of(node).zip(milli).ok_or(()))
}

/// An event about a Service.
#[derive(Debug, PartialEq)]
pub struct TopologyEvent {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

fn disabled(message: impl Into<String>) -> TopologyEvent {
    TopologyEvent {
        warning: true,
        reason: DISABLED,
        message: message.into(),
    }
}

/// The hints that a Service requests, and the ratio of all CPUs that each zone has, if needed and known.
pub struct Hints {
    preference: Preference,
    zones: Option<BTreeMap<String, f64>>,
}

impl Hints {
    pub fn of(service: &Service, view: &dyn View) -> Self {
        let preference = preference(service);
        let zones = (preference == Preference::Proportional)
            .then(|| cpu_ratios(&view.list_as::<Node>("").iter().map(|n| &**n).collect::<Vec<_>>()));
        Hints {
            preference,
            zones: zones.flatten(),
        }
    }

    /// Whether endpoints start with their existing hints, so that a slice without any other change is unchanged.
    pub fn are_kept(&self) -> bool {
        self.preference == Preference::Proportional
    }

    /// The hints of one endpoint, where they follow from the endpoint alone.
    pub fn of_endpoint(&self, endpoint: &Endpoint) -> Option<EndpointHints> {
        if !matches!(self.preference, Preference::SameZone | Preference::SameNode) || !is_ready(endpoint) {
            return None;
        }
        let zone = endpoint.zone.clone().map(|name| vec![ForZone { name }]);
        let node = endpoint.node_name.clone().map(|name| vec![ForNode { name }]);
        let node = node.filter(|_| self.preference == Preference::SameNode);
        (zone.is_some() || node.is_some()).then_some(EndpointHints {
            for_zones: zone,
            for_nodes: node,
        })
    }

    /// Distributes endpoints to zones, if the Service requests it (upstream: TopologyCache.AddHints), and returns the event about it.
    /// `had_hints`: whether the existing slices have hints.
    pub fn add_hints(&self, drafts: &mut [Draft<'_>], had_hints: bool) -> Option<TopologyEvent> {
        match self.preference {
            Preference::SameZone | Preference::SameNode => None,
            Preference::None => had_hints.then(|| disabled("Topology Aware Hints has been disabled")),
            Preference::Proportional => match self.proportional(drafts) {
                Ok(()) => (!had_hints).then(|| TopologyEvent {
                    warning: false,
                    reason: ENABLED,
                    message: "Topology Aware Hints has been enabled".into(),
                }),
                Err(report) => {
                    let mut endpoints = drafts.iter_mut().flat_map(|d| &mut d.endpoints);
                    endpoints.by_ref().for_each(|e| e.hints = None);
                    Some(report)
                }
            },
        }
    }

    fn proportional(&self, drafts: &mut [Draft<'_>]) -> Result<(), TopologyEvent> {
        let endpoints = drafts.iter().flat_map(|d| &d.endpoints);
        let allocations = allocations(self.zones.as_ref(), endpoints.filter(|e| is_ready(e)).count())?;
        let mut hinted: BTreeMap<String, usize> = BTreeMap::new();
        let mut open: Vec<&mut Draft<'_>> = Vec::new();
        for draft in drafts.iter_mut().filter(|d| d.is_kept()) {
            let unchanged = draft
                .before
                .is_some_and(|b| b.endpoints.as_ref() == Some(&draft.endpoints));
            let kept = unchanged
                .then(|| hints_by_zone(draft, &hinted, &allocations))
                .flatten();
            match kept {
                Some(counts) => counts
                    .into_iter()
                    .for_each(|(zone, n)| *hinted.entry(zone).or_default() += n),
                None => open.push(draft),
            }
        }
        // Each endpoint to its own zone first.
        for endpoint in open.iter_mut().flat_map(|d| &mut d.endpoints) {
            endpoint.hints = None;
            if !is_ready(endpoint) {
                continue;
            }
            let Some(zone) = endpoint.zone.clone() else {
                return Err(disabled("One or more endpoints do not have a zone specified"));
            };
            *hinted.entry(zone.clone()).or_default() += 1;
            endpoint.hints = Some(for_zone(zone));
        }
        let (mut give, mut receive) = giving_and_receiving_zones(&allocations, &hinted);
        for endpoint in open.iter_mut().flat_map(|d| &mut d.endpoints) {
            let Some(zone) = endpoint.zone.clone().filter(|_| is_ready(endpoint)) else {
                continue;
            };
            let gives = give.get_mut(&zone).filter(|n| **n > 0);
            let receiver = receive.iter_mut().find(|(_, n)| **n > 0);
            if let (Some(gives), Some((to, receives))) = (gives, receiver) {
                *gives -= 1;
                *receives -= 1;
                endpoint.hints = Some(for_zone(to.clone()));
            }
        }
        if hinted.is_empty() {
            return Err(disabled("No hints allocated for zones"));
        }
        Ok(())
    }
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|c| c.ready) == Some(true)
}

fn for_zone(name: String) -> EndpointHints {
    EndpointHints {
        for_zones: Some(vec![ForZone { name }]),
        for_nodes: None,
    }
}

/// The zones' ratios of all CPUs; `None` if a node has no zone or CPUs, or there are fewer than two zones.
fn cpu_ratios(nodes: &[&Node]) -> Option<BTreeMap<String, f64>> {
    let mut by_zone: BTreeMap<String, i64> = BTreeMap::new();
    for known in nodes.iter().filter_map(|n| capacity(Some(n))) {
        let (zone, milli) = known.ok()?;
        *by_zone.entry(zone.to_string()).or_default() += milli;
    }
    let total: i64 = by_zone.values().sum();
    if by_zone.len() < 2 || total == 0 {
        return None;
    }
    let part = |milli: i64| milli as f64 / total as f64;
    Some(
        by_zone
            .into_iter()
            .map(|(zone, milli)| (zone, part(milli)))
            .collect(),
    )
}

/// The minimum, maximum and desired number of endpoints of a zone.
struct Allocation {
    maximum: usize,
    desired: f64,
}

fn allocations(
    zones: Option<&BTreeMap<String, f64>>,
    endpoints: usize,
) -> Result<BTreeMap<String, Allocation>, TopologyEvent> {
    let Some(zones) = zones else {
        return Err(disabled(
            "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes",
        ));
    };
    let counts = format!("({endpoints} endpoints, {} zones)", zones.len());
    if zones.len() > endpoints {
        return Err(disabled(format!("Insufficient number of endpoints {counts}")));
    }
    let minimum = |part: f64| (part * endpoints as f64 / (1.0 + OVERLOAD)).ceil() as usize;
    let total: usize = zones.values().map(|part| minimum(*part)).sum();
    let Some(slack) = endpoints.checked_sub(total) else {
        return Err(disabled(format!(
            "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold {counts}"
        )));
    };
    let share = |part: f64| Allocation {
        maximum: minimum(part) + slack,
        desired: (part * endpoints as f64).max(minimum(part) as f64),
    };
    Ok(zones
        .iter()
        .map(|(zone, part)| (zone.clone(), share(*part)))
        .collect())
}

/// The number of existing hints by zone, unless they have to be computed again: a hint is missing, is for a zone that gets none,
/// or a zone has too many.
fn hints_by_zone(
    draft: &Draft<'_>,
    hinted: &BTreeMap<String, usize>,
    allocations: &BTreeMap<String, Allocation>,
) -> Option<BTreeMap<String, usize>> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for endpoint in draft.endpoints.iter().filter(|e| is_ready(e)) {
        let zones = endpoint.hints.as_ref().and_then(|h| h.for_zones.as_ref());
        for zone in zones.filter(|z| !z.is_empty())? {
            *counts.entry(zone.name.clone()).or_default() += 1;
        }
    }
    let fits = counts.iter().all(|(zone, n)| {
        let other = hinted.get(zone).copied().unwrap_or(0);
        allocations
            .get(zone)
            .is_some_and(|share| n + other <= share.maximum)
    });
    fits.then_some(counts)
}

type Counts = BTreeMap<String, usize>;

/// How many endpoints each zone gives to others, and how many each receives (upstream: getGivingAndReceivingZones).
fn giving_and_receiving_zones(
    allocations: &BTreeMap<String, Allocation>,
    hinted: &Counts,
) -> (Counts, Counts) {
    let mut over: Vec<(&String, f64)> = Vec::new();
    let mut under: Vec<(&String, f64)> = Vec::new();
    for (zone, share) in allocations {
        let has = hinted.get(zone).copied().unwrap_or(0) as f64;
        if has > share.desired {
            over.push((zone, has - share.desired));
        } else if has < share.desired {
            under.push((zone, share.desired - has));
        }
    }
    let (mut give, mut receive) = (Counts::new(), Counts::new());
    while let (Some((from, surplus)), Some((to, need))) = (most(&mut over), most(&mut under)) {
        // Half an endpoint is worth moving only to or from a zone that lacks or has a whole one too many.
        if (*surplus < 1.0 && *need < 1.0) || *surplus < 0.5 || *need < 0.5 {
            break;
        }
        *surplus -= 1.0;
        *need -= 1.0;
        *give.entry(from.clone()).or_default() += 1;
        *receive.entry(to.clone()).or_default() += 1;
    }
    (give, receive)
}

fn most<'a, 'b>(zones: &'b mut [(&'a String, f64)]) -> Option<(&'a String, &'b mut f64)> {
    let zones = zones.iter_mut().filter(|(_, n)| *n > 0.0);
    zones
        .max_by(|(a, n), (b, m)| n.total_cmp(m).then_with(|| b.cmp(a)))
        .map(|(zone, n)| (*zone, n))
}
