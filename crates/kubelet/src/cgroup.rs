//! Where pods' control groups are, by the driver that makes them: directories of the same names, or systemd's slices.
//!
//! Names only. A systemd slice's name says its whole way (`a-b-c.slice` lies in `a-b.slice` in `a.slice`), so dashes
//! within a part become underscores.

pub use crate::configuration::CgroupDriver;

/// What all pods' groups are below.
pub const ROOT: &str = "kubepods";

/// A group of the kubelet's, below the root of the hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group(Vec<String>);

impl Group {
    /// Of all pods.
    pub fn root() -> Self {
        Group(vec![ROOT.into()])
    }

    /// Of the pods of a class of service: `burstable` or `besteffort`.
    pub fn of_class(class: &str) -> Self {
        let mut parts = Group::root().0;
        parts.push(class.into());
        Group(parts)
    }

    /// Of one pod. `class` is its class of service as a group, none for guaranteed pods.
    pub fn of_pod(class: Option<&str>, uid: &str) -> Self {
        let mut parts = Group::root().0;
        parts.extend(class.map(str::to_string));
        parts.push(format!("pod{uid}"));
        Group(parts)
    }

    /// The slices on the way to it, the outermost first.
    fn slices(&self) -> Vec<String> {
        let parts: Vec<String> = self.0.iter().map(|part| part.replace('-', "_")).collect();
        (1..=parts.len())
            .map(|n| format!("{}.slice", parts[..n].join("-")))
            .collect()
    }

    /// Its directory below the root of the hierarchy, which is also what the runtime is told.
    pub fn path(&self, driver: CgroupDriver) -> String {
        match driver {
            CgroupDriver::Cgroupfs => format!("/{}", self.0.join("/")),
            CgroupDriver::Systemd => format!("/{}", self.slices().join("/")),
        }
    }

    /// Its unit's name.
    pub fn slice(&self) -> String {
        self.slices().pop().unwrap_or_default()
    }

    /// The group that containerd makes in it for a container.
    pub fn path_of_container(&self, driver: CgroupDriver, id: &str) -> String {
        match driver {
            CgroupDriver::Cgroupfs => format!("{}/{id}", self.path(driver)),
            CgroupDriver::Systemd => format!("{}/cri-containerd-{id}.scope", self.path(driver)),
        }
    }
}

/// A pod's limits as a slice's properties; the kernel's shares of CPU and microseconds are handed in, where 0 is none.
pub fn properties(shares: i64, quota: i64, period: i64, memory_bytes: i64, pids: Option<u64>) -> Vec<String> {
    let mut said = Vec::new();
    if shares > 0 {
        said.push(format!("CPUWeight={}", weight(shares)));
    }
    if quota > 0 && period > 0 {
        // systemd counts microseconds of a second, in whole percent of a hundredth.
        let per_second = quota.saturating_mul(1_000_000) / period;
        let rounded = per_second.saturating_add(9_999) / 10_000 * 10_000;
        said.push(format!("CPUQuota={}%", rounded / 10_000));
        said.push(format!("CPUQuotaPeriodSec={period}us"));
    }
    if memory_bytes > 0 {
        said.push(format!("MemoryMax={memory_bytes}"));
    }
    said.extend(pids.map(|pids| format!("TasksMax={pids}")));
    said
}

/// Version 2 counts weights from 1 to 10000 where version 1 counted shares from 2 to 262144.
pub fn weight(shares: i64) -> i64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_drivers_name_a_pods_group_as_kubelets_do() {
        let uid = "1234-abcd-5678";
        for (group, directory, slice) in [
            (Group::root(), "/kubepods", "/kubepods.slice"),
            (
                Group::of_class("burstable"),
                "/kubepods/burstable",
                "/kubepods.slice/kubepods-burstable.slice",
            ),
            (
                Group::of_pod(None, uid),
                "/kubepods/pod1234-abcd-5678",
                "/kubepods.slice/kubepods-pod1234_abcd_5678.slice",
            ),
            (
                Group::of_pod(Some("burstable"), uid),
                "/kubepods/burstable/pod1234-abcd-5678",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_abcd_5678.slice",
            ),
            (
                Group::of_pod(Some("besteffort"), "f00"),
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
    fn a_containers_group_is_where_containerd_makes_it() {
        let group = Group::of_pod(Some("burstable"), "u-1");
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
            "never less than was asked for"
        );
        assert_eq!(properties(0, 0, 0, 0, None), [""; 0]);
    }
}
