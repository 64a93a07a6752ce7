//! The certificate says what was validated, whatever the request contains.

use der::asn1::ObjectIdentifier;
use der::{Encode, Tag};
use knarr_api::certificates::der::{bit_string, context, element, sequence};
use knarr_api::certificates::{AltName, subject_alt_name};
use rcgen::{CertificateParams, DnType, PublicKeyData, SigningKey};

use super::*;
use crate::authn::certificate::{PeerCertificate, certificate_user};
use crate::pki::Pki;

const CLIENT: [&str; 2] = ["digital signature", "client auth"];

fn usages(of: &[&str]) -> Vec<String> {
    of.iter().map(|u| (*u).to_string()).collect()
}

fn now() -> Timestamp {
    "2030-01-01T00:00:00Z".parse().unwrap()
}

fn request(names: &[&str]) -> CertificateRequest {
    let names: Vec<String> = names.iter().map(|n| (*n).to_string()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "system:nodes");
    params
        .distinguished_name
        .push(DnType::CommonName, "system:node:n");
    let key = KeyPair::generate().unwrap();
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    CertificateRequest::decode(pem.as_bytes()).unwrap()
}

/// The PEM of a request with these attributes, by type, tag and bytes, and this list of names.
fn request_pem(subject: &[(&str, Tag, &[u8])], alt_names: &[AltName]) -> String {
    let oid = |text: &str| ObjectIdentifier::new_unwrap(text).to_der().unwrap();
    let seq = |parts: &[&[u8]]| sequence(parts).unwrap();
    let set = |parts: &[&[u8]]| element(Tag::Set, parts).unwrap();
    let mut rdns = Vec::new();
    for (kind, tag, value) in subject {
        let value = element(*tag, &[value]).unwrap();
        rdns.extend(set(&[&seq(&[&oid(kind), &value])]));
    }
    let mut attributes = Vec::new();
    if !alt_names.is_empty() {
        let value = element(Tag::OctetString, &[&subject_alt_name(alt_names).unwrap()]).unwrap();
        let extensions = seq(&[&seq(&[&oid("2.5.29.17"), &value])]);
        attributes = seq(&[&oid("1.2.840.113549.1.9.14"), &set(&[&extensions])]);
    }
    let key = KeyPair::generate().unwrap();
    let info = seq(&[
        &element(Tag::Integer, &[&[0]]).unwrap(),
        &seq(&[&rdns]),
        &key.subject_public_key_info(),
        &element(context(0, true), &[&attributes]).unwrap(),
    ]);
    let signature = bit_string(&key.sign(&info).unwrap()).unwrap();
    let request = seq(&[&info, &seq(&[&oid("1.2.840.10045.4.3.2")]), &signature]);
    crate::identity::pem(&request).replace("CERTIFICATE", "CERTIFICATE REQUEST")
}

#[test]
fn a_request_is_signed_for_what_it_says_and_for_its_time() {
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(directory.path(), now()).unwrap();
    let request = request(&["n", "10.0.0.1"]);
    for (longest, seconds, validity) in [
        (None, 365 * 24 * 3600 - 300),
        (Some(60), 600),
        (Some(3600), 3600),
        (Some(i32::MAX), 365 * 24 * 3600 - 300),
    ]
    .map(|(requested, validity)| (LONGEST, requested, validity))
    .into_iter()
    .chain(
        [(None, 60), (Some(600), 60)]
            .map(|(requested, validity)| (SignedDuration::from_mins(1), requested, validity)),
    ) {
        let pem = pki
            .client_authority()
            .for_at_most(longest)
            .sign(&request, &usages(&CLIENT), seconds, now())
            .unwrap();
        assert_eq!(
            ends(pem.as_bytes()).unwrap().as_second() - now().as_second(),
            validity,
            "{seconds:?}"
        );
        let der = der(pem.as_bytes()).unwrap();
        assert_eq!(certificate_user(&der).unwrap().node(), Some("n"));
        assert!(PeerCertificate::of_verified(&der).user(now()).unwrap().is_some());
    }
}

#[test]
fn a_certificate_does_not_outlive_its_ca() {
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(directory.path(), now()).unwrap();
    let ca = ends(pki.client_ca_pem().as_bytes()).unwrap();
    for (later, year) in [(9, 2039), (19, 2049), (25, 2055)] {
        let at = now() + SignedDuration::from_hours(later * 365 * 24);
        let long = pki
            .client_authority()
            .for_at_most(SignedDuration::from_hours(100 * 365 * 24));
        let pem = long.sign(&request(&[]), &usages(&CLIENT), None, at).unwrap();
        assert_eq!(ends(pem.as_bytes()).unwrap(), ca, "{year}");
    }
}

#[test]
fn a1_every_group_of_a_request_is_in_the_certificate_in_its_order() {
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(directory.path(), now()).unwrap();
    let subject: [(&str, Tag, &[u8]); 6] = [
        ("2.5.4.10", Tag::Utf8String, b"dev"),
        ("2.5.4.11", Tag::Utf8String, b"berth 7"),
        ("2.5.4.10", Tag::PrintableString, b"qa"),
        ("2.5.4.6", Tag::PrintableString, b"NO"),
        ("2.5.4.3", Tag::Utf8String, "Åse".as_bytes()),
        ("2.5.4.10", Tag::Ia5String, b"ops@example.com"),
    ];
    let names = [
        AltName::Uri("spiffe://a".into()),
        AltName::Ip("fd00::1".parse().unwrap()),
    ];
    let request = CertificateRequest::decode(request_pem(&subject, &names).as_bytes()).unwrap();
    let pem = pki
        .client_authority()
        .sign(&request, &usages(&CLIENT), None, now())
        .unwrap();
    let user = certificate_user(&der(pem.as_bytes()).unwrap()).unwrap();
    assert_eq!(user.name, "Åse");
    assert_eq!(
        user.groups,
        ["dev", "qa", "ops@example.com", "system:authenticated"]
    );
}

#[test]
fn a1_a_certificate_that_says_something_else_is_not_handed_out() {
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(directory.path(), now()).unwrap();
    let other = tempfile::tempdir().unwrap();
    let other = Pki::open(other.path(), now()).unwrap();
    let ca_der = der(pki.client_ca_pem().as_bytes()).unwrap();
    let (_, ca) = X509Certificate::from_der(&ca_der).unwrap();
    let request = request(&["n"]);
    let names: [AltName; 1] = [AltName::Dns("n".into())];
    let subject = |cn: &'static str, o: &'static str| {
        let subject = [
            ("2.5.4.10", Tag::Utf8String, o.as_bytes()),
            ("2.5.4.3", Tag::Utf8String, cn.as_bytes()),
        ];
        CertificateRequest::decode(request_pem(&subject, &names).as_bytes()).unwrap()
    };
    let signed = |authority: Authority, usage: &str| {
        let pem = authority.sign(&request, &usages(&["digital signature", usage]), None, now());
        der(pem.unwrap().as_bytes()).unwrap()
    };
    let good = signed(pki.client_authority(), "client auth");
    let template = |usages| CertificateTemplate {
        serial: [0; 16],
        issuer: ca.subject().as_raw(),
        issuer_key_id: None,
        not_before: now() - BACKDATE,
        not_after: now() - BACKDATE + LONGEST,
        usages,
    };
    let client = template(&[Usage::DigitalSignature, Usage::ClientAuth]);
    assert_eq!(check::verify(&good, &request, &client, &ca), Ok(()));
    let longer = CertificateTemplate {
        not_after: now() + LONGEST,
        ..template(&[Usage::DigitalSignature, Usage::ClientAuth])
    };
    let both = template(&[Usage::DigitalSignature, Usage::ClientAuth, Usage::ServerAuth]);
    let server = signed(pki.client_authority(), "server auth");
    let foreign = signed(other.client_authority(), "client auth");
    let longest = [good.as_slice(), &[0]].concat();
    for (what, certificate, request, template, expected) in [
        (
            "another key",
            &good,
            &subject("system:node:n", "system:nodes"),
            &client,
            "its key",
        ),
        ("another end", &good, &request, &longer, "its end"),
        (
            "a usage less",
            &good,
            &request,
            &both,
            "its extended key usage or extensions",
        ),
        (
            "another usage",
            &server,
            &request,
            &client,
            "its extended key usage or extensions",
        ),
        ("another CA", &foreign, &request, &client, "its signature"),
        ("bytes behind it", &longest, &request, &client, "its length"),
    ] {
        assert_eq!(
            check::verify(certificate, request, template, &ca),
            Err(expected),
            "{what}"
        );
    }
}

#[test]
fn only_usages_of_kubernetes_own_signers_are_signed() {
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(directory.path(), now()).unwrap();
    for usage in ["cert sign", "any", "code signing", "nothing"] {
        let error = pki
            .client_authority()
            .sign(&request(&[]), &usages(&[usage]), None, now())
            .unwrap_err();
        assert_eq!(error.to_string(), format!("unrecognized usage {usage:?}"));
    }
}
