//! The answers of Kubernetes' DNS specification.

mod messages;
mod names;
mod records;
mod upstream;

use hickory_proto::op::{Message, Query as HickoryQuery};
use hickory_proto::rr::{Name as HickoryName, RecordType};
use knarr_api::k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use super::message::{self, Section, Writer};
use super::name::Name;
use super::reverse::Reverse;
use super::search::{self, SearchList};
use super::zone::{Answer, Outcome, View, Zone};
use super::{query, record_type};
use crate::catalog::{Catalog, ServiceKey};

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

/// The examples of the specification, and cases between them.
struct Cluster {
    zone: Zone,
    catalog: Catalog,
    reverse: Reverse,
    is_synced: bool,
}

fn cluster() -> Cluster {
    let mut catalog = Catalog::default();
    let service = |name: &str, spec: Value| -> core::Service {
        serde_json::from_value(json!({"metadata": {"namespace": "default", "name": name}, "spec": spec}))
            .unwrap()
    };
    let ports = json!([{"name": "https", "port": 443}, {"name": "dns", "port": 53, "protocol": "UDP"}]);
    let services = [
        (
            "kubernetes",
            json!({"clusterIPs": ["10.3.0.1", "2001:db8::1"], "ports": ports}),
        ),
        (
            "headless",
            json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"name": "https", "port": 443}]}),
        ),
        ("empty", json!({"clusterIP": "None", "clusterIPs": ["None"]})),
        (
            "foo",
            json!({"type": "ExternalName", "externalName": "www.Example.com."}),
        ),
        (
            "inside",
            json!({"type": "ExternalName", "externalName": "kubernetes.default.svc.cluster.local"}),
        ),
        (
            "nowhere",
            json!({"type": "ExternalName", "externalName": "gone.default.svc.cluster.local"}),
        ),
        (
            "ring",
            json!({"type": "ExternalName", "externalName": "ring.default.svc.cluster.local"}),
        ),
        (
            "digits",
            json!({"type": "ExternalName", "externalName": "192.0.2.1"}),
        ),
    ];
    for (name, spec) in services {
        catalog.apply_service(&service(name, spec));
    }
    let slice = |name: &str, service: &str, family: &str, endpoints: Value| -> EndpointSlice {
        serde_json::from_value(json!({
            "metadata": {"namespace": "default", "name": name, "labels": {"kubernetes.io/service-name": service}},
            "addressType": family, "ports": [{"name": "https", "port": 8443}], "endpoints": endpoints,
        }))
        .unwrap()
    };
    let slices = [
        slice(
            "h4",
            "headless",
            "IPv4",
            json!([
                {"addresses": ["10.3.0.100"], "hostname": "my-pet"}, {"addresses": ["10.3.0.101"]},
                {"addresses": ["10.3.0.102"], "conditions": {"ready": false}},
            ]),
        ),
        slice(
            "h6",
            "headless",
            "IPv6",
            json!([{"addresses": ["2001:db8::100"], "hostname": "my-pet"}, {"addresses": ["2001:db8::101"]}]),
        ),
        slice(
            "e",
            "empty",
            "IPv4",
            json!([{"addresses": ["10.3.0.103"], "conditions": {"ready": false}}]),
        ),
    ];
    let mut reverse = Reverse::default();
    for slice in &slices {
        for key in catalog.apply_slice(slice) {
            reverse.update(&catalog, &key);
        }
    }
    Cluster {
        zone: Zone::new(name("cluster.local"), 5, vec!["10.3.0.10".parse().unwrap()]).unwrap(),
        catalog,
        reverse,
        is_synced: true,
    }
}

impl Cluster {
    fn with_view<T>(&self, act: impl FnOnce(&View<'_>) -> T) -> T {
        act(&View {
            zone: &self.zone,
            catalog: &self.catalog,
            reverse: &self.reverse,
            has_namespace: &|namespace| namespace == "default" || namespace == "bare",
            is_synced: self.is_synced,
            serial: 7,
        })
    }

    fn resolve(&self, asked: &str, record_type: u16, list: Option<SearchList<'_>>) -> Answer {
        self.with_view(|view| search::resolve(view, list, &name(asked), record_type))
    }

    /// The answer as a client reads it: its code, or the names it is passed on to; then its records.
    fn ask(&self, asked: &str, record_type: u16, list: Option<SearchList<'_>>) -> String {
        let answer = self.resolve(asked, record_type, list);
        let packet = question(asked, record_type);
        let query = query::read(&packet).unwrap();
        let mut out = Vec::new();
        let mut writer = Writer::begin(&mut out, &query, message::TCP_BYTES_MAX);
        for record in &answer.records {
            writer.record(Section::Answer, record);
        }
        for record in &answer.additional {
            writer.record(Section::Additional, record);
        }
        writer.finish(0, true);
        let decoded = Message::from_vec(&out).unwrap();
        assert!(decoded.authoritative && decoded.recursion_available);
        let mut lines = vec![match &answer.end {
            Outcome::Elsewhere(names) => format!("{names:?}"),
            end => format!("{end:?}"),
        }];
        lines.extend(
            decoded
                .answers
                .iter()
                .map(|r| format!("{} {} {}", r.name, r.record_type(), r.data)),
        );
        lines.extend(
            decoded
                .additionals
                .iter()
                .map(|r| format!("+{} {}", r.name, r.data)),
        );
        lines.join("; ")
    }
}

fn question(asked: &str, record_type: u16) -> Vec<u8> {
    let mut message = Message::query();
    message.metadata.id = 4711;
    let asked = HickoryName::from_ascii(format!("{}.", asked.trim_end_matches('.'))).unwrap();
    message.add_query(HickoryQuery::query(asked, RecordType::from(record_type)));
    message.to_vec().unwrap()
}

#[test]
fn n5_names_of_the_specification_lead_where_it_says() {
    use record_type::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT};
    let cluster = cluster();
    let table = [
        (
            "dns-version.cluster.local",
            TXT,
            r#"Records; dns-version.cluster.local. TXT 1.1.0"#,
        ),
        ("dns-version.cluster.local", A, "NoData"),
        (
            "cluster.local",
            SOA,
            "Records; cluster.local. SOA ns.dns.cluster.local. hostmaster.cluster.local. 7 7200 1800 86400 5",
        ),
        (
            "cluster.local",
            NS,
            "Records; cluster.local. NS ns.dns.cluster.local.; +ns.dns.cluster.local. 10.3.0.10",
        ),
        (
            "ns.dns.cluster.local",
            A,
            "Records; ns.dns.cluster.local. A 10.3.0.10",
        ),
        ("cluster.local", A, "NoData"),
        ("svc.cluster.local", A, "NoData"),
        ("default.svc.cluster.local", A, "NoData"),
        ("bare.svc.cluster.local", A, "NoData"),
        ("bare.pod.cluster.local", A, "NoData"),
        ("other.svc.cluster.local", A, "NoName"),
        ("other.cluster.local", A, "NoName"),
        // ClusterIP
        (
            "Kubernetes.default.svc.cluster.local",
            A,
            "Records; Kubernetes.default.svc.cluster.local. A 10.3.0.1",
        ),
        (
            "kubernetes.default.svc.cluster.local",
            AAAA,
            "Records; kubernetes.default.svc.cluster.local. AAAA 2001:db8::1",
        ),
        ("kubernetes.default.svc.cluster.local", CNAME, "NoData"),
        ("missing.default.svc.cluster.local", A, "NoName"),
        (
            "_https._tcp.kubernetes.default.svc.cluster.local",
            SRV,
            "Records; _https._tcp.kubernetes.default.svc.cluster.local. SRV 0 100 443 kubernetes.default.svc.cluster.local.; +kubernetes.default.svc.cluster.local. 10.3.0.1; +kubernetes.default.svc.cluster.local. 2001:db8::1",
        ),
        ("_https._udp.kubernetes.default.svc.cluster.local", SRV, "NoName"),
        ("_udp.kubernetes.default.svc.cluster.local", SRV, "NoData"),
        ("_sctp.kubernetes.default.svc.cluster.local", SRV, "NoName"),
        ("_https._tcp.kubernetes.default.svc.cluster.local", A, "NoData"),
        (
            "1.0.3.10.in-addr.arpa",
            PTR,
            "Records; 1.0.3.10.in-addr.arpa. PTR kubernetes.default.svc.cluster.local.",
        ),
        (
            "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa",
            PTR,
            "Records; 1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. PTR kubernetes.default.svc.cluster.local.",
        ),
        ("9.9.3.10.in-addr.arpa", PTR, "[9.9.3.10.in-addr.arpa.]"),
        // headless
        (
            "headless.default.svc.cluster.local",
            A,
            "Records; headless.default.svc.cluster.local. A 10.3.0.100; headless.default.svc.cluster.local. A 10.3.0.101",
        ),
        (
            "headless.default.svc.cluster.local",
            AAAA,
            "Records; headless.default.svc.cluster.local. AAAA 2001:db8::100; headless.default.svc.cluster.local. AAAA 2001:db8::101",
        ),
        (
            "my-pet.headless.default.svc.cluster.local",
            A,
            "Records; my-pet.headless.default.svc.cluster.local. A 10.3.0.100",
        ),
        ("10-3-0-100.headless.default.svc.cluster.local", A, "NoName"),
        (
            "10-3-0-101.headless.default.svc.cluster.local",
            A,
            "Records; 10-3-0-101.headless.default.svc.cluster.local. A 10.3.0.101",
        ),
        ("10-3-0-101.headless.default.svc.cluster.local", AAAA, "NoData"),
        ("10-3-0-102.headless.default.svc.cluster.local", A, "NoName"),
        (
            "2001-db8--101.headless.default.svc.cluster.local",
            AAAA,
            "Records; 2001-db8--101.headless.default.svc.cluster.local. AAAA 2001:db8::101",
        ),
        (
            "_https._tcp.headless.default.svc.cluster.local",
            SRV,
            "Records; _https._tcp.headless.default.svc.cluster.local. SRV 0 33 8443 my-pet.headless.default.svc.cluster.local.; _https._tcp.headless.default.svc.cluster.local. SRV 0 33 8443 10-3-0-101.headless.default.svc.cluster.local.; _https._tcp.headless.default.svc.cluster.local. SRV 0 33 8443 2001-db8--101.headless.default.svc.cluster.local.; +my-pet.headless.default.svc.cluster.local. 10.3.0.100; +10-3-0-101.headless.default.svc.cluster.local. 10.3.0.101; +my-pet.headless.default.svc.cluster.local. 2001:db8::100; +2001-db8--101.headless.default.svc.cluster.local. 2001:db8::101",
        ),
        (
            "100.0.3.10.in-addr.arpa",
            PTR,
            "Records; 100.0.3.10.in-addr.arpa. PTR my-pet.headless.default.svc.cluster.local.",
        ),
        ("102.0.3.10.in-addr.arpa", PTR, "[102.0.3.10.in-addr.arpa.]"),
        ("empty.default.svc.cluster.local", A, "NoName"),
        // external names
        (
            "foo.default.svc.cluster.local",
            A,
            "[www.example.com.]; foo.default.svc.cluster.local. CNAME www.example.com.",
        ),
        (
            "foo.default.svc.cluster.local",
            CNAME,
            "Records; foo.default.svc.cluster.local. CNAME www.example.com.",
        ),
        ("x.foo.default.svc.cluster.local", A, "NoName"),
        (
            "inside.default.svc.cluster.local",
            A,
            "Records; inside.default.svc.cluster.local. CNAME kubernetes.default.svc.cluster.local.; kubernetes.default.svc.cluster.local. A 10.3.0.1",
        ),
        (
            "nowhere.default.svc.cluster.local",
            A,
            "NoName; nowhere.default.svc.cluster.local. CNAME gone.default.svc.cluster.local.",
        ),
        ("digits.default.svc.cluster.local", A, "NoData"),
        // pods
        (
            "10-1-2-3.default.pod.cluster.local",
            A,
            "Records; 10-1-2-3.default.pod.cluster.local. A 10.1.2.3",
        ),
        ("10-1-2-3.other.pod.cluster.local", A, "NoName"),
        ("10-1-2-333.default.pod.cluster.local", A, "NoName"),
        (
            "2001-db8--9.default.pod.cluster.local",
            AAAA,
            "Records; 2001-db8--9.default.pod.cluster.local. AAAA 2001:db8::9",
        ),
        ("www.example.com", A, "[www.example.com.]"),
    ];
    for (asked, record_type, expected) in table {
        assert_eq!(cluster.ask(asked, record_type, None), expected, "{asked}");
    }
    assert!(
        cluster
            .ask("ring.default.svc.cluster.local", A, None)
            .starts_with("Failed")
    );
}

#[test]
fn n5_nothing_is_denied_before_the_first_sync() {
    let mut cluster = cluster();
    cluster.is_synced = false;
    for asked in [
        "missing.default.svc.cluster.local",
        "1.0.3.10.in-addr.arpa",
        "a.b.pod.cluster.local",
    ] {
        assert_eq!(cluster.ask(asked, record_type::A, None), "NotReady");
    }
    assert_eq!(cluster.ask("example.com", record_type::A, None), "[example.com.]");
}

#[test]
fn n5_a_search_list_is_followed_only_where_the_next_names_are_known() {
    use record_type::{A, AAAA, SRV};
    let cluster = cluster();
    let corp = [name("corp.example")];
    let list = Some(SearchList {
        namespace: "bare",
        node_domains: &corp,
    });
    let table = [
        (
            "kubernetes.default.bare.svc.cluster.local",
            A,
            "Records; kubernetes.default.bare.svc.cluster.local. CNAME kubernetes.default.svc.cluster.local.; kubernetes.default.svc.cluster.local. A 10.3.0.1",
        ),
        (
            "kubernetes.default.svc.bare.svc.cluster.local",
            A,
            "Records; kubernetes.default.svc.bare.svc.cluster.local. CNAME kubernetes.default.svc.cluster.local.; kubernetes.default.svc.cluster.local. A 10.3.0.1",
        ),
        (
            "foo.default.bare.svc.cluster.local",
            A,
            "[www.example.com.]; foo.default.bare.svc.cluster.local. CNAME foo.default.svc.cluster.local.; foo.default.svc.cluster.local. CNAME www.example.com.",
        ),
        (
            "example.com.bare.svc.cluster.local",
            AAAA,
            "[example.com.corp.example., example.com.]",
        ),
        (
            "a.b.c.d.e.bare.svc.cluster.local",
            A,
            "[a.b.c.d.e.corp.example., a.b.c.d.e.]",
        ),
        ("a.b.c.d.e.f.bare.svc.cluster.local", A, "NoName"),
        ("example.com.bare.svc.cluster.local", SRV, "NoName"),
        ("example.com.default.svc.cluster.local", A, "NoName"),
        ("example.com.svc.cluster.local", A, "NoName"),
        ("bare.svc.cluster.local", A, "NoData"),
    ];
    for (asked, record_type, expected) in table {
        assert_eq!(cluster.ask(asked, record_type, list), expected, "{asked}");
    }
    assert_eq!(
        cluster.ask("example.com.bare.svc.cluster.local", A, None),
        "NoName"
    );
    let own = Some(SearchList {
        namespace: "default",
        node_domains: &[],
    });
    assert_eq!(
        cluster.ask("headless.default.svc.cluster.local", A, own),
        cluster.ask("headless.default.svc.cluster.local", A, None),
        "what exists is not searched for"
    );
}

#[test]
fn n5_a_service_that_is_no_longer_headless_loses_its_reverse_names() {
    let mut cluster = cluster();
    let now: core::Service = serde_json::from_value(json!({
        "metadata": {"namespace": "default", "name": "headless"}, "spec": {"clusterIP": "10.3.0.9", "clusterIPs": ["10.3.0.9"]},
    }))
    .unwrap();
    cluster.catalog.apply_service(&now);
    cluster
        .reverse
        .update(&cluster.catalog, &ServiceKey::new("default", "headless"));
    let asked = "100.0.3.10.in-addr.arpa";
    assert_eq!(cluster.ask(asked, record_type::PTR, None), format!("[{asked}.]"));
}

fn edns_question(asked: &str, record_type: u16, udp_bytes: u16) -> Vec<u8> {
    let mut bytes = question(asked, record_type);
    bytes[11] = 1;
    bytes.extend([0, 0, 41]);
    bytes.extend(udp_bytes.to_be_bytes());
    bytes.extend([0; 6]);
    bytes
}
