//! Ingress: routes hosts and paths to services.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::networking::v1::{
    HTTPIngressPath, Ingress, IngressBackend, IngressLoadBalancerStatus, IngressServiceBackend, IngressSpec,
    IngressStatus,
};
use k8s_openapi::jiff::Timestamp;
use knarr_api::well_known::INGRESS_CLASS_ANNOTATION;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;

use super::checks::{Json, dns_label, dns_subdomain, ip, port_number, text, update_generation};
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

const NOT_IN_PATHS: &[&str] = &["//", "/./", "/../", "%2f", "%2F"];
const NOT_AT_ENDS: &[&str] = &["/..", "/."];
const ABSOLUTE: &str = "must be an absolute path";
/// Maximum number of hosts that `kubectl get` shows.
const SHOWN: usize = 3;

fn empty_status() -> IngressStatus {
    IngressStatus {
        load_balancer: Some(IngressLoadBalancerStatus::default()),
    }
}

impl Strategy for Ingress {
    fn set_defaults(&mut self) {
        self.spec.get_or_insert_default();
        let status = self.status.get_or_insert_with(empty_status);
        status.load_balancer.get_or_insert_default();
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(empty_status());
        self.metadata.generation = Some(1);
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        let mut changed = false;
        if part == Part::Status {
            self.spec = old.spec.clone();
        } else {
            self.status = old.status.clone();
            changed = self.spec != old.spec;
        }
        update_generation(&mut self.metadata, &old.metadata, changed);
    }

    fn validate(&self) -> ErrorList {
        let mut errors = validate(self);
        let class = self.spec.as_ref().and_then(|s| s.ingress_class_name.as_ref());
        let annotations = self.metadata.annotations.as_ref();
        if let (Some(class), Some(annotation)) =
            (class, annotations.and_then(|a| a.get(INGRESS_CLASS_ANNOTATION)))
            && class != annotation
        {
            errors.invalid(
                &Path::new("annotations").child(INGRESS_CLASS_ANNOTATION),
                annotation,
                "must match `ingressClassName` when both are specified",
            );
        }
        errors
    }

    fn validate_update(&self, old: &Self, part: Part) -> ErrorList {
        if part != Part::Status {
            return validate(self);
        }
        let mut errors = ErrorList::new();
        let path = Path::new("status").child("loadBalancer").child("ingress");
        let entries = |i: &Ingress| {
            let status = i.status.clone().unwrap_or_default();
            status.load_balancer.and_then(|b| b.ingress).unwrap_or_default()
        };
        let existing: Vec<String> = entries(old).into_iter().filter_map(|e| e.ip).collect();
        for (i, entry) in entries(self).iter().enumerate() {
            let path = path.index(i);
            if !text(&entry.ip).is_empty() {
                ip(&mut errors, &path.child("ip"), text(&entry.ip), &existing);
            }
            let hostname = text(&entry.hostname);
            if !hostname.is_empty() {
                dns_subdomain(&mut errors, &path.child("hostname"), hostname);
                if hostname.parse::<IpAddr>().is_ok() {
                    let detail = "must be a DNS name, not an IP address";
                    errors.invalid(&path.child("hostname"), hostname, detail);
                }
            }
        }
        errors
    }

    fn warnings(&self) -> Vec<String> {
        let has_annotation = self
            .metadata
            .annotations
            .as_ref()
            .is_some_and(|a| a.contains_key(INGRESS_CLASS_ANNOTATION));
        let has_class = self.spec.as_ref().is_some_and(|s| s.ingress_class_name.is_some());
        let is_deprecated = has_annotation && !has_class;
        let warning = format!(
            "annotation {INGRESS_CLASS_ANNOTATION:?} is deprecated, please use 'spec.ingressClassName' instead"
        );
        is_deprecated.then_some(warning).into_iter().collect()
    }

    fn warnings_on_update(&self, _old: &Self) -> Vec<String> {
        Vec::new()
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Class"),
            Column::string("Hosts"),
            Column::string("Address"),
            Column::string("Ports"),
            table::AGE,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let spec = self.spec.clone().unwrap_or_default();
        let status = self.status.clone().unwrap_or_default();
        let balancer = status.load_balancer.unwrap_or_default();
        let addresses: BTreeSet<&str> = balancer
            .ingress
            .iter()
            .flatten()
            .map(|i| table::or(i.ip.as_deref(), text(&i.hostname)))
            .filter(|a| !a.is_empty())
            .collect();
        let ports = match spec.tls.as_deref() {
            None | Some([]) => "80",
            Some(_) => "80, 443",
        };
        vec![
            table::name(&self.metadata),
            spec.ingress_class_name.as_deref().unwrap_or("<none>").into(),
            shown_hosts(&spec).into(),
            Vec::from_iter(addresses).join(",").into(),
            ports.into(),
            table::created(&self.metadata, now),
        ]
    }

    fn metadata_checks(part: Part) -> MetadataChecks {
        match part {
            Part::Status => MetadataChecks::UPDATE,
            Part::Main | Part::Other(_) => MetadataChecks::BOTH,
        }
    }
}

/// The hosts as `kubectl get` shows them. The number of further ones counts rules, with or without a host.
fn shown_hosts(spec: &IngressSpec) -> String {
    let rules = spec.rules.as_deref().unwrap_or(&[]);
    let mut hosts = Vec::new();
    let mut more = false;
    for rule in rules {
        more |= hosts.len() == SHOWN;
        if !more && !text(&rule.host).is_empty() {
            hosts.push(text(&rule.host));
        }
    }
    match (hosts.is_empty(), more) {
        (true, _) => "*".into(),
        (false, false) => hosts.join(","),
        (false, true) => format!("{} + {} more...", hosts.join(","), rules.len() - SHOWN),
    }
}

fn validate(ingress: &Ingress) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = ingress.spec.clone().unwrap_or_default();
    let path = Path::new("spec");
    let rules = spec.rules.as_deref().unwrap_or(&[]);
    if rules.is_empty() && spec.default_backend.is_none() {
        errors.invalid(
            &path,
            Json("null".into()),
            "either `defaultBackend` or `rules` must be specified",
        );
    }
    if let Some(backend) = &spec.default_backend {
        check_backend(backend, &path.child("defaultBackend"), &mut errors);
    }
    for (i, rule) in rules.iter().enumerate() {
        let path = path.child("rules").index(i);
        let host = text(&rule.host);
        if !host.is_empty() {
            if host.parse::<IpAddr>().is_ok() {
                let detail = "must be a DNS name, not an IP address";
                errors.invalid(&path.child("host"), host, detail);
            }
            check_host(host, &path.child("host"), &mut errors);
        }
        if let Some(http) = &rule.http {
            let path = path.child("http").child("paths");
            if http.paths.is_empty() {
                errors.required(&path, "");
            }
            for (i, http_path) in http.paths.iter().enumerate() {
                check_path(http_path, &path.index(i), &mut errors);
            }
        }
    }
    for (i, tls) in spec.tls.iter().flatten().enumerate() {
        let path = path.child("tls").index(i);
        for (i, host) in tls.hosts.iter().flatten().enumerate() {
            check_host(host, &path.child("hosts").index(i), &mut errors);
        }
        if !text(&tls.secret_name).is_empty() {
            dns_subdomain(&mut errors, &path.child("secretName"), text(&tls.secret_name));
        }
    }
    if let Some(class) = &spec.ingress_class_name {
        dns_subdomain(&mut errors, &path.child("ingressClassName"), class);
    }
    errors
}

fn check_host(host: &str, path: &Path, errors: &mut ErrorList) {
    let messages = if host.contains('*') {
        names::wildcard_dns1123_subdomain(host)
    } else {
        names::dns1123_subdomain(host)
    };
    errors.all_invalid(path, host, messages);
}

fn check_path(http: &HTTPIngressPath, path: &Path, errors: &mut ErrorList) {
    let at = path.child("path");
    let value = text(&http.path);
    match http.path_type.as_str() {
        "" => return errors.required(&path.child("pathType"), "pathType must be specified"),
        "Exact" | "Prefix" => {
            if !value.starts_with('/') {
                errors.invalid(&at, value, ABSOLUTE);
            }
            for bad in NOT_IN_PATHS.iter().filter(|bad| value.contains(**bad)) {
                errors.invalid(&at, value, format!("must not contain '{bad}'"));
            }
            for bad in NOT_AT_ENDS.iter().filter(|bad| value.ends_with(**bad)) {
                errors.invalid(&at, value, format!("cannot end with '{bad}'"));
            }
        }
        "ImplementationSpecific" => {
            if !value.is_empty() && !value.starts_with('/') {
                errors.invalid(&at, value, ABSOLUTE);
            }
        }
        other => errors.not_supported_in_order(
            &path.child("pathType"),
            other,
            &["Exact", "ImplementationSpecific", "Prefix"],
        ),
    }
    check_backend(&http.backend, &path.child("backend"), errors);
}

fn check_backend(backend: &IngressBackend, path: &Path, errors: &mut ErrorList) {
    match (&backend.resource, &backend.service) {
        (Some(_), Some(_)) => errors.invalid(path, "", "cannot set both resource and service backends"),
        (None, None) => errors.invalid(path, "", "resource or service backend is required"),
        (Some(resource), None) => {
            let path = path.child("resource");
            if let Some(group) = &resource.api_group {
                dns_subdomain(errors, &path.child("apiGroup"), group);
            }
            for (field, value) in [("kind", &resource.kind), ("name", &resource.name)] {
                path_segment_name(errors, &path.child(field), value);
            }
        }
        (None, Some(service)) => check_service(service, path, errors),
    }
}

/// Checks a required name that must be valid as a path segment of the API.
pub(super) fn path_segment_name(errors: &mut ErrorList, path: &Path, value: &str) {
    if value.is_empty() {
        errors.required(path, "");
    } else {
        errors.all_invalid(path, value, names::path_segment(value));
    }
}

fn check_service(service: &IngressServiceBackend, path: &Path, errors: &mut ErrorList) {
    let at = path.child("service");
    if service.name.is_empty() {
        errors.required(&at.child("name"), "");
    } else {
        dns_label(errors, &at.child("name"), &service.name);
    }
    let port = service.port.clone().unwrap_or_default();
    match (text(&port.name), port.number.unwrap_or(0)) {
        ("", 0) => errors.required(path, "port name or number is required"),
        ("", number) => port_number(errors, &at.child("port").child("number"), number),
        (name, 0) => errors.all_invalid(&at.child("port").child("name"), name, names::port_name(name)),
        _ => errors.invalid(path, "", "cannot set both port name & port number"),
    }
}
