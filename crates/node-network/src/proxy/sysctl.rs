//! Kernel parameters below `/proc/sys`, of the network namespace of the calling thread.

use std::fs;
use std::path::Path;

use tracing::{debug, warn};

use super::Config;

/// Connections that knarr's nodes can have at the least, as kube-proxy's: for each CPU, and in all.
const ENTRIES_PER_CPU: usize = 32_768;
const ENTRIES: usize = 131_072;

/// Sets what rules cannot do without.
pub(super) fn set(parameters: &[(&str, &str)]) {
    for (parameter, value) in parameters {
        if let Err(error) = write(parameter, value) {
            warn!(%error, parameter, value, "cannot set a kernel parameter that Services need");
        }
    }
}

/// As kube-proxy with its defaults: room for connections, and how long closed and silent ones are kept. Namespaces
/// other than the host's may set only some of it, which is no error.
pub(super) fn set_conntrack(config: &Config) {
    if config.conntrack_tcp_be_liberal {
        set(&[("net/netfilter/nf_conntrack_tcp_be_liberal", "1")]);
    }
    if !config.conntrack_sysctls {
        return;
    }
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let entries = (cpus * ENTRIES_PER_CPU).max(ENTRIES);
    let parameters = [
        ("net/netfilter/nf_conntrack_max", entries.to_string()),
        (
            "net/netfilter/nf_conntrack_tcp_timeout_established",
            "86400".into(),
        ),
        ("net/netfilter/nf_conntrack_tcp_timeout_close_wait", "3600".into()),
    ];
    for (parameter, value) in parameters {
        let is_lower = parameter.ends_with("_max") && number(parameter) >= value.parse().ok();
        if is_lower {
            continue;
        }
        if let Err(error) = write(parameter, &value) {
            debug!(%error, parameter, value, "cannot set a kernel parameter");
        }
    }
}

fn number(parameter: &str) -> Option<usize> {
    let text = fs::read_to_string(Path::new("/proc/sys").join(parameter)).ok()?;
    text.trim().parse().ok()
}

fn write(parameter: &str, value: &str) -> std::io::Result<()> {
    let path = Path::new("/proc/sys").join(parameter);
    if fs::read_to_string(&path)?.trim() == value {
        return Ok(());
    }
    fs::write(path, value)
}
