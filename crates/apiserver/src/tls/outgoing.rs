//! TLS as the server speaks it where it is the client: whom it believes, and what it shows.
//!
//! A certificate that is itself among the trusted ones is believed as what it is, whether it could sign others or not, as
//! Go believes it: self-signed serving certificates are often given as their own authority.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

use super::chain_and_key;
use crate::pki::Identity;

/// Speaks TLS to servers, with `identity` for a certificate of its own. Servers must be vouched for by `authority`; without
/// one it speaks to whoever is there: what a proxy reaches is not vouched for, as with kube-apiserver.
pub fn connector(
    identity: Option<&Identity>,
    authority: Option<&CertificateDer<'static>>,
) -> Result<tokio_rustls::TlsConnector, String> {
    let verifier: Arc<dyn ServerCertVerifier> = match authority {
        None => Arc::new(AnyServer(provider())),
        Some(authority) => Arc::new(Trusting::new(vec![authority.clone()])?),
    };
    config(verifier, identity).map(tokio_rustls::TlsConnector::from)
}

/// Speaks to servers that one of these vouches for, or is.
pub fn trusting(trusted: Vec<CertificateDer<'static>>) -> Result<Arc<ClientConfig>, String> {
    config(Arc::new(Trusting::new(trusted)?), None)
}

/// Speaks these protocols, most wanted first, with `identity` for a certificate of its own; to servers that one of
/// `trusted` vouches for, or is, or to whoever is there if `trusted` is `None`.
pub fn speaking(
    trusted: Option<Vec<CertificateDer<'static>>>,
    identity: Option<&Identity>,
    protocols: &[&[u8]],
) -> Result<Arc<ClientConfig>, String> {
    let verifier: Arc<dyn ServerCertVerifier> = match trusted {
        None => Arc::new(AnyServer(provider())),
        Some(trusted) => Arc::new(Trusting::new(trusted)?),
    };
    let mut config = Arc::unwrap_or_clone(config(verifier, identity)?);
    config.alpn_protocols = protocols.iter().map(|p| p.to_vec()).collect();
    Ok(Arc::new(config))
}

/// The certificates of a bundle in PEM; the system's authorities if it is empty.
pub fn authorities(bundle: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    if bundle.is_empty() {
        // One that is broken is as good as one that is not there.
        let found = rustls_native_certs::load_native_certs().certs;
        let whole = |der: &CertificateDer<'_>| RootCertStore::empty().add(der.clone().into_owned()).is_ok();
        return Ok(found.into_iter().filter(whole).collect());
    }
    CertificateDer::pem_slice_iter(bundle)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| format!("unable to load root certificates: {e}"))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn config(
    verifier: Arc<dyn ServerCertVerifier>,
    identity: Option<&Identity>,
) -> Result<Arc<ClientConfig>, String> {
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let config = match identity {
        None => config.with_no_client_auth(),
        Some(identity) => {
            let (chain, key) = chain_and_key(identity)?;
            config
                .with_client_auth_cert(chain, key)
                .map_err(|e| e.to_string())?
        }
    };
    Ok(Arc::new(config))
}

/// Believes certificates that lead to a trusted one, and the trusted ones themselves.
#[derive(Debug)]
struct Trusting {
    chains: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl Trusting {
    fn new(trusted: Vec<CertificateDer<'static>>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in &trusted {
            roots.add(certificate.clone()).map_err(|e| e.to_string())?;
        }
        let chains = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|e| e.to_string())?;
        Ok(Trusting { chains, trusted })
    }
}

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.trusted.iter().any(|t| t == certificate) {
            return itself(certificate, name, now);
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

/// What is left to ask of a certificate that is trusted itself: whether it is of now, for servers, and for this one.
fn itself(
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

/// Takes a server's certificate as it is; that it holds its key is still checked.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
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
    fn a_certificate_given_as_its_own_authority_is_believed_for_what_it_is() {
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
        // Vouched for in the way that always worked.
        let signed = params("hook.test.svc");
        let mut authority = params("hook.test.svc");
        authority.is_ca = ca();
        let issuer = rcgen::Issuer::from_params(&authority, &key);
        let other = KeyPair::generate().unwrap();
        let signed = signed.signed_by(&other, &issuer).unwrap().der().clone();
        for (what, trusted, shown, name, at, believed) in [
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
            let verifier = Trusting::new(vec![trusted.clone()]).unwrap();
            let name = ServerName::try_from(name).unwrap();
            let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(at));
            let found = verifier.verify_server_cert(shown, &[], &name, &[], now);
            assert_eq!(found.is_ok(), believed, "{what}: {found:?}");
        }
        assert!(Trusting::new(Vec::new()).is_err());
    }
}
