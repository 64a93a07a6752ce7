//! Signs certificates that are asked for: what CertificateSigningRequests say, with the cluster's CA.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use rcgen::{
    CertificateSigningRequestParams, ExtendedKeyUsagePurpose as Extended, IsCa, Issuer, KeyPair,
    KeyUsagePurpose as Usage, SanType,
};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509Certificate};

use crate::pki::Identity;

/// The longest that is signed for unless it is said otherwise (`--cluster-signing-duration`).
pub const LONGEST: SignedDuration = SignedDuration::from_hours(365 * 24);
/// The shortest, so that clocks that differ do not make a certificate useless.
const SHORTEST: SignedDuration = SignedDuration::from_mins(10);
/// Certificates count from a little before now.
const BACKDATE: SignedDuration = SignedDuration::from_mins(5);
/// Of those that last less, that little is not taken off the end.
const SHORT: SignedDuration = SignedDuration::from_hours(8);

/// What a request says of whom it is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub common_name: String,
    pub organizations: Vec<String>,
    pub dns_names: Vec<String>,
    pub ip_addresses: Vec<String>,
    pub email_addresses: Vec<String>,
    pub uris: Vec<String>,
}

/// The CA as a signer.
#[derive(Clone, Debug)]
pub struct Authority {
    ca: Identity,
    /// No certificate lasts longer; those that are asked for without a time last so long.
    longest: SignedDuration,
}

/// Reads a request; its signature is checked, so that it comes from whoever has the key.
pub fn read_request(pem: &[u8]) -> Result<Asked, String> {
    let der = der(pem, "CERTIFICATE REQUEST")?;
    let (_, request) = X509CertificationRequest::from_der(&der).map_err(|e| e.to_string())?;
    request
        .verify_signature()
        .map_err(|_| "the request's signature is not that of its key".to_string())?;
    let subject = &request.certification_request_info.subject;
    let text = |values: Vec<Option<&str>>| values.into_iter().flatten().map(str::to_string).collect();
    let mut asked = Asked {
        common_name: subject
            .iter_common_name()
            .next()
            .and_then(|a| a.as_str().ok())
            .unwrap_or("")
            .to_string(),
        organizations: text(subject.iter_organization().map(|a| a.as_str().ok()).collect()),
        ..Asked::default()
    };
    for extension in request.requested_extensions().into_iter().flatten() {
        let ParsedExtension::SubjectAlternativeName(names) = extension else {
            continue;
        };
        for name in &names.general_names {
            match name {
                GeneralName::DNSName(name) => asked.dns_names.push((*name).to_string()),
                GeneralName::RFC822Name(name) => asked.email_addresses.push((*name).to_string()),
                GeneralName::URI(name) => asked.uris.push((*name).to_string()),
                GeneralName::IPAddress(bytes) => asked.ip_addresses.push(address(bytes)?),
                other => return Err(format!("the request names {other}, which is not signed for")),
            }
        }
    }
    Ok(asked)
}

/// When a certificate ends.
pub fn ends(pem: &[u8]) -> Option<Timestamp> {
    let der = der(pem, "CERTIFICATE").ok()?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

fn address(bytes: &[u8]) -> Result<String, String> {
    let four: Result<[u8; 4], _> = bytes.try_into();
    let sixteen: Result<[u8; 16], _> = bytes.try_into();
    match (four, sixteen) {
        (Ok(four), _) => Ok(std::net::IpAddr::from(four).to_string()),
        (_, Ok(sixteen)) => Ok(std::net::IpAddr::from(sixteen).to_string()),
        _ => Err(format!("an IP address of {} bytes", bytes.len())),
    }
}

fn der(pem: &[u8], label: &str) -> Result<Vec<u8>, String> {
    match parse_x509_pem(pem) {
        Ok((_, pem)) if pem.label == label => Ok(pem.contents),
        _ => Err(format!("PEM block type must be {label}")),
    }
}

impl Authority {
    pub(crate) fn new(ca: Identity) -> Self {
        Authority { ca, longest: LONGEST }
    }

    /// The same, but nothing it signs lasts longer than this.
    pub fn for_at_most(mut self, longest: SignedDuration) -> Self {
        self.longest = longest;
        self
    }

    /// A certificate for the request's key and names.
    pub fn sign(
        &self,
        request: &[u8],
        usages: &[String],
        seconds: Option<i32>,
        now: Timestamp,
    ) -> Result<String, String> {
        let failed = |e: rcgen::Error| format!("the request cannot be signed: {e}");
        read_request(request)?;
        let text = std::str::from_utf8(request).map_err(|e| e.to_string())?;
        let mut csr = CertificateSigningRequestParams::from_pem(text).map_err(failed)?;
        let (usages, extended) = read_usages(usages)?;
        let life = seconds.map_or(self.longest, |s| {
            SignedDuration::from_secs(s.into())
                .max(SHORTEST)
                .min(self.longest)
        });
        let from = now - BACKDATE;
        let until = if life < SHORT { now + life } else { from + life };
        let until = ends(self.ca.certificate_pem.as_bytes()).map_or(until, |ca| ca.min(until));
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        let at = |t: Timestamp| epoch + Duration::from_secs(u64::try_from(t.as_second()).unwrap_or(0));
        let params = &mut csr.params;
        params.not_before = at(from);
        params.not_after = at(until);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = usages;
        params.extended_key_usages = extended;
        params.custom_extensions = Vec::new();
        params.serial_number = None;
        params.use_authority_key_identifier_extension = true;
        // Only names that were looked at are signed.
        params
            .subject_alt_names
            .retain(|n| !matches!(n, SanType::OtherName(_)));
        let key = KeyPair::from_pem(&self.ca.key_pem).map_err(failed)?;
        let issuer = Issuer::from_ca_cert_pem(&self.ca.certificate_pem, key).map_err(failed)?;
        Ok(csr.signed_by(&issuer).map_err(failed)?.pem())
    }
}

fn read_usages(names: &[String]) -> Result<(Vec<Usage>, Vec<Extended>), String> {
    let (mut usages, mut extended) = (Vec::new(), Vec::new());
    for name in names {
        match name.as_str() {
            "signing" | "digital signature" => usages.push(Usage::DigitalSignature),
            "content commitment" => usages.push(Usage::ContentCommitment),
            "key encipherment" => usages.push(Usage::KeyEncipherment),
            "key agreement" => usages.push(Usage::KeyAgreement),
            "data encipherment" => usages.push(Usage::DataEncipherment),
            "cert sign" => usages.push(Usage::KeyCertSign),
            "crl sign" => usages.push(Usage::CrlSign),
            "encipher only" => usages.push(Usage::EncipherOnly),
            "decipher only" => usages.push(Usage::DecipherOnly),
            "any" => extended.push(Extended::Any),
            "server auth" => extended.push(Extended::ServerAuth),
            "client auth" => extended.push(Extended::ClientAuth),
            "code signing" => extended.push(Extended::CodeSigning),
            "email protection" | "s/mime" => extended.push(Extended::EmailProtection),
            "timestamping" => extended.push(Extended::TimeStamping),
            "ocsp signing" => extended.push(Extended::OcspSigning),
            "ipsec end system" => extended.push(Extended::Other(vec![1, 3, 6, 1, 5, 5, 7, 3, 5])),
            "ipsec tunnel" => extended.push(Extended::Other(vec![1, 3, 6, 1, 5, 5, 7, 3, 6])),
            "ipsec user" => extended.push(Extended::Other(vec![1, 3, 6, 1, 5, 5, 7, 3, 7])),
            "microsoft sgc" => extended.push(Extended::Other(vec![1, 3, 6, 1, 4, 1, 311, 10, 3, 3])),
            "netscape sgc" => extended.push(Extended::Other(vec![2, 16, 840, 1, 113_730, 4, 1])),
            other => return Err(format!("unrecognized usage {other:?}")),
        }
    }
    usages.dedup();
    extended.dedup();
    Ok((usages, extended))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::certificate::{Peer, certificate_user};
    use crate::pki::Pki;
    use rcgen::{CertificateParams, DnType};

    fn request(names: &[&str]) -> String {
        let mut params =
            CertificateParams::new(names.iter().map(|n| (*n).to_string()).collect::<Vec<_>>()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, "system:nodes");
        params
            .distinguished_name
            .push(DnType::CommonName, "system:node:n");
        // What is asked for beside names is not signed.
        params.is_ca = IsCa::NoCa;
        let key = KeyPair::generate().unwrap();
        params.serialize_request(&key).unwrap().pem().unwrap()
    }

    #[test]
    fn a_request_is_signed_for_what_it_says_and_for_its_time() {
        let directory = tempfile::tempdir().unwrap();
        let now: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
        let pki = Pki::open(directory.path(), now).unwrap();
        let request = request(&["n", "10.0.0.1"]);
        let asked = read_request(request.as_bytes()).unwrap();
        assert_eq!(
            (asked.dns_names, asked.ip_addresses),
            (vec!["n".to_string()], vec!["10.0.0.1".to_string()])
        );
        let usages = ["digital signature".to_string(), "client auth".to_string()];
        for (longest, seconds, lasts) in [
            (None, 365 * 24 * 3600 - 300),
            (Some(60), 600),
            (Some(3600), 3600),
            (Some(i32::MAX), 365 * 24 * 3600 - 300),
        ]
        .map(|(asked, lasts)| (LONGEST, asked, lasts))
        .into_iter()
        .chain(
            [(None, 60), (Some(600), 60)].map(|(asked, lasts)| (SignedDuration::from_mins(1), asked, lasts)),
        ) {
            let pem = pki
                .authority()
                .for_at_most(longest)
                .sign(request.as_bytes(), &usages, seconds, now)
                .unwrap();
            assert_eq!(
                ends(pem.as_bytes()).unwrap().as_second() - now.as_second(),
                lasts,
                "{seconds:?}"
            );
            let der = der(pem.as_bytes(), "CERTIFICATE").unwrap();
            assert_eq!(certificate_user(&der).unwrap().node(), Some("n"));
            assert!(Peer::of_verified(&der).user(now).unwrap().is_some());
        }
    }

    #[test]
    fn a_request_with_another_signature_is_refused() {
        let good = request(&["n"]);
        let other = request(&["m"]);
        let (_, a) = parse_x509_pem(good.as_bytes()).unwrap();
        let (_, b) = parse_x509_pem(other.as_bytes()).unwrap();
        // The end of one on the other: a signature of a key that is not in the request.
        let cut = a.contents.len().min(b.contents.len()) - 40;
        let mut mixed = a.contents.clone();
        let tail = b.contents[b.contents.len() - (a.contents.len() - cut)..].to_vec();
        mixed.splice(cut.., tail);
        use base64::Engine;
        let text = base64::engine::general_purpose::STANDARD.encode(mixed);
        let pem = format!("-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n");
        assert!(read_request(pem.as_bytes()).is_err());
        assert_eq!(
            read_request(b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n").unwrap_err(),
            "PEM block type must be CERTIFICATE REQUEST"
        );
    }
}
