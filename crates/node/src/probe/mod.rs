//! Runs probes and lifecycle hooks: exec, httpGet, tcpSocket and grpc.
//!
//! What the results mean is decided in `knarr_kubelet::probe`; here each check runs once.

mod counts;
mod grpc;
mod http;

pub use counts::{Counts, ProbeSeries};

use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_api::k8s_openapi;
use knarr_apimachinery::field::quoted;
use knarr_apimachinery::ids::ContainerId;
use knarr_kubelet::pod::find_spec;
use knarr_kubelet::probe::{Kind, ProbeResult};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::kubelet::env::expand_all;
use crate::runtime::{Runtime, RuntimeError};

/// The largest reported output.
const OUTPUT_MAX_BYTES: usize = 10 << 10;
/// A hook may run as long as its container; this only bounds a forgotten one.
const HOOK_LIMIT: Duration = Duration::from_secs(86_400);

/// The container to probe.
pub struct Target<'a> {
    pub runtime: &'a dyn Runtime,
    pub container: &'a core::Container,
    /// The runtime's id.
    pub id: &'a ContainerId,
    /// The pod's addresses.
    pub ips: &'a [String],
}

/// A probe that cannot be run is retried, this often in all.
const ATTEMPTS: u32 = 3;

/// Runs one probe once.
pub async fn ask(
    runtime: &dyn Runtime,
    pod: &core::Pod,
    container: &str,
    id: &ContainerId,
    kind: Kind,
    ips: &[String],
) -> ProbeResult {
    let mut result = ProbeResult::Unknown(String::new());
    for _ in 0..ATTEMPTS {
        result = attempt(runtime, pod, container, id, kind, ips).await;
        if !matches!(result, ProbeResult::Unknown(_)) {
            break;
        }
    }
    result
}

async fn attempt(
    runtime: &dyn Runtime,
    pod: &core::Pod,
    container: &str,
    id: &ContainerId,
    kind: Kind,
    ips: &[String],
) -> ProbeResult {
    let Some(spec) = pod.spec.as_ref().and_then(|s| find_spec(s, container)) else {
        return ProbeResult::Unknown("the pod has no such container any more".into());
    };
    let probe = match kind {
        Kind::Startup => &spec.startup_probe,
        Kind::Liveness => &spec.liveness_probe,
        Kind::Readiness => &spec.readiness_probe,
    };
    let Some(probe) = probe else {
        return ProbeResult::Success;
    };
    let target = Target {
        runtime,
        container: &spec,
        id,
        ips,
    };
    let seconds = probe.timeout_seconds.unwrap_or(1).max(1);
    let limit = Duration::from_secs(u64::try_from(seconds).unwrap_or(1));
    if let Some(exec) = &probe.exec {
        // Only variables of the spec itself are expanded: a probe does not see the container's environment.
        let env: Vec<(String, String)> = spec
            .env
            .iter()
            .flatten()
            .map(|e| (e.name.clone(), e.value.clone().unwrap_or_default()))
            .collect();
        let command = expand_all(exec.command.as_ref(), &env);
        return run_exec(&target, &command, Some(limit)).await;
    }
    if let Some(get) = &probe.http_get {
        let url = match http::Url::of(get, &target) {
            Ok(url) => url,
            Err(error) => return ProbeResult::Unknown(error.to_string()),
        };
        return http::probe(&url, get, limit).await;
    }
    if let Some(tcp) = &probe.tcp_socket {
        let host = tcp.host.clone().filter(|h| !h.is_empty());
        let Some(host) = host.or_else(|| ips.first().cloned()) else {
            return ProbeResult::Unknown("the pod has no address".into());
        };
        return match port(&tcp.port, &spec) {
            Ok(port) => connect(&host, port, limit).await,
            Err(error) => ProbeResult::Unknown(error.to_string()),
        };
    }
    if let Some(grpc) = &probe.grpc {
        let Some(host) = ips.first() else {
            return ProbeResult::Unknown("the pod has no address".into());
        };
        return grpc::check(host, grpc, limit).await;
    }
    ProbeResult::Unknown("missing probe handler".into())
}

/// Where a probe or hook leads cannot be found out; with Go's messages.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error("the pod has no address")]
    NoAddress,
    #[error("strconv.Atoi: parsing {name}: invalid syntax")]
    PortName { name: String },
    #[error("invalid port number: {number}")]
    Port { number: i64 },
}

/// Why a hook failed: a whole sentence, as kubelet shows it in the container's status.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    #[error("{what} for Container {container} in Pod {pod} failed - error: {source}")]
    Failed {
        what: String,
        container: String,
        pod: String,
        source: Box<HookFailure>,
    },
    #[error("Cannot run handler: invalid handler")]
    InvalidHandler,
}

/// What failed in a hook.
#[derive(Debug, thiserror::Error)]
pub enum HookFailure {
    #[error("{0}, message: \"\"")]
    Exec(#[source] RuntimeError),
    #[error("command '{command}' exited with {exit_code}: {stderr}, message: {output}")]
    ExitCode {
        command: String,
        exit_code: i32,
        stderr: String,
        output: String,
    },
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Http(#[from] http::HttpError),
}

/// Runs a hook to its end. A successful one may still return a message: the address of a server that was called by
/// HTTPS and answered in plain HTTP.
pub async fn run_hook(
    pod: &core::Pod,
    target: &Target<'_>,
    handler: &core::LifecycleHandler,
) -> Result<Option<String>, HookError> {
    let failed = |what: String, why: HookFailure| {
        let meta = &pod.metadata;
        let [name, namespace, uid] =
            [&meta.name, &meta.namespace, &meta.uid].map(|text| text.as_deref().unwrap_or_default());
        let container = quoted(&target.container.name);
        let pod = quoted(&format!("{name}_{namespace}({uid})"));
        HookError::Failed {
            what,
            container,
            pod,
            source: Box::new(why),
        }
    };
    if let Some(exec) = &handler.exec {
        let command = exec.command.as_deref().unwrap_or_default().join(" ");
        let ran = run_hook_command(target, exec).await;
        let failed = |why| failed(format!("Exec lifecycle hook ([{command}])"), why);
        return ran.map(|()| None).map_err(failed);
    }
    if let Some(sleep) = &handler.sleep {
        let seconds = u64::try_from(sleep.seconds).unwrap_or(0);
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        return Ok(None);
    }
    if let Some(get) = &handler.http_get {
        let path = get.path.as_deref().unwrap_or_default();
        let result = call_hook(get, target).await;
        return result.map_err(|why| failed(format!("HTTP lifecycle hook ({path})"), why));
    }
    Err(HookError::InvalidHandler)
}

async fn run_hook_command(target: &Target<'_>, exec: &core::ExecAction) -> Result<(), HookFailure> {
    let command = exec.command.as_deref().unwrap_or_default();
    let output = target.runtime.exec(target.id, command, None).await;
    let output = output.map_err(HookFailure::Exec)?;
    if output.exit_code == 0 {
        return Ok(());
    }
    let bounded = |mut bytes: Vec<u8>| {
        bytes.truncate(OUTPUT_MAX_BYTES);
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Err(HookFailure::ExitCode {
        command: command.join(" "),
        exit_code: output.exit_code,
        stderr: bounded(output.stderr.clone()),
        output: quoted(&bounded([output.stdout, output.stderr].concat())),
    })
}

/// A hook waits for the answer, not for a good one.
async fn call_hook(get: &core::HTTPGetAction, target: &Target<'_>) -> Result<Option<String>, HookFailure> {
    let mut url = http::Url::of(get, target)?;
    match http::get(&url, get, "lifecycle", HOOK_LIMIT).await {
        Ok(_) => Ok(None),
        Err(error) if error.is_plain_answer() => {
            url.tls = false;
            http::get(&url, get, "lifecycle", HOOK_LIMIT).await?;
            Ok(Some(authority(&url.host, url.port)))
        }
        Err(error) => Err(error.into()),
    }
}

async fn run_exec(target: &Target<'_>, command: &[String], limit: Option<Duration>) -> ProbeResult {
    match target.runtime.exec(target.id, command, limit).await {
        Ok(output) => {
            let mut text = output.stdout;
            text.extend(output.stderr);
            text.truncate(OUTPUT_MAX_BYTES);
            let text = String::from_utf8_lossy(&text).into_owned();
            if output.exit_code == 0 {
                ProbeResult::Success
            } else {
                ProbeResult::Failure(text)
            }
        }
        Err(error) if error.code == "DeadlineExceeded" => {
            let seconds = limit.map_or(0, |l| l.as_secs());
            let command = command.join(" ");
            ProbeResult::Failure(format!(
                "command timed out: {command:?} timed out after {seconds}s"
            ))
        }
        Err(error) => ProbeResult::Unknown(error.to_string()),
    }
}

async fn connect(host: &str, port: u16, limit: Duration) -> ProbeResult {
    match timeout(limit, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => ProbeResult::Success,
        Ok(Err(error)) => ProbeResult::Failure(dial_error(host, port, &error)),
        Err(_) => ProbeResult::Failure(format!("dial tcp {}: i/o timeout", authority(host, port))),
    }
}

fn authority(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// With Go's messages.
fn dial_error(host: &str, port: u16, error: &std::io::Error) -> String {
    let what = match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".to_string(),
        std::io::ErrorKind::HostUnreachable => "no route to host".to_string(),
        std::io::ErrorKind::NetworkUnreachable => "network is unreachable".to_string(),
        _ => error.to_string().to_lowercase(),
    };
    format!("dial tcp {}: connect: {what}", authority(host, port))
}

/// A number, or the name of one of the container's ports.
fn port(port: &IntOrString, container: &core::Container) -> Result<u16, TargetError> {
    let number = match port {
        IntOrString::Int(number) => i64::from(*number),
        IntOrString::String(name) => {
            let mut named = container.ports.iter().flatten();
            match named.find(|p| p.name.as_deref() == Some(name)) {
                Some(found) => i64::from(found.container_port),
                None => name
                    .parse()
                    .map_err(|_| TargetError::PortName { name: quoted(name) })?,
            }
        }
    };
    let valid = u16::try_from(number).ok().filter(|n| *n > 0);
    valid.ok_or(TargetError::Port { number })
}
