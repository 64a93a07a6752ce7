//! `log`, `exec`, `attach`, `portforward` and `nodes/proxy`: the pod's node is asked, and the bytes pass through.
//!
//! The kubelet speaks WebSocket and SPDY itself; this end only authorises, finds the node and carries bytes.

use std::sync::Arc;

use http::header::{CONNECTION, HOST, HeaderMap, HeaderName, UPGRADE};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use knarr_api::{Error, k8s_openapi, registry};
use tracing::debug;

use crate::http::Http;
use crate::http::answer::Answer;
use crate::http::body::full;
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
    pub(super) async fn node_stream(
        self: &Arc<Self>,
        _ctx: &mut Ctx,
        http: &mut Http,
        target: &Target<'_>,
    ) -> Result<Answer, Error> {
        let (node, path) = if *target.kind == registry::NODE {
            let object = self.get(&Target::main(target.kind, "", target.name))?;
            let query = http
                .request
                .uri()
                .query()
                .map_or(String::new(), |q| format!("?{q}"));
            (object.name().to_string(), format!("/{}{query}", http.info.rest))
        } else if *target.kind == registry::POD && target.subresource != "proxy" {
            match self.pod_path(http, target)? {
                Some(found) => found,
                // A pod without a node has written nothing yet.
                None => return Ok(Answer::Raw(crate::http::answer::text(StatusCode::OK, ""))),
            }
        } else {
            return Err(not_served());
        };
        self.ask_node(http, &node, &path).await
    }

    /// The pod's node, and what to ask it. `None`: a log of a pod that has no node.
    fn pod_path(&self, http: &Http, target: &Target<'_>) -> Result<Option<(String, String)>, Error> {
        let object = self.get(&Target::main(target.kind, target.namespace, target.name))?;
        let pod: &Pod = object
            .get()
            .ok_or_else(|| Error::internal("a Pod that is none"))?;
        let spec = pod.spec.clone().unwrap_or_default();
        let (namespace, name) = (target.namespace, target.name);
        let query = &http.query;
        let mut options: Vec<(&str, &str)> = Vec::new();
        let path = match target.subresource {
            "log" => {
                let container = container(&spec, name, query.get("container"))?;
                check_log_options(http)?;
                options.extend(
                    LOG_OPTIONS
                        .iter()
                        .filter(|o| query.has(o))
                        .map(|o| (*o, query.get(o))),
                );
                format!("/containerLogs/{namespace}/{name}/{container}")
            }
            "portforward" => {
                options.extend(query.all("ports").flat_map(|p| p.split(',')).map(|p| ("port", p)));
                format!("/portForward/{namespace}/{name}")
            }
            verb => {
                let container = container(&spec, name, query.get("container"))?;
                for (from, to) in [
                    ("stdin", "input"),
                    ("stdout", "output"),
                    ("stderr", "error"),
                    ("tty", "tty"),
                ] {
                    if query.flag(from) {
                        options.push((to, "1"));
                    }
                }
                options.extend(query.all("command").map(|c| ("command", c)));
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
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| failed(&e))?;
        tokio::spawn(async move {
            if let Err(e) = connection.with_upgrades().await {
                debug!("a connection to a node ended: {e}");
            }
        });
        let upgrades = http.headers.contains_key(UPGRADE);
        let body = if upgrades {
            Bytes::new()
        } else {
            http.body().await?
        };
        let mut request = Request::builder().method(http.method.clone()).uri(path);
        if let Some(headers) = request.headers_mut() {
            pass_on(&http.headers, headers, upgrades);
            if let Ok(host) = node.parse() {
                headers.insert(HOST, host);
            }
        }
        let request = request
            .body(Full::new(body))
            .map_err(|e| Error::bad_request(e.to_string()))?;
        let mut answer = sender.send_request(request).await.map_err(|e| failed(&e))?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            let (parts, body) = answer.into_parts();
            // The connection lives as long as what still comes over it.
            let body = body.map_err(Into::into).boxed_unsync();
            let mut response = http::Response::from_parts(parts, body);
            hop_by_hop(response.headers_mut());
            return Ok(Answer::Raw(response));
        }
        let (theirs, ours) = (
            hyper::upgrade::on(&mut answer),
            hyper::upgrade::on(&mut http.request),
        );
        tokio::spawn(async move {
            match tokio::try_join!(theirs, ours) {
                Ok((theirs, ours)) => {
                    let (mut theirs, mut ours) = (TokioIo::new(theirs), TokioIo::new(ours));
                    if let Err(e) = tokio::io::copy_bidirectional(&mut ours, &mut theirs).await {
                        debug!("a stream to a node ended: {e}");
                    }
                }
                Err(e) => debug!("an upgrade failed: {e}"),
            }
        });
        let mut response = http::Response::new(full(Bytes::new()));
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *response.headers_mut() = answer.headers().clone();
        Ok(Answer::Raw(response))
    }
}

/// What the kubelet needs of a client's headers; never its credentials.
fn pass_on(from: &HeaderMap, to: &mut HeaderMap, upgrades: bool) {
    for (name, value) in from {
        let text = name.as_str();
        let handshake = upgrades
            && (*name == UPGRADE
                || *name == CONNECTION
                || text.starts_with("sec-websocket-")
                || text == "x-stream-protocol-version");
        if handshake || matches!(text, "accept" | "content-type" | "accept-encoding" | "origin") {
            to.append(name.clone(), value.clone());
        }
    }
}

/// What speaks of one connection only does not pass to the next.
fn hop_by_hop(headers: &mut HeaderMap) {
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

fn with_query(path: String, options: &[(&str, &str)]) -> String {
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
    let encoded: Vec<String> = options
        .iter()
        .map(|(k, v)| format!("{k}={}", utf8_percent_encode(v, NON_ALPHANUMERIC)))
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
        mistakes.forbidden(
            &path(""),
            "at most one of `sinceTime` or `sinceSeconds` may be specified",
        );
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
