//! The result as `status.allocation`: devices, the configuration of classes and claim for the driver, and the nodes
//! on which the claim can be used.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::ops::Range;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceAllocationConfiguration, DeviceAllocationResult, DeviceRequestAllocationResult,
    ResourceClaim,
};
use knarr_api::k8s_openapi;

use super::request::Variant;
use super::search::{Search, TakenDevice};
use super::{AllocationError, claim_name};
use crate::node_info::NodeInfo;

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

impl Search<'_, '_> {
    pub(super) fn results(&self, node: &NodeInfo) -> Result<Vec<AllocationResult>, AllocationError> {
        let claims = self.claims.iter().enumerate();
        claims
            .map(|(index, claim)| self.result(index, claim, node))
            .collect()
    }

    fn result(
        &self,
        index: usize,
        claim: &ResourceClaim,
        node: &NodeInfo,
    ) -> Result<AllocationResult, AllocationError> {
        let taken = self.taken.get(index).map(Vec::as_slice).unwrap_or_default();
        let devices = taken.iter().enumerate();
        let devices = devices.map(|(at, taken)| self.device(index, at, claim, taken));
        Ok(AllocationResult {
            allocation_timestamp: None,
            devices: Some(DeviceAllocationResult {
                results: some(devices.collect()),
                config: some(self.configuration(index, claim)),
            }),
            node_selector: node_selector(claim, taken, node)?,
        })
    }

    fn device(
        &self,
        index: usize,
        at: usize,
        claim: &ResourceClaim,
        taken: &TakenDevice<'_>,
    ) -> DeviceRequestAllocationResult {
        let variant = &self.requests[index][taken.request].variants[taken.variant];
        let id = taken.candidate.id();
        let consumed = taken.consumed.as_ref();
        let amounts = consumed.map(|c| c.iter().map(|(name, q)| (name.clone(), q.to_wire())).collect());
        let device = taken.candidate.device;
        DeviceRequestAllocationResult {
            request: variant.name.clone(),
            share_id: consumed.map(|_| share_id(claim, at, &id.to_string())),
            consumed_capacity: amounts.filter(|a: &BTreeMap<_, _>| !a.is_empty()),
            driver: id.driver,
            pool: id.pool,
            device: id.device,
            admin_access: variant.admin_access.then_some(true),
            tolerations: some(variant.tolerations.to_vec()),
            binding_conditions: device.binding_conditions.clone(),
            binding_failure_conditions: device.binding_failure_conditions.clone(),
        }
    }

    /// Of the classes in the order of the requests, then of the claim.
    fn configuration(&self, index: usize, claim: &ResourceClaim) -> Vec<DeviceAllocationConfiguration> {
        let mut all: Vec<DeviceAllocationConfiguration> = Vec::new();
        // A claim names few classes.
        let mut of_class: Vec<(&str, Range<usize>)> = Vec::new();
        let requests = self.requests.get(index).into_iter().flatten();
        let chosen: Vec<(bool, &Variant<'_>)> = requests
            .map(|r| (r.is_prioritized_list, &r.variants[r.chosen]))
            .collect();
        for (_, variant) in &chosen {
            let name = variant.class.metadata.name.as_deref().unwrap_or_default();
            if let Some((_, known)) = of_class.iter().find(|(class, _)| *class == name) {
                for config in &mut all[known.clone()] {
                    config.requests.get_or_insert_default().push(variant.name.clone());
                }
                continue;
            }
            let first = all.len();
            let configs = variant.class.spec.config.iter().flatten();
            all.extend(configs.map(|config| DeviceAllocationConfiguration {
                source: "FromClass".into(),
                requests: Some(vec![variant.name.clone()]),
                opaque: config.opaque.clone(),
            }));
            of_class.push((name, first..all.len()));
        }
        let devices = claim.spec.devices.as_ref();
        for config in devices.and_then(|d| d.config.as_ref()).into_iter().flatten() {
            let of_claim = || DeviceAllocationConfiguration {
                source: "FromClaim".into(),
                requests: config.requests.clone(),
                opaque: config.opaque.clone(),
            };
            let requests = config.requests.as_deref().unwrap_or_default();
            if requests.is_empty() {
                all.push(of_claim());
                continue;
            }
            for (is_list, variant) in &chosen {
                if requests
                    .iter()
                    .any(|r| r == variant.base || (*is_list && *r == variant.name))
                {
                    all.push(of_claim());
                }
            }
        }
        all
    }
}

/// The UUID of one share of a device. It is derived from the claim and its devices, because deciding code has no
/// random numbers. A claim that is allocated again may get the same one; its former share has been released by then.
fn share_id(claim: &ResourceClaim, at: usize, device: &str) -> String {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (
            salt,
            &claim.metadata.uid,
            &claim.metadata.namespace,
            &claim.metadata.name,
        )
            .hash(&mut hasher);
        (at, device).hash(&mut hasher);
        hasher.finish()
    };
    let (a, b) = (half(0), half(1));
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        a >> 32,
        (a >> 16) & 0xffff,
        a & 0xfff,
        0x8000 | ((b >> 48) & 0x3fff),
        b & 0xffff_ffff_ffff
    )
}

/// `None`: on all nodes.
fn node_selector(
    claim: &ResourceClaim,
    taken: &[TakenDevice<'_>],
    node: &NodeInfo,
) -> Result<Option<NodeSelector>, AllocationError> {
    let mut term = NodeSelectorTerm::default();
    for taken in taken {
        let (spec, device) = (&taken.candidate.slice.spec, taken.candidate.device);
        let (name, selector) = if spec.per_device_node_selection == Some(true) {
            (&device.node_name, &device.node_selector)
        } else {
            (&spec.node_name, &spec.node_selector)
        };
        if name.is_some() || device.binds_to_node == Some(true) {
            let this_node = NodeSelectorRequirement {
                key: "metadata.name".into(),
                operator: "In".into(),
                values: Some(vec![node.name.to_string()]),
            };
            return Ok(Some(NodeSelector {
                node_selector_terms: vec![NodeSelectorTerm {
                    match_fields: Some(vec![this_node]),
                    match_expressions: None,
                }],
            }));
        }
        let Some(selector) = selector else { continue };
        match selector.node_selector_terms.as_slice() {
            [] => {}
            [one] => {
                add(one.match_fields.as_ref(), &mut term.match_fields);
                add(one.match_expressions.as_ref(), &mut term.match_expressions);
            }
            many => {
                return Err(AllocationError::NodeSelector {
                    claim: claim_name(claim),
                    terms: many.len(),
                });
            }
        }
    }
    let is_empty = term.match_fields.is_none() && term.match_expressions.is_none();
    Ok((!is_empty).then(|| NodeSelector {
        node_selector_terms: vec![term],
    }))
}

fn add(from: Option<&Vec<NodeSelectorRequirement>>, to: &mut Option<Vec<NodeSelectorRequirement>>) {
    fn values(of: &NodeSelectorRequirement) -> BTreeSet<&str> {
        of.values.iter().flatten().map(String::as_str).collect()
    }
    for new in from.into_iter().flatten() {
        let to = to.get_or_insert_default();
        let same = |old: &NodeSelectorRequirement| {
            old.key == new.key && old.operator == new.operator && values(old) == values(new)
        };
        if !to.iter().any(same) {
            to.push(new.clone());
        }
    }
}
