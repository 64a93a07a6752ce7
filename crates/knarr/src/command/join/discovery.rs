//! Discovery of the cluster, as kubeadm's with `--discovery-token-ca-cert-hash`: a server is trusted if its CA has the pin.
//!
//! The server includes its CA in the chain of the TLS handshake. Nothing is sent to the server before the CA is known to match
//! the pin, so that the token is sent to no other server.

use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use knarr_apiserver::pki;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::command::Failure;
use crate::command::cluster::{PAUSE, SERVER_LIMIT};

/// How long a connection and its handshake may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// The API server's URL, and the CAs that may sign its certificate.
pub(super) struct Cluster {
    pub server: Uri,
    pub authorities: Vec<Vec<u8>>,
}

/// The cluster at a URL whose CA has one of these pins.
pub(super) async fn pinned(server: &str, pins: &[String]) -> Result<Cluster, Failure> {
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
}
