//! The namespaces of a pod's sandbox: its own, and those of the host.

use k8s_cri::v1;
use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;

pub(crate) fn host_network(pod: &core::Pod) -> bool {
    pod.spec.as_ref().is_some_and(|s| s.host_network == Some(true))
}

/// The sandbox's namespaces, and those that it shares with the host or its containers.
pub(super) fn namespaces(pod: &core::Pod) -> v1::NamespaceOption {
    let spec = pod.spec.as_ref();
    let host = |flag: Option<bool>| flag == Some(true);
    let pick = |on_host: bool, otherwise: v1::NamespaceMode| {
        if on_host {
            v1::NamespaceMode::Node as i32
        } else {
            otherwise as i32
        }
    };
    let pid = if host(spec.and_then(|s| s.share_process_namespace)) {
        v1::NamespaceMode::Pod
    } else {
        v1::NamespaceMode::Container
    };
    v1::NamespaceOption {
        network: pick(host_network(pod), v1::NamespaceMode::Pod),
        pid: pick(host(spec.and_then(|s| s.host_pid)), pid),
        ipc: pick(host(spec.and_then(|s| s.host_ipc)), v1::NamespaceMode::Pod),
        ..v1::NamespaceOption::default()
    }
}
