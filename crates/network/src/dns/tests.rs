//! The answers of Kubernetes' DNS specification, and of unusual messages.

use std::collections::BTreeMap;
use std::net::IpAddr;

use hickory_proto::op::{Message, Query as HickoryQuery};
use hickory_proto::rr::{Name as HickoryName, RecordType};
use knarr_api::k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi::api::discovery::v1::EndpointSlice;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::cached::{Question, Reply, ReplyError};
use super::forward::Forwarding;
use super::message::{self, Section, Writer};
use super::name::Name;
use super::query::{self, Query, Rejected};
use super::resolv_conf::ResolvConf;
use super::reverse::Reverse;
use super::search::{self, SearchList};
use super::zone::{Answer, Outcome, View, Zone};
use super::{record_type, response_code};
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

fn header(flags: u16, counts: [u16; 4]) -> Vec<u8> {
    [0x1234, flags]
        .iter()
        .chain(&counts)
        .flat_map(|n| n.to_be_bytes())
        .collect()
}

#[test]
fn n5_what_is_no_question_gets_a_header_or_nothing() {
    let asked = b"\x01a\x00\x00\x01\x00\x01";
    let with = |flags, counts, rest: &[u8]| [&header(flags, counts)[..], rest].concat();
    let table: [(&str, Vec<u8>, Option<u16>); 9] = [
        ("no header", vec![0; 11], None),
        ("an answer", with(0x8000, [1, 0, 0, 0], asked), None),
        (
            "a notification",
            with(0x2000, [1, 0, 0, 0], asked),
            Some(response_code::NOT_IMPLEMENTED),
        ),
        (
            "no question",
            with(0, [0; 4], b""),
            Some(response_code::FORMAT_ERROR),
        ),
        (
            "two questions",
            with(0, [2, 0, 0, 0], &[&asked[..], asked].concat()),
            Some(response_code::FORMAT_ERROR),
        ),
        (
            "half a question",
            with(0, [1, 0, 0, 0], &asked[..4]),
            Some(response_code::FORMAT_ERROR),
        ),
        (
            "truncated",
            with(0x0200, [1, 0, 0, 0], asked),
            Some(response_code::FORMAT_ERROR),
        ),
        (
            "a pointer to itself",
            with(0, [1, 0, 0, 0], b"\xc0\x0c\x00\x01\x00\x01"),
            Some(response_code::FORMAT_ERROR),
        ),
        (
            "bytes behind it",
            with(0, [1, 0, 0, 0], &[&asked[..], b"x"].concat()),
            Some(response_code::FORMAT_ERROR),
        ),
    ];
    for (what, bytes, expected) in table {
        let rejected = query::read(&bytes).unwrap_err();
        let mut out = Vec::new();
        assert_eq!(
            message::rejection(&mut out, &rejected),
            expected.is_some(),
            "{what}"
        );
        assert!(out.len() <= bytes.len(), "{what}: no amplification");
        assert_eq!(expected.unwrap_or(2), message::code_of(&out), "{what}");
    }
    for (record_type, class, code) in [(252u16, 1u16, 5), (1, 3, 5), (249, 1, 4), (41, 1, 4)] {
        let question = [
            &b"\x01a\x00"[..],
            &record_type.to_be_bytes(),
            &class.to_be_bytes(),
        ]
        .concat();
        let bytes = with(0x0100, [1, 0, 0, 0], &question);
        match query::read(&bytes).unwrap_err() {
            Rejected::Question { code: got, .. } => assert_eq!(got, code),
            other => panic!("{other:?}"),
        }
    }
    let future = with(
        0,
        [1, 0, 0, 1],
        &[&asked[..], b"\x00\x00\x29\x04\xd0\x00\x01\x00\x00\x00\x00"].concat(),
    );
    let mut out = Vec::new();
    message::rejection(&mut out, &query::read(&future).unwrap_err());
    let decoded = Message::from_vec(&out).unwrap();
    assert_eq!(
        u16::from(decoded.metadata.response_code),
        response_code::BAD_VERSION
    );
}

#[test]
fn n5_answers_that_do_not_fit_in_are_empty_and_truncated() {
    let packet = question("big.default.svc.cluster.local", record_type::A);
    let query = query::read(&packet).unwrap();
    let record = |n: u8| message::Record {
        owner: None,
        ttl_seconds: 5,
        data: message::Data::Address(IpAddr::from([10, 0, 0, n])),
    };
    for (limit, expected) in [(512, 0), (message::TCP_BYTES_MAX, 200)] {
        let mut out = b"before".to_vec();
        let mut writer = Writer::begin(&mut out, &query, limit);
        (0..200).for_each(|n| writer.record(Section::Answer, &record(n)));
        writer.finish(0, true);
        let decoded = Message::from_vec(&out[6..]).unwrap();
        assert_eq!(decoded.answers.len(), expected);
        assert_eq!(decoded.metadata.truncation, expected == 0);
        assert!(out.len() - 6 <= limit);
    }
}

#[test]
fn n5_the_configmap_is_read_whole_or_not_at_all() {
    let data = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| (k.to_string(), v.to_string()))
            .collect()
    };
    let read = Forwarding::parse(&data(&[
        ("upstreams", "1.1.1.1, 8.8.8.8:5353\n[2001:db8::1]:53"),
        (
            "stubDomains",
            r#"{"corp.example": ["10.0.0.1"], "eu.corp.example.": ["10.0.0.2"]}"#,
        ),
        ("hosts", "192.0.2.1 one two # three\n2001:db8::2\tone\n\n"),
    ]))
    .unwrap();
    let servers = |asked: &str| read.servers(&name(asked), &[])[0].to_string();
    assert_eq!(servers("example.com"), "1.1.1.1:53");
    assert_eq!(servers("a.corp.example"), "10.0.0.1:53");
    assert_eq!(servers("A.eu.corp.example"), "10.0.0.2:53");
    assert_eq!(servers("acorp.example"), "1.1.1.1:53");
    assert_eq!(read.host(&name("one"), record_type::A).unwrap().records.len(), 1);
    assert_eq!(
        read.host(&name("two"), record_type::AAAA).unwrap().end,
        Outcome::NoData
    );
    assert_eq!(read.host(&name("three"), record_type::A), None);
    let errors = Forwarding::parse(&data(&[
        ("upstreams", "dns.example 0.0.0.0 1.1.1.1"),
        ("stubDomains", "[]"),
        ("hosts", "x one\n10.0.0.1 a..b"),
    ]));
    assert_eq!(errors.unwrap_err().len(), 5);
    let conf = ResolvConf::parse("search a\nnameserver 1.1.1.1\nnameserver x\nsearch corp.example b # c\n");
    assert_eq!(conf.servers.len(), 1);
    assert_eq!(conf.domains[..2], [name("corp.example"), name("b")]);
}

/// What an upstream server sends: made by another implementation than ours.
fn upstream_answer(asked: &Question, id: u16, ttl: u32) -> Vec<u8> {
    use hickory_proto::rr::rdata::{A, CNAME};
    use hickory_proto::rr::{RData, Record};
    let query = Message::from_vec(&asked.message(id)).unwrap();
    let mut answer = query.clone().into_response();
    let owner = query.queries[0].name().clone();
    let target = HickoryName::from_ascii("target.example.com.").unwrap();
    answer.add_answer(Record::from_rdata(
        owner,
        ttl,
        RData::CNAME(CNAME(target.clone())),
    ));
    answer.add_answer(Record::from_rdata(target, ttl, RData::A(A::new(192, 0, 2, 7))));
    answer.to_vec().unwrap()
}

#[test]
fn n5_cached_answers_carry_the_clients_id_case_and_edns_and_grow_older() {
    let packet = question("WwW.eXample.com", record_type::A);
    let query = query::read(&packet).unwrap();
    let asked = Question::new(query.name.clone(), &query);
    let bytes = upstream_answer(&asked, 9, 20);
    assert_eq!(Reply::read(&bytes, &asked, 10), Err(ReplyError::Foreign));
    let reply = Reply::read(&bytes, &asked, 9).unwrap();
    assert_eq!(reply.lifetime_seconds, 20);
    let mut out = Vec::new();
    reply.write(&mut out, &query, 8, 512);
    let decoded = Message::from_vec(&out).unwrap();
    assert_eq!(decoded.metadata.id, 4711);
    assert!(decoded.edns.is_none(), "the client did not offer it");
    assert_eq!(decoded.queries[0].name().to_string(), "WwW.eXample.com.");
    let records: Vec<_> = decoded
        .answers
        .iter()
        .map(|r| (r.ttl, r.data.to_string()))
        .collect();
    // What the target shares with the question has the client's case, too.
    assert_eq!(
        records,
        [(12, "target.eXample.com.".into()), (12, "192.0.2.7".into())]
    );
    out.clear();
    reply.write(&mut out, &query, 8, 60);
    assert!(out.len() <= 60 && Message::from_vec(&out).unwrap().metadata.truncation);
    let whole = Message::from_vec(&reply.message(&asked, 8)).unwrap();
    assert_eq!(whole.answers.iter().map(|r| r.ttl).collect::<Vec<_>>(), [12, 12]);
}

fn edns_question(asked: &str, record_type: u16, udp_bytes: u16) -> Vec<u8> {
    let mut bytes = question(asked, record_type);
    bytes[11] = 1;
    bytes.extend([0, 0, 41]);
    bytes.extend(udp_bytes.to_be_bytes());
    bytes.extend([0; 6]);
    bytes
}

fn write_answer(cluster: &Cluster, query: &Query<'_>, limit: usize) -> Vec<u8> {
    let answer = cluster.with_view(|view| search::resolve(view, None, &query.name, query.record_type));
    let mut out = Vec::new();
    let mut writer = Writer::begin(&mut out, query, limit);
    answer
        .records
        .iter()
        .for_each(|r| writer.record(Section::Answer, r));
    writer.record(Section::Authority, &cluster.zone.authority(1));
    answer
        .additional
        .iter()
        .for_each(|r| writer.record(Section::Additional, r));
    writer.finish(0, true);
    out
}

proptest! {
    #[test]
    fn n5_no_bytes_make_the_reader_panic_or_the_answer_long(bytes in proptest::collection::vec(any::<u8>(), 0..700)) {
        let cluster = cluster();
        let mut out = Vec::new();
        match query::read(&bytes) {
            Ok(query) => out = write_answer(&cluster, &query, query.udp_limit()),
            Err(rejected) => { message::rejection(&mut out, &rejected); }
        }
        prop_assert!(out.len() <= query::UDP_BYTES_MAX);
        prop_assert!(out.is_empty() || Message::from_vec(&out).is_ok());
    }

    #[test]
    fn n5_damaged_questions_neither_panic_nor_get_what_cannot_be_read(
        flips in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6),
        cut in 0usize..120,
        service in prop_oneof![Just("headless"), Just("kubernetes"), Just("_https._tcp.headless"), Just("inside")],
        record_type in prop_oneof![Just(1u16), Just(28), Just(33), Just(255), Just(5)],
        size in any::<u16>(),
    ) {
        let cluster = cluster();
        let mut bytes = edns_question(&format!("{service}.default.svc.cluster.local"), record_type, size);
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(bytes.len().saturating_sub(cut / 8));
        if let Ok(query) = query::read(&bytes) {
            let out = write_answer(&cluster, &query, query.udp_limit());
            prop_assert!(out.len() <= query.udp_limit());
            let decoded = Message::from_vec(&out);
            prop_assert!(decoded.is_ok(), "{decoded:?}");
            prop_assert_eq!(decoded.unwrap().edns.is_some(), query.edns.is_some());
        }
    }

    #[test]
    fn n5_no_bytes_of_an_upstream_server_make_the_cache_panic(
        flips in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..8),
        cut in 0usize..40,
        limit in 0usize..600,
    ) {
        let packet = edns_question("www.example.com", 1, 1232);
        let query = query::read(&packet).unwrap();
        let asked = Question::new(query.name.clone(), &query);
        let mut bytes = upstream_answer(&asked, 9, 20);
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(bytes.len() - cut.min(bytes.len()));
        if let Ok(reply) = Reply::read(&bytes, &asked, 9) {
            let mut out = Vec::new();
            reply.write(&mut out, &query, 3, limit);
            prop_assert!(out.len() <= limit.max(12 + query.question.len() + 11));
            reply.message(&asked, 3);
        }
    }
}
