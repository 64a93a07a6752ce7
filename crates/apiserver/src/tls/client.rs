//! TLS for outgoing connections: which servers are trusted, and which client certificate is presented.
//!
//! A serving certificate that is itself one of the trusted certificates is accepted, whether it is a CA or not, as in Go:
//! self-signed serving certificates are often configured as their own CA.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

use super::{TlsError, certificates, chain_and_key};
use crate::identity::Identity;

/// A TLS connector with the client certificate `identity`. Servers must have a certificate of the CA `authority`; without one
/// any server is accepted: the destinations of a proxy are not verified, as in kube-apiserver.
pub fn connector(
    identity: Option<&Identity>,
    authority: Option<&CertificateDer<'static>>,
) -> Result<tokio_rustls::TlsConnector, TlsError> {
    let verifier: Arc<dyn ServerCertVerifier> = match authority {
        None => Arc::new(AnyServerVerifier(provider())),
        Some(authority) => Arc::new(TrustedServerVerifier::new(vec![authority.clone()])?),
    };
    build(verifier, identity).map(tokio_rustls::TlsConnector::from)
}

/// A configuration for servers with one of the `trusted` certificates, or a certificate of one of these CAs.
pub fn config(trusted: Vec<CertificateDer<'static>>) -> Result<Arc<ClientConfig>, TlsError> {
    build(Arc::new(TrustedServerVerifier::new(trusted)?), None)
}

/// Like [`config`], with the client certificate `identity` and these ALPN protocols, in order of preference. Without
/// `trusted` any server is accepted.
pub fn config_with_protocols(
    trusted: Option<Vec<CertificateDer<'static>>>,
    identity: Option<&Identity>,
    protocols: &[&[u8]],
) -> Result<Arc<ClientConfig>, TlsError> {
    let verifier: Arc<dyn ServerCertVerifier> = match trusted {
        None => Arc::new(AnyServerVerifier(provider())),
        Some(trusted) => Arc::new(TrustedServerVerifier::new(trusted)?),
    };
    let mut config = Arc::unwrap_or_clone(build(verifier, identity)?);
    config.alpn_protocols = protocols.iter().map(|p| p.to_vec()).collect();
    Ok(Arc::new(config))
}

/// The certificates of a CA bundle in PEM; the system's CAs if it is empty.
pub fn ca_certificates(bundle: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    if bundle.is_empty() {
        // Malformed system certificates are skipped.
        let found = rustls_native_certs::load_native_certs().certs;
        let well_formed =
            |der: &CertificateDer<'_>| RootCertStore::empty().add(der.clone().into_owned()).is_ok();
        return Ok(found.into_iter().filter(well_formed).collect());
    }
    certificates(bundle, "unable to load root certificates")
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn build(
    verifier: Arc<dyn ServerCertVerifier>,
    identity: Option<&Identity>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let config = match identity {
        None => config.with_no_client_auth(),
        Some(identity) => {
            let (chain, key) = chain_and_key(identity)?;
            config.with_client_auth_cert(chain, key)?
        }
    };
    Ok(Arc::new(config))
}

/// Accepts certificates with a chain to a trusted one, and the trusted certificates themselves.
#[derive(Debug)]
struct TrustedServerVerifier {
    chains: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl TrustedServerVerifier {
    fn new(trusted: Vec<CertificateDer<'static>>) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in &trusted {
            roots.add(certificate.clone())?;
        }
        let chains = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build()?;
        Ok(TrustedServerVerifier { chains, trusted })
    }
}

impl ServerCertVerifier for TrustedServerVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.trusted.iter().any(|t| t == certificate) {
            return verify_trusted(certificate, name, now);
        }
        self.chains
            .verify_server_cert(certificate, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

/// Verifies a certificate that is itself trusted: its validity, its usage for servers, and the server name.
fn verify_trusted(
    certificate: &CertificateDer<'_>,
    name: &ServerName<'_>,
    now: UnixTime,
) -> Result<ServerCertVerified, Error> {
    let parsed = X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let validity = parsed.1.validity();
    let at = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let at = ASN1Time::from_timestamp(at).map_err(|_| CertificateError::Expired)?;
    if at < validity.not_before {
        return Err(CertificateError::NotValidYet.into());
    }
    if at > validity.not_after {
        return Err(CertificateError::Expired.into());
    }
    let usage = parsed.1.extended_key_usage();
    let usage = usage.map_err(|_| CertificateError::BadEncoding)?;
    if usage.is_some_and(|usage| !usage.value.any && !usage.value.server_auth) {
        return Err(CertificateError::InvalidPurpose.into());
    }
    verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
    Ok(ServerCertVerified::assertion())
}

/// Accepts every server certificate. That the server has the certificate's key is still verified.
#[derive(Debug)]
struct AnyServerVerifier(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServerVerifier {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            certificate,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair};

    use super::*;

    const BEGIN: u64 = 1_800_000_000;
    const END: u64 = BEGIN + 1000;

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::new(vec![name.to_string()]).unwrap();
        let at = |seconds: u64| rcgen::date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(seconds);
        (params.not_before, params.not_after) = (at(BEGIN), at(END));
        params
    }

    #[test]
    fn a_trusted_certificate_is_accepted_as_a_server_certificate() {
        let key = KeyPair::generate().unwrap();
        let made = |usage: &[ExtendedKeyUsagePurpose], ca: IsCa| {
            let mut params = params("hook.test.svc");
            params.extended_key_usages = usage.to_vec();
            params.is_ca = ca;
            params.self_signed(&key).unwrap().der().clone()
        };
        let ca = || IsCa::Ca(BasicConstraints::Unconstrained);
        let (server, client) = (
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        );
        let own = made(&[], ca());
        let leaf = made(std::slice::from_ref(&server), IsCa::NoCa);
        let clients = made(std::slice::from_ref(&client), ca());
        let both = made(&[client, server], ca());
        let any = made(&[ExtendedKeyUsagePurpose::Any], ca());
        // The usual case: signed by the trusted CA.
        let signed = params("hook.test.svc");
        let mut authority = params("hook.test.svc");
        authority.is_ca = ca();
        let issuer = rcgen::Issuer::from_params(&authority, &key);
        let other = KeyPair::generate().unwrap();
        let signed = signed.signed_by(&other, &issuer).unwrap().der().clone();
        for (what, trusted, shown, name, at, accepted) in [
            ("itself", &own, &own, "hook.test.svc", BEGIN + 1, true),
            ("no authority", &leaf, &leaf, "hook.test.svc", BEGIN + 1, true),
            ("of several uses", &both, &both, "hook.test.svc", BEGIN + 1, true),
            ("of any use", &any, &any, "hook.test.svc", END, true),
            ("for another", &own, &own, "other.test.svc", BEGIN + 1, false),
            ("too old", &own, &own, "hook.test.svc", END + 1, false),
            ("too new", &own, &own, "hook.test.svc", BEGIN - 1, false),
            (
                "for clients",
                &clients,
                &clients,
                "hook.test.svc",
                BEGIN + 1,
                false,
            ),
            (
                "the same key in another",
                &leaf,
                &clients,
                "hook.test.svc",
                BEGIN + 1,
                false,
            ),
            ("signed", &own, &signed, "hook.test.svc", BEGIN + 1, true),
            (
                "signed, for another",
                &own,
                &signed,
                "other.test.svc",
                BEGIN + 1,
                false,
            ),
        ] {
            let verifier = TrustedServerVerifier::new(vec![trusted.clone()]).unwrap();
            let name = ServerName::try_from(name).unwrap();
            let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(at));
            let found = verifier.verify_server_cert(shown, &[], &name, &[], now);
            assert_eq!(found.is_ok(), accepted, "{what}: {found:?}");
        }
        assert!(TrustedServerVerifier::new(Vec::new()).is_err());
    }
}
