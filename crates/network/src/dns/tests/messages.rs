//! Messages that are no questions, are damaged, or whose answers do not fit.

use std::net::IpAddr;

use hickory_proto::op::Message;
use proptest::prelude::*;

use super::{Cluster, cluster, edns_question, name, question};
use crate::dns::message::{self, Data, Record, Section, Writer};
use crate::dns::query::{self, Edns, Query, Rejected};
use crate::dns::{record_type, response_code, search};

fn header(flags: u16, counts: [u16; 4]) -> Vec<u8> {
    [0x1234, flags]
        .iter()
        .chain(&counts)
        .flat_map(|n| n.to_be_bytes())
        .collect()
}

/// A question for the address of `a`.
const ASKED: &[u8] = b"\x01a\x00\x00\x01\x00\x01";

fn address(last: u8) -> Record {
    Record {
        owner: None,
        ttl_seconds: 5,
        data: Data::Address(IpAddr::from([10, 0, 0, last])),
    }
}

#[test]
fn n5_what_is_no_question_gets_a_header_or_nothing() {
    let asked = ASKED;
    let with = |flags, counts, rest: &[u8]| [&header(flags, counts)[..], rest].concat();
    let table: [(&str, Vec<u8>, Option<u16>); 11] = [
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
            with(0, [2, 0, 0, 0], &[asked, asked].concat()),
            Some(response_code::FORMAT_ERROR),
        ),
        (
            "a question with an answer",
            with(0, [1, 1, 0, 0], asked),
            Some(response_code::FORMAT_ERROR),
        ),
        (
            "a question with an authority",
            with(0, [1, 0, 1, 0], asked),
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
            with(0, [1, 0, 0, 0], &[asked, b"x"].concat()),
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
        &[asked, b"\x00\x00\x29\x04\xd0\x00\x01\x00\x00\x00\x00"].concat(),
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
    for (limit, expected) in [(512, 0), (message::TCP_BYTES_MAX, 200)] {
        let mut out = b"before".to_vec();
        let mut writer = Writer::begin(&mut out, &query, limit);
        (0..200).for_each(|n| writer.record(Section::Answer, &address(n)));
        writer.finish(0, true);
        let decoded = Message::from_vec(&out[6..]).unwrap();
        assert_eq!(decoded.answers.len(), expected);
        assert_eq!(decoded.metadata.truncation, expected == 0);
        assert!(out.len() - 6 <= limit);
    }
}

#[test]
fn n5_edns_is_found_among_the_additional_records() {
    let opt = |flags: [u8; 2]| [&b"\x00\x00\x29\x04\xd0\x00\x00"[..], &flags, &[0, 0]].concat();
    let (secure, plain) = (opt([0x80, 0]), opt([0x7f, 0xff]));
    let named = b"\x01b\x02cd\x00\x00\x01\x00\x01\x00\x00\x00\x05\x00\x04\x0a\x00\x00\x01".to_vec();
    let pointed = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x05\x00\x04\x0a\x00\x00\x01".to_vec();
    let opt_with_name = [&b"\x01b"[..], &secure].concat();
    let edns = |dnssec_ok| {
        let udp_bytes = 1232;
        Ok(Some(Edns { udp_bytes, dnssec_ok }))
    };
    let invalid = Err(response_code::FORMAT_ERROR);
    for (what, records, expected) in [
        ("none", vec![], Ok(None)),
        ("signatures are desired", vec![&secure], edns(true)),
        ("other flags", vec![&plain], edns(false)),
        ("before a record", vec![&secure, &named], edns(true)),
        ("after a name", vec![&named, &secure], edns(true)),
        ("after a pointer", vec![&pointed, &plain], edns(false)),
        ("a record alone", vec![&named], Ok(None)),
        ("twice", vec![&secure, &secure], invalid),
        ("not the root's", vec![&opt_with_name], invalid),
        ("too many records", vec![&named, &named, &secure], invalid),
    ] {
        let count = u16::try_from(records.len()).unwrap();
        let rest: Vec<u8> = records.into_iter().flatten().copied().collect();
        let bytes = [&header(0x0100, [1, 0, 0, count])[..], ASKED, &rest].concat();
        let read = query::read(&bytes);
        let found = match &read {
            Ok(query) => Ok(query.edns),
            Err(Rejected::Header { code, .. }) => Err(*code),
            Err(other) => panic!("{what}: {other:?}"),
        };
        assert_eq!(found, expected, "{what}");
        let is_secure = expected == edns(true);
        assert_eq!(read.is_ok_and(|query| query.dnssec_ok()), is_secure, "{what}");
    }
    for (bytes, end) in [
        (&b"\x01b\x02cd\x00"[..], Some(6)),
        (&b"\x01b\xc0\x0c"[..], Some(4)),
        (&b"\x01b\xc0"[..], None),
        (&b"\x01b"[..], None),
        (&b"\x40"[..], None),
    ] {
        assert_eq!(query::skip_name(bytes, 0), end, "{bytes:?}");
    }
}

#[test]
fn n5_answers_and_rejections_repeat_some_flags_of_the_question() {
    for (asked, answered) in [(0, 0x8080), (0x0100, 0x8180), (0x0010, 0x8090), (0xffff, 0x8190)] {
        assert_eq!(message::response_flags(asked), answered, "{asked:#06x}");
    }
    // Without a question, or with another operation than a query.
    for (asked, rejected) in [(0, 0x8001), (0x01b0, 0x8101), (0x2000, 0xa004), (0x2930, 0xa904)] {
        let bytes = header(asked, [0; 4]);
        let mut out = Vec::new();
        message::rejection(&mut out, &query::read(&bytes).unwrap_err());
        assert_eq!(out, header(rejected, [0; 4]), "{asked:#06x}");
    }
}

#[test]
fn n5_an_answer_fits_to_the_byte_or_is_the_question_alone() {
    let packet = question("some.default.svc.cluster.local", record_type::A);
    let query = query::read(&packet).unwrap();
    let write = |limit| {
        let mut out = b"before".to_vec();
        let mut writer = Writer::begin(&mut out, &query, limit);
        (0..3).for_each(|n| writer.record(Section::Answer, &address(n)));
        writer.finish(0, true);
        out.split_off(6)
    };
    let whole = write(message::TCP_BYTES_MAX);
    assert_eq!(Message::from_vec(&whole).unwrap().answers.len(), 3);
    assert_eq!(write(whole.len()), whole);
    let truncated = write(whole.len() - 1);
    assert_eq!(truncated.len(), packet.len());
    assert!(Message::from_vec(&truncated).unwrap().metadata.truncation);
}

#[test]
fn n5_an_owner_that_was_written_before_is_a_pointer() {
    let packet = question("web.example", record_type::A);
    let query = query::read(&packet).unwrap();
    let target = name("target.example.net");
    let of_target = |last| Record {
        owner: Some(target.clone()),
        ..address(last)
    };
    let alias = Record {
        owner: None,
        ttl_seconds: 5,
        data: Data::Cname(target.clone()),
    };
    let mut out = b"before".to_vec();
    let mut writer = Writer::begin(&mut out, &query, message::TCP_BYTES_MAX);
    for record in [alias, of_target(1), of_target(2)] {
        writer.record(Section::Answer, &record);
    }
    writer.finish(0, true);
    let decoded = Message::from_vec(&out[6..]).unwrap();
    let records: Vec<_> = decoded
        .answers
        .iter()
        .map(|r| format!("{} {}", r.name, r.data))
        .collect();
    assert_eq!(
        records,
        [
            "web.example. target.example.net.",
            "target.example.net. 10.0.0.1",
            "target.example.net. 10.0.0.2"
        ]
    );
    // Pointer, type, class, TTL and length; then the name of 20 bytes, and two addresses.
    assert_eq!(out.len() - 6, packet.len() + 3 * 12 + 20 + 2 * 4);
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
}
