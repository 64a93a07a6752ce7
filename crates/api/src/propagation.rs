//! How far changes of EndpointSlices have been applied in the kernels of nodes (SPEC B7): the names and fields with which network
//! agents report it, the control plane sums it up, and kubelets read it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;

/// Annotation of a network agent's Lease: the resourceVersion up to which its kernel has all EndpointSlices.
pub const REVISION: &str = "knarr.io/endpoint-slices-revision";
/// The ConfigMap in `knarr-network` that sums the Leases up.
pub const CONFIG_MAP: &str = "endpoint-propagation";

/// The data of that ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Propagation {
    /// The kernels of all nodes with a proxy that renew their Lease, Ready or not, have all EndpointSlices up to this resourceVersion.
    pub revision: u64,
    /// The number of these nodes.
    pub nodes: usize,
    /// One of the nodes with the lowest revision, for display.
    pub slowest: String,
}

impl Propagation {
    /// `None` where it does not parse.
    pub fn of(map: &ConfigMap) -> Option<Self> {
        let data = map.data.as_ref()?;
        Some(Propagation {
            revision: data.get("revision")?.parse().ok()?,
            nodes: data.get("nodes")?.parse().ok()?,
            slowest: data.get("slowest").cloned().unwrap_or_default(),
        })
    }

    /// The data for the ConfigMap.
    pub fn to_data(&self) -> BTreeMap<String, String> {
        [
            ("revision".to_string(), self.revision.to_string()),
            ("nodes".to_string(), self.nodes.to_string()),
            ("slowest".to_string(), self.slowest.clone()),
        ]
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b7_what_is_written_is_read() {
        let wrote = Propagation {
            revision: 12,
            nodes: 3,
            slowest: "n1".into(),
        };
        let map = ConfigMap {
            data: Some(wrote.to_data()),
            ..ConfigMap::default()
        };
        assert_eq!(Propagation::of(&map), Some(wrote));
        assert_eq!(Propagation::of(&ConfigMap::default()), None);
    }
}
