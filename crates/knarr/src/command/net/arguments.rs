//! Source and destination of a connection, as they are named on the command line.

use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_network::catalog::{Protocol, ServiceKey};
use knarr_network::policy::PodKey;

use super::objects::NetworkObjects;
use crate::command::Failure;

/// The client of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Pod(PodKey),
    /// A process of the node, in the host network.
    Node(String),
    /// A client with this address.
    Address(IpAddr),
}

/// The destination without its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Pod(PodKey),
    Service(ServiceKey),
    Address(IpAddr),
}

/// By number, or by the name that a pod or a Service gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Port {
    Number(u16),
    Name(String),
    /// The only one of a Service.
    Only,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    pub target: Target,
    pub port: Port,
    pub protocol: Protocol,
}

const POD: [&str; 3] = ["pod", "pods", "po"];
const SERVICE: [&str; 3] = ["service", "services", "svc"];
const NODE: [&str; 3] = ["node", "nodes", "no"];

/// `POD`, `pod/POD`, `node/NODE` or an address.
pub fn source(text: &str, namespace: &str, objects: &NetworkObjects) -> Result<Source, Failure> {
    let expected = || {
        Failure::new(format!(
            "{text:?} is not a source of connections: expected POD, pod/POD, node/NODE or an address"
        ))
    };
    if let Ok(address) = text.parse() {
        return Ok(Source::Address(address));
    }
    match text.split_once('/') {
        Some((kind, name)) if NODE.contains(&kind) => match objects.node(name) {
            Some(_) => Ok(Source::Node(name.into())),
            None => Err(Failure::new(format!("there is no node {name}"))),
        },
        Some((kind, name)) if POD.contains(&kind) => pod(name, namespace, objects).map(Source::Pod),
        Some(_) => Err(expected()),
        None => pod(text, namespace, objects).map(Source::Pod),
    }
}

fn pod(name: &str, namespace: &str, objects: &NetworkObjects) -> Result<PodKey, Failure> {
    match objects.find::<core::Pod>(namespace, name) {
        Some(_) => Ok(PodKey::new(namespace, name)),
        None => Err(Failure::new(format!("there is no pod {namespace}/{name}"))),
    }
}

fn service(name: &str, namespace: &str, objects: &NetworkObjects) -> Result<ServiceKey, Failure> {
    let (name, namespace) = qualified(name, &objects.settings.cluster_domain).unwrap_or((name, namespace));
    match objects.catalog.service_named(namespace, name) {
        Some((key, _)) => Ok(key.clone()),
        None => Err(Failure::new(format!("there is no Service {namespace}/{name}"))),
    }
}

/// Name and namespace of a Service in `web.shop`, `web.shop.svc` and `web.shop.svc.cluster.local`.
fn qualified<'a>(name: &'a str, cluster_domain: &str) -> Option<(&'a str, &'a str)> {
    let name = name.trim_end_matches('.');
    let name = name
        .strip_suffix(cluster_domain)
        .and_then(|rest| rest.strip_suffix('.'))
        .unwrap_or(name);
    let name = name.strip_suffix(".svc").unwrap_or(name);
    name.split_once('.')
        .filter(|(_, namespace)| !namespace.contains('.'))
}

/// `TARGET:PORT` or `TARGET:PORT/PROTOCOL`, where TARGET is a pod, a Service or an address.
pub fn destination(text: &str, namespace: &str, objects: &NetworkObjects) -> Result<Destination, Failure> {
    let (rest, protocol) = match text.rsplit_once('/') {
        Some((rest, protocol)) => match Protocol::parse(Some(&protocol.to_uppercase())) {
            Some(protocol) => (rest, protocol),
            None => (text, Protocol::Tcp),
        },
        None => (text, Protocol::Tcp),
    };
    if let Ok(address) = rest.parse::<IpAddr>() {
        return Err(Failure::new(format!(
            "{address} has no port: expected a destination such as {}",
            match address {
                IpAddr::V4(_) => format!("{address}:80"),
                IpAddr::V6(_) => format!("[{address}]:80"),
            }
        )));
    }
    let (named, port) = match rest.rsplit_once(':') {
        Some((named, port)) => (named, Some(port)),
        None => (rest, None),
    };
    let port = match port {
        None => Port::Only,
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => {
            let number = port.parse().ok().filter(|number| *number != 0);
            let wrong = || {
                Failure::new(format!(
                    "{port:?} is not a port: expected 1 to 65535 or a port's name"
                ))
            };
            Port::Number(number.ok_or_else(wrong)?)
        }
        Some(name) => Port::Name(name.into()),
    };
    let target = target(named, namespace, objects)?;
    if port == Port::Only && !matches!(target, Target::Service(_)) {
        return Err(Failure::new(format!(
            "{text:?} has no port: expected a destination such as {named}:80"
        )));
    }
    Ok(Destination {
        target,
        port,
        protocol,
    })
}

fn target(named: &str, namespace: &str, objects: &NetworkObjects) -> Result<Target, Failure> {
    let bare = named.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = bare.parse() {
        return Ok(Target::Address(address));
    }
    match named.split_once('/') {
        Some((kind, name)) if POD.contains(&kind) => pod(name, namespace, objects).map(Target::Pod),
        Some((kind, name)) if SERVICE.contains(&kind) => {
            service(name, namespace, objects).map(Target::Service)
        }
        Some((kind, _)) => Err(Failure::new(format!(
            "{named:?} is of the kind {kind:?}: expected a pod (pod/NAME), a Service (svc/NAME) or an address"
        ))),
        None => match (pod(named, namespace, objects), service(named, namespace, objects)) {
            (Ok(_), Ok(_)) => Err(Failure::new(format!(
                "{named:?} is both a pod and a Service: expected pod/{named} or svc/{named}"
            ))),
            (Ok(pod), Err(_)) => Ok(Target::Pod(pod)),
            (Err(_), Ok(service)) => Ok(Target::Service(service)),
            (Err(_), Err(_)) => Err(Failure::new(format!(
                "there is neither a pod nor a Service {named} in the namespace {namespace}"
            ))),
        },
    }
}
