//! Requests made by hand, honest and hostile.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use der::asn1::ObjectIdentifier;
use der::{Encode, Tag};
use proptest::prelude::*;
use rcgen::{KeyPair, PublicKeyData, SigningKey};

use super::der::{bit_string, context, element, sequence};
use super::{AltName, CertificateRequest, MAX_REQUEST_BYTES, RequestError, subject_alt_name};

const CN: &str = "2.5.4.3";
const O: &str = "2.5.4.10";
const OU: &str = "2.5.4.11";
const SAN: &str = "2.5.29.17";
const BASIC_CONSTRAINTS: &str = "2.5.29.19";
const EXTENSION_REQUEST: &str = "1.2.840.113549.1.9.14";
const ECDSA_WITH_SHA256: &str = "1.2.840.10045.4.3.2";
/// Tags that the `der` crate has no name for.
const UNIVERSAL_STRING: u8 = 28;

fn oid(text: &str) -> Vec<u8> {
    ObjectIdentifier::new_unwrap(text).to_der().unwrap()
}

fn seq(parts: &[&[u8]]) -> Vec<u8> {
    sequence(parts).unwrap()
}

fn set(parts: &[&[u8]]) -> Vec<u8> {
    element(Tag::Set, parts).unwrap()
}

fn attribute(kind: &str, tag: Tag, value: &[u8]) -> Vec<u8> {
    seq(&[&oid(kind), &element(tag, &[value]).unwrap()])
}

/// A relative distinguished name of one UTF8String.
fn rdn(kind: &str, value: &str) -> Vec<u8> {
    set(&[&attribute(kind, Tag::Utf8String, value.as_bytes())])
}

fn extension(kind: &str, value: &[u8]) -> Vec<u8> {
    seq(&[&oid(kind), &element(Tag::OctetString, &[value]).unwrap()])
}

fn extension_request(extensions: &[&[u8]]) -> Vec<u8> {
    seq(&[&oid(EXTENSION_REQUEST), &set(&[&seq(extensions)])])
}

fn alt_names(names: &[AltName]) -> Vec<u8> {
    extension(SAN, &subject_alt_name(names).unwrap())
}

fn general_name(number: u8, content: &[u8]) -> Vec<u8> {
    let name = element(context(number, false), &[content]).unwrap();
    extension(SAN, &seq(&[&name]))
}

/// The DER of a request, signed by its own key.
fn signed(subject: &[u8], attributes: &[&[u8]]) -> Vec<u8> {
    let key = KeyPair::generate().unwrap();
    let attributes = element(context(0, true), attributes).unwrap();
    let spki = key.subject_public_key_info();
    let info = seq(&[
        &element(Tag::Integer, &[&[0]]).unwrap(),
        subject,
        &spki,
        &attributes,
    ]);
    let signature = bit_string(&key.sign(&info).unwrap()).unwrap();
    seq(&[&info, &seq(&[&oid(ECDSA_WITH_SHA256)]), &signature])
}

fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> = text
        .as_bytes()
        .chunks(64)
        .map(|l| std::str::from_utf8(l).unwrap())
        .collect();
    format!(
        "-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n",
        lines.join("\n")
    )
}

fn decode(subject: &[u8], attributes: &[&[u8]]) -> Result<CertificateRequest, RequestError> {
    CertificateRequest::decode(pem(&signed(subject, attributes)).as_bytes())
}

fn node() -> Vec<u8> {
    seq(&[&rdn(O, "system:nodes"), &rdn(CN, "system:node:n")])
}

#[test]
fn a1_a_request_is_read_as_it_says() {
    let subject = seq(&[
        &rdn(O, "dev"),
        &set(&[&attribute(O, Tag::PrintableString, b"qa")]),
        &rdn(OU, "berth 7"),
        &set(&[&attribute(CN, Tag::Ia5String, b"ann@example.com")]),
    ]);
    let names = [
        AltName::Dns("n".into()),
        AltName::Ip("10.0.0.1".parse().unwrap()),
        AltName::Ip("fd00::1".parse().unwrap()),
        AltName::Email("ann@example.com".into()),
        AltName::Uri("spiffe://n".into()),
    ];
    let password = seq(&[
        &oid("1.2.840.113549.1.9.7"),
        &set(&[&element(Tag::PrintableString, &[b"secret"]).unwrap()]),
    ]);
    let not_ca = extension(BASIC_CONSTRAINTS, &seq(&[]));
    let requested = extension_request(&[&not_ca, &alt_names(&names)]);
    let read = decode(&subject, &[&password, &requested]).unwrap();
    assert_eq!(read.common_name(), "ann@example.com");
    assert_eq!(read.organizations().collect::<Vec<_>>(), ["dev", "qa"]);
    assert_eq!(read.alt_names(), names);
    assert_eq!(read.dns_names().collect::<Vec<_>>(), ["n"]);
    assert_eq!(read.ip_addresses().count(), 2);
    // Written again, it is the same.
    assert_eq!(read.subject().to_der().unwrap(), subject);
    let empty = decode(&seq(&[]), &[]).unwrap();
    assert_eq!((empty.common_name(), empty.organizations().count()), ("", 0));
}

#[test]
fn a1_a_subject_that_cannot_be_signed_as_it_is_is_rejected() {
    use RequestError as E;
    let cn = |tag, value: &[u8]| seq(&[&set(&[&attribute(CN, tag, value)])]);
    let string = |found: &str| E::StringType {
        attribute: "CN",
        found: found.into(),
    };
    for (what, subject, expected) in [
        (
            "two common names",
            seq(&[
                &rdn(CN, "system:node:n"),
                &rdn(CN, "system:kube-controller-manager"),
            ]),
            E::SeveralCommonNames,
        ),
        (
            "two common names of different string types",
            seq(&[&rdn(CN, "a"), &set(&[&attribute(CN, Tag::PrintableString, b"b")])]),
            E::SeveralCommonNames,
        ),
        (
            "several attributes in one RDN",
            seq(&[&set(&[
                &attribute(O, Tag::Utf8String, b"system:nodes"),
                &attribute(O, Tag::Utf8String, b"system:masters"),
            ])]),
            E::MultiValuedName,
        ),
        ("an empty RDN", seq(&[&set(&[])]), E::MultiValuedName),
        ("BMPString", cn(Tag::BmpString, b"\0a"), string("BMPString")),
        ("T61String", cn(Tag::TeletexString, b"a"), string("TeletexString")),
        (
            "NumericString",
            cn(Tag::NumericString, b"1"),
            string("NumericString"),
        ),
        ("OCTET STRING", cn(Tag::OctetString, b"a"), string("OCTET STRING")),
        ("no UTF-8", cn(Tag::Utf8String, b"\xff"), E::AttributeText("CN")),
        ("NUL", cn(Tag::Utf8String, b"admin\0x"), E::AttributeText("CN")),
        ("line break", cn(Tag::Ia5String, b"a\nb"), E::AttributeText("CN")),
        (
            "C1 control",
            cn(Tag::Utf8String, "a\u{85}".as_bytes()),
            E::AttributeText("CN"),
        ),
        ("empty", cn(Tag::Utf8String, b""), E::AttributeText("CN")),
        (
            "another attribute",
            seq(&[&rdn("0.9.2342.19200300.100.1.25", "example")]),
            E::UnknownAttribute("0.9.2342.19200300.100.1.25".into()),
        ),
        (
            "the attribute of a user's uid",
            seq(&[&rdn("1.3.6.1.4.1.57683.2", "1")]),
            E::UnknownAttribute("1.3.6.1.4.1.57683.2".into()),
        ),
    ] {
        assert_eq!(decode(&subject, &[]).unwrap_err(), expected, "{what}");
    }
    for (what, subject) in [
        (
            "not in the alphabet of PrintableString",
            cn(Tag::PrintableString, b"a*b"),
        ),
        ("not in the alphabet of IA5String", cn(Tag::Ia5String, b"\x80")),
        (
            "an RDN that is no SET",
            seq(&[&attribute(CN, Tag::Utf8String, b"a")]),
        ),
        (
            "an attribute of three",
            seq(&[&set(&[&seq(&[&oid(CN), &oid(CN), &oid(CN)])])]),
        ),
        ("bytes after the last RDN", seq(&[&rdn(CN, "a"), &[0x30, 0x05]])),
    ] {
        let error = decode(&subject, &[]).unwrap_err();
        assert!(matches!(error, E::NotDer(_)), "{what}: {error}");
    }
    // UniversalString, whose tag nothing here knows.
    let mut universal = seq(&[&oid(CN), &element(Tag::Utf8String, &[b"\0\0\0a"]).unwrap()]);
    let at = universal.len() - 6;
    assert_eq!(std::mem::replace(&mut universal[at], UNIVERSAL_STRING), 12);
    let error = decode(&seq(&[&set(&[&universal])]), &[]).unwrap_err();
    assert!(matches!(error, E::NotDer(_)), "{error}");
}

#[test]
fn a1_extensions_that_cannot_be_signed_as_they_are_are_rejected() {
    use RequestError as E;
    let n = alt_names(&[AltName::Dns("n".into())]);
    let m = alt_names(&[AltName::Dns("m".into())]);
    let ca = extension(
        BASIC_CONSTRAINTS,
        &seq(&[&element(Tag::Boolean, &[&[0xff]]).unwrap()]),
    );
    let one = |e: &[u8]| vec![extension_request(&[e])];
    for (what, attributes, expected) in [
        (
            "two lists of names",
            vec![extension_request(&[&n, &m])],
            E::DuplicateExtension,
        ),
        (
            "two extension requests",
            vec![extension_request(&[&n]), extension_request(&[&m])],
            E::DuplicateExtension,
        ),
        (
            "an extension request of two values",
            vec![seq(&[&oid(EXTENSION_REQUEST), &set(&[&seq(&[&n]), &seq(&[&m])])])],
            E::DuplicateExtension,
        ),
        ("a CA", one(&ca), E::Ca),
        (
            "name constraints",
            one(&extension("2.5.29.30", b"")),
            E::UnknownExtension("2.5.29.30".into()),
        ),
        ("no name", one(&extension(SAN, &seq(&[]))), E::EmptyAltNames),
        (
            "otherName",
            one(&extension(SAN, &seq(&[&element(context(0, true), &[]).unwrap()]))),
            E::AltNameType,
        ),
        (
            "directoryName",
            one(&extension(
                SAN,
                &seq(&[&element(context(4, true), &[&node()]).unwrap()]),
            )),
            E::AltNameType,
        ),
        ("registeredID", one(&general_name(8, &[42])), E::AltNameType),
        (
            "NUL in a DNS name",
            one(&general_name(2, b"n\0.example.com")),
            E::AltNameText,
        ),
        (
            "line break in a URI",
            one(&general_name(6, b"spiffe://a\nb")),
            E::AltNameText,
        ),
        (
            "space in a DNS name",
            one(&general_name(2, b"a b")),
            E::AltNameText,
        ),
        (
            "not ASCII",
            one(&general_name(1, "ö@example.com".as_bytes())),
            E::AltNameText,
        ),
        ("empty DNS name", one(&general_name(2, b"")), E::AltNameText),
        (
            "five bytes",
            one(&general_name(7, &[1, 2, 3, 4, 5])),
            E::AltNameAddress,
        ),
        (
            "an IPv4 address in IPv6",
            one(&general_name(
                7,
                &"::ffff:10.0.0.1".parse::<std::net::Ipv6Addr>().unwrap().octets(),
            )),
            E::AltNameAddress,
        ),
    ] {
        let attributes: Vec<&[u8]> = attributes.iter().map(Vec::as_slice).collect();
        assert_eq!(decode(&node(), &attributes).unwrap_err(), expected, "{what}");
    }
}

#[test]
fn a1_a_request_is_one_block_and_nothing_else() {
    use RequestError as E;
    let der = signed(&node(), &[]);
    let good = pem(&der);
    let base64 = STANDARD.encode(&der);
    let evil = pem(&signed(&seq(&[&rdn(O, "system:masters"), &rdn(CN, "evil")]), &[]));
    for fine in [
        good.clone(),
        format!("\r\n\t {good}\n\n"),
        good.replace('\n', "\r\n"),
        good.trim_end().to_string(),
    ] {
        assert!(CertificateRequest::decode(fine.as_bytes()).is_ok(), "{fine:?}");
    }
    let (begin, end) = (
        "-----BEGIN CERTIFICATE REQUEST-----",
        "-----END CERTIFICATE REQUEST-----",
    );
    for (what, text, expected) in [
        ("nothing", String::new(), E::NotPem),
        ("text before", format!("x\n{good}"), E::NotPem),
        ("text after", format!("{good}x"), E::NotOneBlock),
        ("two blocks", format!("{evil}{good}"), E::NotOneBlock),
        // What was approved and what was signed differed here: one reader took lines, the other the first block.
        (
            "a block on the BEGIN line of another",
            format!("{begin}{base64}{end}\n{}", good.split_once('\n').unwrap().1),
            E::NotOneBlock,
        ),
        ("all on one line", format!("{begin}{base64}{end}"), E::NotOneBlock),
        (
            "headers",
            good.replacen('\n', "\nProc-Type: 4,ENCRYPTED\n\n", 1),
            E::NotOneBlock,
        ),
        (
            "another label",
            good.replace("CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST"),
            E::NotPem,
        ),
        (
            "a certificate",
            good.replace("CERTIFICATE REQUEST", "CERTIFICATE"),
            E::NotPem,
        ),
        (
            "spaces among the digits",
            good.replacen("MI", "M I", 1),
            E::NotOneBlock,
        ),
        ("no end", good.replace(end, ""), E::NotOneBlock),
        (
            "too long",
            format!("{good}{}", "\n".repeat(MAX_REQUEST_BYTES)),
            E::TooLong,
        ),
    ] {
        assert_eq!(
            CertificateRequest::decode(text.as_bytes()).unwrap_err(),
            expected,
            "{what}"
        );
    }
    assert_eq!(CertificateRequest::decode(b"\xff").unwrap_err(), E::NotPem);
}

#[test]
fn a1_only_der_signed_by_its_own_key_is_read() {
    let good = signed(&node(), &[]);
    let other = signed(&seq(&[&rdn(CN, "other")]), &[]);
    let read = |der: &[u8]| CertificateRequest::decode(pem(der).as_bytes());
    assert!(read(&good).is_ok());
    let not_der = |der: &[u8]| matches!(read(der), Err(RequestError::NotDer(_)));
    assert!(
        not_der(&[good.as_slice(), &[0]].concat()),
        "bytes after the request"
    );
    assert!(not_der(&good[..good.len() - 1]), "cut short");
    assert!(not_der(&[]), "nothing");
    // An element more than a request has.
    let parts = super::der::Element::decode(&good)
        .unwrap()
        .sequence::<3>()
        .unwrap();
    let [info, algorithm, signature] = parts.map(|p| p.raw());
    assert!(not_der(&seq(&[info, algorithm, signature, &[5, 0]])));
    // The length in more bytes than it needs.
    let long = [&[0x30, 0x83, 0][..], &good[2..]].concat();
    assert!(not_der(&long) || good[1] != 0x82, "{:?}", read(&long));
    // Indefinite length.
    assert!(not_der(
        &[&[0x30, 0x80], info, algorithm, signature, &[0, 0]].concat()
    ));

    let foreign = super::der::Element::decode(&other)
        .unwrap()
        .sequence::<3>()
        .unwrap()[2]
        .raw();
    assert_eq!(
        read(&seq(&[info, algorithm, foreign])).unwrap_err(),
        RequestError::Signature
    );
    for weak in ["1.2.840.113549.1.1.5", "1.3.14.3.2.29", "1.2.840.10045.4.3.4"] {
        let request = seq(&[info, &seq(&[&oid(weak)]), signature]);
        assert_eq!(
            read(&request).unwrap_err(),
            RequestError::SignatureAlgorithm,
            "{weak}"
        );
    }
}

#[test]
fn a_request_as_other_tools_make_it_is_read() {
    let mut params = rcgen::CertificateParams::new(vec!["n".into(), "10.0.0.1".into()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "system:node:n");
    for algorithm in [
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_ED25519,
    ] {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let text = params.serialize_request(&key).unwrap().pem().unwrap();
        let read = CertificateRequest::decode(text.as_bytes()).unwrap();
        assert_eq!(read.common_name(), "system:node:n");
        assert_eq!(read.alt_names().len(), 2);
        assert_eq!(read.public_key_der(), key.subject_public_key_info());
    }
}

proptest! {
    #[test]
    fn a1_no_bytes_panic_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        drop(CertificateRequest::decode(&bytes));
        drop(CertificateRequest::decode(pem(&bytes).as_bytes()));
    }

    /// One byte of a good request changed: rejected, for its signature at the latest.
    #[test]
    fn a1_a_changed_request_is_rejected(at in any::<prop::sample::Index>(), flip in 1u8..=255) {
        let names = alt_names(&[AltName::Dns("n".into())]);
        let mut der = signed(&node(), &[&extension_request(&[&names])]);
        let at = at.index(der.len());
        der[at] ^= flip;
        prop_assert!(CertificateRequest::decode(pem(&der).as_bytes()).is_err());
    }
}
