//! TLS as the server and the kubelet's port speak it: their own certificate, which can be exchanged while they
//! serve, and whatever certificate a client shows.
//!
//! A client's certificate is not judged in the handshake but by [`Tls::peer`], so that a stranger is told 401 by the
//! protocol he understands and not by an alert that he does not. That the client holds the certificate's key is proven
//! in the handshake as always.

pub(crate) mod outgoing;

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use parking_lot::RwLock;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme};

pub use self::outgoing::connector;
use crate::authn::certificate::Peer;
use crate::pki::Identity;

/// What a listener needs: see the module.
#[derive(Clone)]
pub struct Tls {
    pub config: Arc<ServerConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
    serving: Arc<Serving>,
}

impl Tls {
    /// Serves with `identity` and knows clients by the CAs in `client_ca_pem`; the error says what is wrong with what.
    pub fn new(identity: &Identity, client_ca_pem: &str) -> Result<Self, String> {
        Self::with_authorities(identity, certificates(client_ca_pem, "the client CA")?)
    }

    /// The same with the CAs' certificates.
    pub fn with_authorities(
        identity: &Identity,
        authorities: impl IntoIterator<Item = CertificateDer<'static>>,
    ) -> Result<Self, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        for certificate in authorities {
            roots
                .add(certificate)
                .map_err(|e| format!("the client CA: {e}"))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|e| format!("the client CA: {e}"))?;
        let serving = Arc::new(Serving {
            key: RwLock::new(certified(identity, &provider)?),
            provider: provider.clone(),
        });
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .with_client_cert_verifier(Arc::new(Anybody(verifier.clone())))
            .with_cert_resolver(serving.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Tls {
            config: Arc::new(config),
            verifier,
            serving,
        })
    }

    /// The same without HTTP/2, for servers that speak only HTTP/1.1.
    pub fn http1(mut self) -> Self {
        let mut config = (*self.config).clone();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        self.config = Arc::new(config);
        self
    }

    /// From now on handshakes are made with this identity.
    pub fn renew(&self, identity: &Identity) -> Result<(), String> {
        let key = certified(identity, &self.serving.provider)?;
        *self.serving.key.write() = key;
        Ok(())
    }

    /// Who is at the other end of a connection whose handshake is made.
    pub fn peer(&self, connection: &rustls::ServerConnection, now: Timestamp) -> Peer {
        let Some((leaf, intermediates)) = connection.peer_certificates().and_then(<[_]>::split_first) else {
            return Peer::Nobody;
        };
        let seconds = u64::try_from(now.as_second()).unwrap_or(0);
        let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        match self.verifier.verify_client_cert(leaf, intermediates, at) {
            Ok(_) => Peer::of_verified(leaf),
            Err(e) => {
                tracing::debug!("a client's certificate is refused: {e}");
                Peer::Stranger
            }
        }
    }
}

/// The server's certificate of the moment.
#[derive(Debug)]
struct Serving {
    key: RwLock<Arc<CertifiedKey>>,
    provider: Arc<CryptoProvider>,
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.key.read().clone())
    }
}

/// Asks for a certificate and takes any, or none.
#[derive(Debug)]
struct Anybody(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for Anybody {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
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
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

fn certified(identity: &Identity, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, String> {
    let (chain, key) = chain_and_key(identity)?;
    CertifiedKey::from_der(chain, key, provider)
        .map(Arc::new)
        .map_err(|e| format!("the certificate: {e}"))
}

fn chain_and_key(
    identity: &Identity,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
    let key =
        PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).map_err(|e| format!("the key: {e}"))?;
    Ok((certificates(&identity.certificate_pem, "the certificate")?, key))
}

fn certificates(pem: &str, what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|e| format!("{what}: {e}"))
}
