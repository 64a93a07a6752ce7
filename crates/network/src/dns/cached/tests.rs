//! Which bytes are an answer to a question, and how long it is kept: messages byte by byte.

use super::*;
use crate::dns::zone::{Answer, Outcome};

const ID: u16 = 7;
/// A pointer to the question's name.
const OWNER: [u8; 2] = [0xc0, 0x0c];

fn question(name: &str, record_type: u16) -> Question {
    Question {
        name: Name::parse(name).unwrap(),
        record_type,
        dnssec_ok: false,
        checking_disabled: false,
    }
}

fn numbers(values: &[u16]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_be_bytes()).collect()
}

/// The question as it is in messages: without header and EDNS.
fn question_bytes(question: &Question) -> Vec<u8> {
    let message = question.message(0);
    message[HEADER_BYTES..message.len() - 11].to_vec()
}

fn record(record_type: u16, ttl: u16, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).unwrap();
    [&OWNER[..], &numbers(&[record_type, 1, 0, ttl, length]), data].concat()
}

/// An SOA record whose names are the root, with this minimum.
fn soa(ttl: u16, minimum: u16) -> Vec<u8> {
    let data = [&[0, 0][..], &numbers(&[0, 1, 0, 2, 0, 3, 0, 4, 0, minimum])].concat();
    record(record_type::SOA, ttl, &data)
}

/// Id, flags, the number of questions and of answers, authorities and additional records; the question; the records.
fn message(id: u16, flags: u16, counts: [u16; 4], question: &[u8], records: &[Vec<u8>]) -> Vec<u8> {
    let header = numbers(&[[id, flags].as_slice(), &counts].concat());
    [header, question.to_vec(), records.concat()].concat()
}

#[test]
fn n5_only_a_response_to_this_very_question_is_its_answer() {
    let ours = question("www.example.com", record_type::A);
    let (same, upper) = (question_bytes(&ours), question_bytes(&ours).to_ascii_uppercase());
    let other_name = question_bytes(&question("wwx.example.com", record_type::A));
    let other_type = question_bytes(&question("www.example.com", record_type::AAAA));
    let failed = FLAG_RESPONSE | response_code::SERVER_FAILURE;
    for (what, id, flags, count, question, accepted) in [
        ("the answer", ID, FLAG_RESPONSE, 1, &same[..], true),
        ("in another case", ID, FLAG_RESPONSE, 1, &upper[..], true),
        ("another id", 8, FLAG_RESPONSE, 1, &same[..], false),
        ("a question", ID, 0, 1, &same[..], false),
        (
            "a question with a code",
            ID,
            response_code::SERVER_FAILURE,
            1,
            &same[..],
            false,
        ),
        ("another name", ID, FLAG_RESPONSE, 1, &other_name[..], false),
        ("another type", ID, FLAG_RESPONSE, 1, &other_type[..], false),
        ("two questions", ID, FLAG_RESPONSE, 2, &same[..], false),
        ("no question, and a failure", ID, failed, 0, &[][..], true),
        (
            "no question, and no failure",
            ID,
            FLAG_RESPONSE,
            0,
            &[][..],
            false,
        ),
        ("a question that is missing", ID, failed, 1, &[][..], false),
    ] {
        let bytes = message(id, flags, [count, 0, 0, 0], question, &[]);
        let reply = Reply::read(&bytes, &ours, ID);
        assert_eq!(reply.is_ok(), accepted, "{what}");
        match reply {
            Ok(reply) => assert_eq!(reply.code(), flags & 0xf, "{what}"),
            Err(error) => assert_eq!(error, ReplyError::Foreign, "{what}"),
        }
    }
}

#[test]
fn n5_an_answer_is_kept_for_its_lowest_ttl_and_a_denial_for_its_soas() {
    let ours = question("www.example.com", record_type::A);
    let address = |ttl| record(record_type::A, ttl, &[192, 0, 2, 7]);
    // Owner, type and class are before the TTL.
    let mut long_lived = address(5);
    long_lived[7] = 1;
    let (fine, denied, failed) = (
        response_code::NO_ERROR,
        response_code::NAME_ERROR,
        response_code::SERVER_FAILURE,
    );
    for (what, code, counts, records, seconds) in [
        (
            "the lower TTL",
            fine,
            [2, 0, 0],
            vec![address(20), address(12)],
            12,
        ),
        (
            "the most that is kept",
            fine,
            [1, 0, 0],
            vec![address(900)],
            TTL_SECONDS_MAX,
        ),
        (
            "an authority's TTL",
            fine,
            [1, 1, 0],
            vec![address(20), soa(9, 1)],
            9,
        ),
        ("the SOA's minimum", denied, [0, 1, 0], vec![soa(20, 8)], 8),
        ("the SOA's TTL", denied, [0, 1, 0], vec![soa(6, 8)], 6),
        ("no such type", fine, [0, 1, 0], vec![soa(20, 7)], 7),
        ("a denial without SOA", denied, [0, 0, 0], vec![], 0),
        (
            "an SOA that is additional",
            denied,
            [0, 0, 1],
            vec![soa(20, 8)],
            0,
        ),
        (
            "an authority that is no SOA",
            denied,
            [0, 1, 0],
            vec![address(20)],
            0,
        ),
        (
            "an SOA without data",
            denied,
            [0, 1, 0],
            vec![record(record_type::SOA, 20, &[])],
            0,
        ),
        (
            "a TTL beyond 16 bits",
            fine,
            [1, 0, 0],
            vec![long_lived],
            TTL_SECONDS_MAX,
        ),
        ("a failure", failed, [1, 0, 0], vec![address(20)], FAILURE_SECONDS),
    ] {
        let [answers, authorities, additional] = counts;
        let flags = FLAG_RESPONSE | code;
        let bytes = message(
            ID,
            flags,
            [1, answers, authorities, additional],
            &question_bytes(&ours),
            &records,
        );
        let reply = Reply::read(&bytes, &ours, ID).unwrap();
        assert_eq!(reply.lifetime_seconds, seconds, "{what}");
        assert_eq!(reply.has_answers(), answers > 0, "{what}");
        let ttls = usize::from(answers + authorities + additional) * 4;
        assert_eq!(reply.bytes(), records.concat().len() + ttls, "{what}");
    }
}

#[test]
fn n5_a_question_passes_on_whether_signatures_are_to_be_checked_and_an_answer_whether_they_were() {
    for (disabled, flags) in [(false, 0x0100), (true, 0x0110)] {
        let mut ours = question("www.example.com", record_type::A);
        ours.checking_disabled = disabled;
        assert_eq!(number(&ours.message(ID), 2), Some(flags));
    }
    let ours = question("www.example.com", record_type::A);
    for (flags, authentic) in [(FLAG_RESPONSE, false), (FLAG_RESPONSE | FLAG_AUTHENTIC, true)] {
        let bytes = message(ID, flags, [1, 0, 0, 0], &question_bytes(&ours), &[]);
        assert_eq!(Reply::read(&bytes, &ours, ID).unwrap().is_authentic, authentic);
    }
}

#[test]
fn n5_a_kept_answer_is_written_with_its_flags_and_code_if_it_fits_to_the_byte() {
    const DENIED: u16 = FLAG_RESPONSE | response_code::NAME_ERROR;
    for (is_authentic, dnssec_ok, expected) in [
        (true, true, 0x81a3),
        (true, false, 0x8183),
        (false, true, 0x8183),
        (false, false, 0x8183),
    ] {
        let ours = Question {
            dnssec_ok,
            ..question("www.example.com", record_type::A)
        };
        let packet = ours.message(9);
        let query = crate::dns::query::read(&packet).unwrap();
        let flags = DENIED | if is_authentic { FLAG_AUTHENTIC } else { 0 };
        let bytes = message(ID, flags, [1, 0, 1, 0], &question_bytes(&ours), &[soa(20, 8)]);
        let reply = Reply::read(&bytes, &ours, ID).unwrap();
        assert_eq!(number(&reply.message(&ours, 0), 2), Some(DENIED));
        let write = |limit| {
            let mut out = Vec::new();
            reply.write(&mut out, &query, 0, limit);
            out
        };
        // The client's question has EDNS, and the kept answer has none.
        let whole = write(bytes.len() + 11);
        assert_eq!(whole.len(), bytes.len() + 11);
        assert_eq!(number(&whole, 2), Some(expected));
        let truncated = write(bytes.len() + 10);
        assert_eq!(truncated.len(), packet.len());
        assert_eq!(number(&truncated, 2), Some(expected | FLAG_TRUNCATED));
    }
}

#[test]
fn n5_a_reply_whose_names_cannot_be_followed_is_not_written_behind_our_own_records() {
    let ours = question("www.example.com", record_type::A);
    let packet = ours.message(9);
    let query = crate::dns::query::read(&packet).unwrap();
    let own = Answer {
        records: Vec::new(),
        additional: Vec::new(),
        end: Outcome::Records,
    };
    // Where the data of the first record begins: owner, type, class, TTL and length are before it.
    let begin = u8::try_from(HEADER_BYTES + question_bytes(&ours).len() + 12).unwrap();
    let label = [&[63u8][..], &[b'a'; 63]].concat();
    for (what, data, readable) in [
        ("a pointer to the question", vec![0xc0, 12], true),
        ("a label and a pointer", vec![1, b'a', 0xc0, 12], true),
        ("the root", vec![0], true),
        ("a pointer to itself", vec![0xc0, begin], false),
        ("a pointer forward", vec![0xc0, begin + 2, 0], false),
        ("a label that repeats", vec![1, b'a', 0xc0, begin], false),
        ("half a label", vec![3, b'a'], false),
        ("half a pointer", vec![0xc0], false),
        ("a reserved length", vec![0x40, 0], false),
        ("192 bytes", [label.repeat(3), vec![0]].concat(), true),
        ("256 bytes", [label.repeat(4), vec![0]].concat(), false),
    ] {
        let records = [record(record_type::CNAME, 20, &data)];
        let bytes = message(ID, FLAG_RESPONSE, [1, 1, 0, 0], &question_bytes(&ours), &records);
        let reply = Reply::read(&bytes, &ours, ID).unwrap();
        let written = reply.write_behind(&mut Vec::new(), &query, &own, &ours, 0, 1232);
        let expected = if readable {
            Ok(())
        } else {
            Err(ReplyError::Malformed)
        };
        assert_eq!(written, expected, "{what}");
    }
}
