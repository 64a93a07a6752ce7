//! Descriptions of the rules of NetworkPolicies, by their index in the policy.

use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_api::k8s_openapi;
use knarr_apimachinery::labels::Selector;
use knarr_network::policy::Direction;

/// What a rule allows: `from pods with app=web, port 80/TCP`. The index counts from 0, as in field paths.
pub fn describe(policy: &NetworkPolicy, direction: Direction, index: usize) -> Option<String> {
    let spec = policy.spec.as_ref()?;
    let (preposition, peers, ports) = match direction {
        Direction::Ingress => {
            let rule = spec.ingress.as_ref()?.get(index)?;
            ("from", rule.from.as_deref(), rule.ports.as_deref())
        }
        Direction::Egress => {
            let rule = spec.egress.as_ref()?.get(index)?;
            ("to", rule.to.as_deref(), rule.ports.as_deref())
        }
    };
    let peers = match peers.unwrap_or_default() {
        [] => "any peer".to_string(),
        peers => peers.iter().map(peer).collect::<Vec<_>>().join(" or "),
    };
    let ports = match ports.unwrap_or_default() {
        [] => "any port".to_string(),
        ports => ports.iter().map(port).collect::<Vec<_>>().join(", "),
    };
    Some(format!("{preposition} {peers}, {ports}"))
}

fn peer(peer: &NetworkPolicyPeer) -> String {
    if let Some(block) = &peer.ip_block {
        let except = block.except.as_deref().unwrap_or_default();
        return match except {
            [] => block.cidr.clone(),
            except => format!("{} except {}", block.cidr, except.join(", ")),
        };
    }
    let pods = match peer.pod_selector.as_ref().map(selector) {
        Some(text) if !text.is_empty() => format!("pods with {text}"),
        _ => "all pods".to_string(),
    };
    match peer.namespace_selector.as_ref().map(selector) {
        None => pods,
        Some(text) if text.is_empty() => format!("{pods} of all namespaces"),
        Some(text) => format!("{pods} of namespaces with {text}"),
    }
}

fn selector(selector: &LabelSelector) -> String {
    match Selector::from_label_selector(selector) {
        Ok(selector) => selector.to_string(),
        Err(error) => format!("an invalid selector ({error})"),
    }
}

fn port(port: &NetworkPolicyPort) -> String {
    let protocol = port.protocol.as_deref().unwrap_or("TCP");
    match (&port.port, port.end_port) {
        (None, _) => format!("any port/{protocol}"),
        (Some(IntOrString::Int(first)), Some(last)) => format!("ports {first}-{last}/{protocol}"),
        (Some(IntOrString::Int(number)), None) => format!("port {number}/{protocol}"),
        (Some(IntOrString::String(name)), _) => format!("port {name:?}/{protocol}"),
    }
}
