//! Requests and limits in the kernel's terms (cgroup v1's; the runtime translates for v2).

use k8s_cri::v1::LinuxContainerResources;
use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_api::quantity::Quantity;

/// The kernel's smallest share.
const MIN_SHARES: i64 = 2;
const CPU_PERIOD_MICROS: i64 = 100_000;
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

fn quota(milli_cpu: i64) -> i64 {
    (milli_cpu * CPU_PERIOD_MICROS / 1000).max(MIN_QUOTA_MICROS)
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
) -> LinuxContainerResources {
    let request = amount(container, "cpu", true).or_else(|| amount(container, "cpu", false));
    let limit = amount(container, "cpu", false);
    LinuxContainerResources {
        cpu_shares: shares(request.map_or(0, |q| q.milli_value())),
        cpu_period: limit.map_or(0, |_| CPU_PERIOD_MICROS),
        cpu_quota: limit.map_or(0, |q| quota(q.milli_value())),
        memory_limit_in_bytes: amount(container, "memory", false).map_or(0, |q| q.value()),
        oom_score_adj: oom_score_adj(pod, container, node_memory_bytes),
        ..LinuxContainerResources::default()
    }
}

/// Of the whole pod, for its cgroup: limits only where every container has one.
pub fn of_pod(pod: &core::Pod) -> LinuxContainerResources {
    let Some(spec) = &pod.spec else {
        return LinuxContainerResources::default();
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
    let limit = sum("cpu", false, true);
    LinuxContainerResources {
        cpu_shares: shares(sum("cpu", true, true).unwrap_or(0)),
        cpu_period: limit.map_or(0, |_| CPU_PERIOD_MICROS),
        cpu_quota: limit.map_or(0, quota),
        memory_limit_in_bytes: sum("memory", false, false).unwrap_or(0),
        ..LinuxContainerResources::default()
    }
}

/// Where a pod's cgroup is, below the root of the hierarchy.
pub fn cgroup_parent(pod: &core::Pod) -> String {
    let uid = pod.metadata.uid.as_deref().unwrap_or("");
    match qos(pod) {
        Qos::Guaranteed => format!("/kubepods/pod{uid}"),
        Qos::Burstable => format!("/kubepods/burstable/pod{uid}"),
        Qos::BestEffort => format!("/kubepods/besteffort/pod{uid}"),
    }
}
