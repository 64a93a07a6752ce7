//! `httpGet`: one request, redirects to the same host followed, certificates not checked (as probes are).

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::HTTPGetAction;
use knarr_api::k8s_openapi;
use knarr_kubelet::probe::ProbeResult;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{OUTPUT_MAX_BYTES, Target, TargetError, authority, dial_error, port};

const REDIRECTS_MAX: usize = 10;
/// The statuses that lead on.
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];
/// The error that distinguishes a server without TLS from other failures, as Go's.
const PLAIN_ANSWER: &str = "http: server gave HTTP response to HTTPS client";

/// The response of a request.
pub(super) struct HttpAnswer {
    pub status: u16,
    pub location: Option<String>,
    /// As much of it as is reported.
    pub body: String,
}

/// The URL of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    pub tls: bool,
    pub host: String,
    pub port: u16,
    /// Path and query.
    pub path: String,
}

impl Url {
    pub(super) fn of(get: &HTTPGetAction, target: &Target<'_>) -> Result<Self, TargetError> {
        let host = get.host.clone().filter(|h| !h.is_empty());
        let host = host.or_else(|| target.ips.first().cloned());
        let path = get.path.clone().unwrap_or_default();
        Ok(Url {
            tls: get
                .scheme
                .as_deref()
                .is_some_and(|s| s.eq_ignore_ascii_case("https")),
            host: host.ok_or(TargetError::NoAddress)?,
            port: port(&get.port, target.container)?,
            path: if path.starts_with('/') {
                path
            } else {
                format!("/{path}")
            },
        })
    }

    /// The address a redirect leads to; `None` where it leaves the host.
    fn join(&self, location: &str) -> Option<Url> {
        if location.starts_with('/') {
            return Some(Url {
                path: location.into(),
                ..self.clone()
            });
        }
        let uri: http::Uri = location.parse().ok()?;
        let tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        (uri.host() == Some(&self.host)).then(|| Url {
            tls,
            port,
            host: self.host.clone(),
            path: uri.path_and_query().map_or("/", |p| p.as_str()).into(),
        })
    }
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", authority(&self.host, self.port), self.path)
    }
}

/// Good is 200 to 399 (SPEC L8).
pub(super) async fn probe(url: &Url, get_action: &HTTPGetAction, limit: Duration) -> ProbeResult {
    let mut url = url.clone();
    for _ in 0..REDIRECTS_MAX {
        match get(&url, get_action, "probe", limit).await {
            Ok(result) => {
                let status = result.status;
                let next = result
                    .location
                    .filter(|_| REDIRECTS.contains(&status))
                    .and_then(|l| url.join(&l));
                match next {
                    Some(next) => url = next,
                    // A redirect that leaves the host counts as good, as in Kubernetes.
                    None if (300..400).contains(&status) => {
                        return ProbeResult::Warning(format!(
                            "Probe terminated redirects, Response body: {}",
                            result.body
                        ));
                    }
                    None if (200..300).contains(&status) => return ProbeResult::Success,
                    None => {
                        return ProbeResult::Failure(format!("HTTP probe failed with statuscode: {status}"));
                    }
                }
            }
            Err(error) => return ProbeResult::Failure(error.to_string()),
        }
    }
    ProbeResult::Failure(format!("Get \"{url}\": stopped after {REDIRECTS_MAX} redirects"))
}

/// Why a request has no answer; with Go's messages.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("Get \"{url}\": {source}")]
    Request { url: String, source: RequestError },
    #[error("Get \"{url}\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)")]
    Timeout { url: String },
}

impl HttpError {
    /// Whether the server answered a TLS handshake in plain HTTP.
    pub(super) fn is_plain_answer(&self) -> bool {
        let HttpError::Request { source, .. } = self else {
            return false;
        };
        matches!(source, RequestError::PlainAnswer)
    }
}

/// The step that failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("{0}")]
    Dial(String),
    #[error(transparent)]
    ServerName(#[from] rustls::pki_types::InvalidDnsNameError),
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    #[error("{}", PLAIN_ANSWER)]
    PlainAnswer,
    #[error(transparent)]
    Handshake(std::io::Error),
    #[error(transparent)]
    Invalid(#[from] hyper::http::Error),
    #[error(transparent)]
    Exchange(#[from] hyper::Error),
}

/// One request; `purpose` is for the user agent.
pub(super) async fn get(
    url: &Url,
    action: &HTTPGetAction,
    purpose: &str,
    limit: Duration,
) -> Result<HttpAnswer, HttpError> {
    let request = timeout(limit, async {
        let stream = TcpStream::connect((url.host.as_str(), url.port))
            .await
            .map_err(|e| RequestError::Dial(dial_error(&url.host, url.port, &e)))?;
        if url.tls {
            let name = rustls::pki_types::ServerName::try_from(url.host.clone())?;
            let stream = connector()?.connect(name, stream).await.map_err(tls_error)?;
            exchange(url, action, purpose, stream).await
        } else {
            exchange(url, action, purpose, stream).await
        }
    });
    match request.await {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(source)) => Err(HttpError::Request {
            url: url.to_string(),
            source,
        }),
        Err(_) => Err(HttpError::Timeout { url: url.to_string() }),
    }
}

fn tls_error(error: std::io::Error) -> RequestError {
    let tls = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => {
            RequestError::PlainAnswer
        }
        _ => RequestError::Handshake(error),
    }
}

async fn exchange(
    url: &Url,
    action: &HTTPGetAction,
    purpose: &str,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<HttpAnswer, RequestError> {
    // Some servers match header names case-sensitively, and other clients send them in this form.
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .title_case_headers(true)
        .handshake(TokioIo::new(stream))
        .await?;
    let connection = crate::task::spawn(connection);
    let headers = action.http_headers.as_deref().unwrap_or_default();
    let given = |name: &str| headers.iter().any(|h| h.name.eq_ignore_ascii_case(name));
    let mut request = Request::get(&url.path).header("Connection", "close");
    for (name, value) in [
        ("User-Agent", format!("kube-{purpose}/1.36")),
        ("Accept", "*/*".to_string()),
        ("Host", authority(&url.host, url.port)),
    ] {
        if !given(name) {
            request = request.header(name, value);
        }
    }
    // An empty Accept removes the header.
    let headers = headers
        .iter()
        .filter(|h| !(h.name.eq_ignore_ascii_case("accept") && h.value.is_empty()));
    for header in headers {
        request = request.header(&header.name, &header.value);
    }
    let request = request.body(Empty::<bytes::Bytes>::new())?;
    let response: Response<Incoming> = sender.send_request(request).await?;
    let status = response.status().as_u16();
    let location = response
        .headers()
        .get("Location")
        .and_then(|l| l.to_str().ok())
        .map(String::from);
    let body = read_head(response.into_body()).await;
    connection.abort();
    Ok(HttpAnswer {
        status,
        location,
        body,
    })
}

/// Reading the answer lets a server finish; what is too long, or breaks off, is cut there.
async fn read_head(mut body: Incoming) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < OUTPUT_MAX_BYTES
        && let Some(Ok(frame)) = body.frame().await
    {
        if let Some(data) = frame.data_ref() {
            bytes.extend_from_slice(data);
        }
    }
    bytes.truncate(OUTPUT_MAX_BYTES);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn connector() -> Result<tokio_rustls::TlsConnector, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    Ok(tokio_rustls::TlsConnector::from(Arc::new(config)))
}

/// A probe checks that a server answers, not its identity.
#[derive(Debug)]
struct AnyCertificate(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &rustls::pki_types::CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &rustls::pki_types::CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn answer_with(response: &'static str) -> (u16, tokio::task::JoinHandle<String>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).await.unwrap();
            stream.write_all(response.as_bytes()).await.unwrap();
            String::from_utf8_lossy(&request[..read]).into_owned()
        });
        (port, server)
    }

    fn terminated() -> ProbeResult {
        ProbeResult::Warning("Probe terminated redirects, Response body: ".into())
    }

    #[tokio::test]
    async fn l8_a_redirect_to_another_host_is_a_success_with_a_warning() {
        let (port, _server) = answer_with(
            "HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\nContent-Length: 5\r\n\r\nthere",
        )
        .await;
        let url = Url {
            tls: false,
            host: "127.0.0.1".into(),
            port,
            path: "/".into(),
        };
        let got = probe(&url, &HTTPGetAction::default(), Duration::from_secs(5)).await;
        let want = "Probe terminated redirects, Response body: there";
        assert_eq!(got, ProbeResult::Warning(want.into()));
    }

    #[tokio::test]
    async fn l9_a_plain_answer_to_https_is_recognised() {
        let (port, _server) = answer_with("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
        let url = Url {
            tls: true,
            host: "127.0.0.1".into(),
            port,
            path: "/".into(),
        };
        let got = get(
            &url,
            &HTTPGetAction::default(),
            "lifecycle",
            Duration::from_secs(5),
        )
        .await;
        let why = got.err().unwrap().to_string();
        assert!(why.ends_with(PLAIN_ANSWER), "{why}");
    }

    #[tokio::test]
    async fn l8_http_probe_accepts_200_to_399() {
        for (line, good) in [
            ("200 OK", Some(ProbeResult::Success)),
            // Not followed, and reported as a warning.
            ("302 Found", Some(terminated())),
            ("399 Odd", Some(terminated())),
            ("400 Bad", None),
            ("500 Broken", None),
        ] {
            let response: &'static str =
                Box::leak(format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n").into_boxed_str());
            let (port, server) = answer_with(response).await;
            let url = Url {
                tls: false,
                host: "127.0.0.1".into(),
                port,
                path: "/x".into(),
            };
            let got = probe(&url, &HTTPGetAction::default(), Duration::from_secs(5)).await;
            match good {
                Some(good) => assert_eq!(got, good, "{line}"),
                None => assert!(matches!(got, ProbeResult::Failure(_)), "{line}: {got:?}"),
            }
            assert!(server.await.unwrap().starts_with("GET /x HTTP/1.1\r\n"));
        }
    }

    #[tokio::test]
    async fn l8_a_connection_refused_is_a_failure_with_kubelets_message() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let url = Url {
            tls: false,
            host: "127.0.0.1".into(),
            port,
            path: "/".into(),
        };
        let got = probe(&url, &HTTPGetAction::default(), Duration::from_secs(5)).await;
        let want = format!(
            "Get \"http://127.0.0.1:{port}/\": dial tcp 127.0.0.1:{port}: connect: connection refused"
        );
        assert_eq!(got, ProbeResult::Failure(want));
    }
}
