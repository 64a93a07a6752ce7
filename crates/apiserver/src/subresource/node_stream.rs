//! `log`, `exec`, `attach` and `portforward`: requests that are proxied to the kubelet of the pod's node.
//!
//! The kubelet implements WebSocket and SPDY; this server authorizes, finds the node and copies bytes.

use std::sync::Arc;

use http::header::{CONNECTION, HOST, HeaderMap, HeaderName, UPGRADE};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use knarr_api::k8s_openapi;
use knarr_api::kind::Subresource;
use knarr_apimachinery::Error;
use knarr_apimachinery::ids::NodeName;
use knarr_client::{Conn, NodeDialer};
use serde_json::Value;
use tracing::debug;

use super::connect;
use crate::admission::Operation;
use crate::http::Http;
use crate::http::body::{Body, full};
use crate::http::response::HandlerResponse;
use crate::pipeline::Pipeline;
use crate::request::{Ctx, Target, not_served};

/// The query parameters of a log request that are sent to the kubelet.
const LOG_OPTIONS: [&str; 9] = [
    "follow",
    "previous",
    "timestamps",
    "sinceSeconds",
    "sinceTime",
    "tailLines",
    "limitBytes",
    "stream",
    "insecureSkipTLSVerifyBackend",
];

/// Connects clients with pods and nodes.
pub(crate) struct Connector {
    pub pipeline: Arc<Pipeline>,
    pub nodes: Arc<dyn NodeDialer>,
}

impl Connector {
    /// `log`: read without a connect admission.
    pub(super) async fn log(&self, http: &mut Http, target: &Target<'_>) -> Result<HandlerResponse, Error> {
        match self.kubelet_path(http, target, &Value::Null)? {
            Some((node, path)) => self.proxy_to_kubelet(http, &node, &path).await,
            // A pod without a node has no logs yet.
            None => Ok(HandlerResponse::Raw(crate::http::response::text(
                StatusCode::OK,
                "",
            ))),
        }
    }

    /// Connects a client with a pod or a node, after admission of the operation CONNECT.
    pub(super) async fn connect_request(
        &self,
        ctx: &mut Ctx,
        http: &mut Http,
        target: &Target<'_>,
        served: &Subresource,
    ) -> Result<HandlerResponse, Error> {
        let requested = connect::options(http, target, served)?;
        let options = self
            .pipeline
            .admission
            .admit_request_object(ctx, target, Operation::Connect, requested.clone())
            .await?;
        if target.subresource == "proxy" {
            let path = match options.get("path").and_then(Value::as_str) {
                same if same == requested.get("path").and_then(Value::as_str) => connect::path(http),
                other => encoded_path(other.unwrap_or("")),
            };
            return self.proxy(http, target, &path).await;
        }
        self.authorize_connect(ctx, http, target)?;
        match self.kubelet_path(http, target, &options)? {
            Some((node, path)) => self.proxy_to_kubelet(http, &node, &path).await,
            None => Err(not_served()),
        }
    }

    /// Requires the verb `create`: a WebSocket begins with a GET, and permission to read must not allow running commands.
    fn authorize_connect(&self, ctx: &Ctx, http: &Http, target: &Target<'_>) -> Result<(), Error> {
        let mut attributes = http.attributes();
        if attributes.verb == "create" {
            return Ok(());
        }
        attributes.verb = "create";
        let decision = self.pipeline.authorizer.explain(&ctx.user, &attributes);
        match decision.allowed {
            true => Ok(()),
            false => Err(Error::forbidden(target.resource_ref(), &decision.reason)),
        }
    }

    /// The pod's node, and the path and query for its kubelet. `None` for the log of a pod without a node.
    fn kubelet_path(
        &self,
        http: &Http,
        target: &Target<'_>,
        connect_options: &Value,
    ) -> Result<Option<(NodeName, String)>, Error> {
        // Before the pod is read, as kube-apiserver does.
        if target.subresource == "log" {
            check_log_options(http)?;
        }
        let object = self
            .pipeline
            .get(&Target::main(target.kind, target.namespace, target.name))?;
        let pod: &Pod = object
            .get()
            .ok_or_else(|| Error::internal("an object stored as a Pod does not decode as one"))?;
        let spec = pod.spec.clone().unwrap_or_default();
        let (namespace, name) = (target.namespace, target.name);
        let query = &http.query;
        let mut options: Vec<(&str, String)> = Vec::new();
        let listed = |field: &str| {
            connect_options
                .get(field)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
        };
        let path = match target.subresource {
            "log" => {
                let container = select_container(&spec, name, query.get("container"))?;
                options.extend(
                    LOG_OPTIONS
                        .iter()
                        .filter(|o| query.has(o))
                        .map(|o| (*o, query.get(o).to_string())),
                );
                format!("/containerLogs/{namespace}/{name}/{container}")
            }
            "portforward" => {
                options.extend(listed("ports").map(|p| ("port", p.to_string())));
                format!("/portForward/{namespace}/{name}")
            }
            verb => {
                let container_name = connect_options.get("container").and_then(Value::as_str);
                let container = select_container(&spec, name, container_name.unwrap_or(""))?;
                for (from, to) in [
                    ("stdin", "input"),
                    ("stdout", "output"),
                    ("stderr", "error"),
                    ("tty", "tty"),
                ] {
                    if connect_options.get(from) == Some(&Value::Bool(true)) {
                        options.push((to, "1".into()));
                    }
                }
                let command = listed("command").filter_map(Value::as_str);
                options.extend(command.map(|c| ("command", c.to_string())));
                format!("/{verb}/{namespace}/{name}/{container}")
            }
        };
        let Some(node) = spec.node_name.filter(|n| !n.is_empty()) else {
            return match target.subresource {
                "log" => Ok(None),
                _ => Err(Error::bad_request(format!(
                    "pod {name} does not have a host assigned"
                ))),
            };
        };
        Ok(Some((node.into(), with_query(path, &options))))
    }

    async fn proxy_to_kubelet(
        &self,
        http: &mut Http,
        node: &NodeName,
        path: &str,
    ) -> Result<HandlerResponse, Error> {
        let failed =
            |e: &dyn std::fmt::Display| Error::internal(format!("error dialing backend: node {node}: {e}"));
        let stream = self.nodes.dial(node).await.map_err(|e| failed(&e))?;
        self.proxy_request(http, stream, node, path, ForwardedHeaders::Handshake)
            .await
            .map(HandlerResponse::Raw)
            .map_err(|e| match e {
                ProxyError::Backend(e) => failed(&e),
                ProxyError::Client(e) => e,
            })
    }

    /// Sends the request over `stream` and returns the response, upgraded if it is.
    pub(super) async fn proxy_request(
        &self,
        http: &mut Http,
        stream: Box<dyn Conn>,
        host: &str,
        path: &str,
        forwarded: ForwardedHeaders,
    ) -> Result<Response<Body>, ProxyError> {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(ProxyError::Backend)?;
        tokio::spawn(async move {
            if let Err(e) = connection.with_upgrades().await {
                debug!("a connection to a node failed: {e}");
            }
        });
        let upgrades = http.headers.contains_key(UPGRADE);
        let body = if upgrades {
            Bytes::new()
        } else {
            http.body().await.map_err(ProxyError::Client)?
        };
        let mut request = Request::builder().method(http.method.clone()).uri(path);
        if let Some(headers) = request.headers_mut() {
            copy_headers(&http.headers, headers, upgrades, forwarded);
            if let Ok(host) = host.parse() {
                headers.insert(HOST, host);
            }
        }
        let request = request
            .body(Full::new(body))
            .map_err(|e| ProxyError::Client(Error::bad_request(e.to_string())))?;
        let mut backend_response = sender.send_request(request).await.map_err(ProxyError::Backend)?;
        if backend_response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let (parts, body) = backend_response.into_parts();
            // The connection stays open until the response body is complete.
            let body = body.map_err(Into::into).boxed_unsync();
            let mut response = http::Response::from_parts(parts, body);
            remove_hop_by_hop_headers(response.headers_mut());
            return Ok(response);
        }
        copy_upgraded(&mut backend_response, &mut http.request);
        let mut response = http::Response::new(full(Bytes::new()));
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *response.headers_mut() = backend_response.headers().clone();
        Ok(response)
    }
}

/// Copies bytes between two upgraded connections until one of them is closed.
pub(crate) fn copy_upgraded<A, B>(response: &mut Response<A>, request: &mut Request<B>) {
    let (backend, client) = (hyper::upgrade::on(response), hyper::upgrade::on(request));
    tokio::spawn(async move {
        match tokio::try_join!(backend, client) {
            Ok((backend, client)) => {
                let (mut backend, mut client) = (TokioIo::new(backend), TokioIo::new(client));
                if let Err(e) = tokio::io::copy_bidirectional(&mut client, &mut backend).await {
                    debug!("an upgraded connection failed: {e}");
                }
            }
            Err(e) => debug!("an upgrade failed: {e}"),
        }
    });
}

/// Which of the client's headers are forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForwardedHeaders {
    /// The headers that the kubelet needs.
    Handshake,
    /// All but credentials and hop-by-hop headers.
    All,
}

/// The end of a proxied request that failed.
pub(super) enum ProxyError {
    Backend(hyper::Error),
    Client(Error),
}

/// Copies the client's headers, never its credentials.
fn copy_headers(from: &HeaderMap, to: &mut HeaderMap, upgrades: bool, forwarded: ForwardedHeaders) {
    for (name, value) in from {
        let text = name.as_str();
        let handshake = upgrades
            && (*name == UPGRADE
                || *name == CONNECTION
                || text.starts_with("sec-websocket-")
                || text == "x-stream-protocol-version");
        let own = matches!(
            text,
            "authorization"
                | "host"
                | "connection"
                | "upgrade"
                | "keep-alive"
                | "te"
                | "trailer"
                | "audit-id"
                | "transfer-encoding"
                | "content-length"
                | "proxy-authorization"
        ) || text.starts_with("impersonate-")
            // Only a front proxy may name the user, and there is none.
            || text.starts_with("x-remote-");
        let needed = matches!(text, "accept" | "content-type" | "accept-encoding" | "origin");
        if handshake || needed || (forwarded == ForwardedHeaders::All && !own) {
            to.append(name.clone(), value.clone());
        }
    }
}

/// Removes the headers that apply to one connection only.
pub(crate) fn remove_hop_by_hop_headers(headers: &mut HeaderMap) {
    for name in [
        "connection",
        "keep-alive",
        "transfer-encoding",
        "upgrade",
        "proxy-authenticate",
    ] {
        headers.remove(HeaderName::from_static(name));
    }
}

fn encoded_path(path: &str) -> String {
    use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
    const SPECIAL: &AsciiSet = &CONTROLS
        .add(b' ')
        .add(b'"')
        .add(b'#')
        .add(b'%')
        .add(b'<')
        .add(b'>')
        .add(b'?');
    utf8_percent_encode(path, SPECIAL).to_string()
}

fn with_query(path: String, options: &[(&str, impl AsRef<str>)]) -> String {
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
    let encoded: Vec<String> = options
        .iter()
        .map(|(k, v)| format!("{k}={}", utf8_percent_encode(v.as_ref(), NON_ALPHANUMERIC)))
        .collect();
    if encoded.is_empty() {
        path
    } else {
        format!("{path}?{}", encoded.join("&"))
    }
}

/// The selected container. A pod with several containers requires its name.
fn select_container(spec: &PodSpec, name: &str, container_name: &str) -> Result<String, Error> {
    let main: Vec<&str> = spec.containers.iter().map(|c| c.name.as_str()).collect();
    let init: Vec<&str> = spec
        .init_containers
        .iter()
        .flatten()
        .map(|c| c.name.as_str())
        .collect();
    let ephemeral: Vec<&str> = spec
        .ephemeral_containers
        .iter()
        .flatten()
        .map(|c| c.name.as_str())
        .collect();
    if !container_name.is_empty() {
        return if main.contains(&container_name)
            || init.contains(&container_name)
            || ephemeral.contains(&container_name)
        {
            Ok(container_name.to_string())
        } else {
            Err(Error::bad_request(format!(
                "container {container_name} is not valid for pod {name}"
            )))
        };
    }
    match main.as_slice() {
        [one] => Ok((*one).to_string()),
        [] => Err(Error::bad_request(format!(
            "a container name must be specified for pod {name}"
        ))),
        _ => {
            let all = [init, main, ephemeral].concat().join(" ");
            Err(Error::bad_request(format!(
                "a container name must be specified for pod {name}, choose one of: [{all}]"
            )))
        }
    }
}

fn check_log_options(http: &Http) -> Result<(), Error> {
    let mut errors = knarr_apimachinery::field::ErrorList::new();
    let path = knarr_apimachinery::field::Path::new;
    for (name, minimum) in [("tailLines", 0), ("sinceSeconds", 1), ("limitBytes", 1)] {
        let Some(n) = http.query.int(name)? else { continue };
        if n < minimum {
            let detail = if minimum == 0 {
                "must be greater than or equal to 0"
            } else {
                "must be greater than 0"
            };
            errors.invalid(&path(name), n, detail);
        }
    }
    if http.query.has("sinceSeconds") && http.query.has("sinceTime") {
        // Upstream's path without a name is printed like this.
        errors.forbidden(
            &path("[]"),
            "at most one of `sinceTime` or `sinceSeconds` may be specified",
        );
    }
    // PodLogsQuerySplitStreams is off by default.
    if http.query.has("stream") {
        errors.forbidden(&path("stream"), "may not be specified");
    }
    if errors.is_empty() {
        return Ok(());
    }
    let about = knarr_apimachinery::error::ResourceRef {
        group: "",
        resource: "PodLogOptions",
        name: http.info.name.as_str(),
    };
    Err(Error::invalid(about, &errors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Container;

    #[test]
    fn of_several_containers_one_must_be_named() {
        let named = |n: &str| Container {
            name: n.into(),
            ..Container::default()
        };
        let spec = PodSpec {
            containers: vec![named("a"), named("b")],
            init_containers: Some(vec![named("i")]),
            ..PodSpec::default()
        };
        let of = |container_name: &str| {
            select_container(&spec, "p", container_name).map_err(|e| e.message().to_string())
        };
        assert_eq!(
            of(""),
            Err("a container name must be specified for pod p, choose one of: [i a b]".into())
        );
        assert_eq!(of("i"), Ok("i".into()));
        assert_eq!(of("x"), Err("container x is not valid for pod p".into()));
    }

    #[test]
    fn commands_are_encoded_for_the_kubelet() {
        assert_eq!(
            with_query("/exec/a/p/c".into(), &[("command", "sh"), ("command", "a b&c")]),
            "/exec/a/p/c?command=sh&command=a%20b%26c"
        );
    }
}
