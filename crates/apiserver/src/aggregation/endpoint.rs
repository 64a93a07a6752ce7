//! The addresses of a Service's port: its ready endpoints in EndpointSlices.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use knarr_api::well_known::SERVICE_NAME;
use knarr_api::{Object, k8s_openapi, registry};

use super::ExtensionServers;
use super::spec::Spec;
use crate::cache::change::Filter;
use crate::subresource::proxy::is_dialable;

/// The most endpoints of an EndpointSlice that are considered for one request.
const ENDPOINTS_MAX: usize = 1000;

/// Why a Service's port has no address, in kube-aggregator's words.
#[derive(Debug, thiserror::Error)]
pub(super) enum EndpointError {
    #[error("service {0:?} not found")]
    NotFound(String),
    #[error("service {0:?} does not decode")]
    NotDecoded(String),
    #[error("unsupported service type {0:?}")]
    Type(String),
    #[error("no service port {port} found for service {service:?}")]
    NoPort { port: u16, service: String },
    #[error("no endpoints available for service {0:?}")]
    NoEndpoints(String),
}

pub(super) fn is_ready(endpoint: &Endpoint) -> bool {
    let ready = endpoint.conditions.as_ref().and_then(|c| c.ready);
    ready != Some(false)
}

/// All addresses of the Service's port, those of its first IP family first, each family rotated by `random`.
pub(super) fn addresses<'a>(
    name: &str,
    service: &Service,
    slices: impl Iterator<Item = &'a EndpointSlice>,
    port: u16,
    random: usize,
) -> Result<Vec<SocketAddr>, EndpointError> {
    let spec = service.spec.clone().unwrap_or_default();
    match spec.type_.as_deref() {
        None | Some("ClusterIP" | "NodePort" | "LoadBalancer") => {}
        Some(other) => return Err(EndpointError::Type(other.into())),
    }
    let ports = spec.ports.unwrap_or_default();
    let port_name = match ports.iter().find(|p| p.port == i32::from(port)) {
        Some(found) => found.name.clone().unwrap_or_default(),
        None => {
            let service = name.into();
            return Err(EndpointError::NoPort { port, service });
        }
    };
    let families = spec.ip_families.unwrap_or_default();
    let first = families.first().map(String::as_str);
    let (mut preferred, mut others) = (Vec::new(), Vec::new());
    for slice in slices {
        let mut slice_ports = slice.ports.iter().flatten();
        let found = slice_ports.find(|p| p.name.as_deref().unwrap_or_default() == port_name);
        let Some(number) = found.and_then(|p| u16::try_from(p.port?).ok()) else {
            continue;
        };
        let ready = slice.endpoints.iter().flatten().filter(|e| is_ready(e));
        // As in Kubernetes, only the first address of an endpoint is used.
        let ips = ready.filter_map(|e| e.addresses.first()?.parse::<IpAddr>().ok());
        let sockets = ips
            .filter(|ip| is_dialable(*ip))
            .map(|ip| SocketAddr::new(ip, number));
        let list = match first.is_none_or(|family| family == slice.address_type) {
            true => &mut preferred,
            false => &mut others,
        };
        list.extend(sockets.take(ENDPOINTS_MAX));
    }
    for list in [&mut preferred, &mut others] {
        let first = random.checked_rem(list.len()).unwrap_or(0);
        list.rotate_left(first);
    }
    preferred.append(&mut others);
    match preferred.is_empty() {
        true => Err(EndpointError::NoEndpoints(name.into())),
        false => Ok(preferred),
    }
}

impl ExtensionServers {
    /// The EndpointSlices of a Service.
    pub(super) fn endpoint_slices(&self, namespace: &str, service: &str) -> Vec<Arc<Object>> {
        let mut found = Vec::new();
        let Ok(slices) = self.cache.of(&registry::ENDPOINT_SLICE) else {
            return found;
        };
        let mut filter = Filter::everything(&registry::ENDPOINT_SLICE, namespace);
        if let Ok(labels) = knarr_apimachinery::labels::Selector::parse(&format!("{SERVICE_NAME}={service}"))
        {
            filter.labels = labels;
            found = slices.list(&filter);
        }
        found
    }

    /// The addresses of the extension API server behind a Service: at least one.
    pub(super) fn extension_server_addresses(&self, spec: &Spec) -> Result<Vec<SocketAddr>, EndpointError> {
        let (namespace, name) = (spec.namespace.as_str(), spec.service.as_str());
        let object = self.cache.get(&registry::SERVICE, namespace, name);
        let object = object.ok_or_else(|| EndpointError::NotFound(name.into()))?;
        let service = object.get::<Service>();
        let service = service.ok_or_else(|| EndpointError::NotDecoded(name.into()))?;
        let slices = self.endpoint_slices(namespace, name);
        let slices = slices.iter().filter_map(|o| o.get::<EndpointSlice>());
        let mut random = [0; 4];
        self.entropy.fill(&mut random);
        let random = usize::try_from(u32::from_le_bytes(random)).unwrap_or(0);
        addresses(name, service, slices, spec.port, random)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(spec: Value) -> Service {
        serde_json::from_value(json!({ "spec": spec })).unwrap()
    }

    fn slice(family: &str, ready: Option<bool>, addresses: &[&str], ports: Value) -> EndpointSlice {
        let endpoints: Vec<Value> = addresses
            .iter()
            .map(|a| json!({"addresses": [a, "10.9.9.9"], "conditions": {"ready": ready}}))
            .collect();
        serde_json::from_value(json!({"addressType": family, "ports": ports, "endpoints": endpoints}))
            .unwrap()
    }

    #[test]
    fn n1_only_ready_endpoints_of_the_services_port_are_dialed() {
        let ports = json!([{"name": "web", "port": 80}, {"name": "api", "port": 443, "targetPort": 8443}]);
        let plain = service(json!({"type": "ClusterIP", "ports": ports, "ipFamilies": ["IPv6", "IPv4"]}));
        let named = json!([{"name": "web", "port": 8080}, {"name": "api", "port": 8443}]);
        let v4 = slice("IPv4", Some(true), &["10.0.0.1", "10.0.0.2"], named.clone());
        let v6 = slice("IPv6", None, &["fd00::1"], named.clone());
        let unready = slice("IPv4", Some(false), &["10.0.0.3"], named.clone());
        let elsewhere = slice(
            "IPv4",
            Some(true),
            &["10.0.0.4"],
            json!([{"name": "web", "port": 1}]),
        );
        let own = slice(
            "IPv4",
            Some(true),
            &["127.0.0.1", "169.254.1.1", "not.an.ip"],
            named,
        );
        let of = |service: &Service, slices: &[&EndpointSlice], port, random| {
            let found = addresses("s", service, slices.iter().copied(), port, random);
            let found = found.map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
            found.map_err(|e| e.to_string())
        };
        let all = [&v4, &unready, &elsewhere, &own, &v6];
        assert_eq!(
            of(&plain, &all, 443, 0),
            Ok("[fd00::1]:8443 10.0.0.1:8443 10.0.0.2:8443".into())
        );
        assert_eq!(
            of(&plain, &[&v4], 80, 3),
            Ok("10.0.0.2:8080 10.0.0.1:8080".into())
        );
        for (slices, port, why) in [
            (&[&unready][..], 443, "no endpoints available for service \"s\""),
            (&[&own], 443, "no endpoints available for service \"s\""),
            (&[], 443, "no endpoints available for service \"s\""),
            (&[&v4], 8443, "no service port 8443 found for service \"s\""),
        ] {
            assert_eq!(of(&plain, slices, port, 0), Err(why.to_string()));
        }
    }

    #[test]
    fn a_name_outside_the_cluster_is_never_dialed() {
        let outside =
            service(json!({"type": "ExternalName", "externalName": "example.com", "ports": [{"port": 443}]}));
        let slice = slice("IPv4", Some(true), &["10.0.0.1"], json!([{"port": 443}]));
        let found = addresses("s", &outside, [&slice].into_iter(), 443, 0);
        assert!(matches!(found, Err(EndpointError::Type(of)) if of == "ExternalName"));
    }
}
