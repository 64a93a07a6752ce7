//! Ranges, allocation from them, and rejected requests.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::Strategy;

fn range(text: &str) -> Cidr {
    Cidr::parse(text).expect("a range")
}

fn allocated(service: Value, old: Option<Value>, used: &[&str], ports: &[i32]) -> (Value, Vec<String>) {
    let parse = |value: Value| -> Service {
        let mut service: Service = serde_json::from_value(value).expect("a service");
        service.set_defaults();
        service
    };
    let mut service = parse(service);
    let old = old.map(parse);
    let used: BTreeSet<IpAddr> = used.iter().map(|a| a.parse().expect("an address")).collect();
    let allocators = Allocators {
        ranges: &[range("10.0.0.0/28")],
        additional_ranges: &[],
        node_ports: NodePorts::default(),
        ip_is_used: &|a| used.contains(&a),
        port_is_used: &|p| ports.contains(&p),
        random: 0,
    };
    let errors = allocate(&mut service, old.as_ref(), &allocators);
    let spec = serde_json::to_value(service.spec).expect("JSON");
    (spec, errors.iter().map(ToString::to_string).collect())
}

#[test]
fn the_first_and_the_last_address_are_not_usable() {
    let r = range("10.96.0.0/16");
    for (address, usable) in [
        ("10.96.0.0", false),
        ("10.96.0.1", true),
        ("10.96.255.254", true),
        ("10.96.255.255", false),
        ("10.97.0.1", false),
    ] {
        assert_eq!(
            is_usable(&r, address.parse().expect("an address")),
            usable,
            "{address}"
        );
    }
}

#[test]
fn the_static_band_is_allocated_last() {
    let r = range("10.96.0.0/16");
    assert_eq!(
        next_free(&r, |_| false, 0).map(|a| a.to_string()),
        Some("10.96.1.1".into())
    );
    let only_low = |a: IpAddr| a > "10.96.1.0".parse::<IpAddr>().expect("an address");
    assert_eq!(
        next_free(&r, only_low, 7).map(|a| a.to_string()),
        Some("10.96.0.1".into())
    );
    assert_eq!(next_free(&r, |_| true, 7), None);
    assert_eq!(next_free(&range("10.0.0.0/32"), |_| false, 0), None);
    assert_eq!(NodePorts::default().next_free(|_| false, 0), Some(30086));
}

#[test]
fn a_service_gets_an_address_and_ports() {
    let service = json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [
        {"name": "a", "port": 53}, {"name": "b", "port": 53, "protocol": "UDP"}]}});
    let (spec, errors) = allocated(service, None, &["10.0.0.1"], &[30086]);
    assert_eq!(errors, Vec::<String>::new());
    assert_eq!(spec["clusterIP"], "10.0.0.2");
    assert_eq!(spec["clusterIPs"], json!(["10.0.0.2"]));
    assert_eq!(
        (&spec["ipFamilies"], &spec["ipFamilyPolicy"]),
        (&json!(["IPv4"]), &json!("SingleStack"))
    );
    // One number serves both protocols of a port.
    assert_eq!(spec["ports"][0]["nodePort"], 30087);
    assert_eq!(spec["ports"][1]["nodePort"], 30087);
}

#[test]
fn what_was_allocated_stays_through_updates() {
    let old = json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "clusterIP": "10.0.0.5",
        "clusterIPs": ["10.0.0.5"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
        "ports": [{"port": 80, "nodePort": 30100}]}});
    let new = json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [{"port": 81}]}});
    let (spec, errors) = allocated(new, Some(old), &["10.0.0.5"], &[30100]);
    assert_eq!(errors, Vec::<String>::new());
    assert_eq!(
        (&spec["clusterIP"], &spec["ports"][0]["nodePort"]),
        (&json!("10.0.0.5"), &json!(30100))
    );
}

#[test]
fn what_cannot_be_allocated_is_reported() {
    let with = |extra: Value| {
        let mut spec = json!({"ports": [{"port": 80}]});
        for (key, value) in extra.as_object().expect("an object") {
            spec[key] = value.clone();
        }
        allocated(
            json!({"metadata": {"name": "s"}, "spec": spec}),
            None,
            &["10.0.0.9"],
            &[30100],
        )
        .1
    };
    for (extra, error) in [
        (
            json!({"clusterIP": "10.0.0.9"}),
            r#"spec.clusterIPs: Invalid value: ["10.0.0.9"]: failed to allocate IP 10.0.0.9: provided IP is already allocated"#,
        ),
        (
            json!({"ipFamilies": ["IPv6"]}),
            r#"spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster"#,
        ),
        (
            json!({"ipFamilyPolicy": "RequireDualStack"}),
            r#"spec.ipFamilyPolicy: Invalid value: "RequireDualStack": this cluster is not configured for dual-stack services"#,
        ),
        (
            json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]}),
            "spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. The range of valid ports \
             is 30000-32767",
        ),
        (
            json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30100}]}),
            "spec.ports[0].nodePort: Invalid value: 30100: provided port is already allocated",
        ),
    ] {
        assert_eq!(with(extra), [error]);
    }
}

#[test]
fn headless_services_have_no_address_but_families() {
    let (spec, errors) = allocated(
        json!({"metadata": {"name": "s"}, "spec": {"clusterIP": "None"}}),
        None,
        &[],
        &[],
    );
    assert_eq!(errors, Vec::<String>::new());
    assert_eq!(spec["clusterIPs"], json!(["None"]));
    assert_eq!(spec["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(spec["ipFamilyPolicy"], "RequireDualStack");
}

#[test]
fn ranges_are_cut_into_smaller_ones() {
    let range_16 = range("10.244.0.0/16");
    let cut = |prefix_len, index| range_16.subrange(prefix_len, index).map(|r| r.to_string());
    assert_eq!(cut(24, 0).as_deref(), Some("10.244.0.0/24"));
    assert_eq!(cut(24, 255).as_deref(), Some("10.244.255.0/24"));
    assert_eq!(cut(24, 256), None);
    assert_eq!(cut(32, 65_535).as_deref(), Some("10.244.255.255/32"));
    assert_eq!(cut(15, 0), None);
    assert_eq!(cut(33, 0), None);
    let v6 = range("fd00::/48").subrange(64, 65_535).map(|r| r.to_string());
    assert_eq!(v6.as_deref(), Some("fd00:0:0:ffff::/64"));
    // A range of 2^128 addresses is not supported.
    assert_eq!(range("::/0").subrange(0, 0), None);

    let overlapping = |other: &str| range_16.subranges_overlapping(24, &range(other));
    assert_eq!(overlapping("10.244.3.0/24"), Some(3..=3));
    assert_eq!(overlapping("10.244.3.7/32"), Some(3..=3));
    assert_eq!(overlapping("10.244.2.0/23"), Some(2..=3));
    assert_eq!(overlapping("10.0.0.0/8"), Some(0..=255));
    assert_eq!(overlapping("10.245.0.0/16"), None);
    assert_eq!(overlapping("fd00::/48"), None);
}

#[test]
fn additional_ranges_serve_when_the_first_is_full_or_an_address_of_theirs_is_requested() {
    let allocated = |spec: Value, full: bool| {
        let mut service: Service = serde_json::from_value(json!({"spec": spec})).expect("a service");
        service.set_defaults();
        let first = range("10.0.0.0/28");
        let allocators = Allocators {
            ranges: &[first],
            additional_ranges: &[range("10.9.0.0/30"), range("fd00::/112")],
            node_ports: NodePorts::default(),
            ip_is_used: &|a| full && first.contains(a),
            port_is_used: &|_| false,
            random: 0,
        };
        let errors = allocate(&mut service, None, &allocators);
        let address = service.spec.and_then(|s| s.cluster_ip);
        address.filter(|_| errors.is_empty())
    };
    let ports = json!([{"port": 80}]);
    let any = json!({"ports": ports});
    assert_eq!(allocated(any.clone(), true).as_deref(), Some("10.9.0.1"));
    assert!(allocated(any, false).is_some_and(|a| a.starts_with("10.0.0.")));
    let cluster_ip = |ip: &str| allocated(json!({"ports": ports, "clusterIP": ip}), false);
    assert_eq!(cluster_ip("10.9.0.2").as_deref(), Some("10.9.0.2"));
    assert_eq!(cluster_ip("10.9.0.4"), None);
}
