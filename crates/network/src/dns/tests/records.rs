//! Services with several ports, endpoints without a hostname, reverse names and the end of a search.

use std::net::IpAddr;

use knarr_api::k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use super::{Cluster, cluster, name};
use crate::dns::message::Data;
use crate::dns::record_type::{A, AAAA, ANY, SRV};
use crate::dns::reverse;
use crate::dns::search::SearchList;
use crate::dns::zone::Outcome;

impl Cluster {
    fn service(&mut self, name: &str, spec: Value) {
        let service: core::Service =
            serde_json::from_value(json!({"metadata": {"namespace": "default", "name": name}, "spec": spec}))
                .unwrap();
        self.catalog.apply_service(&service);
    }

    fn slice(&mut self, name: &str, service: &str, ports: Value, endpoints: Value) {
        let slice: EndpointSlice = serde_json::from_value(json!({
            "metadata": {"namespace": "default", "name": name, "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4", "ports": ports, "endpoints": endpoints,
        }))
        .unwrap();
        for key in self.catalog.apply_slice(&slice) {
            self.reverse.update(&self.catalog, &key);
        }
    }
}

#[test]
fn n5_each_port_has_its_own_srv_records_with_the_addresses_of_their_targets() {
    let mut cluster = cluster();
    let ports = json!([
        {"name": "http", "port": 80}, {"name": "https", "port": 443},
        {"name": "sig", "port": 5060, "protocol": "SCTP"},
    ]);
    cluster.service("calls", json!({"clusterIPs": ["10.3.0.7"], "ports": ports}));
    cluster.service("peers", json!({"clusterIP": "None", "clusterIPs": ["None"]}));
    cluster.slice(
        "p1",
        "peers",
        json!([{"name": "http", "port": 8080}, {"name": "https", "port": 8443}]),
        json!([{"addresses": ["10.3.0.110"], "hostname": ""}]),
    );
    cluster.slice(
        "p2",
        "peers",
        json!([{"name": "metrics", "port": 9090}]),
        json!([{"addresses": ["10.3.0.111"]}]),
    );
    let table = [
        ("_sctp.calls.default.svc.cluster.local", SRV, "NoData"),
        (
            "_sig._sctp.calls.default.svc.cluster.local",
            SRV,
            "Records; _sig._sctp.calls.default.svc.cluster.local. SRV 0 100 5060 calls.default.svc.cluster.local.; +calls.default.svc.cluster.local. 10.3.0.7",
        ),
        (
            "_http._tcp.calls.default.svc.cluster.local",
            SRV,
            "Records; _http._tcp.calls.default.svc.cluster.local. SRV 0 100 80 calls.default.svc.cluster.local.; +calls.default.svc.cluster.local. 10.3.0.7",
        ),
        (
            "calls.default.svc.cluster.local",
            SRV,
            "Records; calls.default.svc.cluster.local. SRV 0 33 80 calls.default.svc.cluster.local.; calls.default.svc.cluster.local. SRV 0 33 443 calls.default.svc.cluster.local.; calls.default.svc.cluster.local. SRV 0 33 5060 calls.default.svc.cluster.local.; +calls.default.svc.cluster.local. 10.3.0.7",
        ),
        (
            "_http._tcp.peers.default.svc.cluster.local",
            SRV,
            "Records; _http._tcp.peers.default.svc.cluster.local. SRV 0 100 8080 10-3-0-110.peers.default.svc.cluster.local.; +10-3-0-110.peers.default.svc.cluster.local. 10.3.0.110",
        ),
        ("_http._tcp.peers.default.svc.cluster.local", A, "NoData"),
        (
            "10-3-0-110.peers.default.svc.cluster.local",
            A,
            "Records; 10-3-0-110.peers.default.svc.cluster.local. A 10.3.0.110",
        ),
    ];
    for (asked, record_type, expected) in table {
        assert_eq!(cluster.ask(asked, record_type, None), expected, "{asked}");
    }
}

#[test]
fn n5_a_long_srv_answer_has_the_addresses_of_its_first_targets() {
    let mut cluster = cluster();
    cluster.service("many", json!({"clusterIP": "None", "clusterIPs": ["None"]}));
    let endpoints: Vec<Value> = (0..70)
        .map(|n| json!({"addresses": [format!("10.4.0.{n}")]}))
        .collect();
    let ports = json!([{"name": "https", "port": 8443}]);
    cluster.slice("many", "many", ports, endpoints.into());
    let answer = cluster.resolve("_https._tcp.many.default.svc.cluster.local", SRV, None);
    assert_eq!((answer.records.len(), answer.additional.len()), (70, 64));
}

#[test]
fn n5_a_question_for_any_type_gets_one_record_if_the_name_exists() {
    let cluster = cluster();
    for asked in [
        "kubernetes.default.svc.cluster.local",
        "default.svc.cluster.local",
        "1.0.3.10.in-addr.arpa",
    ] {
        let answer = cluster.resolve(asked, ANY, None);
        assert_eq!(answer.end, Outcome::Records, "{asked}");
        let data: Vec<Data> = answer.records.into_iter().map(|r| r.data).collect();
        assert_eq!(data, [Data::MinimalAny], "{asked}");
    }
    let missing = cluster.resolve("missing.default.svc.cluster.local", ANY, None);
    assert_eq!((missing.end, missing.records), (Outcome::NoName, vec![]));
}

#[test]
fn n5_only_a_whole_reverse_name_is_an_address() {
    let nibbles = |count: usize| format!("{}ip6.arpa", "1.".repeat(count));
    for (text, expected) in [
        ("4.3.2.1.in-addr.arpa".to_string(), Some("1.2.3.4")),
        ("3.2.1.in-addr.arpa".to_string(), None),
        ("5.4.3.2.1.in-addr.arpa".to_string(), None),
        ("04.3.2.1.in-addr.arpa".to_string(), None),
        ("256.3.2.1.in-addr.arpa".to_string(), None),
        (nibbles(31), None),
        (nibbles(32), Some("1111:1111:1111:1111:1111:1111:1111:1111")),
        (nibbles(33), None),
    ] {
        let expected = expected.map(|ip| ip.parse::<IpAddr>().unwrap());
        assert_eq!(reverse::address_of(&name(&text)), expected, "{text}");
    }
}

#[test]
fn n5_a_name_without_the_queried_type_or_with_an_alias_ends_the_search() {
    let cluster = cluster();
    let table = [
        (
            "default",
            "10-3-0-101.headless.default.svc.cluster.local",
            AAAA,
            "NoData",
        ),
        (
            "default",
            "nowhere.default.svc.cluster.local",
            A,
            "NoName; nowhere.default.svc.cluster.local. CNAME gone.default.svc.cluster.local.",
        ),
        (
            "bare",
            "10-3-0-101.headless.default.bare.svc.cluster.local",
            AAAA,
            "NoData; 10-3-0-101.headless.default.bare.svc.cluster.local. CNAME 10-3-0-101.headless.default.svc.cluster.local.",
        ),
        (
            "bare",
            "nowhere.default.bare.svc.cluster.local",
            A,
            "NoName; nowhere.default.bare.svc.cluster.local. CNAME nowhere.default.svc.cluster.local.; nowhere.default.svc.cluster.local. CNAME gone.default.svc.cluster.local.",
        ),
    ];
    for (namespace, asked, record_type, expected) in table {
        let list = Some(SearchList {
            namespace,
            node_domains: &[],
        });
        assert_eq!(cluster.ask(asked, record_type, list), expected, "{asked}");
    }
}
