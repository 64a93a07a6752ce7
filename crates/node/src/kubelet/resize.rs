//! Gives a running pod and its containers what they are allocated.
//!
//! The pod's cgroup grows first, then the containers change, the shrinking ones before the others, and the cgroup
//! shrinks last: at no time has a container a larger limit than its pod. Memory in use is not reclaimed: a limit below
//! the current use would trigger the OOM killer.

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_kubelet::cgroup::Group;
use knarr_kubelet::pod::find_spec;
use knarr_kubelet::resources::refuse_decrease;

use super::resources::{CpuQuota, group, of_container, of_pod, quota_of_pod};
use super::{Shared, enforcement};
use crate::cgroup::{self, Limits, larger};

/// The pod as it is, its target, and the containers (name and id) that change. Returns the ids of those that have
/// changed, and the error.
pub(super) async fn resize(
    shared: &Shared,
    from: &core::Pod,
    to: &core::Pod,
    containers: Vec<(String, String)>,
) -> (Vec<String>, Result<(), String>) {
    let configuration = &shared.config.configuration;
    let (before, after) = (
        of_pod(
            from,
            configuration,
            quota_of_pod(shared, from),
            &shared.huge_pages,
        ),
        of_pod(to, configuration, quota_of_pod(shared, to), &shared.huge_pages),
    );
    let uid = to.metadata.uid.as_deref().unwrap_or("");
    let mut changes = Vec::new();
    for (name, id) in containers {
        let quota = match shared.containers.has_exclusive_cpus(uid, Some(&name)) {
            true => CpuQuota::NONE,
            false => CpuQuota::of(configuration),
        };
        let given = |pod: &core::Pod| {
            let spec = pod.spec.as_ref().and_then(|s| find_spec(s, &name));
            spec.map(|spec| of_container(pod, &spec, shared.memory_bytes, quota, &shared.huge_pages))
        };
        if let Some((before, after)) = given(from).zip(given(to)) {
            let memory = (before.memory_limit_in_bytes, after.memory_limit_in_bytes);
            changes.push((name, id, memory, after));
        }
    }
    // None is the largest limit of all.
    let order = |limit: i64| if limit == 0 { i64::MAX } else { limit };
    changes.sort_by_key(|(_, _, (before, after), _)| order(*after) > order(*before));
    let mut done = Vec::new();
    let host = shared.config.machine.is_host();
    let (driver, group) = (configuration.cgroup_driver, group(to));
    let attempt = async {
        if host {
            let of_group = |path: String, limits: (i64, i64)| {
                let shrinks = order(limits.1) < order(limits.0);
                shrinks.then(|| (limits.1, cgroup::memory_usage_bytes(&path)))
            };
            let pod = of_group(group.path(driver), (before.memory_bytes, after.memory_bytes));
            let shrinking = changes.iter().filter_map(|(name, id, memory, _)| {
                let (limit, usage) = of_group(group.path_of_container(driver, id), *memory)?;
                Some((name.as_str(), limit, usage))
            });
            refuse_decrease(pod, shrinking)?;
            set(shared, &group, &larger(&before, &after)).await?;
        }
        for (_, id, _, wanted) in &changes {
            let changed = shared.runtime.update_container(id, wanted).await;
            changed.map_err(|e| e.to_string())?;
            done.push(id.clone());
        }
        if host {
            set(shared, &group, &after).await?;
        }
        Ok(())
    };
    let result = attempt.await;
    enforcement::update_portions(shared, None).await;
    (done, result)
}

async fn set(shared: &Shared, group: &Group, limits: &Limits) -> Result<(), String> {
    let set = cgroup::ensure(shared.config.configuration.cgroup_driver, group, limits).await;
    set.map_err(|e| format!("the pod's limits: {e}"))
}
