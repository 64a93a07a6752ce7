//! Sysctls: only the safe ones, which are namespaced to the pod.

use super::{Check, Level, Subject, Violation};

pub(super) const SYSCTLS: Check = Check {
    name: "sysctls",
    level: Level::Baseline,
    versions: &[
        (0, |s| others(s, 0)),
        (27, |s| others(s, 27)),
        (29, |s| others(s, 29)),
        (32, |s| others(s, 32)),
    ],
    instead_of: None,
};

/// With the minor version since which each counts as safe.
const SAFE: [(u32, &str); 12] = [
    (0, "kernel.shm_rmid_forced"),
    (0, "net.ipv4.ip_local_port_range"),
    (0, "net.ipv4.tcp_syncookies"),
    (0, "net.ipv4.ping_group_range"),
    (0, "net.ipv4.ip_unprivileged_port_start"),
    (27, "net.ipv4.ip_local_reserved_ports"),
    (29, "net.ipv4.tcp_keepalive_time"),
    (29, "net.ipv4.tcp_fin_timeout"),
    (29, "net.ipv4.tcp_keepalive_intvl"),
    (29, "net.ipv4.tcp_keepalive_probes"),
    (32, "net.ipv4.tcp_rmem"),
    (32, "net.ipv4.tcp_wmem"),
];

fn others(subject: &Subject<'_>, minor: u32) -> Option<Violation> {
    let safe = |name: &str| SAFE.iter().any(|(since, safe)| *since <= minor && *safe == name);
    let context = subject.spec.security_context.iter();
    let set = context.flat_map(|s| s.sysctls.iter().flatten());
    let others: Vec<&str> = set.map(|s| s.name.as_str()).filter(|name| !safe(name)).collect();
    (!others.is_empty()).then(|| Violation::new("forbidden sysctls", others.join(", ")))
}
