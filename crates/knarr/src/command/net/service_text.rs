//! The answer about a Service, for people.

use super::service::{Connections, EndpointAnswer, FrontendAnswer, PortAnswer, ServiceAnswer};
use crate::command::columns::{some, table};

/// So many endpoints of a frontend, and values of a name, are named; `-o json` has all.
const NAMED: usize = 6;
/// So many endpoints have a line of their own.
const LISTED: usize = 40;

pub fn shown(answer: &ServiceAnswer) -> String {
    let zone = answer
        .zone
        .as_ref()
        .map_or_else(String::new, |zone| format!(" (zone {zone})"));
    let mut text = format!(
        "Service {} ({}) on node {}{zone}\n",
        answer.service, answer.type_, answer.node
    );
    for fact in facts(answer) {
        text += &format!("  {fact}\n");
    }
    if let Some(why) = &answer.not_proxied {
        text += &format!("\nNo proxy serves it: {why}.\n");
    }
    if !answer.ports.is_empty() {
        let mut rows = vec![
            ["ADDRESS", "PORT", "KIND", "CLIENTS", "CONNECTIONS"]
                .map(String::from)
                .to_vec(),
        ];
        for port in &answer.ports {
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
        let endpoints = || answer.ports.iter().flat_map(|port| &port.endpoints);
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
    if !answer.names.is_empty() {
        let rows = answer.names.iter().map(|record| {
            let values = match record.values.as_slice() {
                [] => "(no records)".to_string(),
                values => some(values, NAMED),
            };
            vec![record.name.clone(), record.type_.to_string(), values]
        });
        let mut all = vec![["NAME", "TYPE", "IS"].map(String::from).to_vec()];
        all.extend(rows);
        text += &format!("\n{}", table(&all));
    }
    if let Some(kernel) = &answer.kernel {
        text += &format!("\nKernel: {}\n", kernel.message);
    }
    if !answer.warnings.is_empty() {
        text += "\nWarnings:\n";
        for warning in &answer.warnings {
            text += &format!("- {warning}\n");
        }
    }
    text
}

fn facts(answer: &ServiceAnswer) -> Vec<String> {
    let mut facts = Vec::new();
    if answer.not_proxied.is_none() {
        facts.push(format!(
            "internalTrafficPolicy: {}",
            answer.internal_traffic_policy
        ));
        let is_external = |port: &PortAnswer| port.frontends.iter().any(|f| f.kind != "ClusterIP");
        if answer.ports.iter().any(is_external) {
            facts.push(format!(
                "externalTrafficPolicy: {}",
                answer.external_traffic_policy
            ));
        }
    }
    if let Some(distribution) = &answer.traffic_distribution {
        let used = answer
            .ports
            .iter()
            .map(|port| port.topology)
            .find(|t| *t != "Anywhere");
        let used = match used {
            Some("SameZone") => "hints keep connections in this node's zone",
            Some(_) => "hints keep connections on this node",
            None => "connections go anywhere",
        };
        facts.push(format!("trafficDistribution: {distribution}; {used}"));
    }
    if let Some(seconds) = answer.affinity_seconds {
        facts.push(format!(
            "sessionAffinity: ClientIP, a client stays with its endpoint for {seconds} s after its last connection"
        ));
    }
    if !answer.source_ranges.is_empty() {
        let ranges: Vec<String> = answer.source_ranges.iter().map(ToString::to_string).collect();
        facts.push(format!("loadBalancerSourceRanges: {}", some(&ranges, NAMED)));
    }
    if let Some(port) = answer.health_check_node_port {
        facts.push(format!("healthCheckNodePort: {port}"));
    }
    facts
}

fn frontend_rows(port: &PortAnswer, frontend: &FrontendAnswer) -> Vec<Vec<String>> {
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
    let rows = frontend.connections.iter().enumerate().map(|(index, of)| {
        let clients = match is_one && of.from.len() > 1 {
            true => "all".to_string(),
            false => of.from.join(", "),
        };
        // What is the same as above is not said again.
        match index {
            0 => vec![
                address.clone(),
                number.clone(),
                frontend.kind.into(),
                clients,
                connections(of),
            ],
            _ => vec![
                String::new(),
                String::new(),
                String::new(),
                clients,
                connections(of),
            ],
        }
    });
    rows.collect()
}

fn connections(of: &Connections) -> String {
    let what = match of.outcome {
        "Sent" if of.endpoints.len() == 1 => format!("go to {}", some(&of.endpoints, NAMED)),
        "Sent" => format!("go to one of {}", some(&of.endpoints, NAMED)),
        "Rejected" => "are rejected".into(),
        "Dropped" => "are dropped".into(),
        "Unchanged" => "are left alone by the proxy".into(),
        _ => "may be lost: the proxy has no endpoint for some of them".into(),
    };
    match &of.reason {
        Some(reason) => format!("{what}: {reason}"),
        None => what,
    }
}

fn endpoint_row(endpoint: &EndpointAnswer) -> Vec<String> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let state = match (endpoint.ready, endpoint.terminating, endpoint.serving) {
        (true, false, _) => "ready",
        (true, true, _) => "ready, terminating",
        (false, true, true) => "terminating, still serves",
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
        "Fallback" => "used, as nothing else is ready",
        "Terminating" => "not used: it terminates",
        "NotReady" => "not used: it is not ready",
        "Farther" => "not used: hints lead to nearer ones",
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
