//! `/metrics/resources`: what pods request, as kube-scheduler shows it under this path.

use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::resources::{RequirementKind, pod_resources};
use knarr_client::metrics::Samples;

/// The metrics of these pods; those that have terminated use nothing.
pub(crate) fn text<'a>(pods: impl Iterator<Item = &'a Pod> + Clone) -> String {
    let mut samples = Samples::default();
    for (name, help, kind) in [
        (
            "kube_pod_resource_request",
            "Resources requested by workloads on the cluster, broken down by pod. This shows the resource usage the scheduler and kubelet expect \
             per pod for resources along with the unit for the resource if any.",
            RequirementKind::Requests,
        ),
        (
            "kube_pod_resource_limit",
            "Resources limit for workloads on the cluster, broken down by pod. This shows the resource usage the scheduler and kubelet expect per \
             pod for resources along with the unit for the resource if any.",
            RequirementKind::Limits,
        ),
    ] {
        samples.gauge(name, help);
        for pod in pods.clone().filter(|pod| !has_terminated(pod)) {
            let Some(spec) = &pod.spec else { continue };
            let priority = spec.priority.map(|p| p.to_string()).unwrap_or_default();
            for (resource, amount) in pod_resources(spec, kind) {
                let value = amount.approximate();
                if value == 0.0 {
                    continue;
                }
                let labels = [
                    ("namespace", pod.metadata.namespace.as_deref().unwrap_or_default()),
                    ("pod", pod.metadata.name.as_deref().unwrap_or_default()),
                    ("node", spec.node_name.as_deref().unwrap_or_default()),
                    ("scheduler", spec.scheduler_name.as_deref().unwrap_or_default()),
                    ("priority", &priority),
                    ("resource", &resource),
                    ("unit", unit(&resource)),
                ];
                samples.add(&labels, value);
            }
        }
    }
    samples.text()
}

fn has_terminated(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn unit(resource: &str) -> &'static str {
    match resource {
        "cpu" => "cores",
        "memory" | "storage" | "ephemeral-storage" => "bytes",
        _ if resource.starts_with("hugepages-") => "bytes",
        _ if resource.starts_with("attachable-volumes-") => "integer",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_and_limits_of_running_pods_have_kube_schedulers_labels() {
        let pod = |phase: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"namespace": "ns", "name": "p"},
                "spec": {"nodeName": "n1", "schedulerName": "default-scheduler", "priority": 7, "containers": [
                    {"name": "c", "resources": {"requests": {"cpu": "250m"}, "limits": {"memory": "1Ki"}}}]},
                "status": {"phase": phase},
            }))
            .unwrap()
        };
        let page = text([pod("Running")].iter());
        for line in [
            r#"kube_pod_resource_request{namespace="ns",pod="p",node="n1",scheduler="default-scheduler",priority="7",resource="cpu",unit="cores"} 0.25"#,
            r#"kube_pod_resource_limit{namespace="ns",pod="p",node="n1",scheduler="default-scheduler",priority="7",resource="memory",unit="bytes"} 1024"#,
        ] {
            assert!(page.lines().any(|l| l == line), "{line} in\n{page}");
        }
        assert_eq!(text([pod("Succeeded")].iter()), "");
    }
}
