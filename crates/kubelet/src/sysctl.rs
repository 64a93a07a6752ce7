//! The sysctls that a pod may set: the safe ones, which are namespaced and do not affect other pods, and those that the
//! administrator allows in addition.

use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;

use crate::admission::Rejection;

const SAFE: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// The namespace of a sysctl, as messages name it; `None` for sysctls that are not namespaced.
pub fn namespace(name: &str) -> Option<&'static str> {
    let ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."];
    if name == "kernel.sem" || ipc.iter().any(|prefix| name.starts_with(prefix)) {
        return Some("IPC");
    }
    name.starts_with("net.").then_some("Net")
}

/// The name with dots as separators; dots within a part become slashes.
pub fn normalized(name: &str) -> String {
    let first = name.find(['.', '/']).and_then(|at| name.as_bytes().get(at));
    if first != Some(&b'/') {
        return name.to_string();
    }
    let swapped = name.chars().map(|c| match c {
        '/' => '.',
        '.' => '/',
        other => other,
    });
    swapped.collect()
}

fn is_allowed(name: &str, allowed: &[String]) -> bool {
    let matches = |pattern: &String| {
        let pattern = normalized(pattern);
        match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == pattern,
        }
    };
    SAFE.contains(&name) || allowed.iter().any(matches)
}

/// Whether a node that allows these unsafe sysctls admits the pod.
pub fn admit(pod: &Pod, allowed: &[String]) -> Result<(), Rejection> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let context = spec.security_context.as_ref();
    for sysctl in context.iter().flat_map(|c| c.sysctls.iter().flatten()) {
        let name = normalized(&sysctl.name);
        let forbidden = |why: String| {
            let message = format!("forbidden sysctl: \"{name}\" {why}");
            Err(Rejection::new("SysctlForbidden", message))
        };
        if !is_allowed(&name, allowed) {
            return forbidden("not allowlisted".into());
        }
        let of_host = match namespace(&name) {
            Some("IPC") => spec.host_ipc,
            Some(_) => spec.host_network,
            None => None,
        };
        if let (Some(namespace), Some(true)) = (namespace(&name), of_host) {
            return forbidden(format!("not allowed with host {namespace} enabled"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn l1_a_pod_may_set_safe_or_allowed_sysctls_of_its_own_namespaces() {
        let pod = |name: &str, host: bool| -> Pod {
            serde_json::from_value(json!({"spec": {
                "hostNetwork": host, "hostIPC": host, "containers": [],
                "securityContext": {"sysctls": [{"name": name, "value": "1"}]},
            }}))
            .unwrap()
        };
        let allowed = ["kernel.msg*".to_string(), "net/core/somaxconn".to_string()];
        for (name, host, want) in [
            ("net.ipv4.tcp_syncookies", false, None),
            ("net/ipv4/tcp_syncookies", false, None),
            ("net.core.somaxconn", false, None),
            ("kernel.msgmax", false, None),
            (
                "kernel.sem",
                false,
                Some("forbidden sysctl: \"kernel.sem\" not allowlisted"),
            ),
            (
                "vm.swappiness",
                false,
                Some("forbidden sysctl: \"vm.swappiness\" not allowlisted"),
            ),
            (
                "net.ipv4.tcp_syncookies",
                true,
                Some("forbidden sysctl: \"net.ipv4.tcp_syncookies\" not allowed with host Net enabled"),
            ),
            (
                "kernel.msgmax",
                true,
                Some("forbidden sysctl: \"kernel.msgmax\" not allowed with host IPC enabled"),
            ),
        ] {
            let got = admit(&pod(name, host), &allowed).err();
            let want = want.map(|message| Rejection::new("SysctlForbidden", message));
            assert_eq!(got, want, "{name}");
        }
    }
}
