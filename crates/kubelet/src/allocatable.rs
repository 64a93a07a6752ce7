//! Node Allocatable: capacity without reservations and hard eviction thresholds. Huge pages are subtracted from memory.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use knarr_api::k8s_openapi;
use knarr_apimachinery::quantity::{Notation, Quantity};

use crate::configuration::KubeletConfiguration;
use crate::eviction::Signal;
use crate::huge_pages;

const MEMORY: &str = "memory";

/// `status.allocatable` of a node with this capacity. Never below zero.
pub fn allocatable(
    capacity: &BTreeMap<String, Wire>,
    configuration: &KubeletConfiguration,
) -> BTreeMap<String, Wire> {
    let huge = huge_pages::of_list(capacity)
        .values()
        .fold(0, |sum: i64, n| sum.saturating_add(*n));
    let mut left = BTreeMap::new();
    for (name, has) in capacity {
        let Ok(has) = Quantity::of(has) else { continue };
        let mut rest = has;
        for reserved in [&configuration.system_reserved, &configuration.kube_reserved] {
            if let Some(reserved) = reserved.get(name) {
                rest -= *reserved;
            }
        }
        if let Some(kept) = hard_threshold(name, has, configuration) {
            rest -= kept;
        }
        if name == MEMORY {
            rest -= Quantity::from_value(huge, Notation::BinarySi);
        }
        if rest.is_negative() {
            rest = Quantity::default();
        }
        left.insert(name.clone(), rest.to_wire());
    }
    left
}

/// The bytes of memory that are not allocatable; `reservedMemory` has to distribute them over the NUMA nodes.
pub fn withheld_memory(
    capacity: &BTreeMap<String, Wire>,
    configuration: &KubeletConfiguration,
) -> BTreeMap<String, u64> {
    let has = capacity
        .get(MEMORY)
        .and_then(|q| Quantity::of(q).ok())
        .unwrap_or_default();
    let reserved = [&configuration.system_reserved, &configuration.kube_reserved];
    let mut sum = hard_threshold(MEMORY, has, configuration).map_or(0, |q| q.value());
    for reserved in reserved.into_iter().filter_map(|of| of.get(MEMORY)) {
        sum = sum.saturating_add(reserved.value());
    }
    BTreeMap::from([(MEMORY.to_string(), u64::try_from(sum).unwrap_or(0))])
}

/// The hard eviction threshold of a resource.
fn hard_threshold(name: &str, has: Quantity, configuration: &KubeletConfiguration) -> Option<Quantity> {
    let signal = match name {
        MEMORY => Signal::MemoryAvailable,
        "ephemeral-storage" => Signal::NodeFsAvailable,
        _ => return None,
    };
    let thresholds = &configuration.eviction.thresholds;
    let hard = thresholds.iter().find(|t| t.is_hard() && t.signal == signal)?;
    let amount = hard.value.of(has.value());
    Some(Quantity::from_value(amount.value(), Notation::BinarySi))
}

/// The number of pods that a node with this many cores admits.
pub fn max_pods(configuration: &KubeletConfiguration, cpus: usize) -> u32 {
    let cpus = u32::try_from(cpus).unwrap_or(u32::MAX);
    match configuration.pods_per_core {
        0 => configuration.max_pods,
        each => configuration.max_pods.min(each.saturating_mul(cpus)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn t8_allocatable_is_capacity_without_reservations_and_thresholds() {
        let configuration = crate::configuration::read(&json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "systemReserved": {"cpu": "100m", "memory": "100Mi"}, "kubeReserved": {"cpu": "400m"},
            "podsPerCore": 10,
        }))
        .unwrap();
        let capacity = BTreeMap::from([
            ("cpu".to_string(), Wire("2".into())),
            ("memory".to_string(), Wire("1048576Ki".into())),
            ("ephemeral-storage".to_string(), Wire("1000Ki".into())),
            ("pods".to_string(), Wire("20".into())),
        ]);
        let left = allocatable(&capacity, &configuration);
        let text = |name: &str| left[name].0.as_str();
        assert_eq!(text("cpu"), "1500m");
        assert_eq!(text("memory"), "824Mi", "less 100Mi for memory.available");
        assert_eq!(text("ephemeral-storage"), "900Ki", "and 10% for nodefs.available");
        assert_eq!(text("pods"), "20");
        let withheld = withheld_memory(&capacity, &configuration);
        assert_eq!(withheld, BTreeMap::from([("memory".to_string(), 200 << 20)]));
        let mut capacity = capacity;
        for (name, has, memory) in [
            ("hugepages-2Mi", "8Mi", "816Mi"),
            ("hugepages-512Mi", "512Mi", "304Mi"),
            ("hugepages-1Gi", "1Gi", "0"),
        ] {
            capacity.insert(name.into(), Wire(has.into()));
            let left = allocatable(&capacity, &configuration);
            assert_eq!((left[name].0.as_str(), left["memory"].0.as_str()), (has, memory));
        }
        assert_eq!(max_pods(&configuration, 2), 20);
        assert_eq!(max_pods(&KubeletConfiguration::default(), 2), 110);
    }
}
