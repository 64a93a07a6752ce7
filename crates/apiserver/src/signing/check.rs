//! Parses a certificate that was just signed, with another parser than that of the request, and compares it with the
//! expected contents. A certificate that differs is not issued.

use knarr_api::certificates::{AltName, AttributeType, CertificateRequest};
use x509_parser::der_parser::oid;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::certificate::{CertificateTemplate, Usage};

/// The error names the field that differs.
pub fn verify(
    certificate: &[u8],
    request: &CertificateRequest,
    template: &CertificateTemplate<'_>,
    ca: &X509Certificate<'_>,
) -> Result<(), &'static str> {
    let (rest, found) = X509Certificate::from_der(certificate).map_err(|_| "its encoding")?;
    let ensure = |is: bool, what: &'static str| is.then_some(()).ok_or(what);
    ensure(rest.is_empty(), "its length")?;
    ensure(
        found.verify_signature(Some(ca.public_key())).is_ok(),
        "its signature",
    )?;
    ensure(found.issuer().as_raw() == ca.subject().as_raw(), "its issuer")?;
    ensure(found.public_key().raw == request.public_key_der(), "its key")?;
    let validity = found.validity();
    ensure(
        validity.not_before.timestamp() == template.not_before.as_second(),
        "its beginning",
    )?;
    ensure(
        validity.not_after.timestamp() == template.not_after.as_second(),
        "its end",
    )?;
    subject(&found, request)?;
    usages(&found, template.usages)?;
    let alt_names = found
        .subject_alternative_name()
        .map_err(|_| "its alternative names")?;
    let alt_names = alt_names.iter().flat_map(|e| &e.value.general_names);
    ensure(
        alt_names
            .map(read_name)
            .eq(request.alt_names().iter().cloned().map(Some)),
        "its alternative names",
    )?;
    ensure(!found.is_ca(), "that it is no CA")
}

fn subject(found: &X509Certificate<'_>, request: &CertificateRequest) -> Result<(), &'static str> {
    let text = |a: &x509_parser::x509::AttributeTypeAndValue<'_>| a.as_str().ok().map(str::to_string);
    let name = found.subject();
    let common_names: Vec<_> = name.iter_common_name().map(text).collect();
    let expected = request.subject().values(AttributeType::CommonName);
    if common_names != expected.map(|n| Some(n.to_string())).collect::<Vec<_>>() {
        return Err("its common name");
    }
    let organizations: Vec<_> = name.iter_organization().map(text).collect();
    if organizations
        != request
            .organizations()
            .map(|o| Some(o.to_string()))
            .collect::<Vec<_>>()
    {
        return Err("its organizations");
    }
    let all: Vec<_> = name.iter_attributes().map(text).collect();
    let expected = request.subject().attributes().iter();
    if all != expected.map(|a| Some(a.value.clone())).collect::<Vec<_>>() {
        return Err("its subject");
    }
    Ok(())
}

fn usages(found: &X509Certificate<'_>, expected: &[Usage]) -> Result<(), &'static str> {
    let flags = found.key_usage().map_err(|_| "its key usage")?;
    let flags = flags.map_or(0, |e| e.value.flags);
    let bits = expected.iter().filter_map(|u| u.bit());
    if flags != bits.fold(0, |flags, bit| flags | 1u16 << bit) {
        return Err("its key usage");
    }
    let extended = found.extended_key_usage().map_err(|_| "its extended key usage")?;
    let of = |usage: Usage| expected.contains(&usage);
    let same = extended.map_or(!of(Usage::ClientAuth) && !of(Usage::ServerAuth), |e| {
        let others = e.value.any
            || e.value.code_signing
            || e.value.email_protection
            || e.value.time_stamping
            || e.value.ocsp_signing
            || !e.value.other.is_empty();
        !others
            && e.value.client_auth == of(Usage::ClientAuth)
            && e.value.server_auth == of(Usage::ServerAuth)
    });
    // The usages, the constraints, the authority's key and the names; no other extension.
    let known = [
        oid!(2.5.29.15),
        oid!(2.5.29.17),
        oid!(2.5.29.19),
        oid!(2.5.29.35),
        oid!(2.5.29.37),
    ];
    let all_known = found.extensions().iter().all(|e| known.contains(&e.oid));
    (same && all_known)
        .then_some(())
        .ok_or("its extended key usage or extensions")
}

fn read_name(name: &GeneralName<'_>) -> Option<AltName> {
    match name {
        GeneralName::DNSName(name) => Some(AltName::Dns((*name).to_string())),
        GeneralName::RFC822Name(name) => Some(AltName::Email((*name).to_string())),
        GeneralName::URI(name) => Some(AltName::Uri((*name).to_string())),
        GeneralName::IPAddress(bytes) => {
            let four = <[u8; 4]>::try_from(*bytes).map(std::net::IpAddr::from);
            let address = four.or_else(|_| <[u8; 16]>::try_from(*bytes).map(std::net::IpAddr::from));
            address.ok().map(AltName::Ip)
        }
        _ => None,
    }
}
