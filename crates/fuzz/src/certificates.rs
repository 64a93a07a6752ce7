//! Certificate signing requests: the certificate contains what was validated in the request.

use std::sync::OnceLock;

use der::asn1::ObjectIdentifier;
use der::{Encode, Tag};
use jiff::Timestamp;
use knarr_api::certificates::der::{bit_string, context, element, sequence};
use knarr_api::certificates::{AltName, AttributeType, CertificateRequest, subject_alt_name};
use knarr_apiserver::authn::certificate::certificate_user;
use knarr_apiserver::identity;
use knarr_apiserver::pki::Pki;
use knarr_apiserver::signing::Authority;
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer;

use crate::Target;

/// The input is used twice: as a complete request, and as subject (the first byte is its length) and attributes of a request
/// that is signed here, so that the signature check does not stop it. What our decoder reads, x509-parser finds in the
/// request, and the certificate names that user and those groups.
pub const TARGET: Target = Target {
    name: "certificate-requests",
    check: |data| {
        drop(CertificateRequest::decode(data));
        let Some((length, rest)) = data.split_first() else {
            return;
        };
        let (subject, attributes) = rest.split_at(rest.len().min(usize::from(*length)));
        let Ok(der) = signed(subject, attributes) else {
            return;
        };
        let pem = identity::pem(&der).replace("CERTIFICATE", "CERTIFICATE REQUEST");
        let Ok(request) = CertificateRequest::decode(pem.as_bytes()) else {
            return;
        };
        compare_with_x509_parser(&request, &der);
        let usages = ["digital signature".to_string(), "client auth".to_string()];
        let certificate = authority().sign(&request, &usages, None, Timestamp::UNIX_EPOCH + HOUR * 500_000);
        let certificate =
            certificate.unwrap_or_else(|e| panic!("the request decodes but is not signed: {e}"));
        let (_, block) = parse_x509_pem(certificate.as_bytes())
            .unwrap_or_else(|e| panic!("the certificate is not PEM: {e}"));
        let user = certificate_user(&block.contents);
        let name = user.as_ref().map_or("", |user| user.name.as_str());
        assert_eq!(name, request.common_name());
        if let Some(user) = &user {
            let groups = request.organizations().chain(["system:authenticated"]);
            // `system:authenticated` is not added when the request has it already.
            let once = request.organizations().any(|o| o == "system:authenticated");
            assert!(
                once || user.groups.iter().map(String::as_str).eq(groups),
                "{user:?}"
            );
        }
    },
    seeds: || {
        let make = || -> Result<Vec<Vec<u8>>, der::Error> {
            let node = [("2.5.4.10", "system:nodes"), ("2.5.4.3", "system:node:n")];
            let groups = [
                ("2.5.4.3", "ann"),
                ("2.5.4.10", "dev"),
                ("2.5.4.11", "x"),
                ("2.5.4.10", "qa"),
            ];
            let names = [
                AltName::Dns("n".into()),
                AltName::Ip([10, 0, 0, 1].into()),
                AltName::Uri("spiffe://a/b".into()),
                AltName::Email("a@b.c".into()),
            ];
            Ok(vec![
                input(&node, &[])?,
                input(&node, &names[..2])?,
                input(&groups, &names)?,
                input(&[("2.5.4.3", "a"), ("2.5.4.3", "b")], &[])?,
            ])
        };
        make().unwrap_or_else(|e| panic!("the seeds: {e}"))
    },
};

const HOUR: jiff::SignedDuration = jiff::SignedDuration::from_hours(1);

fn input(subject: &[(&str, &str)], names: &[AltName]) -> Result<Vec<u8>, der::Error> {
    let oid = |text| ObjectIdentifier::new(text).map_err(der::Error::from)?.to_der();
    let mut rdns = Vec::new();
    for (kind, value) in subject {
        let value = element(Tag::Utf8String, &[value.as_bytes()])?;
        rdns.extend(element(Tag::Set, &[&sequence(&[&oid(kind)?, &value])?])?);
    }
    let subject = sequence(&[&rdns])?;
    let mut attributes = Vec::new();
    if !names.is_empty() {
        let value = element(Tag::OctetString, &[&subject_alt_name(names)?])?;
        let extensions = sequence(&[&sequence(&[&oid("2.5.29.17")?, &value])?])?;
        let values = element(Tag::Set, &[&extensions])?;
        attributes = sequence(&[&oid("1.2.840.113549.1.9.14")?, &values])?;
    }
    let length = u8::try_from(subject.len()).map_err(|_| Tag::Sequence.value_error())?;
    Ok([&[length][..], &subject, &attributes].concat())
}

/// A signed request with this subject and these attributes, as DER.
fn signed(subject: &[u8], attributes: &[u8]) -> Result<Vec<u8>, der::Error> {
    static KEY: OnceLock<KeyPair> = OnceLock::new();
    let key = KEY.get_or_init(|| KeyPair::generate().unwrap_or_else(|e| panic!("a key: {e}")));
    let info = sequence(&[
        &element(Tag::Integer, &[&[0]])?,
        subject,
        &key.subject_public_key_info(),
        &element(context(0, true), &[attributes])?,
    ])?;
    let signature = key.sign(&info).unwrap_or_else(|e| panic!("a signature: {e}"));
    let algorithm = ObjectIdentifier::new("1.2.840.10045.4.3.2").map_err(der::Error::from)?;
    sequence(&[
        &info,
        &sequence(&[&algorithm.to_der()?])?,
        &bit_string(&signature)?,
    ])
}

fn authority() -> &'static Authority {
    static AUTHORITY: OnceLock<Authority> = OnceLock::new();
    AUTHORITY.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap_or_else(|e| panic!("a directory: {e}"));
        let pki = Pki::open(directory.path(), Timestamp::UNIX_EPOCH + HOUR * 500_000);
        pki.unwrap_or_else(|e| panic!("a CA: {e}")).client_authority()
    })
}

fn compare_with_x509_parser(request: &CertificateRequest, der: &[u8]) {
    let (rest, other) = X509CertificationRequest::from_der(der)
        .unwrap_or_else(|e| panic!("our decoder accepts the request, x509-parser does not: {e}"));
    assert!(rest.is_empty());
    let subject = &other.certification_request_info.subject;
    let names: Vec<_> = subject.iter_common_name().map(|a| a.as_str().ok()).collect();
    let expected: Vec<_> = request
        .subject()
        .values(AttributeType::CommonName)
        .map(Some)
        .collect();
    assert_eq!(names, expected);
    let groups: Vec<_> = subject.iter_organization().map(|a| a.as_str().ok()).collect();
    assert_eq!(groups, request.organizations().map(Some).collect::<Vec<_>>());
    assert_eq!(
        subject.iter_attributes().count(),
        request.subject().attributes().len()
    );
}
