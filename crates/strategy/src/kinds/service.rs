//! Service: a union that is discriminated by `type`, which determines the fields that apply.
//!
//! Cluster IPs and node ports are allocated by [`super::service_ips`], between preparation and validation.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    ClientIPConfig, LoadBalancerStatus, Service, ServicePort, ServiceSpec, ServiceStatus,
    SessionAffinityConfig,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;

use super::checks::{drop_empty, json, text};
use crate::table::{self, Cell, Column};
use crate::{Part, Strategy};

mod validation;

pub(super) use validation::cluster_ip_fields;
use validation::{
    load_balancer_class, load_balancer_status, validate, validate_cluster_ips_update,
    validate_ip_families_update,
};

/// The cluster IP of a headless service.
pub const NONE: &str = "None";

const CLUSTER_IP: &str = "ClusterIP";
const NODE_PORT: &str = "NodePort";
const LOAD_BALANCER: &str = "LoadBalancer";
const EXTERNAL_NAME: &str = "ExternalName";

/// Default session affinity timeout: three hours.
const CLIENT_IP_TIMEOUT_SECONDS: i32 = 10800;
const DAY_SECONDS: i32 = 86400;

const ONLY_LOAD_BALANCER: &str = "may only be used when `type` is 'LoadBalancer'";
const NOT_EXTERNAL_NAME: &str = "may not be set for ExternalName services";
const IMMUTABLE_ONCE_SET: &str = "may not change once set";
const SOURCE_RANGES_ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

fn type_of(service: &Service) -> &str {
    service.spec.as_ref().map_or("", |s| text(&s.type_))
}

pub fn is_headless(service: &Service) -> bool {
    let ips = service.spec.as_ref().and_then(|s| s.cluster_ips.as_deref());
    matches!(ips, Some([one]) if one == NONE)
}

/// Every type but ExternalName has a cluster IP, which may be `None`.
pub fn needs_cluster_ip(service: &Service) -> bool {
    type_of(service) != EXTERNAL_NAME
}

pub fn needs_node_port(service: &Service) -> bool {
    matches!(type_of(service), NODE_PORT | LOAD_BALANCER)
}

/// Whether the service has a health check node port, at which load balancers check which nodes have endpoints.
pub fn needs_health_check(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    type_of(service) == LOAD_BALANCER && spec.is_some_and(|s| text(&s.external_traffic_policy) == "Local")
}

fn externally_accessible(service: &Service) -> bool {
    let ips = service.spec.as_ref().and_then(|s| s.external_ips.as_deref());
    needs_node_port(service) || (type_of(service) == CLUSTER_IP && !ips.unwrap_or(&[]).is_empty())
}

fn spec_of(service: &Service) -> ServiceSpec {
    service.spec.clone().unwrap_or_default()
}

impl Strategy for Service {
    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        drop_empty(&mut spec.selector);
        drop_empty(&mut spec.ports);
        drop_empty(&mut spec.external_ips);
        drop_empty(&mut spec.cluster_ip);
        drop_empty(&mut spec.cluster_ips);
        drop_empty(&mut spec.health_check_node_port);
        drop_empty(&mut spec.publish_not_ready_addresses);
        if text(&spec.session_affinity).is_empty() {
            spec.session_affinity = Some("None".into());
        }
        match text(&spec.session_affinity) {
            "None" => spec.session_affinity_config = None,
            "ClientIP" => {
                let config = spec.session_affinity_config.as_ref();
                if config
                    .and_then(|c| c.client_ip.as_ref()?.timeout_seconds)
                    .is_none()
                {
                    spec.session_affinity_config = Some(SessionAffinityConfig {
                        client_ip: Some(ClientIPConfig {
                            timeout_seconds: Some(CLIENT_IP_TIMEOUT_SECONDS),
                        }),
                    });
                }
            }
            _ => {}
        }
        if text(&spec.type_).is_empty() {
            spec.type_ = Some(CLUSTER_IP.into());
        }
        for port in spec.ports.iter_mut().flatten() {
            if text(&port.protocol).is_empty() {
                port.protocol = Some("TCP".into());
            }
            if port.target_port.as_ref().is_none_or(is_zero) {
                port.target_port = Some(IntOrString::Int(port.port));
            }
            drop_empty(&mut port.name);
            drop_empty(&mut port.node_port);
        }
        let load_balancer = text(&spec.type_) == LOAD_BALANCER;
        if matches!(text(&spec.type_), CLUSTER_IP | NODE_PORT | LOAD_BALANCER) {
            spec.internal_traffic_policy
                .get_or_insert_with(|| "Cluster".into());
        }
        if load_balancer {
            spec.allocate_load_balancer_node_ports.get_or_insert(true);
        }
        if externally_accessible(self) {
            let spec = self.spec.get_or_insert_default();
            if text(&spec.external_traffic_policy).is_empty() {
                spec.external_traffic_policy = Some("Cluster".into());
            }
        }
        let status = self.status.get_or_insert_default();
        let balancer = status.load_balancer.get_or_insert_default();
        if load_balancer {
            for ingress in balancer.ingress.iter_mut().flatten() {
                if !text(&ingress.ip).is_empty() {
                    ingress.ip_mode.get_or_insert_with(|| "VIP".into());
                }
            }
        }
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(empty_status());
        drop_external_name_fields(self);
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        if part == Part::Status {
            self.spec = old.spec.clone();
        } else {
            self.status = old.status.clone();
            drop_type_dependent_fields(self, old);
            drop_external_name_fields(self);
        }
    }

    fn validate(&self) -> ErrorList {
        validate(self, None)
    }

    fn validate_update(&self, old: &Self, part: Part) -> ErrorList {
        let mut errors = ErrorList::new();
        if part == Part::Status {
            load_balancer_status(self, old, &mut errors);
            return errors;
        }
        validate_cluster_ips_update(self, old, &mut errors);
        validate_ip_families_update(self, old, &mut errors);
        let (spec, old_spec) = (spec_of(self), spec_of(old));
        if type_of(self) == LOAD_BALANCER
            && type_of(old) == LOAD_BALANCER
            && spec.load_balancer_class != old_spec.load_balancer_class
        {
            let path = Path::new("spec").child("loadBalancerClass");
            errors.invalid(&path, json(&spec.load_balancer_class), IMMUTABLE_ONCE_SET);
        }
        load_balancer_class(&spec, &mut errors);
        if needs_health_check(self)
            && needs_health_check(old)
            && spec.health_check_node_port != old_spec.health_check_node_port
        {
            let path = Path::new("spec").child("healthCheckNodePort");
            errors.forbidden(&path, "field is immutable");
        }
        errors.extend(validate(self, Some(old)));
        errors
    }

    fn warnings(&self) -> Vec<String> {
        let spec = spec_of(self);
        let mut warnings: Vec<String> = Vec::new();
        let external_name = text(&spec.type_) == EXTERNAL_NAME;
        let external_ips = spec.external_ips.as_ref().is_some_and(|ips| !ips.is_empty());
        if is_headless(self) {
            if !text(&spec.load_balancer_ip).is_empty() {
                warnings.push("spec.loadBalancerIP is ignored for headless services".into());
            }
            if external_ips {
                warnings.push("spec.externalIPs is ignored for headless services".into());
            }
            if text(&spec.session_affinity) != "None" {
                warnings.push("spec.SessionAffinity is ignored for headless services".into());
            }
        } else if external_ips && !external_name {
            warnings.push(
                "spec.externalIPs is deprecated and may no longer be implemented in some clusters".into(),
            );
        }
        if external_name && external_ips {
            warnings.push(r#"spec.externalIPs is ignored when spec.type is "ExternalName""#.into());
        }
        if !external_name && !text(&spec.external_name).is_empty() {
            warnings.push(r#"spec.externalName is ignored when spec.type is not "ExternalName""#.into());
        }
        if text(&spec.traffic_distribution) == "PreferClose" {
            warnings.push(
                r#"spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone""#.into(),
            );
        }
        warnings
    }

    fn validate_name(name: &str) -> Vec<String> {
        names::dns1123_label(name)
    }

    const CREATE_ON_UPDATE: bool = true;

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Type"),
            Column::string("Cluster-IP"),
            Column::string("External-IP"),
            Column::string("Port(s)"),
            table::AGE,
            table::SELECTOR,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let spec = spec_of(self);
        let ports: Vec<String> = spec.ports.iter().flatten().map(shown_port).collect();
        let cluster_ip = spec.cluster_ips.as_ref().and_then(|ips| ips.first());
        vec![
            table::name(&self.metadata),
            text(&spec.type_).into(),
            cluster_ip.map_or("<none>", String::as_str).into(),
            external_ip(self).into(),
            table::or(Some(&ports.join(",")), "<none>").into(),
            table::created(&self.metadata, now),
            table::labels(spec.selector.iter().flatten()).into(),
        ]
    }
}

fn empty_status() -> ServiceStatus {
    ServiceStatus {
        load_balancer: Some(LoadBalancerStatus::default()),
        ..ServiceStatus::default()
    }
}

/// Drops `internalTrafficPolicy` of an ExternalName service, which routes no traffic.
fn drop_external_name_fields(service: &mut Service) {
    if type_of(service) == EXTERNAL_NAME
        && let Some(spec) = &mut service.spec
    {
        // An invalid policy stays, so that validation rejects it: Kubernetes drops the field only when it reads the stored
        // object.
        spec.internal_traffic_policy
            .take_if(|policy| matches!(policy.as_str(), "Cluster" | "Local"));
    }
}

fn is_zero(port: &IntOrString) -> bool {
    match port {
        IntOrString::Int(number) => *number == 0,
        IntOrString::String(name) => name.is_empty(),
    }
}

fn shown_port(port: &ServicePort) -> String {
    let protocol = text(&port.protocol);
    match port.node_port {
        Some(node_port) if node_port > 0 => format!("{}:{node_port}/{protocol}", port.port),
        _ => format!("{}/{protocol}", port.port),
    }
}

fn external_ip(service: &Service) -> String {
    let spec = spec_of(service);
    let external = spec.external_ips.unwrap_or_default();
    match type_of(service) {
        CLUSTER_IP | NODE_PORT => table::or(Some(&external.join(",")), "<none>").to_string(),
        LOAD_BALANCER => {
            let status = service.status.as_ref().and_then(|s| s.load_balancer.as_ref());
            let ingress = status.iter().flat_map(|s| s.ingress.iter().flatten());
            let given: BTreeSet<&str> = ingress
                .map(|i| table::or(i.ip.as_deref(), text(&i.hostname)))
                .filter(|a| !a.is_empty())
                .collect();
            let all: Vec<&str> = given
                .into_iter()
                .chain(external.iter().map(String::as_str))
                .collect();
            table::or(Some(&all.join(",")), "<pending>").to_string()
        }
        EXTERNAL_NAME => text(&spec.external_name).to_string(),
        _ => "<unknown>".into(),
    }
}

/// Drops the fields that the new type does not have after a change of `type` (`dropTypeDependentFields`). Only values that the
/// client did not change are dropped; a changed one stays and fails validation.
fn drop_type_dependent_fields(service: &mut Service, old: &Service) {
    let new = service.clone();
    let (before, after) = (spec_of(old), spec_of(&new));
    let spec = service.spec.get_or_insert_default();
    if needs_cluster_ip(old) && !needs_cluster_ip(&new) {
        if before.cluster_ip == after.cluster_ip && before.cluster_ips == after.cluster_ips {
            spec.cluster_ip = None;
            spec.cluster_ips = None;
        }
        if before.ip_families == after.ip_families {
            spec.ip_families = None;
        }
        if before.ip_family_policy == after.ip_family_policy {
            spec.ip_family_policy = None;
        }
    }
    if needs_node_port(old) && !needs_node_port(&new) {
        let ports = |spec: &ServiceSpec| -> BTreeSet<i32> {
            let ports = spec.ports.iter().flatten().filter_map(|p| p.node_port);
            ports.filter(|p| *p != 0).collect()
        };
        if ports(&before).is_superset(&ports(&after)) {
            spec.ports.iter_mut().flatten().for_each(|p| p.node_port = None);
        }
    }
    if needs_health_check(old)
        && !needs_health_check(&new)
        && before.health_check_node_port == after.health_check_node_port
    {
        spec.health_check_node_port = None;
    }
    if type_of(old) == LOAD_BALANCER && type_of(&new) != LOAD_BALANCER {
        if before.allocate_load_balancer_node_ports == after.allocate_load_balancer_node_ports {
            spec.allocate_load_balancer_node_ports = None;
        }
        if before.load_balancer_class == after.load_balancer_class {
            spec.load_balancer_class = None;
        }
    }
    if externally_accessible(old)
        && !externally_accessible(&new)
        && before.external_traffic_policy == after.external_traffic_policy
    {
        spec.external_traffic_policy = None;
    }
    if type_of(&new) != LOAD_BALANCER {
        let status = service.status.get_or_insert_default();
        status.load_balancer = Some(LoadBalancerStatus::default());
    }
}
