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
use knarr_api::field::quoted;
use knarr_api::k8s_openapi;
use knarr_kubelet::pod::find_spec;
use knarr_kubelet::probe::{Answer, Kind};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::kubelet::env::expand_all;
use crate::runtime::Runtime;

/// The largest reported output.
const OUTPUT_MAX_BYTES: usize = 10 << 10;
/// A hook may run as long as its container; this only bounds a forgotten one.
const HOOK_LIMIT: Duration = Duration::from_secs(86_400);

/// The container to probe.
pub struct Target<'a> {
    pub runtime: &'a dyn Runtime,
    pub container: &'a core::Container,
    /// The runtime's id.
    pub id: &'a str,
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
    id: &str,
    kind: Kind,
    ips: &[String],
) -> Answer {
    let mut answer = Answer::Unknown(String::new());
    for _ in 0..ATTEMPTS {
        answer = attempt(runtime, pod, container, id, kind, ips).await;
        if !matches!(answer, Answer::Unknown(_)) {
            break;
        }
    }
    answer
}

async fn attempt(
    runtime: &dyn Runtime,
    pod: &core::Pod,
    container: &str,
    id: &str,
    kind: Kind,
    ips: &[String],
) -> Answer {
    let Some(spec) = pod.spec.as_ref().and_then(|s| find_spec(s, container)) else {
        return Answer::Unknown("the pod has no such container any more".into());
    };
    let probe = match kind {
        Kind::Startup => &spec.startup_probe,
        Kind::Liveness => &spec.liveness_probe,
        Kind::Readiness => &spec.readiness_probe,
    };
    let Some(probe) = probe else {
        return Answer::Success;
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
            Err(why) => return Answer::Unknown(why),
        };
        return http::probe(&url, get, limit).await;
    }
    if let Some(tcp) = &probe.tcp_socket {
        let host = tcp.host.clone().filter(|h| !h.is_empty());
        let Some(host) = host.or_else(|| ips.first().cloned()) else {
            return Answer::Unknown("the pod has no address".into());
        };
        return match port(&tcp.port, &spec) {
            Ok(port) => connect(&host, port, limit).await,
            Err(why) => Answer::Unknown(why),
        };
    }
    if let Some(grpc) = &probe.grpc {
        let Some(host) = ips.first() else {
            return Answer::Unknown("the pod has no address".into());
        };
        return grpc::check(host, grpc, limit).await;
    }
    Answer::Unknown("missing probe handler".into())
}

/// Runs a hook to its end. A successful one may still return a message: the address of a server that was called by
/// HTTPS and answered in plain HTTP. An error is a whole sentence, as kubelet shows it in the container's status.
pub async fn run_hook(
    pod: &core::Pod,
    target: &Target<'_>,
    handler: &core::LifecycleHandler,
) -> Result<Option<String>, String> {
    let failed = |what: String, why: &str| {
        let meta = &pod.metadata;
        let [name, namespace, uid] =
            [&meta.name, &meta.namespace, &meta.uid].map(|text| text.as_deref().unwrap_or_default());
        let container = quoted(&target.container.name);
        let pod = quoted(&format!("{name}_{namespace}({uid})"));
        format!("{what} for Container {container} in Pod {pod} failed - error: {why}")
    };
    if let Some(exec) = &handler.exec {
        let command = exec.command.as_deref().unwrap_or_default().join(" ");
        let (why, output) = match run_hook_command(target, exec).await {
            Ok(()) => return Ok(None),
            Err(failure) => failure,
        };
        let why = format!("{why}, message: {}", quoted(&output));
        return Err(failed(format!("Exec lifecycle hook ([{command}])"), &why));
    }
    if let Some(sleep) = &handler.sleep {
        let seconds = u64::try_from(sleep.seconds).unwrap_or(0);
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        return Ok(None);
    }
    if let Some(get) = &handler.http_get {
        let path = get.path.as_deref().unwrap_or_default();
        let result = call_hook(get, target).await;
        return result.map_err(|why| failed(format!("HTTP lifecycle hook ({path})"), &why));
    }
    Err("Cannot run handler: invalid handler".into())
}

/// An error and the command's output, of both streams.
async fn run_hook_command(target: &Target<'_>, exec: &core::ExecAction) -> Result<(), (String, String)> {
    let command = exec.command.as_deref().unwrap_or_default();
    let output = target.runtime.exec(target.id, command, None).await;
    let output = output.map_err(|error| (error.to_string(), String::new()))?;
    if output.exit_code == 0 {
        return Ok(());
    }
    let bounded = |mut bytes: Vec<u8>| {
        bytes.truncate(OUTPUT_MAX_BYTES);
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let why = format!(
        "command '{}' exited with {}: {}",
        command.join(" "),
        output.exit_code,
        bounded(output.stderr.clone())
    );
    Err((why, bounded([output.stdout, output.stderr].concat())))
}

/// A hook waits for the answer, not for a good one.
async fn call_hook(get: &core::HTTPGetAction, target: &Target<'_>) -> Result<Option<String>, String> {
    let mut url = http::Url::of(get, target)?;
    match http::get(&url, get, "lifecycle", HOOK_LIMIT).await {
        Ok(_) => Ok(None),
        Err(why) if why.ends_with(http::PLAIN_ANSWER) => {
            url.tls = false;
            let plain = http::get(&url, get, "lifecycle", HOOK_LIMIT).await;
            plain.map(|_| Some(authority(&url.host, url.port)))
        }
        Err(why) => Err(why),
    }
}

async fn run_exec(target: &Target<'_>, command: &[String], limit: Option<Duration>) -> Answer {
    match target.runtime.exec(target.id, command, limit).await {
        Ok(output) => {
            let mut text = output.stdout;
            text.extend(output.stderr);
            text.truncate(OUTPUT_MAX_BYTES);
            let text = String::from_utf8_lossy(&text).into_owned();
            if output.exit_code == 0 {
                Answer::Success
            } else {
                Answer::Failure(text)
            }
        }
        Err(error) if error.code == "DeadlineExceeded" => {
            let seconds = limit.map_or(0, |l| l.as_secs());
            let command = command.join(" ");
            Answer::Failure(format!(
                "command timed out: {command:?} timed out after {seconds}s"
            ))
        }
        Err(error) => Answer::Unknown(error.to_string()),
    }
}

async fn connect(host: &str, port: u16, limit: Duration) -> Answer {
    match timeout(limit, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => Answer::Success,
        Ok(Err(error)) => Answer::Failure(dial_error(host, port, &error)),
        Err(_) => Answer::Failure(format!("dial tcp {}: i/o timeout", authority(host, port))),
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
fn port(port: &IntOrString, container: &core::Container) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => i64::from(*number),
        IntOrString::String(name) => {
            let mut named = container.ports.iter().flatten();
            match named.find(|p| p.name.as_deref() == Some(name)) {
                Some(found) => i64::from(found.container_port),
                None => name
                    .parse()
                    .map_err(|_| format!("strconv.Atoi: parsing {}: invalid syntax", quoted(name)))?,
            }
        }
    };
    let valid = u16::try_from(number).ok().filter(|n| *n > 0);
    valid.ok_or_else(|| format!("invalid port number: {number}"))
}
