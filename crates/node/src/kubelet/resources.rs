//! Requests and limits in the kernel's terms (cgroup v1's; the runtime translates for v2).

use k8s_cri::v1::{HugepageLimit, LinuxContainerResources};
use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::resources::{
    RequirementKind, aggregate_containers, is_sidecar, pod_resources, qos_class,
};
use knarr_apimachinery::ids::PodUid;
use knarr_kubelet::admission::is_critical;
use knarr_kubelet::cgroup::CgroupName;
use knarr_kubelet::configuration::KubeletConfiguration;
use knarr_kubelet::huge_pages::{PageSizes, kernel_name};
use knarr_kubelet::resources::{limit_of_all, set, with_limits_of_pod};

use crate::cgroup::Limits;

/// The kernel's smallest share.
const MIN_SHARES: i64 = 2;
/// And its largest.
const MAX_SHARES: i64 = 262_144;
/// The kernel's smallest quota.
const MIN_QUOTA_MICROS: i64 = 1000;
/// How much sooner than others a container is killed for memory: those that are killed last, and first.
const NEVER_FIRST: i64 = -997;
const ALWAYS_FIRST: i64 = 1000;
/// The priority class of pods that are critical to their node.
const NODE_CRITICAL: &str = "system-node-critical";

/// A pod's QoS class, with critical pods apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qos {
    Guaranteed,
    Burstable,
    BestEffort,
}

/// From the status, else computed from the spec.
pub fn qos(pod: &core::Pod) -> Qos {
    let from_status = pod.status.as_ref().and_then(|s| s.qos_class.as_deref());
    let class = from_status.or_else(|| pod.spec.as_ref().map(qos_class));
    match class {
        Some("Guaranteed") => Qos::Guaranteed,
        Some("Burstable") => Qos::Burstable,
        _ => Qos::BestEffort,
    }
}

pub(super) fn shares(milli_cpu: i64) -> i64 {
    (milli_cpu.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// How limits of CPU are enforced, if they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuQuota {
    period_micros: Option<i64>,
}

impl CpuQuota {
    /// No limit is enforced.
    pub const NONE: CpuQuota = CpuQuota { period_micros: None };

    pub fn of(configuration: &KubeletConfiguration) -> Self {
        let period = configuration.cpu_cfs_quota_period.as_micros();
        let enforced = configuration.cpu_cfs_quota;
        CpuQuota {
            period_micros: i64::try_from(period).ok().filter(|_| enforced),
        }
    }

    /// Period and quota in microseconds; both are 0 where there is no limit.
    fn of_limit(self, milli_cpu: Option<i64>) -> (i64, i64) {
        match (self.period_micros, milli_cpu) {
            (Some(period), Some(milli)) => (period, (milli * period / 1000).max(MIN_QUOTA_MICROS)),
            _ => (0, 0),
        }
    }
}

/// The higher, the earlier the OOM killer selects it.
fn oom_score_adj(pod: &core::Pod, container: &core::Container, node_memory_bytes: i64) -> i64 {
    let none = core::PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&none);
    let class = spec.priority_class_name.as_deref();
    if is_critical(pod) && class == Some(NODE_CRITICAL) {
        return NEVER_FIRST;
    }
    match qos(pod) {
        Qos::Guaranteed => NEVER_FIRST,
        Qos::BestEffort => ALWAYS_FIRST,
        Qos::Burstable => {
            let request = |c: &core::Container| {
                set(c.resources.as_ref(), RequirementKind::Requests, "memory").map_or(0, |q| q.value())
            };
            let share = share_of_the_rest(spec);
            let score = |bytes: i64| 1000 - 1000 * (bytes + share) / node_memory_bytes.max(1);
            let mut adjusted = score(request(container));
            // A sidecar does not go before the containers it serves.
            if is_sidecar(container) {
                let least = spec.containers.iter().map(request).min().unwrap_or(0);
                adjusted = adjusted.min(score(least));
            }
            adjusted.clamp(1000 + NEVER_FIRST, ALWAYS_FIRST - 1)
        }
    }
}

/// Each container's share of the pod-level memory request beyond its containers' requests.
fn share_of_the_rest(spec: &core::PodSpec) -> i64 {
    let Some(whole) = set(spec.resources.as_ref(), RequirementKind::Requests, "memory") else {
        return 0;
    };
    let requested = aggregate_containers(spec, RequirementKind::Requests)
        .get("memory")
        .map_or(0, |q| q.value());
    let count = spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len);
    (whole.value() - requested) / i64::try_from(count).unwrap_or(i64::MAX).max(1)
}

/// The resources of one container; the pod's limits apply where it has none.
pub fn of_container(
    pod: &core::Pod,
    container: &core::Container,
    node_memory_bytes: i64,
    quota: CpuQuota,
    pages: &PageSizes,
) -> LinuxContainerResources {
    let own = container.resources.clone().unwrap_or_default();
    let of_pod = pod.spec.as_ref().and_then(|s| s.resources.as_ref());
    let held = with_limits_of_pod(&own, of_pod);
    let limit = set(Some(&held), RequirementKind::Limits, "cpu");
    let request = set(Some(&held), RequirementKind::Requests, "cpu").or(limit);
    let (cpu_period, cpu_quota) = quota.of_limit(limit.map(|q| q.milli_value()));
    let huge = pages.of_container(pod, container).into_iter();
    let hugepage_limits = huge.map(|(page, bytes)| HugepageLimit {
        page_size: kernel_name(page),
        limit: u64::try_from(bytes).unwrap_or(0),
    });
    LinuxContainerResources {
        cpu_shares: shares(request.map_or(0, |q| q.milli_value())),
        cpu_period,
        cpu_quota,
        memory_limit_in_bytes: set(Some(&held), RequirementKind::Limits, "memory").map_or(0, |q| q.value()),
        oom_score_adj: oom_score_adj(pod, container, node_memory_bytes),
        hugepage_limits: hugepage_limits.collect(),
        ..LinuxContainerResources::default()
    }
}

/// Of the whole pod, for its cgroup: limits only where it or every container has one.
pub fn of_pod(
    pod: &core::Pod,
    configuration: &KubeletConfiguration,
    quota: CpuQuota,
    pages: &PageSizes,
) -> Limits {
    let Some(spec) = &pod.spec else {
        return Limits::default();
    };
    let cpu = pod_resources(spec, RequirementKind::Requests).get("cpu").copied();
    let limit = limit_of_all(pod, "cpu");
    let (cpu_period, cpu_quota) = quota.of_limit(limit.map(|q| q.milli_value()));
    Limits {
        cpu_shares: shares(cpu.map_or(0, |q| q.milli_value())),
        cpu_period,
        cpu_quota,
        memory_bytes: limit_of_all(pod, "memory").map_or(0, |q| q.value()),
        pids: configuration.pod_pids_limit,
        huge_pages: pages.of_pod(pod),
    }
}

/// A pod's control group.
pub fn group(pod: &core::Pod) -> CgroupName {
    let uid = &PodUid::of(&pod.metadata);
    let class = match qos(pod) {
        Qos::Guaranteed => None,
        Qos::Burstable => Some("burstable"),
        Qos::BestEffort => Some("besteffort"),
    };
    CgroupName::of_pod(class, uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use serde_json::json;

    #[test]
    fn cpu_limits_are_enforced_as_configured() {
        let pod: core::Pod = serde_json::from_value(json!({"spec": {"containers": [
            {"name": "c", "resources": {
                "requests": {"cpu": "500m", "memory": "1Mi"}, "limits": {"cpu": "500m", "memory": "1Mi"},
            }},
        ]}}))
        .unwrap();
        for (document, period, quota) in [
            (json!({}), 100_000, 50_000),
            (json!({"cpuCFSQuotaPeriod": "10ms"}), 10_000, 5000),
            (json!({"cpuCFSQuotaPeriod": "1ms"}), 1000, 1000),
            (json!({"cpuCFSQuota": false}), 0, 0),
        ] {
            let mut document = document.clone();
            document["apiVersion"] = json!("kubelet.config.k8s.io/v1beta1");
            document["kind"] = json!("KubeletConfiguration");
            document["podPidsLimit"] = json!(77);
            let configuration = knarr_kubelet::configuration::read(&document).unwrap();
            let spec = pod.spec.as_ref().unwrap();
            let container = of_container(
                &pod,
                &spec.containers[0],
                1 << 30,
                CpuQuota::of(&configuration),
                &PageSizes::default(),
            );
            assert_eq!(
                (container.cpu_period, container.cpu_quota),
                (period, quota),
                "{document}"
            );
            let whole = of_pod(
                &pod,
                &configuration,
                CpuQuota::of(&configuration),
                &PageSizes::default(),
            );
            let want = Limits {
                cpu_shares: 512,
                cpu_period: period,
                cpu_quota: quota,
                memory_bytes: 1 << 20,
                pids: Some(77),
                huge_pages: [].into(),
            };
            assert_eq!(whole, want, "{document}");
        }
    }

    fn pod(spec: serde_json::Value) -> core::Pod {
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    #[test]
    fn l4_the_pods_own_resources_are_its_groups_and_its_containers_limits() {
        let configuration = KubeletConfiguration::default();
        let requires = |requests: serde_json::Value, limits: serde_json::Value| json!({"requests": requests, "limits": limits});
        let none = json!({});
        // Shares, quota and memory of the group, then of the first container.
        for (whole, own, group, container) in [
            (none.clone(), none.clone(), (2, 0, 0), (2, 0, 0)),
            (
                requires(
                    json!({"cpu": "1", "memory": "2Mi"}),
                    json!({"cpu": "2", "memory": "2Mi"}),
                ),
                none.clone(),
                (1024, 200_000, 2 << 20),
                (2048, 200_000, 2 << 20),
            ),
            (
                requires(json!({"cpu": "5m"}), json!({"cpu": "25m"})),
                requires(json!({"cpu": "2m"}), json!({"cpu": "10m"})),
                (5, 2500, 0),
                (2, 1000, 0),
            ),
            (
                // Only requests: the containers' limits hold, if all have one.
                requires(json!({"cpu": "30m"}), none.clone()),
                requires(json!({"cpu": "10m"}), json!({"cpu": "20m"})),
                (30, 0, 0),
                (10, 2000, 0),
            ),
        ] {
            let pod = pod(json!({
                "resources": whole, "containers": [{"name": "a", "resources": own}, {"name": "b"}],
            }));
            let limits = of_pod(
                &pod,
                &configuration,
                CpuQuota::of(&configuration),
                &PageSizes::default(),
            );
            let got = (limits.cpu_shares, limits.cpu_quota, limits.memory_bytes);
            assert_eq!(got, group, "{whole}");
            let first = &pod.spec.as_ref().unwrap().containers[0];
            let given = of_container(
                &pod,
                first,
                1 << 30,
                CpuQuota::of(&configuration),
                &PageSizes::default(),
            );
            let got = (given.cpu_shares, given.cpu_quota, given.memory_limit_in_bytes);
            assert_eq!(got, container, "{whole} {own}");
        }
    }

    #[test]
    fn l4_huge_pages_are_limited_for_every_size_the_node_has() {
        let has = |name: &str| (name.to_string(), Quantity("0".into()));
        let pages =
            PageSizes::of_capacity(&[has("hugepages-1Gi"), has("hugepages-2Mi"), has("memory")].into());
        let huge = json!({"memory": "1Mi", "hugepages-2Mi": "4Mi"});
        let pod = pod(json!({"containers": [
            {"name": "a", "resources": {"requests": huge, "limits": huge}}, {"name": "b"},
        ]}));
        let limits = of_pod(
            &pod,
            &KubeletConfiguration::default(),
            CpuQuota::of(&KubeletConfiguration::default()),
            &pages,
        );
        assert_eq!(limits.huge_pages, [(2 << 20, 4 << 20), (1 << 30, 0)].into());
        let quota = CpuQuota::of(&KubeletConfiguration::default());
        for (i, want) in [[("2MB", 4 << 20), ("1GB", 0)], [("2MB", 0), ("1GB", 0)]]
            .into_iter()
            .enumerate()
        {
            let container = &pod.spec.as_ref().unwrap().containers[i];
            let given = of_container(&pod, container, 1 << 30, quota, &pages).hugepage_limits;
            let given: Vec<_> = given.iter().map(|l| (l.page_size.as_str(), l.limit)).collect();
            assert_eq!(given, want);
        }
    }

    #[test]
    fn t8_who_is_killed_first_for_memory() {
        const NODE: i64 = 1000 << 20;
        let memory = |requests: &str| json!({"requests": {"memory": requests}});
        let limited =
            json!({"requests": {"cpu": "1", "memory": "1Mi"}, "limits": {"cpu": "1", "memory": "1Mi"}});
        for (what, spec, want) in [
            ("best effort", json!({"containers": [{"name": "a"}]}), 1000),
            (
                "guaranteed",
                json!({"containers": [{"name": "a", "resources": limited}]}),
                -997,
            ),
            (
                "a tenth",
                json!({"containers": [{"name": "a", "resources": memory("100Mi")}]}),
                900,
            ),
            (
                "all",
                json!({"containers": [{"name": "a", "resources": memory("1000Mi")}]}),
                3,
            ),
            (
                "a little",
                json!({"containers": [{"name": "a", "resources": memory("1")}]}),
                999,
            ),
            (
                "half of what the pod asks for beyond its containers",
                json!({
                    "resources": memory("400Mi"),
                    "containers": [{"name": "a", "resources": memory("100Mi")}, {"name": "b"}],
                }),
                750,
            ),
            (
                "what the node cannot do without",
                json!({"priority": 2_000_001_000, "priorityClassName": NODE_CRITICAL, "containers": [{"name": "a"}]}),
                -997,
            ),
            (
                "what the cluster cannot do without",
                json!({"priority": 2_000_000_000, "priorityClassName": "system-cluster-critical", "containers": [{"name": "a"}]}),
                1000,
            ),
        ] {
            let pod = pod(spec);
            let first = &pod.spec.as_ref().unwrap().containers[0];
            assert_eq!(oom_score_adj(&pod, first, NODE), want, "{what}");
        }
        let pod = pod(json!({
            "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": memory("100Mi")}],
            "containers": [{"name": "a", "resources": memory("300Mi")}, {"name": "b", "resources": memory("200Mi")}],
        }));
        let sidecar = &pod.spec.as_ref().unwrap().init_containers.as_ref().unwrap()[0];
        assert_eq!(
            oom_score_adj(&pod, sidecar, NODE),
            800,
            "as the first of those it serves"
        );
    }
}
