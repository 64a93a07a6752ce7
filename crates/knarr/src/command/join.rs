//! How a node gets its credentials (TLS bootstrapping): the cluster's CA by its pin, a first certificate by a bootstrap token.
//! It stores both, so that it needs neither pin nor token again.
//!
//! The server includes its CA in the chain of the TLS handshake. Nothing is sent to the server before the CA is known to match
//! the pin, so that the token is sent to no other server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use http::Uri;
use knarr_apiserver::authn::bootstrap_token;
use knarr_apiserver::joining::JOINERS;
use knarr_apiserver::pki;
use knarr_client::SystemClock;
use knarr_client::metrics::Registry;
use knarr_client::metrics::rest_client::RestClientMetrics;
use knarr_client::remote::{Credential, RemoteApi};
use knarr_node::certificates::{self, Identity, RequestError, Rotation};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::fs::File;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Failure, cluster};
use crate::config::Config;
use crate::private;

/// How long a server may be unreachable when a node joins or starts, as kubeadm waits.
pub const SERVER_LIMIT: Duration = Duration::from_secs(300);
/// Between two attempts.
pub const PAUSE: Duration = Duration::from_secs(1);
/// How long a connection and its handshake may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

#[derive(Args)]
pub struct JoinArgs {
    /// URL of the API server to join; needed the first time.
    #[arg(long, value_name = "URL", env = "KNARR_SERVER", requires = "ca_cert_hash")]
    server: Option<String>,
    /// Bootstrap token, with which the node requests its first certificate (`knarr token create` creates one).
    #[arg(long, env = "KNARR_TOKEN", requires = "server", hide_env_values = true)]
    token: Option<String>,
    /// A file with the bootstrap token, `-` for standard input. Unlike the token as an argument it is not visible to
    /// every user of the host.
    #[arg(
        long,
        value_name = "FILE",
        env = "KNARR_TOKEN_FILE",
        requires = "server",
        conflicts_with = "token"
    )]
    token_file: Option<PathBuf>,
    /// Pin of the cluster's CA: `sha256:` and 64 hexadecimal digits. Of several, separated by commas, one has to match.
    #[arg(
        long,
        value_name = "HASH",
        env = "KNARR_CA_CERT_HASH",
        value_delimiter = ',',
        requires = "server"
    )]
    ca_cert_hash: Vec<String>,
    /// Instead of these three: a kubeconfig whose user may request a node's certificate.
    #[arg(
        long,
        value_name = "FILE",
        env = "KNARR_BOOTSTRAP_KUBECONFIG",
        alias = "server-kubeconfig",
        conflicts_with = "server"
    )]
    bootstrap_kubeconfig: Option<PathBuf>,
}

/// A token has 23 bytes and perhaps a line break.
const TOKEN_FILE_BYTES_MAX: u64 = 1024;

impl JoinArgs {
    async fn token(&self) -> Result<Option<String>, Failure> {
        let Some(path) = &self.token_file else {
            return Ok(self.token.clone());
        };
        let mut text = String::new();
        let read = match path.to_str() {
            Some("-") => {
                let mut input = tokio::io::stdin().take(TOKEN_FILE_BYTES_MAX);
                input.read_to_string(&mut text).await
            }
            _ => match File::open(path).await {
                Ok(file) => file.take(TOKEN_FILE_BYTES_MAX).read_to_string(&mut text).await,
                Err(e) => Err(e),
            },
        };
        read.map_err(|e| {
            Failure::new(format!("--token-file {}: cannot be read", path.display())).because(e)
        })?;
        let token = text.trim();
        // The error does not show the content of the file.
        if bootstrap_token::parts(token).is_none() {
            return Err(Failure::new(format!(
                "--token-file {}: expected a token as `knarr token create` prints it",
                path.display()
            )));
        }
        Ok(Some(token.to_string()))
    }
}

/// The API server's URL, and the CAs that may sign its certificate.
struct Cluster {
    server: Uri,
    authorities: Vec<Vec<u8>>,
}

/// A node with a certificate of the cluster.
pub struct Joined {
    /// A client of the API with the node's certificate.
    pub api: Arc<RemoteApi>,
    /// The client with the bootstrap credentials, if they were given.
    pub bootstrap: Option<Arc<RemoteApi>>,
    /// The certificate, to be renewed.
    pub rotation: Rotation,
    /// Those of the requests to the API server.
    pub metrics: Registry,
}

/// Uses the credentials that the node has stored, and requests those that it has not.
pub async fn join(config: &Config, args: &JoinArgs) -> Result<Joined, Failure> {
    let stored = config.data_dir.join("kubelet.kubeconfig");
    let token = args.token().await?;
    let rotation = open(
        config,
        certificates::client(&config.node_name),
        "kubelet-client-current.pem",
    );
    let mut rotation = rotation?;
    let (cluster, bootstrap) = match (&args.bootstrap_kubeconfig, &args.server) {
        (Some(file), _) => {
            let remote = cluster::remote(file).await?;
            (cluster_of(&remote)?, Some(Arc::new(remote)))
        }
        (None, Some(server)) => {
            let cluster = pinned(server, &args.ca_cert_hash).await?;
            let credential = token.clone().map(Credential::Token);
            let bootstrap = credential
                .map(|t| reach(&cluster, &t).map(Arc::new))
                .transpose()?;
            (cluster, bootstrap)
        }
        (None, None) if stored.exists() => (cluster_of(&cluster::remote(&stored).await?)?, None),
        (None, None) => {
            return Err(Failure::new(
                "no cluster to join: expected --server, --token and --ca-cert-hash, as `knarr token create` on the server prints them",
            ));
        }
    };
    if rotation.current().is_none() {
        first_certificate(config, &mut rotation, bootstrap.as_deref(), token.as_deref()).await?;
    }
    let Some(identity) = rotation.current() else {
        return Err(Failure::new(
            "the node's new certificate is not valid yet: check this host's clock",
        ));
    };
    let metrics = Registry::default();
    let counted = RestClientMetrics::new(&metrics);
    let api = Arc::new(reach(&cluster, &credential(identity))?.with_metrics(counted));
    store_kubeconfig(
        &stored,
        &cluster,
        &pki_dir(config).join("kubelet-client-current.pem"),
    )?;
    Ok(Joined {
        api,
        bootstrap,
        rotation,
        metrics,
    })
}

/// A client of the API for the network agent of this node, with a certificate of its own, which the node requests and renews.
pub async fn network_agent(
    config: &Config,
    node: &Arc<RemoteApi>,
    cancel: &CancellationToken,
) -> Result<Arc<RemoteApi>, Failure> {
    let requested = certificates::network_agent(&config.node_name);
    let mut rotation = open(config, requested, "network-agent-client-current.pem")?;
    let begin = Instant::now();
    let identity = loop {
        if let Some(identity) = rotation.current() {
            break identity;
        }
        match rotation.ask(&**node).await {
            Ok(_) => {}
            Err(error) if begin.elapsed() < SERVER_LIMIT => {
                tracing::warn!(%error, "the node's network agent has no certificate yet");
                sleep(PAUSE).await;
            }
            Err(error) => {
                return Err(
                    Failure::new("cannot get a certificate for the node's network agent").because(error),
                );
            }
        }
    };
    let agent = reach(&cluster_of(node)?, &credential(identity))?;
    let agent = Arc::new(match node.metrics() {
        Some(metrics) => agent.with_metrics(metrics.clone()),
        None => agent,
    });
    let client = agent.clone();
    let renewal = rotation.run(
        node.clone(),
        None,
        move |identity| {
            client
                .set_credential(&credential(identity))
                .map_err(|e| e.to_string())
        },
        cancel.clone(),
    );
    tokio::spawn(renewal);
    Ok(agent)
}

fn pki_dir(config: &Config) -> PathBuf {
    config.data_dir.join("pki")
}

/// One of this node's certificates.
pub fn open(
    config: &Config,
    requested: certificates::CertificateTemplate,
    file: &str,
) -> Result<Rotation, Failure> {
    // Random, so that nodes that started together do not renew together.
    let rng = StdRng::try_from_rng(&mut rand::rngs::SysRng)
        .map_err(|e| Failure::new("the system's random number generator fails").because(e))?;
    Rotation::open(requested, pki_dir(config).join(file), Arc::new(SystemClock), rng)
        .map_err(|e| Failure::new("the node's certificate is not usable").because(e))
}

/// The credentials that the API server authenticates.
pub fn credential(identity: &Identity) -> Credential {
    Credential::Certificate {
        certificate_pem: identity.certificate_pem.clone(),
        key_pem: identity.key_pem.clone(),
    }
}

fn reach(cluster: &Cluster, credential: &Credential) -> Result<RemoteApi, Failure> {
    RemoteApi::new(cluster.server.clone(), cluster.authorities.clone(), credential)
        .map_err(|e| Failure::new(format!("cannot create a client for {}", cluster.server)).because(e))
}

fn cluster_of(remote: &RemoteApi) -> Result<Cluster, Failure> {
    let server = remote.server();
    Ok(Cluster {
        server: server.parse().map_err(|e: http::uri::InvalidUri| {
            Failure::new(format!("{server:?} is not a URL")).because(e)
        })?,
        authorities: remote.certificate_authorities().to_vec(),
    })
}

/// Requests the certificate until the server has answered.
async fn first_certificate(
    config: &Config,
    rotation: &mut Rotation,
    bootstrap: Option<&RemoteApi>,
    token: Option<&str>,
) -> Result<(), Failure> {
    let node = &config.node_name;
    let Some(bootstrap) = bootstrap else {
        let why = match rotation.ends() {
            Some(expiry) => format!("the certificate of node {node} expired at {expiry}"),
            None => format!("node {node} has no certificate of the cluster"),
        };
        return Err(Failure::new(format!(
            "{why}: join again with the command that `knarr token create` on the server prints"
        )));
    };
    let begin = Instant::now();
    loop {
        let error = match rotation.ask(bootstrap).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        let code = match &error {
            RequestError::Send(e) => e.code(),
            _ => 0,
        };
        let id = token.map(|t| t.split('.').next().unwrap_or(""));
        let failure = match (code, id) {
            (401, Some(id)) => Failure::new(format!(
                "{} does not accept the token {id}.…: it is mistyped, was deleted or has expired; `knarr token create` on the server creates another",
                bootstrap.server()
            )),
            (403, Some(id)) => Failure::new(format!(
                "the token {id}.… is not allowed to request the certificate of node {node}: expected the group {JOINERS} among its extra groups (`knarr token list` on the server)"
            ))
            .because(error),
            // The server is not reachable, or not ready.
            (500.., _) if begin.elapsed() < SERVER_LIMIT => {
                tracing::warn!(%error, "the server does not answer yet");
                sleep(PAUSE).await;
                continue;
            }
            _ => Failure::new(format!("cannot get a certificate for node {node}")).because(error),
        };
        return Err(failure);
    }
}

/// The cluster at a URL whose CA has one of these pins.
async fn pinned(server: &str, pins: &[String]) -> Result<Cluster, Failure> {
    let unusable = |why: &str| {
        Failure::new(format!(
            "--server {server:?}: {why}, such as https://10.0.0.1:6443"
        ))
    };
    let uri: Uri = server.parse().map_err(|_| unusable("expected a URL"))?;
    if uri.scheme_str() != Some("https") {
        return Err(unusable("expected a URL that begins with https://"));
    }
    let host = uri.host().ok_or_else(|| unusable("expected a host"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']').to_string();
    let pins = pins.iter().map(|p| pin(p)).collect::<Result<Vec<_>, _>>()?;
    let begin = Instant::now();
    let chain = loop {
        match timeout(
            CONNECT_LIMIT,
            presented_chain(&host, uri.port_u16().unwrap_or(443)),
        )
        .await
        {
            Ok(Ok(chain)) => break chain,
            Ok(Err(e)) if begin.elapsed() < SERVER_LIMIT => {
                tracing::warn!("{server} cannot be reached yet: {e}");
                sleep(PAUSE).await;
            }
            Err(_) if begin.elapsed() < SERVER_LIMIT => tracing::warn!("{server} does not answer yet"),
            Ok(Err(e)) => return Err(Failure::new(format!("{server} cannot be reached")).because(e)),
            Err(_) => return Err(Failure::new(format!("{server} does not answer"))),
        }
    };
    let authority =
        pinned_authority(&chain, &pins, &host).map_err(|e| Failure::new(format!("{server}: {e}")))?;
    Ok(Cluster {
        server: uri,
        authorities: vec![authority.to_vec()],
    })
}

fn pin(text: &str) -> Result<String, Failure> {
    let text = text.trim().to_lowercase();
    let digits = text.strip_prefix("sha256:").unwrap_or("");
    if digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(text);
    }
    Err(Failure::new(format!(
        "--ca-cert-hash {text:?}: expected sha256: and 64 hexadecimal digits"
    )))
}

/// The certificate chain that a server presents, its own certificate first; the handshake proves that it holds the key of that.
async fn presented_chain(host: &str, port: u16) -> std::io::Result<Vec<CertificateDer<'static>>> {
    let tls = knarr_apiserver::tls::connector(None, None).map_err(std::io::Error::other)?;
    let name = ServerName::try_from(host.to_string()).map_err(std::io::Error::other)?;
    let stream = TcpStream::connect((host, port)).await?;
    let stream = tls.connect(name, stream).await?;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    Ok(chain.iter().map(|c| c.clone().into_owned()).collect())
}

/// Why a server is not trusted, although its address is known.
#[derive(Debug, thiserror::Error)]
enum PinError {
    #[error("the server presents no certificate")]
    NoCertificate,
    #[error(transparent)]
    Certificate(#[from] pki::PkiError),
    #[error("the server sends no CA whose hash could be compared with {0}; join with --bootstrap-kubeconfig")]
    NoAuthority(String),
    #[error(
        "the hash of its CA is {found}, but --ca-cert-hash is {expected}: it is another cluster, or the connection is intercepted. Nothing was sent"
    )]
    OtherAuthority { found: String, expected: String },
    #[error(transparent)]
    Authority(#[from] rustls::Error),
    #[error(transparent)]
    Host(#[from] rustls::pki_types::InvalidDnsNameError),
    #[error(transparent)]
    Verifier(#[from] rustls::client::VerifierBuilderError),
    #[error("its certificate is not valid for {host}, though its CA matches --ca-cert-hash: {source}")]
    Leaf { host: String, source: rustls::Error },
}

/// The CA of the chain that matches one of the pins and signed the first certificate.
fn pinned_authority(
    chain: &[CertificateDer<'static>],
    pins: &[String],
    host: &str,
) -> Result<CertificateDer<'static>, PinError> {
    let (leaf, others) = chain.split_first().ok_or(PinError::NoCertificate)?;
    let mut found = Vec::new();
    for certificate in others {
        let pin = pki::pin(certificate)?;
        if pins.contains(&pin) {
            return verify_leaf(certificate, leaf, host).map(|()| certificate.clone());
        }
        found.push(pin);
    }
    let expected = pins.join(" or ");
    Err(match found.as_slice() {
        [] => PinError::NoAuthority(expected),
        found => PinError::OtherAuthority {
            found: found.join(" and "),
            expected,
        },
    })
}

fn verify_leaf(
    authority: &CertificateDer<'static>,
    leaf: &CertificateDer<'_>,
    host: &str,
) -> Result<(), PinError> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let name = ServerName::try_from(host)?;
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
    let verified = verifier.verify_server_cert(leaf, &[], &name, &[], UnixTime::now());
    verified.map(drop).map_err(|source| PinError::Leaf {
        host: host.to_string(),
        source,
    })
}

/// Stores the API server's URL and CAs as a kubeconfig, as a kubelet has one.
fn store_kubeconfig(path: &Path, cluster: &Cluster, certificate: &Path) -> Result<(), Failure> {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    let pem: String = cluster.authorities.iter().map(|der| pki::pem(der)).collect();
    let certificate = certificate.display();
    let text = format!(
        "apiVersion: v1
kind: Config
clusters:
- name: knarr
  cluster:
    server: {}
    certificate-authority-data: {}
contexts:
- name: knarr
  context:
    cluster: knarr
    user: node
current-context: knarr
users:
- name: node
  user:
    client-certificate: {certificate}
    client-key: {certificate}
",
        cluster.server,
        STANDARD.encode(pem)
    );
    private::write(path, &text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_apiserver::pki::Pki;
    use rustls::pki_types::pem::PemObject;

    fn chain(pki: &Pki, names: &[String]) -> Vec<CertificateDer<'static>> {
        let text = pki.server(names).unwrap().certificate_pem + pki.ca_pem();
        CertificateDer::pem_slice_iter(text.as_bytes())
            .collect::<Result<_, _>>()
            .unwrap()
    }

    #[test]
    fn a_server_is_trusted_by_the_pin_of_its_ca_alone() {
        let now = knarr_api::k8s_openapi::jiff::Timestamp::now();
        let directories = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [ours, theirs] = directories.each_ref().map(|d| Pki::open(d.path(), now).unwrap());
        let names = ["10.0.0.1".to_string(), "localhost".to_string()];
        let shown = chain(&ours, &names);
        let right = pki::pin(&shown[1]).unwrap();
        let wrong = pki::pin(&chain(&theirs, &names)[1]).unwrap();
        // A certificate of another CA, followed by the CA that is pinned.
        let mixed = vec![chain(&theirs, &names)[0].clone(), shown[1].clone()];
        for (what, chain, pins, host, expected) in [
            ("right", &shown[..], vec![&right], "10.0.0.1", None),
            ("one of two", &shown, vec![&wrong, &right], "localhost", None),
            (
                "wrong",
                &shown,
                vec![&wrong],
                "10.0.0.1",
                Some("the hash of its CA is sha256:"),
            ),
            (
                "another name",
                &shown,
                vec![&right],
                "10.0.0.2",
                Some("is not valid for 10.0.0.2"),
            ),
            (
                "no CA",
                &shown[..1],
                vec![&right],
                "10.0.0.1",
                Some("sends no CA"),
            ),
            (
                "signed by another CA",
                &mixed,
                vec![&right],
                "10.0.0.1",
                Some("is not valid for"),
            ),
        ] {
            let pins: Vec<String> = pins.into_iter().cloned().collect();
            match (pinned_authority(chain, &pins, host), expected) {
                (Ok(authority), None) => assert_eq!(authority, shown[1], "{what}"),
                (Err(error), Some(part)) => assert!(error.to_string().contains(part), "{what}: {error}"),
                (found, _) => panic!("{what}: {found:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a5_a_token_is_read_from_a_file_and_is_not_shown() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let args = JoinArgs {
            server: None,
            token: None,
            token_file: Some(file.path().to_path_buf()),
            ca_cert_hash: Vec::new(),
            bootstrap_kubeconfig: None,
        };
        for (text, good) in [
            ("abcdef.0123456789abcdef", true),
            (" abcdef.0123456789abcdef\n", true),
            ("abcdef.0123456789abcdeg-secret", false),
            ("", false),
        ] {
            std::fs::write(file.path(), text).unwrap();
            match args.token().await {
                Ok(token) => assert!(
                    good && token.as_deref() == Some("abcdef.0123456789abcdef"),
                    "{text}"
                ),
                Err(e) => assert!(!good && !e.to_string().contains("secret"), "{text}: {e}"),
            }
        }
    }

    #[test]
    fn an_invalid_pin_is_an_error_that_shows_the_form() {
        let good = format!("sha256:{}", "0A".repeat(32));
        assert_eq!(pin(&good).unwrap(), good.to_lowercase());
        for bad in [
            "",
            "sha256:",
            "md5:00",
            &"0a".repeat(32),
            &good[..70],
            &good.replace('0', "g"),
        ] {
            assert!(
                pin(bad)
                    .unwrap_err()
                    .to_string()
                    .contains("64 hexadecimal digits"),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_node_stores_the_cluster_as_a_kubeconfig() {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(directory.path(), knarr_api::k8s_openapi::jiff::Timestamp::now()).unwrap();
        let authority = chain(&pki, &["n".to_string()])[1].to_vec();
        let path = directory.path().join("kubelet.kubeconfig");
        let cluster = Cluster {
            server: "https://10.0.0.1:6443".parse().unwrap(),
            authorities: vec![authority],
        };
        assert_eq!(
            pki::pem(&cluster.authorities[0]).trim(),
            pki.ca_pem().replace("\r\n", "\n").trim()
        );
        store_kubeconfig(&path, &cluster, Path::new("/c.pem")).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.contains("server: https://10.0.0.1:6443/")
                || text.contains("server: https://10.0.0.1:6443\n")
        );
        assert!(text.contains("client-certificate: /c.pem"));
    }
}
