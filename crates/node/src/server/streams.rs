//! Exec, attach and port-forward: the request is checked, the runtime is dialed, then the connection becomes streams, which last until they
//! end.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;
use tokio::sync::OwnedSemaphorePermit;

use super::request::{PodPath, Query};
use super::response::{Body, HttpError, body, chain};
use super::{Server, pod_container};
use crate::runtime::{ExecOptions, RuntimeError};
use crate::streams::options::Options;
use crate::streams::upgrade::{self, negotiate};
use crate::streams::{port_forward, remote_command, runtime_client};

impl Server {
    pub(super) async fn exec(
        &self,
        path: &PodPath,
        query: &Query,
        request: &mut Request<Incoming>,
        permit: OwnedSemaphorePermit,
    ) -> Result<Response<Body>, HttpError> {
        let options = streams_of(query)?;
        self.pod(path)?;
        let found = self
            .containers
            .find(&path.namespace, &path.pod, &path.container)
            .await;
        let found = found.map_err(|error| match error.is_not_found() {
            true => HttpError::internal(format!("container not found ({:?})", path.container)),
            false => error.into(),
        })?;
        let exec = ExecOptions {
            command: query.values("command").map(str::to_string).collect(),
            tty: options.tty,
            stdin: options.stdin,
            stdout: options.stdout,
            stderr: options.stderr,
        };
        let id = found.container.id;
        let url = async { self.containers.exec_url(&id, &exec).await };
        self.remote_command(
            request,
            url,
            options,
            options,
            "executing command in container",
            permit,
        )
        .await
    }

    pub(super) async fn attach(
        &self,
        path: &PodPath,
        query: &Query,
        request: &mut Request<Incoming>,
        permit: OwnedSemaphorePermit,
    ) -> Result<Response<Body>, HttpError> {
        let options = streams_of(query)?;
        let pod = self.pod(path)?;
        let missing = || {
            let pod = format!("{}_{}", path.pod, path.namespace);
            HttpError::internal(format!("container {} not found in pod {pod}", path.container))
        };
        let found = self
            .containers
            .find(&path.namespace, &path.pod, &path.container)
            .await;
        let found = found.map_err(|error| {
            if error.is_not_found() {
                missing()
            } else {
                error.into()
            }
        })?;
        // Whether there is a terminal was settled when the container was made.
        let tty = pod_container::has_tty(&pod, &path.container);
        let runtime = Options {
            tty,
            stderr: options.stderr && !tty,
            ..options
        };
        let attach = ExecOptions {
            command: Vec::new(),
            tty,
            stdin: runtime.stdin,
            stdout: runtime.stdout,
            stderr: runtime.stderr,
        };
        let id = found.container.id;
        let url = async { self.containers.attach_url(&id, &attach).await };
        self.remote_command(request, url, options, runtime, "attaching to container", permit)
            .await
    }

    /// Dials the runtime first, so that an error there is still an HTTP response; then upgrades.
    async fn remote_command(
        &self,
        request: &mut Request<Incoming>,
        url: impl Future<Output = Result<String, RuntimeError>>,
        options: Options,
        runtime_options: Options,
        action: &'static str,
        permit: OwnedSemaphorePermit,
    ) -> Result<Response<Body>, HttpError> {
        let agreed = negotiate(
            request.headers(),
            remote_command::SPDY_PROTOCOLS,
            remote_command::WEBSOCKET_PROTOCOLS,
        );
        let agreed = match agreed {
            Ok(agreed) => agreed,
            Err(error) => return Ok(not_upgraded(&error)),
        };
        let url = url.await?;
        let runtime = runtime_client::connect(&url)
            .await
            .map_err(|error| HttpError::internal(chain(&error)))?;
        let response = body(agreed.response(), Bytes::new());
        let upgrading = hyper::upgrade::on(request);
        self.streams.spawn(async move {
            let _permit = permit;
            let Some(io) = upgraded(upgrading).await else {
                return;
            };
            match remote_command::ClientStreams::accept(io, &agreed, options).await {
                Ok(client) => remote_command::run(client, runtime, runtime_options, action).await,
                Err(error) => {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        action,
                        "no streams from the client"
                    );
                }
            }
        });
        Ok(response)
    }

    pub(super) async fn port_forward(
        &self,
        path: &PodPath,
        query: &Query,
        request: &mut Request<Incoming>,
        permit: OwnedSemaphorePermit,
    ) -> Result<Response<Body>, HttpError> {
        let agreed = negotiate(
            request.headers(),
            port_forward::SPDY_PROTOCOLS,
            port_forward::WEBSOCKET_PROTOCOLS,
        );
        let agreed = match agreed {
            Ok(agreed) => agreed,
            Err(error) => return Ok(not_upgraded(&error)),
        };
        let ports = match port_forward::wants_ports_in_query(&agreed) {
            true => port_forward::ports_of_query(query.values("port").chain(query.values("ports")))
                .map_err(HttpError::bad_request)?,
            false => Vec::new(),
        };
        let pod = self.pod(path)?;
        let netns = self
            .containers
            .netns(&path.namespace, &path.pod)
            .await
            .map_err(|error| match error.is_not_found() {
                true => {
                    let pod = format!("{}_{}", path.pod, path.namespace);
                    HttpError::internal(format!("pod not found ({pod:?})"))
                }
                false => error.into(),
            })?;
        let target = port_forward::Target {
            pod: format!("{}_{}", path.pod, path.namespace),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            netns,
        };
        let response = body(agreed.response(), Bytes::new());
        let upgrading = hyper::upgrade::on(request);
        self.streams.spawn(async move {
            let _permit = permit;
            let Some(io) = upgraded(upgrading).await else {
                return;
            };
            port_forward::run(io, &agreed, ports, target).await;
        });
        Ok(response)
    }

    /// The pod that is meant: of this name and, if one is given, this uid.
    fn pod(&self, path: &PodPath) -> Result<Arc<Pod>, HttpError> {
        let pod = self.pods.get(&path.namespace, &path.pod);
        let pod = pod.ok_or_else(|| HttpError::not_found("pod does not exist"))?;
        match &path.uid {
            Some(uid) if pod.metadata.uid.as_ref() != Some(uid) => Err(HttpError::not_found("pod not found")),
            _ => Ok(pod),
        }
    }
}

fn streams_of(query: &Query) -> Result<Options, HttpError> {
    Options::from_query(query.pairs())
        .ok_or_else(|| HttpError::bad_request("you must specify at least 1 of stdin, stdout, stderr"))
}

fn not_upgraded(error: &upgrade::UpgradeError) -> Response<Body> {
    body(
        error.response().header(CONTENT_TYPE, "text/plain; charset=utf-8"),
        error.to_string(),
    )
}

async fn upgraded(upgrading: OnUpgrade) -> Option<TokioIo<hyper::upgrade::Upgraded>> {
    match upgrading.await {
        Ok(io) => Some(TokioIo::new(io)),
        Err(error) => {
            tracing::debug!(%error, "the client disconnected before the protocol was switched");
            None
        }
    }
}
