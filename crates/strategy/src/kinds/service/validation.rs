//! Validation of a Service and of its updates.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use knarr_apimachinery::field::{ErrorList, Path};

use super::{
    CLUSTER_IP, DAY_SECONDS, EXTERNAL_NAME, IMMUTABLE_ONCE_SET, LOAD_BALANCER, NODE_PORT, NONE,
    NOT_EXTERNAL_NAME, ONLY_LOAD_BALANCER, SOURCE_RANGES_ANNOTATION, externally_accessible, is_headless,
    needs_cluster_ip, needs_health_check, spec_of, type_of,
};
use crate::facts;
use crate::kinds::checks::{
    self, Json, PROTOCOLS, cidr, dns_subdomain, endpoint_ip, ip, json, json_list, qualified_name, text,
};

pub(super) fn validate(service: &Service, old: Option<&Service>) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = spec_of(service);
    let path = Path::new("spec");
    let of = type_of(service);
    let ports = spec.ports.as_deref().unwrap_or(&[]);
    if ports.is_empty() && !is_headless(service) && of != EXTERNAL_NAME {
        errors.required(&path.child("ports"), "");
    }
    match of {
        LOAD_BALANCER | NODE_PORT if is_headless(service) => errors.invalid(
            &path.child("clusterIPs").index(0),
            NONE,
            format!("may not be set to 'None' for {of} services"),
        ),
        EXTERNAL_NAME => external_name(&spec, &mut errors),
        _ => {}
    }
    check_ports(ports, &mut errors);
    if let Some(selector) = &spec.selector {
        checks::labels(&mut errors, &path.child("selector"), selector);
    }
    session_affinity(&spec, &mut errors);
    errors.extend(cluster_ip_fields(service, old));

    let existing = old.map(spec_of).and_then(|o| o.external_ips).unwrap_or_default();
    for (i, address) in spec.external_ips.iter().flatten().enumerate() {
        let path = path.child("externalIPs").index(i);
        if ip(&mut errors, &path, address, &existing) {
            endpoint_ip(&mut errors, &path, address);
        }
    }

    const TYPES: &[&str] = &[CLUSTER_IP, EXTERNAL_NAME, LOAD_BALANCER, NODE_PORT];
    if !TYPES.contains(&of) {
        errors.not_supported_in_order(&path.child("type"), of, TYPES);
    }
    unique_ports(of, ports, &mut errors);
    source_ranges(service, old, &spec, &mut errors);

    if spec.allocate_load_balancer_node_ports.is_some() && of != LOAD_BALANCER {
        errors.forbidden(&path.child("allocateLoadBalancerNodePorts"), ONLY_LOAD_BALANCER);
    }
    load_balancer_class(&spec, &mut errors);
    traffic(service, &spec, &mut errors);
    errors
}

/// `validateLoadBalancerClassField`; an update validates it a second time.
pub(super) fn load_balancer_class(spec: &ServiceSpec, errors: &mut ErrorList) {
    let Some(class) = &spec.load_balancer_class else {
        return;
    };
    let path = Path::new("spec").child("loadBalancerClass");
    if text(&spec.type_) == LOAD_BALANCER {
        qualified_name(errors, &path, class);
    } else {
        errors.forbidden(&path, ONLY_LOAD_BALANCER);
    }
}

fn external_name(spec: &ServiceSpec, errors: &mut ErrorList) {
    let path = Path::new("spec");
    for (set, field) in [
        (
            spec.cluster_ips.as_ref().is_some_and(|l| !l.is_empty()),
            "clusterIPs",
        ),
        (
            spec.ip_families.as_ref().is_some_and(|l| !l.is_empty()),
            "ipFamilies",
        ),
        (spec.ip_family_policy.is_some(), "ipFamilyPolicy"),
    ] {
        if set {
            errors.forbidden(&path.child(field), NOT_EXTERNAL_NAME);
        }
    }
    let name = text(&spec.external_name);
    // A trailing dot marks a fully qualified name.
    match name.strip_suffix('.').unwrap_or(name) {
        "" => errors.required(&path.child("externalName"), ""),
        name => dns_subdomain(errors, &path.child("externalName"), name),
    }
}

fn check_ports(ports: &[ServicePort], errors: &mut ErrorList) {
    let path = Path::new("spec").child("ports");
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        match text(&port.name) {
            "" if ports.len() > 1 => errors.required(&path.child("name"), ""),
            "" => {}
            name => {
                checks::dns_label(errors, &path.child("name"), name);
                if !seen.insert(name) {
                    errors.duplicate(&path.child("name"), name);
                }
            }
        }
        checks::port_number(errors, &path.child("port"), port.port);
        let protocol = text(&port.protocol);
        if !PROTOCOLS.contains(&protocol) {
            errors.not_supported_in_order(&path.child("protocol"), protocol, PROTOCOLS);
        }
        if let Some(target) = &port.target_port {
            checks::port_number_or_name(errors, &path.child("targetPort"), target);
        }
        if let Some(protocol) = &port.app_protocol {
            qualified_name(errors, &path.child("appProtocol"), protocol);
        }
    }
}

fn unique_ports(of: &str, ports: &[ServicePort], errors: &mut ErrorList) {
    let path = Path::new("spec").child("ports");
    let mut node_ports = BTreeSet::new();
    let mut own_ports = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        let protocol = text(&port.protocol);
        if let Some(number) = port.node_port.filter(|n| *n != 0) {
            if of == CLUSTER_IP {
                errors.forbidden(
                    &path.child("nodePort"),
                    "may not be used when `type` is 'ClusterIP'",
                );
            }
            if !node_ports.insert((protocol, number)) {
                errors.duplicate(&path.child("nodePort"), number);
            }
        }
        if !own_ports.insert((protocol, port.port)) {
            let shown = format!(
                r#"{{"Name":"","Protocol":{},"AppProtocol":null,"Port":{},"TargetPort":0,"NodePort":0}}"#,
                json(protocol).0,
                port.port
            );
            errors.duplicate(&path, Json(shown));
        }
    }
}

fn session_affinity(spec: &ServiceSpec, errors: &mut ErrorList) {
    let path = Path::new("spec").child("sessionAffinityConfig");
    match text(&spec.session_affinity) {
        "ClientIP" => {
            let missing = "when session affinity type is ClientIP";
            let Some(config) = &spec.session_affinity_config else {
                return errors.required(&path, missing);
            };
            let path = path.child("clientIP");
            let Some(client_ip) = &config.client_ip else {
                return errors.required(&path, missing);
            };
            let path = path.child("timeoutSeconds");
            match client_ip.timeout_seconds {
                None => errors.required(&path, missing),
                Some(seconds) if seconds <= 0 || seconds > DAY_SECONDS => errors.invalid(
                    &path,
                    seconds,
                    format!("must be greater than 0 and less than {DAY_SECONDS}"),
                ),
                Some(_) => {}
            }
        }
        "None" if spec.session_affinity_config.is_some() => {
            errors.forbidden(&path, "must not be set when session affinity is None");
        }
        "None" => {}
        other => errors.not_supported_in_order(
            &Path::new("spec").child("sessionAffinity"),
            other,
            &["ClientIP", "None"],
        ),
    }
}

/// Checks `clusterIP`, `clusterIPs`, `ipFamilies` and `ipFamilyPolicy` and their relations. Also used before the allocation of
/// addresses, so that nothing is allocated to an invalid Service.
pub(in crate::kinds) fn cluster_ip_fields(service: &Service, old: Option<&Service>) -> ErrorList {
    let mut errors = ErrorList::new();
    if !needs_cluster_ip(service) {
        return errors;
    }
    let path = Path::new("spec");
    let spec = spec_of(service);
    let ips_path = path.child("clusterIPs");
    let ips = spec.cluster_ips.as_deref().unwrap_or(&[]);
    match (text(&spec.cluster_ip), ips) {
        ("", []) => {}
        ("", _) => errors.invalid(
            &ips_path,
            shown(spec.cluster_ips.as_deref()),
            "must be empty when `clusterIP` is not specified",
        ),
        (_, []) => errors.required(&ips_path, ""),
        (one, [first, ..]) if one != first => errors.invalid(
            &ips_path,
            shown(spec.cluster_ips.as_deref()),
            "first value must match `clusterIP`",
        ),
        _ => {}
    }
    let families = spec.ip_families.as_deref().unwrap_or(&[]);
    for (i, family) in families.iter().enumerate() {
        let path = path.child("ipFamilies").index(i);
        if !matches!(family.as_str(), "IPv4" | "IPv6") {
            errors.not_supported_in_order(&path, family, &["IPv4", "IPv6"]);
        }
        if families[..i].contains(family) {
            errors.duplicate(&path, family);
        }
    }
    facts::check(&mut errors, &path, &spec, &["ipFamilyPolicy"]);
    let existing = old.map(spec_of).and_then(|o| o.cluster_ips).unwrap_or_default();
    let mut all_valid = true;
    for (i, address) in ips.iter().enumerate() {
        if i == 0 && address == NONE {
            if ips.len() > 1 {
                all_valid = false;
                let detail = "'None' must be the first and only value";
                errors.invalid(&ips_path, shown(spec.cluster_ips.as_deref()), detail);
            }
            continue;
        }
        all_valid &= ip(&mut errors, &ips_path.index(i), address, &existing);
    }
    if ips.len() > 2 {
        errors.invalid(
            &ips_path,
            shown(spec.cluster_ips.as_deref()),
            "may only hold up to 2 values",
        );
    }
    if !all_valid {
        return errors;
    }
    let is_v6 = |address: &String| address.contains(':');
    if ips.len() > 1 && ips.iter().any(is_v6) == ips.iter().all(is_v6) {
        errors.invalid(
            &ips_path,
            shown(spec.cluster_ips.as_deref()),
            "may specify no more than one IP for each IP family",
        );
    }
    if !is_headless(service) {
        for (i, (address, family)) in ips.iter().zip(families).enumerate() {
            if (family == "IPv4" && is_v6(address)) || (family == "IPv6" && !is_v6(address)) {
                errors.invalid(
                    &ips_path.index(i),
                    address,
                    format!("expected an {family} value as indicated by `ipFamilies[{i}]`"),
                );
            }
        }
    }
    errors
}

fn source_ranges(service: &Service, old: Option<&Service>, spec: &ServiceSpec, errors: &mut ErrorList) {
    let is_balancer = type_of(service) == LOAD_BALANCER;
    let trimmed = |spec: &ServiceSpec| -> Vec<String> {
        let ranges = spec.load_balancer_source_ranges.iter().flatten();
        ranges.map(|r| r.trim().to_string()).collect()
    };
    let annotation = |service: &Service| {
        let annotations = service.metadata.annotations.as_ref();
        annotations.and_then(|a| a.get(SOURCE_RANGES_ANNOTATION).cloned())
    };
    let ranges = trimmed(spec);
    if !ranges.is_empty() {
        // The capital letter in the path is that of Kubernetes.
        let path = Path::new("spec").child("LoadBalancerSourceRanges");
        if !is_balancer {
            errors.forbidden(&path, ONLY_LOAD_BALANCER);
        }
        let existing = old.map(|o| trimmed(&spec_of(o))).unwrap_or_default();
        for (i, range) in ranges.iter().enumerate() {
            cidr(errors, &path.index(i), range, &existing);
        }
    } else if let Some(value) = annotation(service) {
        let path = Path::new("metadata")
            .child("annotations")
            .key(SOURCE_RANGES_ANNOTATION);
        if !is_balancer {
            errors.forbidden(&path, ONLY_LOAD_BALANCER);
        }
        if old.and_then(annotation).as_ref() != Some(&value) && !value.trim().is_empty() {
            for range in value.split(',') {
                cidr(errors, &path, range.trim(), &[]);
            }
        }
    }
}

fn traffic(service: &Service, spec: &ServiceSpec, errors: &mut ErrorList) {
    const POLICIES: &[&str] = &["Cluster", "Local"];
    let path = Path::new("spec");
    let at = path.child("externalTrafficPolicy");
    match text(&spec.external_traffic_policy) {
        "" if externally_accessible(service) => errors.required(&at, ""),
        "" => {}
        policy if !externally_accessible(service) => {
            errors.invalid(&at, policy, "may only be set for externally-accessible services")
        }
        policy if !POLICIES.contains(&policy) => errors.not_supported_in_order(&at, policy, POLICIES),
        _ => {}
    }
    let at = path.child("healthCheckNodePort");
    match spec.health_check_node_port.unwrap_or(0) {
        0 if needs_health_check(service) => errors.required(&at, ""),
        0 => {}
        port if !needs_health_check(service) => errors.invalid(
            &at,
            port,
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        ),
        port => checks::port_number(errors, &at, port),
    }
    let at = path.child("internalTrafficPolicy");
    match &spec.internal_traffic_policy {
        None if matches!(type_of(service), CLUSTER_IP | NODE_PORT | LOAD_BALANCER) => {
            errors.required(&at, "");
        }
        Some(policy) if !POLICIES.contains(&policy.as_str()) => {
            errors.not_supported_in_order(&at, policy, POLICIES)
        }
        _ => {}
    }
    facts::check(errors, &path, spec, &["trafficDistribution"]);
}

/// Checks that the primary cluster IP did not change; a secondary one may be added or released.
pub(super) fn validate_cluster_ips_update(service: &Service, old: &Service, errors: &mut ErrorList) {
    if !needs_cluster_ip(service) || !needs_cluster_ip(old) || (is_headless(service) && is_headless(old)) {
        return;
    }
    let path = Path::new("spec").child("clusterIPs");
    let (spec, old) = (spec_of(service), spec_of(old));
    let ips = spec.cluster_ips.as_deref().unwrap_or(&[]);
    let old_ips = old.cluster_ips.as_deref().unwrap_or(&[]);
    let compared = if ips.len() == old_ips.len() { ips.len() } else { 1 };
    for (i, (new, old)) in ips.iter().zip(old_ips).take(compared).enumerate() {
        if new != old {
            errors.invalid(
                &path.index(i),
                shown(spec.cluster_ips.as_deref()),
                IMMUTABLE_ONCE_SET,
            );
        }
    }
    if old_ips.len() > ips.len() {
        if ips.is_empty() {
            errors.invalid(
                &path.index(0),
                shown(spec.cluster_ips.as_deref()),
                "primary clusterIP can not be unset",
            );
        } else if ips.len() == 1 {
            single_stack_to_release(&spec, "clusterIP", errors);
        }
    }
}

/// Checks that the primary IP family did not change; a secondary one may be added or released.
pub(super) fn validate_ip_families_update(service: &Service, old: &Service, errors: &mut ErrorList) {
    if !needs_cluster_ip(service)
        || !needs_cluster_ip(old)
        || is_headless(service) != is_headless(old)
        || is_headless(service)
    {
        return;
    }
    let path = Path::new("spec").child("ipFamilies").index(0);
    let (spec, old) = (spec_of(service), spec_of(old));
    let families = spec.ip_families.as_deref().unwrap_or(&[]);
    let old_families = old.ip_families.as_deref().unwrap_or(&[]);
    if families.len() == old_families.len() {
        for (new, old) in families.iter().zip(old_families) {
            if new != old {
                errors.invalid(&path, shown(spec.ip_families.as_deref()), IMMUTABLE_ONCE_SET);
            }
        }
        return;
    }
    if let (Some(new), Some(old)) = (families.first(), old_families.first())
        && new != old
    {
        errors.invalid(&path, shown(spec.cluster_ips.as_deref()), IMMUTABLE_ONCE_SET);
    }
    if old_families.len() > families.len() {
        if spec.cluster_ips.as_deref().unwrap_or(&[]).is_empty() {
            errors.invalid(
                &path,
                shown(spec.ip_families.as_deref()),
                "primary ipFamily can not be unset",
            );
        }
        if families.len() == 1 {
            single_stack_to_release(&spec, "ipFamily", errors);
        }
    }
}

fn single_stack_to_release(spec: &ServiceSpec, what: &str, errors: &mut ErrorList) {
    if text(&spec.ip_family_policy) != "SingleStack" {
        errors.invalid(
            &Path::new("spec").child("ipFamilyPolicy"),
            json(&spec.ip_family_policy),
            format!("must be set to 'SingleStack' when releasing the secondary {what}"),
        );
    }
}

pub(super) fn load_balancer_status(service: &Service, old: &Service, errors: &mut ErrorList) {
    let path = Path::new("status").child("loadBalancer").child("ingress");
    let ingress_of = |service: &Service| {
        let status = service.status.clone().unwrap_or_default();
        status.load_balancer.and_then(|b| b.ingress).unwrap_or_default()
    };
    let ingress = ingress_of(service);
    if type_of(service) != LOAD_BALANCER {
        if !ingress.is_empty() {
            errors.forbidden(&path, "may only be used when `spec.type` is 'LoadBalancer'");
        }
        return;
    }
    let existing: Vec<String> = ingress_of(old).into_iter().filter_map(|i| i.ip).collect();
    for (i, entry) in ingress.iter().enumerate() {
        let path = path.index(i);
        let address = text(&entry.ip);
        if !address.is_empty() {
            ip(errors, &path.child("ip"), address, &existing);
        }
        match &entry.ip_mode {
            None if !address.is_empty() => {
                errors.required(&path.child("ipMode"), "must be specified when `ip` is set");
            }
            None => {}
            Some(_) if address.is_empty() => {
                errors.forbidden(&path.child("ipMode"), "may not be specified when `ip` is not set");
            }
            Some(mode) if !matches!(mode.as_str(), "Proxy" | "VIP") => {
                errors.not_supported_in_order(&path.child("ipMode"), mode, &["Proxy", "VIP"]);
            }
            Some(_) => {}
        }
        let hostname = text(&entry.hostname);
        if !hostname.is_empty() {
            dns_subdomain(errors, &path.child("hostname"), hostname);
            if hostname.parse::<std::net::IpAddr>().is_ok() {
                let detail = "must be a DNS name, not an IP address";
                errors.invalid(&path.child("hostname"), hostname, detail);
            }
        }
    }
}

/// A list of strings as error messages show it.
fn shown(values: Option<&[String]>) -> Json {
    json_list(values.unwrap_or_default())
}
