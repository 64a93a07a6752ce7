//! TLS as the server and the kubelet's port speak it: their own certificate, which can be exchanged while they
//! serve, and whatever certificate a client shows.
//!
//! A client's certificate is not judged in the handshake but by [`Tls::peer`], so that a stranger is told 401 by the
//! protocol he understands and not by an alert that he does not. That the client holds the certificate's key is proven
//! in the handshake as always.

pub(crate) mod link;
pub(crate) mod outgoing;

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use parking_lot::RwLock;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, PeerMisbehaved, RootCertStore, ServerConfig,
    SignatureScheme,
};

pub use self::outgoing::connector;
use crate::authn::certificate::Peer;
use crate::pki::{Identity, PreviousClients};

/// What a listener needs: see the module.
#[derive(Clone)]
pub struct Tls {
    pub config: Arc<ServerConfig>,
    clients: Arc<RwLock<Clients>>,
    serving: Arc<Serving>,
}

/// Whose client certificates count.
#[derive(Debug, Default)]
struct Clients {
    /// None where no CA is known yet.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// The CA of an earlier version, and the moment since which it signs no clients.
    previous: Option<(Arc<dyn ClientCertVerifier>, Timestamp)>,
}

impl Tls {
    /// Serves with `identity` and knows clients by the CAs in `client_ca_pem`; the error says what is wrong with what.
    pub fn new(identity: &Identity, client_ca_pem: &str) -> Result<Self, String> {
        Self::accepting_previous(identity, client_ca_pem, None)
    }

    /// The same without a CA yet: no certificate of a client counts.
    pub fn without_clients(identity: &Identity) -> Result<Self, String> {
        Self::build(identity, Clients::default())
    }

    /// The same with the one CA of an earlier version: what it signed for clients counts too.
    pub fn accepting_previous(
        identity: &Identity,
        client_ca_pem: &str,
        previous: Option<&PreviousClients>,
    ) -> Result<Self, String> {
        let verifier = client_verifier(certificates(client_ca_pem, "the client CA")?)?;
        let previous = match previous {
            None => None,
            Some(previous) => {
                let authorities = certificates(&previous.ca_pem, "the previous client CA")?;
                client_verifier(authorities)?.map(|verifier| (verifier, previous.before))
            }
        };
        Self::build(identity, Clients { verifier, previous })
    }

    fn build(identity: &Identity, clients: Clients) -> Result<Self, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        // Clients choose among their certificates by what the server names here.
        let previous = clients.previous.iter().map(|(verifier, _)| verifier);
        let verifiers = clients.verifier.iter().chain(previous);
        let anybody = Anybody {
            hints: verifiers.flat_map(|v| v.root_hint_subjects()).cloned().collect(),
            provider: provider.clone(),
        };
        let serving = Arc::new(Serving {
            key: RwLock::new(certified(identity, &provider)?),
            provider: provider.clone(),
        });
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .with_client_cert_verifier(Arc::new(anybody))
            .with_cert_resolver(serving.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Tls {
            config: Arc::new(config),
            clients: Arc::new(RwLock::new(clients)),
            serving,
        })
    }

    /// From now on clients are known by these CAs, in PEM, and no others.
    pub fn trust_clients_of(&self, client_ca_pem: &str) -> Result<(), String> {
        let verifier = client_verifier(certificates(client_ca_pem, "the client CA")?)?;
        self.clients.write().verifier = verifier;
        Ok(())
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
    ///
    /// A certificate is verified at a time of its own: whether it is valid now is asked for each request
    /// ([`Peer::user`]), as kube-apiserver does. With a wrong clock it would else be rejected for as long as the connection
    /// lasts, also after the clock is right again.
    pub fn peer(&self, connection: &rustls::ServerConnection, now: Timestamp) -> Peer {
        let Some((leaf, intermediates)) = connection.peer_certificates().and_then(<[_]>::split_first) else {
            return Peer::Nobody;
        };
        let known = Peer::of_verified(leaf);
        let at = match &known {
            Peer::Known { from, until, .. } => now.max(*from).min(*until),
            Peer::Nobody | Peer::Stranger => now,
        };
        let seconds = u64::try_from(at.as_second()).unwrap_or(0);
        let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        let clients = self.clients.read();
        let verified = |verifier: &Arc<dyn ClientCertVerifier>| {
            verifier.verify_client_cert(leaf, intermediates, at).map(drop)
        };
        let counts = match &clients.verifier {
            Some(verifier) => verified(verifier),
            None => Err(rustls::CertificateError::UnknownIssuer.into()),
        };
        let error = match counts {
            Ok(()) => return known,
            Err(error) => error,
        };
        if let Some((verifier, before)) = &clients.previous
            && verified(verifier).is_ok()
            && let Peer::Known { from, .. } = &known
            && from <= before
        {
            return known;
        }
        tracing::debug!("a client's certificate is rejected: {error}");
        Peer::Stranger
    }
}

/// Verifies what these CAs signed for clients; none without a CA.
fn client_verifier(
    authorities: impl IntoIterator<Item = CertificateDer<'static>>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in authorities {
        roots
            .add(certificate)
            .map_err(|e| format!("the client CA: {e}"))?;
    }
    if roots.is_empty() {
        return Ok(None);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map(Some)
        .map_err(|e| format!("the client CA: {e}"))
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
struct Anybody {
    hints: Vec<DistinguishedName>,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for Anybody {
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

/// Whether a handshake failed since the client sent a server name (SNI) that is no host name, such as an address with a port.
/// rustls cannot be told to ignore it.
pub fn is_invalid_server_name(error: &std::io::Error) -> bool {
    let source = error.get_ref().and_then(|e| e.downcast_ref::<Error>());
    let expected = PeerMisbehaved::ServerNameMustContainOneHostName;
    source.is_some_and(|e| *e == Error::PeerMisbehaved(expected))
}

#[cfg(test)]
mod tests;
