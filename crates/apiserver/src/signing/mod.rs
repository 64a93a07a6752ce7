//! Signs CertificateSigningRequests with one of the cluster's CAs.
//!
//! The certificate is built from the [`CertificateRequest`] that was validated and approved, and parsed again before it is
//! issued (SPEC A1).

mod certificate;
mod check;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::certificates::CertificateRequest;
use knarr_api::k8s_openapi;
use rcgen::KeyPair;
use x509_parser::error::X509Error;
use x509_parser::extensions::ParsedExtension;
use x509_parser::nom;
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::{FromDer, X509Certificate};

use self::certificate::{CertificateTemplate, Usage};
use crate::identity::{self, Identity};
use crate::seams::{Entropy, SystemEntropy};

/// The longest validity by default (`--cluster-signing-duration`).
pub const LONGEST: SignedDuration = SignedDuration::from_hours(365 * 24);
/// The shortest validity, so that differing clocks do not make a certificate useless.
const SHORTEST: SignedDuration = SignedDuration::from_mins(10);
/// Certificates are valid from a little before now.
const BACKDATE: SignedDuration = SignedDuration::from_mins(5);
/// A certificate with at least this validity expires that much earlier, too.
const SHORT: SignedDuration = SignedDuration::from_hours(8);

/// Why a request was not signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    #[error("unrecognized usage {0:?}")]
    Usage(String),
    #[error("the CA's certificate cannot be read: PEM block type must be CERTIFICATE")]
    CaPem,
    #[error("the CA's certificate cannot be read: {0}")]
    Ca(#[source] nom::Err<X509Error>),
    #[error("the CA's key cannot sign: {0}")]
    Key(#[source] rcgen::Error),
    #[error("the CA's key is of an algorithm that is not supported")]
    KeyAlgorithm,
    #[error("the certificate cannot be encoded: {0}")]
    Encode(#[from] der::Error),
    #[error("the signed certificate differs from the request in {0}")]
    Differs(&'static str),
}

/// A CA as a signer.
#[derive(Clone, Debug)]
pub struct Authority {
    ca: Identity,
    /// The longest validity, which is also that of requests without `expirationSeconds`.
    longest: SignedDuration,
}

/// When a certificate expires.
pub fn ends(pem: &[u8]) -> Option<Timestamp> {
    let der = der(pem)?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

fn der(pem: &[u8]) -> Option<Vec<u8>> {
    let (_, pem) = parse_x509_pem(pem).ok()?;
    (pem.label == "CERTIFICATE").then_some(pem.contents)
}

impl Authority {
    pub(crate) fn new(ca: Identity) -> Self {
        Authority { ca, longest: LONGEST }
    }

    /// The same signer with this longest validity.
    pub fn for_at_most(mut self, longest: SignedDuration) -> Self {
        self.longest = longest;
        self
    }

    /// A PEM certificate for the request's key and names.
    pub fn sign(
        &self,
        request: &CertificateRequest,
        usages: &[String],
        seconds: Option<i32>,
        now: Timestamp,
    ) -> Result<String, SignError> {
        let ca_der = der(self.ca.certificate_pem.as_bytes()).ok_or(SignError::CaPem)?;
        let (_, ca) = X509Certificate::from_der(&ca_der).map_err(SignError::Ca)?;
        let key = KeyPair::from_pem(&self.ca.key_pem).map_err(SignError::Key)?;
        let (not_before, not_after) = self.validity(&ca, seconds, now);
        let mut serial = [0; 16];
        SystemEntropy.fill(&mut serial);
        let template = CertificateTemplate {
            serial,
            issuer: ca.subject().as_raw(),
            issuer_key_id: key_id(&ca),
            not_before,
            not_after,
            usages: &read_usages(usages)?,
        };
        let signed = certificate::build(request, &template, &key)?;
        check::verify(&signed, request, &template, &ca).map_err(SignError::Differs)?;
        Ok(identity::pem(&signed))
    }

    fn validity(
        &self,
        ca: &X509Certificate<'_>,
        seconds: Option<i32>,
        now: Timestamp,
    ) -> (Timestamp, Timestamp) {
        // Certificates have whole seconds.
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let validity_period = seconds.map_or(self.longest, |s| {
            SignedDuration::from_secs(s.into())
                .max(SHORTEST)
                .min(self.longest)
        });
        let from = now - BACKDATE;
        let until = if validity_period < SHORT {
            now + validity_period
        } else {
            from + validity_period
        };
        let until = Timestamp::from_second(until.as_second()).unwrap_or(until);
        let ca_ends = Timestamp::from_second(ca.validity().not_after.timestamp());
        (from, ca_ends.map_or(until, |ca| ca.min(until)))
    }
}

/// The identifier of a CA's key, as its certificate has it.
fn key_id<'a>(ca: &X509Certificate<'a>) -> Option<&'a [u8]> {
    ca.extensions().iter().find_map(|e| match e.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0),
        _ => None,
    })
}

fn read_usages(names: &[String]) -> Result<Vec<Usage>, SignError> {
    let mut usages = Vec::new();
    for name in names {
        let usage = Usage::parse(name).ok_or_else(|| SignError::Usage(name.clone()))?;
        if !usages.contains(&usage) {
            usages.push(usage);
        }
    }
    Ok(usages)
}

#[cfg(test)]
mod tests;
