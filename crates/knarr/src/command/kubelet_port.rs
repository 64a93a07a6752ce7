//! The kubelet's port between machines: TLS on both sides of `client::NodeDialer`.
//!
//! The kubelet lets in whoever shows a certificate of the cluster's CA that names the API server. Its own
//! certificate is self-signed and, as with kube-apiserver's default, not verified by the API server.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use knarr_api::k8s_openapi::api::core::v1::Node;
use knarr_apiserver::pki::Identity;
use knarr_client::{Api, Conn, NodeDialer, TypedApi};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::sync::CancellationToken;

use super::Failure;

/// User of the API server's certificate towards kubelets, as kubeadm names it.
pub const API_SERVER: &str = "kube-apiserver-kubelet-client";
/// How long a connection to a kubelet, or its handshake, may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// After a failed accept: out of file descriptors, most likely, and others will end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A listening kubelet port.
pub struct KubeletPort {
    listener: TcpListener,
    tls: Arc<ServerConfig>,
}

impl KubeletPort {
    /// Listens at `address`, for the API server of the cluster with these CAs.
    pub async fn bind(
        address: SocketAddr,
        node: &str,
        authorities: &[CertificateDer<'_>],
    ) -> Result<Self, Failure> {
        let failed = |e: &dyn std::fmt::Display| {
            Failure::new(format!("cannot serve the kubelet's port {address}: {e}"))
        };
        let listener = TcpListener::bind(address).await.map_err(|e| {
            Failure::new(format!(
                "cannot listen on {address}: choose another address with --kubelet-listen"
            ))
            .because(e)
        })?;
        let made = rcgen::generate_simple_self_signed(vec![node.to_string()]).map_err(|e| failed(&e))?;
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(|e| failed(&e))?;
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots(authorities)?))
            .build()
            .map_err(|e| failed(&e))?;
        let tls = ServerConfig::builder()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![made.cert.der().clone()], key)
            .map_err(|e| failed(&e))?;
        Ok(KubeletPort {
            listener,
            tls: Arc::new(tls),
        })
    }

    /// Serves until `cancel`.
    pub async fn serve(self, server: knarr_node::server::Server, cancel: CancellationToken) {
        let acceptor = TlsAcceptor::from(self.tls);
        loop {
            let stream = tokio::select! {
                () = cancel.cancelled() => return,
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(e) => {
                        tracing::warn!(error = %e, "cannot accept a connection on the kubelet's port");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                },
            };
            let (acceptor, server) = (acceptor.clone(), server.clone());
            tokio::spawn(async move {
                match tokio::time::timeout(CONNECT_LIMIT, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) if is_api_server(stream.get_ref().1.peer_certificates()) => {
                        server.serve(stream).await
                    }
                    Ok(Ok(_)) => {
                        tracing::warn!("refused a client on the kubelet's port: it is not the API server")
                    }
                    Ok(Err(e)) => tracing::debug!(error = %e, "handshake on the kubelet's port failed"),
                    Err(_) => tracing::debug!("handshake on the kubelet's port took too long"),
                }
            });
        }
    }
}

fn is_api_server(certificates: Option<&[CertificateDer<'_>]>) -> bool {
    let user = certificates
        .and_then(|c| c.first())
        .and_then(|c| knarr_apiserver::authn::certificate_user(c));
    user.is_some_and(|user| user.name == API_SERVER || user.groups.iter().any(|g| g == "system:masters"))
}

fn roots(authorities: &[CertificateDer<'_>]) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    for certificate in authorities {
        roots
            .add(certificate.clone().into_owned())
            .map_err(|e| Failure::new("the cluster's CA cannot be used").because(e))?;
    }
    Ok(roots)
}

/// Dials nodes on other machines by the address in their Node object.
pub struct RemoteNodes {
    /// Where Node objects are read; set when the API is there.
    api: OnceLock<Arc<dyn Api>>,
    tls: TlsConnector,
}

impl RemoteNodes {
    /// `identity` is what kubelets are shown.
    pub fn new(identity: &Identity) -> Result<Self, Failure> {
        let unusable =
            |e: &dyn std::fmt::Display| Failure::new(format!("the key towards kubelets is not usable: {e}"));
        let chain = CertificateDer::pem_slice_iter(identity.certificate_pem.as_bytes())
            .collect::<Result<Vec<_>, _>>();
        let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).map_err(|e| unusable(&e))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| unusable(&e))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_client_auth_cert(chain.map_err(|e| unusable(&e))?, key)
            .map_err(|e| unusable(&e))?;
        Ok(RemoteNodes {
            api: OnceLock::new(),
            tls: TlsConnector::from(Arc::new(config)),
        })
    }

    /// From now on nodes can be found.
    pub fn find_by(&self, api: Arc<dyn Api>) {
        // Only the first counts; there is one API.
        let _ = self.api.set(api);
    }

    async fn address(&self, node: &str) -> io::Result<(String, u16)> {
        let not_found = |why: &str| io::Error::new(io::ErrorKind::NotFound, format!("node {node}: {why}"));
        let api = self
            .api
            .get()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "the API is still starting"))?;
        let found = api
            .get_as::<Node>("", node)
            .await
            .map_err(|e| not_found(e.message()))?;
        let status = found.status.as_ref();
        let addresses = status.and_then(|s| s.addresses.as_ref());
        let internal = addresses.into_iter().flatten().find(|a| a.type_ == "InternalIP");
        let endpoints = status
            .and_then(|s| s.daemon_endpoints.as_ref())
            .and_then(|d| d.kubelet_endpoint.as_ref());
        let port = endpoints
            .and_then(|e| u16::try_from(e.port).ok())
            .filter(|p| *p > 0);
        match (internal, port) {
            (Some(address), Some(port)) => Ok((address.address.clone(), port)),
            _ => Err(not_found("its status has no InternalIP or kubelet port")),
        }
    }
}

#[async_trait]
impl NodeDialer for RemoteNodes {
    async fn dial(&self, node: &str) -> io::Result<Box<dyn Conn>> {
        let (address, port) = self.address(node).await?;
        let name = ServerName::try_from(node.to_string()).map_err(io::Error::other)?;
        let connect = async {
            let stream = TcpStream::connect((address, port)).await?;
            stream.set_nodelay(true)?;
            self.tls.connect(name, stream).await
        };
        let stream = tokio::time::timeout(CONNECT_LIMIT, connect)
            .await
            .map_err(|_| io::ErrorKind::TimedOut)??;
        Ok(Box::new(stream))
    }
}

/// Takes a kubelet's certificate as it is; that the peer holds its key is still checked.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
