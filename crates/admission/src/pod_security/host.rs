//! The node's resources: host namespaces, host ports, and probes and lifecycle hooks to other hosts.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{HTTPGetAction, TCPSocketAction};

use super::{Check, ContainerView, Level, Subject, Violation, containers, plural, quoted};

pub(super) const NAMESPACES: Check = Check {
    name: "hostNamespaces",
    level: Level::Baseline,
    versions: &[(0, namespaces)],
    instead_of: None,
};

pub(super) const PORTS: Check = Check {
    name: "hostPorts",
    level: Level::Baseline,
    versions: &[(0, ports)],
    instead_of: None,
};

pub(super) const PROBES_AND_LIFECYCLE: Check = Check {
    name: "hostProbesAndHostLifecycle",
    level: Level::Baseline,
    versions: &[(34, probes_and_lifecycle)],
    instead_of: None,
};

fn namespaces(subject: &Subject<'_>) -> Option<Violation> {
    let spec = subject.spec;
    let shared: Vec<&str> = [
        (spec.host_network, "hostNetwork=true"),
        (spec.host_pid, "hostPID=true"),
        (spec.host_ipc, "hostIPC=true"),
    ]
    .into_iter()
    .filter(|(set, _)| *set == Some(true))
    .map(|(_, text)| text)
    .collect();
    (!shared.is_empty()).then(|| Violation::new("host namespaces", shared.join(", ")))
}

fn ports(subject: &Subject<'_>) -> Option<Violation> {
    fn taken(container: &ContainerView<'_>) -> Vec<String> {
        let ports = container.ports.iter().filter_map(|p| p.host_port);
        ports.filter(|p| *p != 0).map(|p| p.to_string()).collect()
    }
    let names = subject.containers_that(|c| !taken(c).is_empty());
    // Sorted as strings, as in Kubernetes.
    let ports: BTreeSet<String> = subject.containers.iter().flat_map(taken).collect();
    (!names.is_empty()).then(|| {
        let ports: Vec<String> = ports.into_iter().collect();
        let detail = format!(
            "{} {} {} {}",
            containers(&names),
            plural(names.len(), "uses", "use"),
            plural(ports.len(), "hostPort", "hostPorts"),
            ports.join(", ")
        );
        Violation::new("hostPort", detail)
    })
}

fn probes_and_lifecycle(subject: &Subject<'_>) -> Option<Violation> {
    fn hosts<'a>(http: Option<&'a HTTPGetAction>, tcp: Option<&'a TCPSocketAction>) -> Vec<&'a str> {
        let named = [
            http.and_then(|h| h.host.as_deref()),
            tcp.and_then(|t| t.host.as_deref()),
        ];
        named
            .into_iter()
            .flatten()
            .filter(|host| !host.is_empty())
            .collect()
    }
    fn other_hosts<'a>(container: &ContainerView<'a>) -> Vec<&'a str> {
        let probes = container.probes.iter().flatten();
        let probed = probes.flat_map(|p| hosts(p.http_get.as_ref(), p.tcp_socket.as_ref()));
        let handlers = container
            .lifecycle
            .iter()
            .flat_map(|l| [l.post_start.as_ref(), l.pre_stop.as_ref()]);
        let handled = handlers
            .flatten()
            .flat_map(|h| hosts(h.http_get.as_ref(), h.tcp_socket.as_ref()));
        probed.chain(handled).collect()
    }
    let names: BTreeSet<&str> = subject
        .containers_that(|c| !other_hosts(c).is_empty())
        .into_iter()
        .collect();
    let hosts: BTreeSet<&str> = subject.containers.iter().flat_map(other_hosts).collect();
    (!names.is_empty()).then(|| {
        let names: Vec<&str> = names.into_iter().collect();
        let detail = format!(
            "{} {} {} {}",
            containers(&names),
            plural(names.len(), "uses", "use"),
            plural(hosts.len(), "probe or lifecycle host", "probe or lifecycle hosts"),
            quoted(&hosts)
        );
        Violation::new("probe or lifecycle host", detail)
    })
}
