//! Requests and limits in the kernel's terms (cgroup v1's; the runtime translates for v2).

use k8s_cri::v1::LinuxContainerResources;
use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_api::quantity::Quantity;
use knarr_kubelet::cgroup::Group;
use knarr_kubelet::configuration::KubeletConfiguration;

use crate::cgroup::Limits;

/// The kernel's smallest share.
const MIN_SHARES: i64 = 2;
/// The kernel's smallest quota.
const MIN_QUOTA_MICROS: i64 = 1000;

/// A pod's standing when memory runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qos {
    Guaranteed,
    Burstable,
    BestEffort,
}

/// As the API says, else worked out from the spec.
pub fn qos(pod: &core::Pod) -> Qos {
    let told = pod.status.as_ref().and_then(|s| s.qos_class.as_deref());
    match told {
        Some("Guaranteed") => return Qos::Guaranteed,
        Some("Burstable") => return Qos::Burstable,
        Some("BestEffort") => return Qos::BestEffort,
        _ => {}
    }
    let spec = pod.spec.as_ref();
    let containers = spec.into_iter().flat_map(|s| {
        let init = s.init_containers.iter().flatten();
        init.chain(&s.containers)
    });
    let (mut any, mut all_equal) = (false, true);
    for container in containers {
        for name in ["cpu", "memory"] {
            let (request, limit) = (amount(container, name, true), amount(container, name, false));
            any |= request.is_some() || limit.is_some();
            let equal = limit.is_some() && (request.is_none() || request == limit);
            all_equal &= equal;
        }
    }
    match (any, all_equal) {
        (false, _) => Qos::BestEffort,
        (true, true) => Qos::Guaranteed,
        (true, false) => Qos::Burstable,
    }
}

/// A request or limit that is set and not zero. What does not parse has been refused by the API.
fn amount(container: &core::Container, name: &str, request: bool) -> Option<Quantity> {
    let resources = container.resources.as_ref()?;
    let list = if request {
        &resources.requests
    } else {
        &resources.limits
    };
    let quantity = Quantity::parse(&list.as_ref()?.get(name)?.0).ok()?;
    (quantity.milli_value() > 0).then_some(quantity)
}

fn shares(milli_cpu: i64) -> i64 {
    (milli_cpu * 1024 / 1000).max(MIN_SHARES)
}

/// How limits of CPU are enforced, if they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuQuota {
    period_micros: Option<i64>,
}

impl CpuQuota {
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

/// Who is killed first when memory runs out: the more, the sooner.
fn oom_score_adj(pod: &core::Pod, container: &core::Container, node_memory_bytes: i64) -> i64 {
    let critical = pod
        .spec
        .as_ref()
        .and_then(|s| s.priority)
        .is_some_and(|p| p >= 2_000_000_000);
    match qos(pod) {
        _ if critical => -997,
        Qos::Guaranteed => -997,
        Qos::BestEffort => 1000,
        Qos::Burstable => {
            let request = amount(container, "memory", true).map_or(0, |q| q.value());
            let adjusted = 1000 - 1000 * request / node_memory_bytes.max(1);
            adjusted.clamp(3, 999)
        }
    }
}

/// Of one container.
pub fn of_container(
    pod: &core::Pod,
    container: &core::Container,
    node_memory_bytes: i64,
    quota: CpuQuota,
) -> LinuxContainerResources {
    let request = amount(container, "cpu", true).or_else(|| amount(container, "cpu", false));
    let limit = amount(container, "cpu", false);
    let (cpu_period, cpu_quota) = quota.of_limit(limit.map(|q| q.milli_value()));
    LinuxContainerResources {
        cpu_shares: shares(request.map_or(0, |q| q.milli_value())),
        cpu_period,
        cpu_quota,
        memory_limit_in_bytes: amount(container, "memory", false).map_or(0, |q| q.value()),
        oom_score_adj: oom_score_adj(pod, container, node_memory_bytes),
        ..LinuxContainerResources::default()
    }
}

/// Of the whole pod, for its cgroup: limits only where every container has one.
pub fn of_pod(pod: &core::Pod, configuration: &KubeletConfiguration) -> Limits {
    let Some(spec) = &pod.spec else {
        return Limits::default();
    };
    let sum = |name: &str, request: bool, milli: bool| -> Option<i64> {
        let mut total = 0;
        for container in &spec.containers {
            let quantity = amount(container, name, request);
            let quantity = quantity.or_else(|| request.then(|| amount(container, name, false)).flatten());
            match quantity {
                Some(q) => total += if milli { q.milli_value() } else { q.value() },
                None if request => {}
                None => return None,
            }
        }
        // Init containers run before the others, one at a time: the largest counts.
        for container in spec.init_containers.iter().flatten() {
            match amount(container, name, request) {
                Some(q) => total = total.max(if milli { q.milli_value() } else { q.value() }),
                None if request => {}
                None => return None,
            }
        }
        Some(total)
    };
    let (cpu_period, cpu_quota) = CpuQuota::of(configuration).of_limit(sum("cpu", false, true));
    Limits {
        cpu_shares: shares(sum("cpu", true, true).unwrap_or(0)),
        cpu_period,
        cpu_quota,
        memory_bytes: sum("memory", false, false).unwrap_or(0),
        pids: configuration.pod_pids_limit,
    }
}

/// A pod's control group.
pub fn group(pod: &core::Pod) -> Group {
    let uid = pod.metadata.uid.as_deref().unwrap_or("");
    let class = match qos(pod) {
        Qos::Guaranteed => None,
        Qos::Burstable => Some("burstable"),
        Qos::BestEffort => Some("besteffort"),
    };
    Group::of_pod(class, uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn limits_of_cpu_are_enforced_as_the_node_is_told() {
        let pod: core::Pod = serde_json::from_value(json!({"spec": {"containers": [
            {"name": "c", "resources": {"limits": {"cpu": "500m", "memory": "1Mi"}}},
        ]}}))
        .unwrap();
        for (said, period, quota) in [
            (json!({}), 100_000, 50_000),
            (json!({"cpuCFSQuotaPeriod": "10ms"}), 10_000, 5000),
            (json!({"cpuCFSQuotaPeriod": "1ms"}), 1000, 1000),
            (json!({"cpuCFSQuota": false}), 0, 0),
        ] {
            let mut document = said.clone();
            document["apiVersion"] = json!("kubelet.config.k8s.io/v1beta1");
            document["kind"] = json!("KubeletConfiguration");
            document["podPidsLimit"] = json!(77);
            let configuration = knarr_kubelet::configuration::read(&document).unwrap();
            let spec = pod.spec.as_ref().unwrap();
            let container = of_container(&pod, &spec.containers[0], 1 << 30, CpuQuota::of(&configuration));
            assert_eq!(
                (container.cpu_period, container.cpu_quota),
                (period, quota),
                "{said}"
            );
            let whole = of_pod(&pod, &configuration);
            let want = Limits {
                cpu_shares: 512,
                cpu_period: period,
                cpu_quota: quota,
                memory_bytes: 1 << 20,
                pids: Some(77),
            };
            assert_eq!(whole, want, "{said}");
        }
    }
}
