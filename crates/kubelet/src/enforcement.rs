//! What all pods together may use, and how classes of service share it.
//!
//! Guaranteed pods stand directly below the group of all pods; the others below one group a class. A class weighs what its
//! pods ask for: without that, a class of pods that ask for nothing would weigh as much as a whole core that is
//! guaranteed to somebody.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::resources::qos_class;
use knarr_api::quantity::Quantity;

use crate::cgroup::Group;
use crate::configuration::KubeletConfiguration;
use crate::huge_pages::{self, PageSizes};
use crate::resources;

/// What a group may use. 0 bytes is no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portion {
    pub group: Group,
    pub milli_cpu: i64,
    pub memory_bytes: i64,
    /// Bytes by page size.
    pub huge_pages: huge_pages::Amounts,
}

/// Of all pods: what the machine has, without what is reserved if that is enforced. What eviction keeps free is not taken
/// off: eviction comes before the kernel's limit.
pub fn of_all_pods(capacity: &BTreeMap<String, Wire>, configuration: &KubeletConfiguration) -> Portion {
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
    Portion {
        group: Group::root(),
        milli_cpu: left("cpu").milli_value(),
        memory_bytes: left("memory").value(),
        huge_pages: huge_pages::of_list(capacity)
            .into_keys()
            .map(|page| (page, left(&huge_pages::resource(page)).value()))
            .collect(),
    }
}

/// Of the two classes that have groups.
pub fn of_classes<'a>(pods: impl Iterator<Item = &'a Pod>, pages: &PageSizes) -> [Portion; 2] {
    let mut burstable = 0_i64;
    for pod in pods.filter(|pod| !has_ended(pod) && class(pod) == "Burstable") {
        let asked = resources::requests(pod).get("cpu").copied().unwrap_or(0);
        burstable = burstable.saturating_add(asked);
    }
    [("burstable", burstable), ("besteffort", 0)].map(|(class, milli_cpu)| Portion {
        group: Group::of_class(class),
        milli_cpu,
        memory_bytes: 0,
        huge_pages: pages.unlimited(),
    })
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn class(pod: &Pod) -> &str {
    let told = pod.status.as_ref().and_then(|s| s.qos_class.as_deref());
    told.unwrap_or_else(|| pod.spec.as_ref().map_or("BestEffort", qos_class))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn t8_all_pods_have_what_is_not_reserved() {
        let capacity = BTreeMap::from([
            ("cpu".to_string(), Wire("4".into())),
            ("memory".to_string(), Wire("1Gi".into())),
            ("hugepages-2Mi".to_string(), Wire("8Mi".into())),
        ]);
        for (said, milli_cpu, mebibytes, huge) in [
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
            let mut document = said.clone();
            document["apiVersion"] = json!("kubelet.config.k8s.io/v1beta1");
            document["kind"] = json!("KubeletConfiguration");
            let configuration = crate::configuration::read(&document).unwrap();
            let got = of_all_pods(&capacity, &configuration);
            let want = Portion {
                group: Group::root(),
                milli_cpu,
                memory_bytes: mebibytes << 20,
                huge_pages: [(2 << 20, huge << 20)].into(),
            };
            assert_eq!(got, want, "{said}");
        }
    }

    #[test]
    fn t8_a_class_weighs_what_its_living_pods_ask_for() {
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
        let classes = of_classes(pods.iter(), &pages);
        assert!(classes.iter().all(|class| class.huge_pages == pages.unlimited()));
        let got = classes.map(|p| (p.group.path(crate::cgroup::CgroupDriver::Cgroupfs), p.milli_cpu));
        let want = [
            ("/kubepods/burstable".to_string(), 500),
            ("/kubepods/besteffort".to_string(), 0),
        ];
        assert_eq!(got, want);
    }
}
