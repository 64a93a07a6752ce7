//! TLS of the API server and of the kubelet's port: the serving certificate, which can be replaced while they serve, and
//! client certificates.
//!
//! A client certificate is not verified in the handshake but by [`Tls::peer`], so that a client with an invalid certificate
//! gets 401 over HTTP instead of a TLS alert. That the client has the certificate's key is verified in the handshake.

pub(crate) mod client;
pub(crate) mod pool;

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use parking_lot::RwLock;
use rustls::client::VerifierBuilderError;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, PeerMisbehaved, RootCertStore, ServerConfig,
    SignatureScheme,
};

pub use self::client::connector;
use crate::authn::certificate::PeerCertificate;
use crate::identity::Identity;
use crate::pki::PreviousClients;

/// Why certificates or a key cannot be used for TLS.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{what}: {source}")]
    Pem {
        what: &'static str,
        source: Arc<pem::Error>,
    },
    #[error("the client CA: {0}")]
    ClientCa(#[source] Error),
    #[error("the client CA: {0}")]
    ClientVerifier(#[source] VerifierBuilderError),
    #[error("the certificate: {0}")]
    Certificate(#[source] Error),
    #[error(transparent)]
    Configuration(#[from] Error),
    #[error(transparent)]
    ServerVerifier(#[from] VerifierBuilderError),
}

impl TlsError {
    fn pem(what: &'static str, error: pem::Error) -> Self {
        let source = Arc::new(error);
        TlsError::Pem { what, source }
    }
}

/// The TLS configuration of a listener.
#[derive(Clone)]
pub struct Tls {
    pub config: Arc<ServerConfig>,
    clients: Arc<RwLock<ClientAuthorities>>,
    serving: Arc<ServingCertificate>,
}

/// The CAs whose client certificates are accepted.
#[derive(Debug, Default)]
struct ClientAuthorities {
    /// `None` if no CA is known yet.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// The CA of an earlier version, and the time since when it signs no client certificates.
    previous: Option<(Arc<dyn ClientCertVerifier>, Timestamp)>,
}

impl Tls {
    /// Serves with `identity` and accepts client certificates of the CAs in `client_ca_pem`.
    pub fn new(identity: &Identity, client_ca_pem: &str) -> Result<Self, TlsError> {
        Self::with_previous_client_ca(identity, client_ca_pem, None)
    }

    /// Like [`Tls::new`] without a client CA yet: no client certificate is accepted.
    pub fn without_client_ca(identity: &Identity) -> Result<Self, TlsError> {
        Self::build(identity, ClientAuthorities::default())
    }

    /// Like [`Tls::new`], with the CA of an earlier version: client certificates that it signed before are accepted too.
    pub fn with_previous_client_ca(
        identity: &Identity,
        client_ca_pem: &str,
        previous: Option<&PreviousClients>,
    ) -> Result<Self, TlsError> {
        let verifier = client_verifier(certificates(client_ca_pem, "the client CA")?)?;
        let previous = match previous {
            None => None,
            Some(previous) => {
                let authorities = certificates(&previous.ca_pem, "the previous client CA")?;
                client_verifier(authorities)?.map(|verifier| (verifier, previous.before))
            }
        };
        Self::build(identity, ClientAuthorities { verifier, previous })
    }

    fn build(identity: &Identity, clients: ClientAuthorities) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        // Clients select their certificate by the CA names that the server sends.
        let previous = clients.previous.iter().map(|(verifier, _)| verifier);
        let verifiers = clients.verifier.iter().chain(previous);
        let unverified = UnverifiedClientCertificates {
            hints: verifiers.flat_map(|v| v.root_hint_subjects()).cloned().collect(),
            provider: provider.clone(),
        };
        let serving = Arc::new(ServingCertificate {
            key: RwLock::new(certified_key(identity, &provider)?),
            provider: provider.clone(),
        });
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(Arc::new(unverified))
            .with_cert_resolver(serving.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Tls {
            config: Arc::new(config),
            clients: Arc::new(RwLock::new(clients)),
            serving,
        })
    }

    /// From now on only client certificates of these CAs, in PEM, are accepted.
    pub fn set_client_ca(&self, client_ca_pem: &str) -> Result<(), TlsError> {
        let verifier = client_verifier(certificates(client_ca_pem, "the client CA")?)?;
        self.clients.write().verifier = verifier;
        Ok(())
    }

    /// Without HTTP/2, for servers that support only HTTP/1.1.
    pub fn http1(mut self) -> Self {
        let mut config = (*self.config).clone();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        self.config = Arc::new(config);
        self
    }

    /// From now on handshakes use this serving certificate.
    pub fn renew(&self, identity: &Identity) -> Result<(), TlsError> {
        let key = certified_key(identity, &self.serving.provider)?;
        *self.serving.key.write() = key;
        Ok(())
    }

    /// The client certificate of a connection after its handshake.
    ///
    /// The chain is verified at a time at which the certificate is valid: whether it is valid now is checked for each request
    /// ([`PeerCertificate::user`]), as in kube-apiserver. Otherwise, after a handshake with a wrong clock, the certificate would
    /// be rejected as long as the connection lasts, also once the clock is right.
    pub fn peer(&self, connection: &rustls::ServerConnection, now: Timestamp) -> PeerCertificate {
        let Some((leaf, intermediates)) = connection.peer_certificates().and_then(<[_]>::split_first) else {
            return PeerCertificate::None;
        };
        let known = PeerCertificate::of_verified(leaf);
        let at = match &known {
            PeerCertificate::Verified {
                not_before,
                not_after,
                ..
            } => now.max(*not_before).min(*not_after),
            PeerCertificate::None | PeerCertificate::Rejected => now,
        };
        let seconds = u64::try_from(at.as_second()).unwrap_or(0);
        let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        let clients = self.clients.read();
        let verified = |verifier: &Arc<dyn ClientCertVerifier>| {
            verifier.verify_client_cert(leaf, intermediates, at).map(drop)
        };
        let verification = match &clients.verifier {
            Some(verifier) => verified(verifier),
            None => Err(rustls::CertificateError::UnknownIssuer.into()),
        };
        let error = match verification {
            Ok(()) => return known,
            Err(error) => error,
        };
        if let Some((verifier, before)) = &clients.previous
            && verified(verifier).is_ok()
            && let PeerCertificate::Verified { not_before, .. } = &known
            && not_before <= before
        {
            return known;
        }
        tracing::debug!("rejected a client certificate: {error}");
        PeerCertificate::Rejected
    }
}

/// A verifier for client certificates of these CAs; `None` without a CA.
fn client_verifier(
    authorities: impl IntoIterator<Item = CertificateDer<'static>>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in authorities {
        roots.add(certificate).map_err(TlsError::ClientCa)?;
    }
    if roots.is_empty() {
        return Ok(None);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map(Some)
        .map_err(TlsError::ClientVerifier)
}

/// The current serving certificate.
#[derive(Debug)]
struct ServingCertificate {
    key: RwLock<Arc<CertifiedKey>>,
    provider: Arc<CryptoProvider>,
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.key.read().clone())
    }
}

/// Requests a client certificate and accepts any, or none: [`Tls::peer`] verifies it.
#[derive(Debug)]
struct UnverifiedClientCertificates {
    hints: Vec<DistinguishedName>,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for UnverifiedClientCertificates {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

fn certified_key(identity: &Identity, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, TlsError> {
    let (chain, key) = chain_and_key(identity)?;
    CertifiedKey::from_der(chain, key, provider)
        .map(Arc::new)
        .map_err(TlsError::Certificate)
}

fn chain_and_key(
    identity: &Identity,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes());
    let key = key.map_err(|e| TlsError::pem("the key", e))?;
    Ok((certificates(&identity.certificate_pem, "the certificate")?, key))
}

fn certificates(pem: impl AsRef<[u8]>, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(pem.as_ref())
        .collect::<Result<_, _>>()
        .map_err(|e| TlsError::pem(what, e))
}

/// Whether a handshake failed because the client sent a server name (SNI) that is not a host name, such as an address with a
/// port. rustls has no option to ignore it.
pub fn is_invalid_server_name(error: &std::io::Error) -> bool {
    let source = error.get_ref().and_then(|e| e.downcast_ref::<Error>());
    let expected = PeerMisbehaved::ServerNameMustContainOneHostName;
    source.is_some_and(|e| *e == Error::PeerMisbehaved(expected))
}

#[cfg(test)]
mod tests;
