//! Builds a certificate from a parsed request: only the bytes of the request's key are copied.
//!
//! It is encoded here and not with rcgen, whose distinguished names have one attribute of each type: a user has several
//! groups.

use std::time::Duration;

use der::asn1::{GeneralizedTime, ObjectIdentifier, UtcTime};
use der::{DateTime, Encode, Tag};
use k8s_openapi::jiff::Timestamp;
use knarr_api::certificates::der::{bit_string, context, element, sequence};
use knarr_api::certificates::{CertificateRequest, subject_alt_name};
use knarr_api::k8s_openapi;
use rcgen::{KeyPair, SigningKey};

use super::SignError;

const KEY_USAGE: &str = "2.5.29.15";
const SUBJECT_ALT_NAME: &str = "2.5.29.17";
const BASIC_CONSTRAINTS: &str = "2.5.29.19";
const AUTHORITY_KEY_IDENTIFIER: &str = "2.5.29.35";
const EXTENDED_KEY_USAGE: &str = "2.5.29.37";

/// v3, counted from 0.
const VERSION: [u8; 1] = [2];
/// From this year on a time is a GeneralizedTime (RFC 5280, 4.1.2.5).
const GENERALIZED_TIME_FROM: u16 = 2050;

/// The usages of certificates by Kubernetes' own signers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    DigitalSignature,
    KeyEncipherment,
    ClientAuth,
    ServerAuth,
}

impl Usage {
    /// By the name in `spec.usages`.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "signing" | "digital signature" => Some(Usage::DigitalSignature),
            "key encipherment" => Some(Usage::KeyEncipherment),
            "client auth" => Some(Usage::ClientAuth),
            "server auth" => Some(Usage::ServerAuth),
            _ => None,
        }
    }

    /// The number of its bit in the key usage.
    pub fn bit(self) -> Option<u8> {
        match self {
            Usage::DigitalSignature => Some(0),
            Usage::KeyEncipherment => Some(2),
            Usage::ClientAuth | Usage::ServerAuth => None,
        }
    }

    fn extended_oid(self) -> Option<&'static str> {
        match self {
            Usage::ServerAuth => Some("1.3.6.1.5.5.7.3.1"),
            Usage::ClientAuth => Some("1.3.6.1.5.5.7.3.2"),
            Usage::DigitalSignature | Usage::KeyEncipherment => None,
        }
    }
}

/// The fields of a certificate that the request does not have.
#[derive(Debug)]
pub struct CertificateTemplate<'a> {
    pub serial: [u8; 16],
    /// The DER of the issuer's name.
    pub issuer: &'a [u8],
    /// Identifies the issuer's key.
    pub issuer_key_id: Option<&'a [u8]>,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    pub usages: &'a [Usage],
}

/// The DER of a certificate for this request, signed with this key.
pub fn build(
    request: &CertificateRequest,
    template: &CertificateTemplate<'_>,
    key: &KeyPair,
) -> Result<Vec<u8>, SignError> {
    let algorithm = signature_algorithm(key)?;
    let body = to_be_signed(request, template, &algorithm)?;
    let signature = key.sign(&body).map_err(SignError::Key)?;
    Ok(sequence(&[&body, &algorithm, &bit_string(&signature)?])?)
}

fn to_be_signed(
    request: &CertificateRequest,
    template: &CertificateTemplate<'_>,
    algorithm: &[u8],
) -> Result<Vec<u8>, der::Error> {
    let version = element(context(0, true), &[&element(Tag::Integer, &[&VERSION])?])?;
    // A zero in front, so that it is positive.
    let mut serial = template.serial;
    serial[0] = (serial[0] & 0x3f) | 0x40;
    let validity = sequence(&[&time(template.not_before)?, &time(template.not_after)?])?;
    let extensions = sequence(&[&extensions(request, template)?])?;
    sequence(&[
        &version,
        &element(Tag::Integer, &[&serial])?,
        algorithm,
        template.issuer,
        &validity,
        &request.subject().to_der()?,
        request.public_key_der(),
        &element(context(3, true), &[&extensions])?,
    ])
}

fn extensions(
    request: &CertificateRequest,
    template: &CertificateTemplate<'_>,
) -> Result<Vec<u8>, der::Error> {
    let mut all = Vec::new();
    let bits = template.usages.iter().filter_map(|u| u.bit());
    let byte = bits.fold(0u8, |byte, bit| byte | 0x80 >> bit);
    if byte != 0 {
        // Named bits end with the last that is set.
        let unused = u8::try_from(byte.trailing_zeros()).unwrap_or(0);
        let usage = element(Tag::BitString, &[&[unused, byte]])?;
        all.extend(extension(KEY_USAGE, true, &usage)?);
    }
    let mut extended = Vec::new();
    for oid in template.usages.iter().filter_map(|u| u.extended_oid()) {
        extended.extend(ObjectIdentifier::new(oid)?.to_der()?);
    }
    if !extended.is_empty() {
        all.extend(extension(EXTENDED_KEY_USAGE, false, &sequence(&[&extended])?)?);
    }
    // No CA: that is the default, which DER leaves out.
    all.extend(extension(BASIC_CONSTRAINTS, true, &sequence(&[])?)?);
    if let Some(id) = template.issuer_key_id {
        let id = sequence(&[&element(context(0, false), &[id])?])?;
        all.extend(extension(AUTHORITY_KEY_IDENTIFIER, false, &id)?);
    }
    if !request.alt_names().is_empty() {
        // Critical where it is the only name (RFC 5280, 4.2.1.6).
        let critical = request.subject().attributes().is_empty();
        all.extend(extension(
            SUBJECT_ALT_NAME,
            critical,
            &subject_alt_name(request.alt_names())?,
        )?);
    }
    Ok(all)
}

fn extension(oid: &str, critical: bool, value: &[u8]) -> Result<Vec<u8>, der::Error> {
    let oid = ObjectIdentifier::new(oid)?.to_der()?;
    let value = element(Tag::OctetString, &[value])?;
    match critical {
        true => sequence(&[&oid, &element(Tag::Boolean, &[&[0xff]])?, &value]),
        false => sequence(&[&oid, &value]),
    }
}

fn time(at: Timestamp) -> Result<Vec<u8>, der::Error> {
    let seconds = u64::try_from(at.as_second()).map_err(|_| Tag::UtcTime.value_error())?;
    let at = DateTime::from_unix_duration(Duration::from_secs(seconds))?;
    if at.year() < GENERALIZED_TIME_FROM {
        return UtcTime::from_date_time(at)?.to_der();
    }
    GeneralizedTime::from_date_time(at).to_der()
}

/// The AlgorithmIdentifier of what this key signs.
fn signature_algorithm(key: &KeyPair) -> Result<Vec<u8>, SignError> {
    let null = element(Tag::Null, &[])?;
    let known: [(_, &str, &[u8]); 4] = [
        (&rcgen::PKCS_ECDSA_P256_SHA256, "1.2.840.10045.4.3.2", &[]),
        (&rcgen::PKCS_ECDSA_P384_SHA384, "1.2.840.10045.4.3.3", &[]),
        (&rcgen::PKCS_ED25519, "1.3.101.112", &[]),
        (&rcgen::PKCS_RSA_SHA256, "1.2.840.113549.1.1.11", &null),
    ];
    let found = known.iter().find(|(algorithm, ..)| *algorithm == key.algorithm());
    let (_, oid, parameters) = found.ok_or(SignError::KeyAlgorithm)?;
    let oid = ObjectIdentifier::new(oid).map_err(der::Error::from)?.to_der()?;
    Ok(sequence(&[&oid, parameters])?)
}
