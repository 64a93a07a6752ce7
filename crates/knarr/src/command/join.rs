//! How a node gets its credentials (TLS bootstrapping): the cluster's CA by its pin, a first certificate by a bootstrap token.
//! It stores both, so that it needs neither pin nor token again.

mod discovery;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use knarr_apiserver::authn::bootstrap_token;
use knarr_apiserver::identity;
use knarr_apiserver::joining::JOINERS;
use knarr_client::SystemClock;
use knarr_client::metrics::Registry;
use knarr_client::metrics::rest_client::RestClientMetrics;
use knarr_client::remote::{Credential, RemoteApi};
use knarr_node::certificates::{self, Identity, RequestError, Rotation};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::fs::File;
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::Failure;
use super::cluster::{self, PAUSE, SERVER_LIMIT};
use crate::config::Config;
use crate::private;
use discovery::{Cluster, pinned};

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

/// Stores the API server's URL and CAs as a kubeconfig, as a kubelet has one.
fn store_kubeconfig(path: &Path, cluster: &Cluster, certificate: &Path) -> Result<(), Failure> {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    let pem: String = cluster.authorities.iter().map(|der| identity::pem(der)).collect();
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
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

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
    fn a_node_stores_the_cluster_as_a_kubeconfig() {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(directory.path(), knarr_api::k8s_openapi::jiff::Timestamp::now()).unwrap();
        let authority = CertificateDer::from_pem_slice(pki.ca_pem().as_bytes()).unwrap();
        let path = directory.path().join("kubelet.kubeconfig");
        let cluster = Cluster {
            server: "https://10.0.0.1:6443".parse().unwrap(),
            authorities: vec![authority.to_vec()],
        };
        assert_eq!(
            identity::pem(&cluster.authorities[0]).trim(),
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
