//! What a full node costs: `knarr agent` in its own process with 110 pods of two probes each, how exact its timers are,
//! and how soon a process receives TERM after its pod's deletion.
//!
//! Probes ask this program, on loopback, which notes when they come: a period is what lies between two of one probe.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::calibration::Basis;
use crate::process::{Knarr, LIMIT, Result, Setup, kube_client};
use crate::report::{Report, Target};
use crate::stats::percentile;

/// As many as a node takes.
const PODS: usize = 110;
/// Between two of one probe, seconds; Kubernetes' own.
const PERIOD_SECONDS: u64 = 10;
/// How long cost and timers are measured.
const WATCHED: Duration = Duration::from_secs(60);
/// Pods whose TERM is timed, one after the other, on the full node.
const TERMS: usize = 100;

/// When each probe came, by its path.
type ProbeTimes = Arc<Mutex<BTreeMap<String, Vec<Instant>>>>;

/// Answers every probe with 200, and notes it.
async fn listen(listener: TcpListener, probe_times: ProbeTimes) {
    while let Ok((stream, _)) = listener.accept().await {
        let (at, probe_times) = (Instant::now(), probe_times.clone());
        tokio::spawn(async move {
            // A broken connection is not counted, and shows as a period too long.
            let _ = respond(stream, at, &probe_times).await;
        });
    }
}

async fn respond(mut stream: TcpStream, at: Instant, probe_times: &ProbeTimes) -> Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut part = [0; 1024];
        let n = stream.read(&mut part).await?;
        if n == 0 {
            return Err("the request breaks off".into());
        }
        request.extend_from_slice(part.get(..n).unwrap_or_default());
    }
    let text = String::from_utf8_lossy(&request);
    let path = text.split_whitespace().nth(1).unwrap_or("").to_string();
    probe_times.lock().entry(path).or_default().push(at);
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
    Ok(stream.write_all(head).await?)
}

fn probed(name: &str, port: u16) -> Result<Pod> {
    let probe = |kind: &str| {
        json!({"periodSeconds": PERIOD_SECONDS,
            "httpGet": {"host": "127.0.0.1", "port": port, "path": format!("/{kind}/{name}")}})
    };
    Ok(serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { "bench": "node" } },
        "spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "c", "image": "localhost/knarr/busybox:1", "command": ["sleep", "100000"],
                "livenessProbe": probe("live"), "readinessProbe": probe("ready"),
            }],
        },
    }))?)
}

/// It makes a file when TERM reaches it.
fn reporting_pod(name: &str, directory: &str) -> Result<Pod> {
    let script = format!(
        "trap ': > /reported/{name}; exit 0' TERM; : > /reported/{name}-up; while :; do sleep 3600 & wait; done"
    );
    Ok(serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": {
            "automountServiceAccountToken": false,
            "volumes": [{"name": "reported", "hostPath": {"path": directory}}],
            "containers": [{
                "name": "c", "image": "localhost/knarr/busybox:1", "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "reported", "mountPath": "/reported"}],
            }],
        },
    }))?)
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let begin = Instant::now();
    while !holds().await? {
        if begin.elapsed() > LIMIT {
            return Err(format!("waited {} s in vain for {what}", LIMIT.as_secs()).into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// From the request to delete a pod until its process has received TERM, ms.
async fn term(pods: &Api<Pod>, name: &str, directory: &std::path::Path) -> Result<f64> {
    pods.create(
        &PostParams::default(),
        &reporting_pod(name, &directory.display().to_string())?,
    )
    .await?;
    let (up, term_file) = (directory.join(format!("{name}-up")), directory.join(name));
    until("a process", async || Ok(up.exists())).await?;
    let deleted = Timestamp::now();
    pods.delete(name, &DeleteParams::default()).await?;
    until("TERM", async || Ok(term_file.exists())).await?;
    let at = Timestamp::try_from(std::fs::metadata(&term_file)?.modified()?)?;
    // Files are stamped by a clock that is up to a tick behind.
    let took = at.duration_since(deleted).as_secs_f64().max(0.0);
    until("its end", async || Ok(pods.get_opt(name).await?.is_none())).await?;
    Ok(took * 1000.0)
}

pub async fn full(setup: &Setup) -> Result<Report> {
    let mut server = Knarr::start("server")?;
    let client = server.ready(Instant::now()).await?;
    let mut agent = Knarr::agent(&server, setup)?;
    let nodes: Api<Node> = Api::all(client);
    let pods: Api<Pod> = Api::namespaced(kube_client(&server.kubeconfig()).await?, "default");
    let begin = Instant::now();
    until("a node that is ready", async || {
        agent.check_running(begin)?;
        let listed = nodes.list(&ListParams::default()).await?;
        let conditions = listed.items.iter().flat_map(|n| n.status.iter());
        let mut conditions = conditions.flat_map(|s| s.conditions.iter().flatten());
        Ok(conditions.any(|c| c.type_ == "Ready" && c.status == "True"))
    })
    .await?;
    let directory = agent.directory().join("reported");
    std::fs::create_dir_all(&directory)?;
    let mut terms = Vec::new();
    for n in 0..TERMS {
        terms.push(term(&pods, &format!("reporting-{n}"), &directory).await?);
    }

    let probe_times = ProbeTimes::default();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let listening = tokio::spawn(listen(listener, probe_times.clone()));
    for n in 0..PODS {
        pods.create(&PostParams::default(), &probed(&format!("full-{n}"), port)?)
            .await?;
    }
    let selected = ListParams::default().labels("bench=node");
    until("110 pods that are ready", async || {
        let listed = pods.list(&selected).await?;
        let ready = |p: &&Pod| {
            let conditions = p.status.iter().flat_map(|s| s.conditions.iter().flatten());
            conditions
                .into_iter()
                .any(|c| c.type_ == "Ready" && c.status == "True")
        };
        Ok(listed.items.iter().filter(ready).count() == PODS)
    })
    .await?;
    probe_times.lock().clear();
    let (cpu, since) = (agent.cpu_seconds()?, Instant::now());
    tokio::time::sleep(WATCHED).await;
    let busy = (agent.cpu_seconds()? - cpu) / since.elapsed().as_secs_f64() * 100.0;
    let memory = agent.memory_mb()?;
    listening.abort();
    let probe_times = probe_times.lock().clone();
    let mut off: Vec<f64> = probe_times
        .values()
        .flat_map(|times| times.windows(2))
        .filter_map(|pair| Some(pair.last()?.duration_since(*pair.first()?).as_secs_f64()))
        .map(|between| (between - PERIOD_SECONDS as f64).abs() * 1000.0)
        .collect();
    if probe_times.len() < 2 * PODS || off.len() < 2 * PODS {
        return Err(format!("only {} probes of {} came", probe_times.len(), 2 * PODS).into());
    }

    let mut report = Report::new(
        "node",
        format!(
            "`knarr agent` alone, containerd not counted: {TERMS} pods deleted one after the other; then {PODS} pods with two \
             HTTP probes each every {PERIOD_SECONDS} s, over {} s",
            WATCHED.as_secs()
        ),
    );
    report.record(
        "DELETE to TERM in the process, p50",
        percentile(&mut terms, 50.0),
        "ms",
        Basis::Cpu,
    );
    report
        .record(
            "DELETE to TERM in the process, p99",
            percentile(&mut terms, 99.0),
            "ms",
            Basis::Cpu,
        )
        .target(Target::AtMost(100.0));
    report
        .record(
            "a probe's period is off by, p99",
            percentile(&mut off, 99.0),
            "ms",
            Basis::None,
        )
        .target(Target::AtMost(100.0));
    report.record(
        "a probe's period is off by, most",
        percentile(&mut off, 100.0),
        "ms",
        Basis::None,
    );
    report
        .record(format!("CPU with {PODS} pods, of a core"), busy, "%", Basis::Cpu)
        .target(Target::AtMost(5.0));
    report
        .record(format!("memory with {PODS} pods"), memory, "MB", Basis::None)
        .target(Target::AtMost(60.0))
        .kubernetes(85.0);
    drop(agent);
    Ok(report)
}
