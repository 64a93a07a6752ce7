//! The text output of `knarr net service`.

use super::service_report::{Connections, EndpointReport, FrontendReport, PortReport, ServiceReport};
use crate::command::columns::{some, table};

/// How many endpoints of a frontend, and values of a DNS name, are to_text; `-o json` has all.
const NAMED: usize = 6;
/// How many endpoints have a line of their own.
const LISTED: usize = 40;

pub fn to_text(report: &ServiceReport) -> String {
    let zone = report
        .zone
        .as_ref()
        .map_or_else(String::new, |zone| format!(" (zone {zone})"));
    let mut text = format!(
        "Service {} ({}) on node {}{zone}\n",
        report.service, report.type_, report.node
    );
    for fact in facts(report) {
        text += &format!("  {fact}\n");
    }
    if let Some(why) = &report.not_proxied {
        text += &format!("\nNo proxy serves it: {why}.\n");
    }
    if !report.ports.is_empty() {
        let mut rows = vec![
            ["ADDRESS", "PORT", "KIND", "CLIENTS", "CONNECTIONS"]
                .map(String::from)
                .to_vec(),
        ];
        for port in &report.ports {
            for frontend in &port.frontends {
                rows.extend(frontend_rows(port, frontend));
            }
        }
        text += &format!("\n{}", table(&rows));
        let mut rows = vec![
            ["ENDPOINT", "POD", "NODE", "ZONE", "STATE", "FROM THIS NODE"]
                .map(String::from)
                .to_vec(),
        ];
        let endpoints = || report.ports.iter().flat_map(|port| &port.endpoints);
        rows.extend(endpoints().take(LISTED).map(endpoint_row));
        match endpoints().count() {
            0 => text += "\nIt has no endpoints.\n",
            count => {
                text += &format!("\n{}", table(&rows));
                if count > LISTED {
                    text += &format!("and {} more\n", count - LISTED);
                }
            }
        }
    }
    if !report.names.is_empty() {
        let rows = report.names.iter().map(|record| {
            let values = match record.values.as_slice() {
                [] => "(no records)".to_string(),
                values => some(values, NAMED),
            };
            vec![record.name.clone(), record.type_.to_string(), values]
        });
        let mut all = vec![["NAME", "TYPE", "VALUE"].map(String::from).to_vec()];
        all.extend(rows);
        text += &format!("\n{}", table(&all));
    }
    if let Some(kernel) = &report.kernel {
        text += &format!("\nKernel: {}\n", kernel.message);
    }
    if !report.warnings.is_empty() {
        text += "\nWarnings:\n";
        for warning in &report.warnings {
            text += &format!("- {warning}\n");
        }
    }
    text
}

fn facts(report: &ServiceReport) -> Vec<String> {
    let mut facts = Vec::new();
    if report.not_proxied.is_none() {
        facts.push(format!(
            "internalTrafficPolicy: {}",
            report.internal_traffic_policy
        ));
        let is_external = |port: &PortReport| port.frontends.iter().any(|f| f.kind != "ClusterIP");
        if report.ports.iter().any(is_external) {
            facts.push(format!(
                "externalTrafficPolicy: {}",
                report.external_traffic_policy
            ));
        }
    }
    if let Some(distribution) = &report.traffic_distribution {
        let used = report
            .ports
            .iter()
            .map(|port| port.topology)
            .find(|t| *t != "Anywhere");
        let used = match used {
            Some("SameZone") => "hints keep connections in this node's zone",
            Some(_) => "hints keep connections on this node",
            None => "connections are distributed over all endpoints",
        };
        facts.push(format!("trafficDistribution: {distribution}; {used}"));
    }
    if let Some(seconds) = report.affinity_seconds {
        facts.push(format!(
            "sessionAffinity: ClientIP, a client keeps its endpoint for {seconds} s after its last connection"
        ));
    }
    if !report.source_ranges.is_empty() {
        let ranges: Vec<String> = report.source_ranges.iter().map(ToString::to_string).collect();
        facts.push(format!("loadBalancerSourceRanges: {}", some(&ranges, NAMED)));
    }
    if let Some(port) = report.health_check_node_port {
        facts.push(format!("healthCheckNodePort: {port}"));
    }
    facts
}

fn frontend_rows(port: &PortReport, frontend: &FrontendReport) -> Vec<Vec<String>> {
    let address = match frontend.address {
        Some(address) => address.to_string(),
        None => format!("this node ({})", port.family),
    };
    let name = match port.name.as_str() {
        "" => String::new(),
        name => format!(" ({name})"),
    };
    let number = format!("{}/{}{name}", frontend.port, port.protocol);
    let is_one = frontend.connections.len() == 1;
    let rows = frontend.connections.iter().enumerate().map(|(index, group)| {
        let clients = match is_one && group.from.len() > 1 {
            true => "all".to_string(),
            false => group.from.join(", "),
        };
        // Cells that equal those of the row above are left empty.
        match index {
            0 => vec![
                address.clone(),
                number.clone(),
                frontend.kind.into(),
                clients,
                connections(group),
            ],
            _ => vec![
                String::new(),
                String::new(),
                String::new(),
                clients,
                connections(group),
            ],
        }
    });
    rows.collect()
}

fn connections(group: &Connections) -> String {
    let what = match group.outcome {
        "Sent" if group.endpoints.len() == 1 => format!("are sent to {}", some(&group.endpoints, NAMED)),
        "Sent" => format!("are sent to one of {}", some(&group.endpoints, NAMED)),
        "Rejected" => "are rejected".into(),
        "Dropped" => "are dropped".into(),
        "Unchanged" => "are not changed by the proxy".into(),
        _ => "may be lost: the proxy has no endpoint for some of them".into(),
    };
    match &group.reason {
        Some(reason) => format!("{what}: {reason}"),
        None => what,
    }
}

fn endpoint_row(endpoint: &EndpointReport) -> Vec<String> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let state = match (endpoint.ready, endpoint.terminating, endpoint.serving) {
        (true, false, _) => "ready",
        (true, true, _) => "ready, terminating",
        (false, true, true) => "terminating, serving",
        (false, true, false) => "terminating",
        (false, false, _) => "not ready",
    };
    let hints: Vec<String> = endpoint
        .zone_hints
        .iter()
        .chain(&endpoint.node_hints)
        .cloned()
        .collect();
    let hints = match hints.as_slice() {
        [] => String::new(),
        hints => format!("; hinted for {}", some(hints, NAMED)),
    };
    let usage = match endpoint.usage {
        "Used" => "used",
        "Fallback" => "used, as no other endpoint is ready",
        "Terminating" => "not used: it is terminating",
        "NotReady" => "not used: it is not ready",
        "Farther" => "not used: hints prefer closer endpoints",
        _ => "not used: internalTrafficPolicy is Local",
    };
    vec![
        super::service::with_port(endpoint.address, endpoint.port),
        text(&endpoint.pod),
        text(&endpoint.node),
        text(&endpoint.zone),
        state.to_string(),
        format!("{usage}{hints}"),
    ]
}
