//! Which servers a question is forwarded to, and what is kept of their answers.

use std::collections::BTreeMap;

use hickory_proto::op::Message;
use hickory_proto::rr::Name as HickoryName;
use proptest::prelude::*;

use super::{edns_question, name, question};
use crate::dns::cached::{Question, Reply, ReplyError};
use crate::dns::forward::{ForwardError, Forwarding};
use crate::dns::message::{Data, Record};
use crate::dns::resolv_conf::ResolvConf;
use crate::dns::zone::{Answer, Outcome};
use crate::dns::{query, record_type};

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

#[test]
fn n5_the_configmap_has_at_most_so_many_servers_domains_and_hosts() {
    let read = |key: &str, text: String| Forwarding::parse(&BTreeMap::from([(key.to_string(), text)]));
    let servers = |count: usize| vec!["10.0.0.1"; count].join(" ");
    let domains = |count: usize| {
        let all: BTreeMap<String, [&str; 1]> = (0..count)
            .map(|n| (format!("n{n}.example"), ["10.0.0.1"]))
            .collect();
        serde_json::to_string(&all).unwrap()
    };
    let hosts = |count: usize| {
        let lines: Vec<String> = (0..count).map(|n| format!("10.0.0.1 n{n}.example\n")).collect();
        lines.concat()
    };
    type Line<'a> = &'a dyn Fn(usize) -> String;
    let table: [(&'static str, usize, Line<'_>); 3] = [
        ("upstreams", 15, &servers),
        ("stubDomains", 1000, &domains),
        ("hosts", 10_000, &hosts),
    ];
    for (key, max, text) in table {
        assert!(read(key, text(max)).is_ok(), "{key}");
        let errors = read(key, text(max + 1)).unwrap_err();
        assert_eq!(errors, [ForwardError::TooMany { key, max }]);
    }
    let more_of_one = hosts(10_000) + "10.0.0.2 n0.example\n";
    assert!(read("hosts", more_of_one).is_ok());
}

#[test]
fn n5_a_host_has_its_addresses_of_the_queried_family() {
    let hosts = "192.0.2.1 one\n2001:db8::2 one\n".to_string();
    let read = Forwarding::parse(&BTreeMap::from([("hosts".to_string(), hosts)])).unwrap();
    for (record_type, address) in [(record_type::A, "192.0.2.1"), (record_type::AAAA, "2001:db8::2")] {
        let answer = read.host(&name("one"), record_type).unwrap();
        let data: Vec<Data> = answer.records.into_iter().map(|r| r.data).collect();
        assert_eq!(data, [Data::Address(address.parse().unwrap())]);
    }
    assert_eq!(read.host(&name("one"), record_type::TXT), None);
}

#[test]
fn n5_the_first_three_name_servers_of_the_node_are_used() {
    let text = "nameserver 10.0.0.1\nnameserver fe80::1%eth0\nnameserver 10.0.0.2\nnameserver 10.0.0.3\nnameserver 10.0.0.4\n";
    let servers: Vec<String> = ResolvConf::parse(text)
        .servers
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(servers, ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
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

/// What leads to another server's name: a Service of type ExternalName.
fn alias_of(asked: &Question) -> Answer {
    let alias = Record {
        owner: None,
        ttl_seconds: 5,
        data: Data::Cname(asked.name.clone()),
    };
    Answer {
        records: vec![alias],
        additional: Vec::new(),
        end: Outcome::Records,
    }
}

#[test]
fn n5_another_servers_records_are_the_same_behind_our_own() {
    use hickory_proto::rr::rdata::{A, CNAME, MX, SOA, SRV};
    use hickory_proto::rr::{RData, Record as HickoryRecord};
    let packet = edns_question("ext.ns.svc.cluster.local", record_type::A, 1232);
    let query = query::read(&packet).unwrap();
    let asked = Question::new(name("www.example.com"), &query);
    let named = |text: &str| HickoryName::from_ascii(text).unwrap();
    // With pointers in owners and in data.
    let message = |ttl: u32| {
        let (target, mail) = (named("target.example.com."), named("mail.example.com."));
        let mut message = Message::from_vec(&asked.message(9)).unwrap().into_response();
        for (owner, data) in [
            (named("www.example.com."), RData::CNAME(CNAME(target.clone()))),
            (target.clone(), RData::A(A::new(192, 0, 2, 7))),
            (target.clone(), RData::A(A::new(192, 0, 2, 8))),
            (target.clone(), RData::MX(MX::new(10, mail.clone()))),
            (target.clone(), RData::SRV(SRV::new(1, 2, 443, mail.clone()))),
            (mail.clone(), RData::A(A::new(192, 0, 2, 9))),
        ] {
            message.add_answer(HickoryRecord::from_rdata(owner, ttl, data));
        }
        let soa = SOA::new(named("ns.example.com."), mail, 7, 7200, 1800, 86_400, 5);
        message.add_authority(HickoryRecord::from_rdata(
            named("example.com."),
            ttl,
            RData::SOA(soa),
        ));
        message
    };
    let reply = Reply::read(&message(20).to_vec().unwrap(), &asked, 9).unwrap();
    let mut own = alias_of(&asked);
    own.additional.push(Record {
        owner: Some(name("target.example.com")),
        ttl_seconds: 5,
        data: Data::Address("192.0.2.99".parse().unwrap()),
    });
    let write = |limit| {
        let mut out = Vec::new();
        reply
            .write_behind(&mut out, &query, &own, &asked, 8, limit)
            .unwrap();
        assert!(out.len() <= limit);
        let decoded = Message::from_vec(&out).unwrap();
        (decoded, out.len())
    };
    let lines = |records: &[HickoryRecord]| -> Vec<String> {
        records
            .iter()
            .map(|r| format!("{} {} {} {}", r.name, r.ttl, r.record_type(), r.data))
            .collect()
    };
    let (whole, bytes) = write(1232);
    let alias = "ext.ns.svc.cluster.local. 5 CNAME www.example.com.";
    assert_eq!(lines(&whole.answers[..1]), [alias]);
    assert_eq!(lines(&whole.answers[1..]), lines(&message(12).answers));
    assert_eq!(lines(&whole.authorities), lines(&message(12).authorities));
    assert_eq!(lines(&whole.additionals), ["target.example.com. 5 A 192.0.2.99"]);
    assert!(!whole.metadata.authoritative && !whole.metadata.truncation);
    assert!(whole.edns.is_some(), "the client offered it");
    // An additional record is left out before anything else: a pointer, 10 bytes and an address.
    let (without, _) = write(bytes - 1);
    assert_eq!((without.answers.len(), without.additionals.len()), (7, 0));
    let (truncated, _) = write(bytes - 17);
    assert!(truncated.metadata.truncation && truncated.answers.is_empty());
}

proptest! {
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
            let mut behind = Vec::new();
            let written = reply.write_behind(&mut behind, &query, &alias_of(&asked), &asked, 3, limit);
            prop_assert!(written.is_err() || behind.len() <= limit.max(12 + query.question.len() + 11));
        }
    }
}
