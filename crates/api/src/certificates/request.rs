//! The one reader of certificate requests.

use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use der::Tag;
use der::asn1::ObjectIdentifier;
use x509_parser::asn1_rs::BitString;
use x509_parser::prelude::FromDer;
use x509_parser::verify::verify_signature;
use x509_parser::x509::{AlgorithmIdentifier, SubjectPublicKeyInfo};

use super::der::{Element, context};
use super::error::{MAX_REQUEST_BYTES, RequestError};
use super::name::{AltName, AttributeType, Subject};

const BEGIN: &str = "-----BEGIN CERTIFICATE REQUEST-----";
const END: &str = "-----END CERTIFICATE REQUEST-----";

const EXTENSION_REQUEST: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.9.14");
const SUBJECT_ALT_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.17");
const BASIC_CONSTRAINTS: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.19");
/// Extensions that the signer sets itself: the subject's key identifier, and the usages, which are in `spec.usages`.
const SET_BY_SIGNER: [ObjectIdentifier; 3] = [
    ObjectIdentifier::new_unwrap("2.5.29.14"),
    ObjectIdentifier::new_unwrap("2.5.29.15"),
    ObjectIdentifier::new_unwrap("2.5.29.37"),
];
/// RSA with SHA-1, which Go does not verify either.
const INSECURE: [ObjectIdentifier; 2] = [
    ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.5"),
    ObjectIdentifier::new_unwrap("1.3.14.3.2.29"),
];

/// A request with a valid signature of its key. Only [`CertificateRequest::decode`] makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateRequest {
    subject: Subject,
    alt_names: Vec<AltName>,
    public_key: Vec<u8>,
}

impl CertificateRequest {
    /// Reads `spec.request` of a CertificateSigningRequest: one PEM block.
    pub fn decode(pem: &[u8]) -> Result<Self, RequestError> {
        Self::decode_der(&block(pem)?)
    }

    fn decode_der(bytes: &[u8]) -> Result<Self, RequestError> {
        let [info, algorithm, signature] = Element::decode(bytes)?.sequence()?;
        let [version, subject, public_key, attributes] = info.sequence()?;
        if version.content(Tag::Integer)? != [0] {
            return Err(RequestError::Version);
        }
        // The signature first: the content of a request counts only if its key signed it.
        check_signature(&public_key, &algorithm, &signature, info.raw())?;
        Ok(CertificateRequest {
            alt_names: requested_alt_names(&attributes)?,
            subject: Subject::read(&subject)?,
            public_key: public_key.raw().to_vec(),
        })
    }

    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// The user; empty where there is none.
    pub fn common_name(&self) -> &str {
        self.subject
            .values(AttributeType::CommonName)
            .next()
            .unwrap_or("")
    }

    /// The user's groups.
    pub fn organizations(&self) -> impl Iterator<Item = &str> {
        self.subject.values(AttributeType::Organization)
    }

    pub fn alt_names(&self) -> &[AltName] {
        &self.alt_names
    }

    pub fn dns_names(&self) -> impl Iterator<Item = &str> {
        self.alt_names.iter().filter_map(|name| match name {
            AltName::Dns(name) => Some(name.as_str()),
            _ => None,
        })
    }

    pub fn ip_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.alt_names.iter().filter_map(|name| match name {
            AltName::Ip(address) => Some(*address),
            _ => None,
        })
    }

    /// The key to certify: the DER of its SubjectPublicKeyInfo.
    pub fn public_key_der(&self) -> &[u8] {
        &self.public_key
    }
}

/// The content of the one block.
fn block(pem: &[u8]) -> Result<Vec<u8>, RequestError> {
    if pem.len() > MAX_REQUEST_BYTES {
        return Err(RequestError::TooLong);
    }
    let text = std::str::from_utf8(pem).map_err(|_| RequestError::NotPem)?;
    let text = text.trim_matches([' ', '\t', '\r', '\n']);
    let body = text.strip_prefix(BEGIN).ok_or(RequestError::NotPem)?;
    let body = body.strip_suffix(END).ok_or(RequestError::NotOneBlock)?;
    if !body.starts_with(['\r', '\n']) || !body.ends_with('\n') {
        return Err(RequestError::NotOneBlock);
    }
    let digits: String = body.lines().collect();
    // A second block, headers and text are not base64.
    STANDARD.decode(digits).map_err(|_| RequestError::NotOneBlock)
}

fn check_signature(
    public_key: &Element<'_>,
    algorithm: &Element<'_>,
    signature: &Element<'_>,
    signed: &[u8],
) -> Result<(), RequestError> {
    let parameters = algorithm.elements(Tag::Sequence)?;
    let oid = parameters
        .first()
        .ok_or(RequestError::SignatureAlgorithm)?
        .oid()?;
    if INSECURE.contains(&oid) {
        return Err(RequestError::SignatureAlgorithm);
    }
    let [key_algorithm, key] = public_key.sequence()?;
    key_algorithm.elements(Tag::Sequence)?;
    for bits in [key, *signature] {
        // Whole bytes.
        if bits.content(Tag::BitString)?.first() != Some(&0) {
            return Err(Tag::BitString.value_error().into());
        }
    }
    let unsupported = |_| RequestError::SignatureAlgorithm;
    let (_, key) = SubjectPublicKeyInfo::from_der(public_key.raw()).map_err(unsupported)?;
    let (_, algorithm) = AlgorithmIdentifier::from_der(algorithm.raw()).map_err(unsupported)?;
    let (_, signature) =
        BitString::from_der(signature.raw()).map_err(|_| RequestError::SignatureAlgorithm)?;
    use x509_parser::error::X509Error;
    verify_signature(&key, &algorithm, &signature, signed).map_err(|e| match e {
        X509Error::SignatureUnsupportedAlgorithm => RequestError::SignatureAlgorithm,
        _ => RequestError::Signature,
    })
}

/// The subject alternative names among the extensions that are requested.
fn requested_alt_names(attributes: &Element<'_>) -> Result<Vec<AltName>, RequestError> {
    let mut extensions = None;
    for attribute in attributes.elements(context(0, true))? {
        let [kind, values] = attribute.sequence()?;
        let values = values.elements(Tag::Set)?;
        // Others, such as a challenge password, are no part of a certificate.
        if kind.oid()? == EXTENSION_REQUEST {
            let [value] = values[..] else {
                return Err(RequestError::DuplicateExtension);
            };
            if extensions.replace(value.elements(Tag::Sequence)?).is_some() {
                return Err(RequestError::DuplicateExtension);
            }
        }
    }
    let mut seen = Vec::new();
    let mut alt_names = Vec::new();
    for extension in extensions.iter().flatten() {
        let (oid, value) = read_extension(extension)?;
        if seen.contains(&oid) {
            return Err(RequestError::DuplicateExtension);
        }
        seen.push(oid);
        match oid {
            SUBJECT_ALT_NAME => alt_names = AltName::read_all(value)?,
            BASIC_CONSTRAINTS if !is_ca(value)? => {}
            BASIC_CONSTRAINTS => return Err(RequestError::Ca),
            oid if SET_BY_SIGNER.contains(&oid) => {}
            other => return Err(RequestError::UnknownExtension(other.to_string())),
        }
    }
    Ok(alt_names)
}

/// An extension's type and value.
fn read_extension<'a>(extension: &Element<'a>) -> Result<(ObjectIdentifier, &'a [u8]), der::Error> {
    let parts = extension.elements(Tag::Sequence)?;
    let (oid, value) = match parts[..] {
        [oid, value] => (oid, value),
        [oid, critical, value] => {
            critical.content(Tag::Boolean)?;
            (oid, value)
        }
        _ => return Err(Tag::Sequence.value_error()),
    };
    Ok((oid.oid()?, value.content(Tag::OctetString)?))
}

/// Whether basic constraints say so: `SEQUENCE { cA BOOLEAN DEFAULT FALSE, … }`.
fn is_ca(value: &[u8]) -> Result<bool, der::Error> {
    let parts = Element::decode(value)?.elements(Tag::Sequence)?;
    Ok(match parts.first() {
        Some(first) if first.tag() == Tag::Boolean => first.content(Tag::Boolean)? != [0],
        _ => !parts.is_empty(),
    })
}
