//! The resources of the cgroups above the pods': of all pods (Node Allocatable) and of the QoS classes.
//!
//! The cgroups of Guaranteed pods are directly below the cgroup of all pods; the others are below the cgroup of their QoS
//! class. The CPU weight of a QoS class is the sum of its pods' requests: without that, a class of pods without requests
//! would have the weight of a full core that is guaranteed to another pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::resources::qos_class;
use knarr_apimachinery::quantity::Quantity;

use crate::cgroup::CgroupName;
use crate::configuration::KubeletConfiguration;
use crate::huge_pages::{self, PageSizes};
use crate::pod::is_terminal;
use crate::resources;

/// The resources of a cgroup (upstream: `ResourceConfig`). 0 bytes means no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceConfig {
    pub group: CgroupName,
    pub milli_cpu: i64,
    pub memory_bytes: i64,
    /// Bytes by page size.
    pub huge_pages: huge_pages::Amounts,
}

/// The cgroup of all pods: the node's capacity, without reservations if they are enforced. Eviction thresholds are not
/// subtracted: eviction happens before the kernel's limit is reached.
pub fn of_node_allocatable(
    capacity: &BTreeMap<String, Wire>,
    configuration: &KubeletConfiguration,
) -> ResourceConfig {
    let left = |name: &str| -> Quantity {
        let has = capacity.get(name).and_then(|wire| Quantity::of(wire).ok());
        let mut left = has.unwrap_or_default();
        if configuration.enforces_allocatable {
            for reserved in [&configuration.system_reserved, &configuration.kube_reserved] {
                left -= reserved.get(name).copied().unwrap_or_default();
            }
        }
        left.max(Quantity::default())
    };
    ResourceConfig {
        group: CgroupName::root(),
        milli_cpu: left("cpu").milli_value(),
        memory_bytes: left("memory").value(),
        huge_pages: huge_pages::of_list(capacity)
            .into_keys()
            .map(|page| (page, left(&huge_pages::resource(page)).value()))
            .collect(),
    }
}

/// The cgroups of the QoS classes Burstable and BestEffort.
pub fn of_qos_classes<'a>(pods: impl Iterator<Item = &'a Pod>, pages: &PageSizes) -> [ResourceConfig; 2] {
    let mut burstable = 0_i64;
    for pod in pods.filter(|pod| !pod.status.as_ref().is_some_and(is_terminal) && class(pod) == "Burstable") {
        let request = resources::requests(pod).get("cpu").copied().unwrap_or(0);
        burstable = burstable.saturating_add(request);
    }
    [("burstable", burstable), ("besteffort", 0)].map(|(class, milli_cpu)| ResourceConfig {
        group: CgroupName::of_qos_class(class),
        milli_cpu,
        memory_bytes: 0,
        huge_pages: pages.unlimited(),
    })
}

fn class(pod: &Pod) -> &str {
    let reported = pod.status.as_ref().and_then(|s| s.qos_class.as_deref());
    reported.unwrap_or_else(|| pod.spec.as_ref().map_or("BestEffort", qos_class))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn t8_the_cgroup_of_all_pods_has_what_is_not_reserved() {
        let capacity = BTreeMap::from([
            ("cpu".to_string(), Wire("4".into())),
            ("memory".to_string(), Wire("1Gi".into())),
            ("hugepages-2Mi".to_string(), Wire("8Mi".into())),
        ]);
        for (fields, milli_cpu, mebibytes, huge) in [
            (json!({}), 4000, 1024, 8),
            (
                json!({"evictionHard": {"memory.available": "100Mi"}}),
                4000,
                1024,
                8,
            ),
            (
                json!({"kubeReserved": {"cpu": "500m", "memory": "200Mi"}, "systemReserved": {"memory": "24Mi"}}),
                3500,
                800,
                8,
            ),
            (json!({"kubeReserved": {"cpu": "5", "memory": "2Gi"}}), 0, 0, 8),
            (
                json!({"kubeReserved": {"memory": "200Mi"}, "enforceNodeAllocatable": ["none"]}),
                4000,
                1024,
                8,
            ),
        ] {
            let mut document = fields.clone();
            document["apiVersion"] = json!("kubelet.config.k8s.io/v1beta1");
            document["kind"] = json!("KubeletConfiguration");
            let configuration = crate::configuration::read(&document).unwrap();
            let got = of_node_allocatable(&capacity, &configuration);
            let want = ResourceConfig {
                group: CgroupName::root(),
                milli_cpu,
                memory_bytes: mebibytes << 20,
                huge_pages: [(2 << 20, huge << 20)].into(),
            };
            assert_eq!(got, want, "{fields}");
        }
    }

    #[test]
    fn t8_the_weight_of_a_qos_class_is_the_sum_of_its_pods_requests() {
        let pod = |phase: &str, requests: Value, limits: Value| -> Pod {
            let resources = json!({"requests": requests, "limits": limits});
            serde_json::from_value(json!({
                "spec": {"containers": [{"name": "c", "resources": resources}]}, "status": {"phase": phase},
            }))
            .unwrap()
        };
        let whole = json!({"cpu": "1", "memory": "1Mi"});
        let pods = [
            pod("Running", json!({"cpu": "300m"}), json!({})),
            pod("Pending", json!({"cpu": "200m"}), json!({})),
            pod("Failed", json!({"cpu": "400m"}), json!({})),
            pod("Running", json!({"memory": "1Mi"}), json!({})),
            pod("Running", whole.clone(), whole),
            pod("Running", json!({}), json!({})),
        ];
        let pages = PageSizes::of_capacity(&[("hugepages-2Mi".to_string(), Wire("0".into()))].into());
        let classes = of_qos_classes(pods.iter(), &pages);
        assert!(classes.iter().all(|class| class.huge_pages == pages.unlimited()));
        let got = classes.map(|p| (p.group.path(crate::cgroup::CgroupDriver::Cgroupfs), p.milli_cpu));
        let want = [
            ("/kubepods/burstable".to_string(), 500),
            ("/kubepods/besteffort".to_string(), 0),
        ];
        assert_eq!(got, want);
    }
}
