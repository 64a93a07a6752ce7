//! Which containers may have exclusive CPUs and memory: those of Guaranteed pods without pod-level resources (the feature
//! gate PodLevelResourceManagers is off by default).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::resources::{
    RequirementKind, has_pod_level_resources, is_hugepages, is_sidecar, qos_class,
};
use knarr_apimachinery::ids::PodUid;
use knarr_apimachinery::quantity::Quantity;

/// A container's requests of memory and huge pages, in bytes by resource.
pub type MemoryRequests = BTreeMap<String, u64>;

/// Init and app containers, in this order.
pub fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.iter();
    spec.flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers))
}

/// The containers before the given one, and whether they have finished when it starts.
pub fn before<'a>(pod: &'a Pod, container: &str) -> impl Iterator<Item = (&'a Container, bool)> {
    let spec = pod.spec.iter();
    let all = spec.flat_map(|s| {
        let inits = s.init_containers.iter().flatten();
        let inits = inits.map(|c| (c, !is_sidecar(c)));
        inits.chain(s.containers.iter().map(|c| (c, false)))
    });
    let container = container.to_string();
    all.take_while(move |(c, _)| c.name != container)
}

pub fn uid(pod: &Pod) -> PodUid {
    PodUid::of(&pod.metadata)
}

/// Whether the pod's containers may have exclusive resources.
pub fn qualifies(pod: &Pod) -> bool {
    is_guaranteed(pod)
        && pod
            .spec
            .as_ref()
            .is_some_and(|spec| !has_pod_level_resources(spec))
}

pub fn is_guaranteed(pod: &Pod) -> bool {
    let reported = pod.status.as_ref().and_then(|s| s.qos_class.as_deref());
    let class = reported.or_else(|| pod.spec.as_ref().map(qos_class));
    class == Some("Guaranteed")
}

/// The number of exclusive CPUs of a container of a qualified pod: its request, if that is an integer.
pub fn cpus(container: &Container) -> usize {
    let requests = RequirementKind::Requests.of(container.resources.as_ref());
    let request = requests.and_then(|r| Quantity::of(r.get("cpu")?).ok());
    let whole = request.filter(|q| q.value().checked_mul(1000) == Some(q.milli_value()));
    whole.and_then(|q| usize::try_from(q.value()).ok()).unwrap_or(0)
}

pub fn memory(container: &Container) -> MemoryRequests {
    let requests = RequirementKind::Requests
        .of(container.resources.as_ref())
        .into_iter()
        .flatten();
    let counted = requests.filter(|(name, _)| *name == "memory" || is_hugepages(name));
    let bytes = counted.filter_map(|(name, amount)| {
        let bytes = u64::try_from(Quantity::of(amount).ok()?.value()).ok()?;
        Some((name.clone(), bytes))
    });
    bytes.collect()
}

/// The most that a pod's containers need at a time: those that run at the same time, or an init container with the
/// sidecars before it.
pub fn most_at_a_time(pod: &Pod, of: impl Fn(&Container) -> u64) -> u64 {
    let Some(spec) = &pod.spec else { return 0 };
    let (mut sidecars, mut starting) = (0_u64, 0_u64);
    for container in spec.init_containers.iter().flatten() {
        let needed = sidecars.saturating_add(of(container));
        match is_sidecar(container) {
            true => sidecars = needed,
            false => starting = starting.max(needed),
        }
    }
    let running = spec.containers.iter().map(of).fold(sidecars, u64::saturating_add);
    running.max(starting)
}
