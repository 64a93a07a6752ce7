//! Bytes received and sent, by the interfaces that a process sees.

use crate::host_fs;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_api::k8s_openapi;
use knarr_kubelet::stats::{InterfaceStats, NetworkStats};

/// The interface by which a pod is reached, and a node is expected to be.
const DEFAULT: &str = "eth0";

/// Of the network namespace of `pid` (or of `self`).
pub(super) fn of_process(pid: &str, time: Option<Time>) -> Option<NetworkStats> {
    let text = host_fs::read_to_string(format!("/proc/{pid}/net/dev")).ok()?;
    let interfaces = parse(&text);
    let default = interfaces.iter().find(|i| i.name == DEFAULT);
    let default = default.cloned().unwrap_or_default();
    Some(NetworkStats {
        time,
        default,
        interfaces,
    })
}

/// Not reported, as by every kubelet: loopbacks, the host ends of pods' interfaces, and other programs' bridges.
const IGNORED: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];

fn counts(name: &str) -> bool {
    !IGNORED.iter().any(|prefix| name.starts_with(prefix))
}

fn parse(text: &str) -> Vec<InterfaceStats> {
    let line = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let name = name.trim();
        if !counts(name) {
            return None;
        }
        let numbers: Vec<u64> = numbers.split_whitespace().map_while(|n| n.parse().ok()).collect();
        // Received: bytes packets errs drop fifo frame compressed multicast; then sent alike.
        Some(InterfaceStats {
            name: name.into(),
            rx_bytes: numbers.first().copied(),
            rx_errors: numbers.get(2).copied(),
            tx_bytes: numbers.get(8).copied(),
            tx_errors: numbers.get(10).copied(),
        })
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t8_interfaces_are_read_without_loopback_and_pods_other_ends() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes    packets\n\
            \x20   lo: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n\
            \x20 eth0: 100 2 3 0 0 0 0 0 200 4 5 0 0 0 0 0\n veth1: 1 1 1 0 0 0 0 0 1 1 1 0 0 0 0 0\n";
        let want = InterfaceStats {
            name: "eth0".into(),
            rx_bytes: Some(100),
            rx_errors: Some(3),
            tx_bytes: Some(200),
            tx_errors: Some(5),
        };
        assert_eq!(parse(text), [want]);
    }
}
