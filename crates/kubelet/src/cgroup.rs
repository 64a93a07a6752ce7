//! The names of pods' cgroups for each cgroup driver: directories, or systemd slices.
//!
//! Names only. A systemd slice's name contains its path (`a-b-c.slice` is in `a-b.slice` in `a.slice`), so dashes within a
//! part become underscores.

use knarr_apimachinery::ids::PodUid;

pub use crate::configuration::CgroupDriver;

/// The cgroup of all pods.
pub const ROOT: &str = "kubepods";

/// The name of a cgroup, relative to the root of the hierarchy (upstream: `CgroupName`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupName(Vec<String>);

impl CgroupName {
    /// The cgroup of all pods.
    pub fn root() -> Self {
        CgroupName(vec![ROOT.into()])
    }

    /// The cgroup of a QoS class: `burstable` or `besteffort`.
    pub fn of_qos_class(class: &str) -> Self {
        let mut parts = CgroupName::root().0;
        parts.push(class.into());
        CgroupName(parts)
    }

    /// The cgroup of a pod. `class` is its QoS class's cgroup, `None` for Guaranteed pods.
    pub fn of_pod(class: Option<&str>, uid: &PodUid) -> Self {
        let mut parts = CgroupName::root().0;
        parts.extend(class.map(str::to_string));
        parts.push(format!("pod{uid}"));
        CgroupName(parts)
    }

    /// The slices of its path, the outermost first.
    fn slices(&self) -> Vec<String> {
        let parts: Vec<String> = self.0.iter().map(|part| part.replace('-', "_")).collect();
        (1..=parts.len())
            .map(|n| format!("{}.slice", parts[..n].join("-")))
            .collect()
    }

    /// Its path below the root of the hierarchy, as CRI's `cgroup_parent` has it too.
    pub fn path(&self, driver: CgroupDriver) -> String {
        match driver {
            CgroupDriver::Cgroupfs => format!("/{}", self.0.join("/")),
            CgroupDriver::Systemd => format!("/{}", self.slices().join("/")),
        }
    }

    /// The name of its systemd unit.
    pub fn slice(&self) -> String {
        self.slices().pop().unwrap_or_default()
    }

    /// The cgroup that containerd creates in it for a container.
    pub fn path_of_container(&self, driver: CgroupDriver, id: &str) -> String {
        match driver {
            CgroupDriver::Cgroupfs => format!("{}/{id}", self.path(driver)),
            CgroupDriver::Systemd => format!("{}/cri-containerd-{id}.scope", self.path(driver)),
        }
    }
}

/// A pod's limits as properties of a slice; CPU is given in the kernel's shares and microseconds, 0 means no limit.
pub fn properties(shares: i64, quota: i64, period: i64, memory_bytes: i64, pids: Option<u64>) -> Vec<String> {
    let mut properties = Vec::new();
    if shares > 0 {
        properties.push(format!("CPUWeight={}", weight(shares)));
    }
    if quota > 0 && period > 0 {
        // systemd takes microseconds per second, in whole percent.
        let per_second = quota.saturating_mul(1_000_000) / period;
        let rounded = per_second.saturating_add(9_999) / 10_000 * 10_000;
        properties.push(format!("CPUQuota={}%", rounded / 10_000));
        properties.push(format!("CPUQuotaPeriodSec={period}us"));
    }
    if memory_bytes > 0 {
        properties.push(format!("MemoryMax={memory_bytes}"));
    }
    properties.extend(pids.map(|pids| format!("TasksMax={pids}")));
    properties
}

/// Converts shares of cgroup v1 (2 to 262144) to weights of cgroup v2 (1 to 10000).
pub fn weight(shares: i64) -> i64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_drivers_name_a_pods_cgroup_as_upstream_does() {
        let uid = &PodUid::from("1234-abcd-5678");
        for (group, directory, slice) in [
            (CgroupName::root(), "/kubepods", "/kubepods.slice"),
            (
                CgroupName::of_qos_class("burstable"),
                "/kubepods/burstable",
                "/kubepods.slice/kubepods-burstable.slice",
            ),
            (
                CgroupName::of_pod(None, uid),
                "/kubepods/pod1234-abcd-5678",
                "/kubepods.slice/kubepods-pod1234_abcd_5678.slice",
            ),
            (
                CgroupName::of_pod(Some("burstable"), uid),
                "/kubepods/burstable/pod1234-abcd-5678",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_abcd_5678.slice",
            ),
            (
                CgroupName::of_pod(Some("besteffort"), &"f00".into()),
                "/kubepods/besteffort/podf00",
                "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podf00.slice",
            ),
        ] {
            assert_eq!(group.path(CgroupDriver::Cgroupfs), directory);
            assert_eq!(group.path(CgroupDriver::Systemd), slice);
            assert!(slice.ends_with(&format!("/{}", group.slice())), "{slice}");
        }
    }

    #[test]
    fn a_containers_cgroup_is_where_containerd_creates_it() {
        let group = CgroupName::of_pod(Some("burstable"), &"u-1".into());
        assert_eq!(
            group.path_of_container(CgroupDriver::Cgroupfs, "c0"),
            "/kubepods/burstable/podu-1/c0"
        );
        assert_eq!(
            group.path_of_container(CgroupDriver::Systemd, "c0"),
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu_1.slice/cri-containerd-c0.scope"
        );
    }

    #[test]
    fn limits_are_a_slices_properties() {
        assert_eq!(
            properties(1024, 50_000, 100_000, 1 << 20, Some(100)),
            [
                "CPUWeight=39",
                "CPUQuota=50%",
                "CPUQuotaPeriodSec=100000us",
                "MemoryMax=1048576",
                "TasksMax=100"
            ]
        );
        assert_eq!(
            properties(2, 1234, 100_000, 0, None),
            ["CPUWeight=1", "CPUQuota=2%", "CPUQuotaPeriodSec=100000us"],
            "never less than the limit"
        );
        for (quota, period) in [(0, 0), (0, 100_000), (-1, 100_000), (50_000, 0)] {
            assert_eq!(properties(0, quota, period, 0, None), [""; 0], "{quota} {period}");
        }
    }
}
