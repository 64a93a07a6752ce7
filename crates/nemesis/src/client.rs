//! Requests to one API server over HTTPS, and their results: done, certainly without effect, or unknown.

use std::error::Error;
use std::time::Duration;

use futures::AsyncBufRead;
use http::{Method, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};
use libtest_mimic::Failed;
use serde_json::Value;

use crate::fleet::Host;

/// The timeout of a response. A server gives up on etcd after 10 s.
const TIMEOUT: Duration = Duration::from_secs(12);
/// How long a connection may take: without a connection no request was sent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The object of a response, or why there is none.
pub type Reply = Result<Value, RequestError>;

/// Why a request did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// A `Status` below 500: the request had no effect.
    #[error("{code} {reason}: {message}")]
    Status {
        code: u16,
        reason: String,
        message: String,
    },
    /// It was never sent.
    #[error("{0}")]
    NotSent(String),
    /// No response, or a server error: it may have had an effect.
    #[error("{0}")]
    Unknown(String),
}

/// A client of one server.
#[derive(Clone)]
pub struct Client {
    inner: kube::Client,
    pub server: String,
}

impl Client {
    /// With the administrator's kubeconfig that the server has written. Nothing is retried: each request is sent once.
    pub async fn of(server: &Host) -> Result<Client, Failed> {
        let kubeconfig = Kubeconfig::read_from(server.kubeconfig())?;
        let mut config =
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.default_retry = false;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        Ok(Client {
            inner: kube::Client::try_from(config)?,
            server: server.name.clone(),
        })
    }

    /// Sends a request; `content` is a body with its content type.
    pub async fn send(&self, method: Method, path: &str, content: Option<(&str, &Value)>) -> Reply {
        let mut request = Request::builder().method(method).uri(path);
        let mut body = Vec::new();
        if let Some((content_type, value)) = content {
            request = request.header(http::header::CONTENT_TYPE, content_type);
            body = value.to_string().into_bytes();
        }
        let request = match request.body(body) {
            Ok(request) => request,
            Err(e) => return Err(RequestError::NotSent(e.to_string())),
        };
        match tokio::time::timeout(TIMEOUT, self.inner.request::<Value>(request)).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(e)) => Err(request_error(e)),
            Err(_) => Err(no_response()),
        }
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, None).await
    }

    /// Opens a stream of lines.
    pub async fn lines(&self, path: &str) -> Result<impl AsyncBufRead + use<>, RequestError> {
        let request = Request::get(path).body(Vec::new());
        let request = request.map_err(|e| RequestError::NotSent(e.to_string()))?;
        match tokio::time::timeout(TIMEOUT, self.inner.request_stream(request)).await {
            Ok(opened) => opened.map_err(request_error),
            Err(_) => Err(no_response()),
        }
    }
}

fn no_response() -> RequestError {
    RequestError::Unknown(format!("no response within {} s", TIMEOUT.as_secs()))
}

fn request_error(error: kube::Error) -> RequestError {
    match error {
        kube::Error::Api(status) if (400..500).contains(&status.code) => RequestError::Status {
            code: status.code,
            reason: status.reason.clone(),
            message: status.message.clone(),
        },
        kube::Error::Api(status) => RequestError::Unknown(format!("{} {}", status.code, status.message)),
        other if is_not_connected(&other) => RequestError::NotSent(other.to_string()),
        other => {
            let mut text = other.to_string();
            let mut source = other.source();
            while let Some(cause) = source {
                text.push_str(&format!(": {cause}"));
                source = cause.source();
            }
            RequestError::Unknown(text)
        }
    }
}

/// Whether no connection was made.
fn is_not_connected(error: &kube::Error) -> bool {
    let mut source: Option<&dyn Error> = Some(error);
    while let Some(cause) = source {
        let legacy = cause.downcast_ref::<hyper_util::client::legacy::Error>();
        if legacy.is_some_and(hyper_util::client::legacy::Error::is_connect) {
            return true;
        }
        source = cause.source();
    }
    false
}
