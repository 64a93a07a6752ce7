//! The load: plain HTTP/1.1 over TLS on connections of its own, as cheap as it can be, because it runs on the server's
//! cores. The client's certificate is the kubeconfig's.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::process::{LIMIT, Result};
use crate::stats::percentile;

/// The target and the user of the load.
#[derive(Clone)]
pub struct Server {
    host: String,
    tls: TlsConnector,
}

impl Server {
    /// Reads address, CA, certificate and key out of knarr's kubeconfig, which has them inline.
    pub fn of(kubeconfig: &Path) -> Result<Server> {
        let text = std::fs::read_to_string(kubeconfig)?;
        let config: serde_json::Value = serde_saphyr::from_str(&text)?;
        let text = |path: &str| -> Result<&str> {
            let found = config.pointer(path).and_then(|v| v.as_str());
            found.ok_or_else(|| format!("{}: {path} is missing", kubeconfig.display()).into())
        };
        let pem = |path: &str| -> Result<Vec<u8>> { Ok(BASE64.decode(text(path)?)?) };
        let authority = pem("/clusters/0/cluster/certificate-authority-data")?;
        let certificate = pem("/users/0/user/client-certificate-data")?;
        let key = pem("/users/0/user/client-key-data")?;
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(&authority) {
            roots.add(root?)?;
        }
        let chain = CertificateDer::pem_slice_iter(&certificate).collect::<Result<_, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(&key)?;
        let tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        Ok(Server {
            host: text("/clusters/0/cluster/server")?
                .trim_start_matches("https://")
                .to_string(),
            tls: TlsConnector::from(Arc::new(tls)),
        })
    }

    pub async fn connect(&self) -> Result<Connection> {
        let tcp = TcpStream::connect(&self.host).await?;
        tcp.set_nodelay(true)?;
        let name = self.host.rsplit_once(':').map_or(&*self.host, |(h, _)| h);
        let stream = self
            .tls
            .connect(ServerName::try_from(name.to_string())?, tcp)
            .await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            if let Err(e) = connection.await {
                eprintln!("a connection ended: {e}");
            }
        });
        Ok(Connection {
            sender,
            host: self.host.clone(),
        })
    }

    pub async fn connections(&self, n: usize) -> Result<Vec<Connection>> {
        let mut all = Vec::with_capacity(n);
        for _ in 0..n {
            all.push(self.connect().await?);
        }
        Ok(all)
    }
}

/// One connection; one request at a time.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
}

impl Connection {
    /// Sends a request and returns the response's body as a stream; a status other than 2xx is an error with the server's message.
    pub async fn stream(&mut self, method: Method, path: &str, body: Bytes) -> Result<Incoming> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.host)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        self.sender.ready().await?;
        let response = tokio::time::timeout(LIMIT, self.sender.send_request(request)).await??;
        let (head, body) = response.into_parts();
        if head.status.is_success() {
            return Ok(body);
        }
        let body = body.collect().await?.to_bytes();
        Err(response_error(path, head.status, &body))
    }

    pub async fn send(&mut self, method: Method, path: &str, body: Bytes) -> Result<Bytes> {
        let body = self.stream(method, path, body).await?;
        Ok(body.collect().await?.to_bytes())
    }

    /// Reads a response and counts its bytes.
    pub async fn count(&mut self, path: &str) -> Result<usize> {
        let mut body = self.stream(Method::GET, path, Bytes::new()).await?;
        let mut bytes = 0;
        while let Some(frame) = body.frame().await {
            bytes += frame?.data_ref().map_or(0, Bytes::len);
        }
        Ok(bytes)
    }
}

fn response_error(path: &str, status: StatusCode, body: &[u8]) -> Box<dyn std::error::Error> {
    format!("{path}: {status}: {}", String::from_utf8_lossy(body)).into()
}

/// What many connections did.
pub struct Load {
    pub per_second: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
}

/// When a load is over: after so much time, or so many requests.
#[derive(Clone, Copy)]
pub enum Until {
    Elapsed(Duration),
    Requests(usize),
}

/// Runs `each` on all connections, each with the number of the request, until it is enough.
pub async fn run<F>(connections: Vec<Connection>, until: Until, each: F) -> Result<(Load, Vec<Connection>)>
where
    F: AsyncFn(&mut Connection, usize) -> Result<()>,
{
    let next = std::cell::Cell::new(0);
    let begin = Instant::now();
    let workers = connections.into_iter().map(|mut connection| {
        let (next, each) = (&next, &each);
        async move {
            let mut took = Vec::new();
            loop {
                let n = next.get();
                let enough = match until {
                    Until::Elapsed(time) => begin.elapsed() >= time,
                    Until::Requests(all) => n >= all,
                };
                if enough {
                    return Ok::<_, Box<dyn std::error::Error>>((took, connection));
                }
                next.set(n + 1);
                let sent = Instant::now();
                each(&mut connection, n).await?;
                took.push(sent.elapsed().as_secs_f64() * 1000.0);
            }
        }
    });
    let done = futures::future::try_join_all(workers).await?;
    let elapsed = begin.elapsed().as_secs_f64();
    let (mut took, mut connections) = (Vec::new(), Vec::new());
    for (times, connection) in done {
        took.extend(times);
        connections.push(connection);
    }
    let load = Load {
        per_second: took.len() as f64 / elapsed,
        p50_ms: percentile(&mut took, 50.0),
        p99_ms: percentile(&mut took, 99.0),
    };
    Ok((load, connections))
}
