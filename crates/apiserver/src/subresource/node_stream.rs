//! `log`, `exec`, `attach` and `portforward`: the pod's node is asked, and the bytes pass through.
//!
//! The kubelet speaks WebSocket and SPDY itself; this end only authorises, finds the node and carries bytes.

use std::sync::Arc;

use http::header::{CONNECTION, HOST, HeaderMap, HeaderName, UPGRADE};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use knarr_api::kind::Subresource;
use knarr_api::{Error, k8s_openapi};
use knarr_client::Conn;
use serde_json::Value;
use tracing::debug;

use super::connect;
use crate::admission::extension::Operation;
use crate::http::Http;
use crate::http::answer::Answer;
use crate::http::body::{Body, full};
use crate::pipeline::{Ctx, Target, not_served};
use crate::server::Server;

/// What a log request may say to the kubelet.
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

impl Server {
    /// `log`, which is read like any object.
    pub(super) async fn log(self: &Arc<Self>, http: &mut Http, target: &Target<'_>) -> Result<Answer, Error> {
        match self.pod_path(http, target, &Value::Null)? {
            Some((node, path)) => self.ask_node(http, &node, &path).await,
            // A pod without a node has written nothing yet.
            None => Ok(Answer::Raw(crate::http::answer::text(StatusCode::OK, ""))),
        }
    }

    /// What connects a client with a pod or a node: admission is asked first, as of everything that does something.
    pub(super) async fn connect_request(
        self: &Arc<Self>,
        ctx: &mut Ctx,
        http: &mut Http,
        target: &Target<'_>,
        served: &Subresource,
    ) -> Result<Answer, Error> {
        let asked = connect::options(http, target, served)?;
        let options = self
            .admit_part(ctx, target, Operation::Connect, asked.clone())
            .await?;
        if target.subresource == "proxy" {
            let path = match options.get("path").and_then(Value::as_str) {
                same if same == asked.get("path").and_then(Value::as_str) => connect::path(http),
                other => encoded_path(other.unwrap_or("")),
            };
            return self.proxy(http, target, &path).await;
        }
        self.may_create(ctx, http, target)?;
        match self.pod_path(http, target, &options)? {
            Some((node, path)) => self.ask_node(http, &node, &path).await,
            None => Err(not_served()),
        }
    }

    /// A WebSocket begins with a GET, and who may only read must not run commands by one.
    fn may_create(&self, ctx: &Ctx, http: &Http, target: &Target<'_>) -> Result<(), Error> {
        let mut asked = http.attributes();
        if asked.verb == "create" {
            return Ok(());
        }
        asked.verb = "create";
        let decision = self.authorizer.explain(&ctx.user, &asked);
        match decision.allowed {
            true => Ok(()),
            false => Err(Error::forbidden(target.about(), &decision.reason)),
        }
    }

    /// The pod's node, and what to ask it. `None`: a log of a pod that has no node.
    fn pod_path(
        &self,
        http: &Http,
        target: &Target<'_>,
        asked: &Value,
    ) -> Result<Option<(String, String)>, Error> {
        // Before the pod is read, as kube-apiserver does.
        if target.subresource == "log" {
            check_log_options(http)?;
        }
        let object = self.get(&Target::main(target.kind, target.namespace, target.name))?;
        let pod: &Pod = object
            .get()
            .ok_or_else(|| Error::internal("a Pod that is none"))?;
        let spec = pod.spec.clone().unwrap_or_default();
        let (namespace, name) = (target.namespace, target.name);
        let query = &http.query;
        let mut options: Vec<(&str, String)> = Vec::new();
        let listed = |field: &str| asked.get(field).and_then(Value::as_array).into_iter().flatten();
        let path = match target.subresource {
            "log" => {
                let container = container(&spec, name, query.get("container"))?;
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
                let wanted = asked.get("container").and_then(Value::as_str);
                let container = container(&spec, name, wanted.unwrap_or(""))?;
                for (from, to) in [
                    ("stdin", "input"),
                    ("stdout", "output"),
                    ("stderr", "error"),
                    ("tty", "tty"),
                ] {
                    if asked.get(from) == Some(&Value::Bool(true)) {
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
        Ok(Some((node, with_query(path, &options))))
    }

    async fn ask_node(self: &Arc<Self>, http: &mut Http, node: &str, path: &str) -> Result<Answer, Error> {
        let failed =
            |e: &dyn std::fmt::Display| Error::internal(format!("error dialing backend: node {node}: {e}"));
        let stream = self.nodes.dial(node).await.map_err(|e| failed(&e))?;
        self.exchange(http, stream, node, path, Passes::Handshake)
            .await
            .map(Answer::Raw)
            .map_err(|e| match e {
                Failed::Far(e) => failed(&e),
                Failed::Near(e) => e,
            })
    }

    /// Carries the request over `stream`, and whatever becomes of it back.
    pub(super) async fn exchange(
        &self,
        http: &mut Http,
        stream: Box<dyn Conn>,
        host: &str,
        path: &str,
        passes: Passes,
    ) -> Result<Response<Body>, Failed> {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(Failed::Far)?;
        tokio::spawn(async move {
            if let Err(e) = connection.with_upgrades().await {
                debug!("a connection to a node ended: {e}");
            }
        });
        let upgrades = http.headers.contains_key(UPGRADE);
        let body = if upgrades {
            Bytes::new()
        } else {
            http.body().await.map_err(Failed::Near)?
        };
        let mut request = Request::builder().method(http.method.clone()).uri(path);
        if let Some(headers) = request.headers_mut() {
            pass_on(&http.headers, headers, upgrades, passes);
            if let Ok(host) = host.parse() {
                headers.insert(HOST, host);
            }
        }
        let request = request
            .body(Full::new(body))
            .map_err(|e| Failed::Near(Error::bad_request(e.to_string())))?;
        let mut answer = sender.send_request(request).await.map_err(Failed::Far)?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            let (parts, body) = answer.into_parts();
            // The connection lives as long as what still comes over it.
            let body = body.map_err(Into::into).boxed_unsync();
            let mut response = http::Response::from_parts(parts, body);
            hop_by_hop(response.headers_mut());
            return Ok(response);
        }
        splice(&mut answer, &mut http.request);
        let mut response = http::Response::new(full(Bytes::new()));
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *response.headers_mut() = answer.headers().clone();
        Ok(response)
    }
}

/// Carries bytes between the two ends of a connection that has been upgraded at both, until one of them goes.
pub(crate) fn splice<A, B>(answer: &mut Response<A>, request: &mut Request<B>) {
    let (theirs, ours) = (hyper::upgrade::on(answer), hyper::upgrade::on(request));
    tokio::spawn(async move {
        match tokio::try_join!(theirs, ours) {
            Ok((theirs, ours)) => {
                let (mut theirs, mut ours) = (TokioIo::new(theirs), TokioIo::new(ours));
                if let Err(e) = tokio::io::copy_bidirectional(&mut ours, &mut theirs).await {
                    debug!("an upgraded connection ended: {e}");
                }
            }
            Err(e) => debug!("an upgrade failed: {e}"),
        }
    });
}

/// Which of a client's headers pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passes {
    /// What the kubelet needs.
    Handshake,
    /// All but what is between the client and this server.
    Everything,
}

/// Which end it was.
pub(super) enum Failed {
    Far(hyper::Error),
    Near(Error),
}

/// A client's headers, never its credentials.
fn pass_on(from: &HeaderMap, to: &mut HeaderMap, upgrades: bool, passes: Passes) {
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
            // Who asks is the front proxy's to say, and there is none.
            || text.starts_with("x-remote-");
        let needed = matches!(text, "accept" | "content-type" | "accept-encoding" | "origin");
        if handshake || needed || (passes == Passes::Everything && !own) {
            to.append(name.clone(), value.clone());
        }
    }
}

/// What speaks of one connection only does not pass to the next.
pub(crate) fn hop_by_hop(headers: &mut HeaderMap) {
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

/// The container that is meant; of several it must be named.
fn container(spec: &PodSpec, name: &str, wanted: &str) -> Result<String, Error> {
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
    if !wanted.is_empty() {
        return if main.contains(&wanted) || init.contains(&wanted) || ephemeral.contains(&wanted) {
            Ok(wanted.to_string())
        } else {
            Err(Error::bad_request(format!(
                "container {wanted} is not valid for pod {name}"
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
    let mut mistakes = knarr_api::field::Errors::new();
    let path = knarr_api::field::Path::new;
    for (name, least) in [("tailLines", 0), ("sinceSeconds", 1), ("limitBytes", 1)] {
        let Some(n) = http.query.int(name)? else { continue };
        if n < least {
            let detail = if least == 0 {
                "must be greater than or equal to 0"
            } else {
                "must be greater than 0"
            };
            mistakes.invalid(&path(name), n, detail);
        }
    }
    if http.query.has("sinceSeconds") && http.query.has("sinceTime") {
        // A path without a name is written so.
        mistakes.forbidden(
            &path("[]"),
            "at most one of `sinceTime` or `sinceSeconds` may be specified",
        );
    }
    // PodLogsQuerySplitStreams is off by default.
    if http.query.has("stream") {
        mistakes.forbidden(&path("stream"), "may not be specified");
    }
    if mistakes.is_empty() {
        return Ok(());
    }
    let about = knarr_api::error::About {
        group: "",
        resource: "PodLogOptions",
        name: http.info.name.as_str(),
    };
    Err(Error::invalid(about, &mistakes))
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
        let of = |wanted: &str| container(&spec, "p", wanted).map_err(|e| e.message().to_string());
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
