//! The API server under load, over HTTPS, with the embedded store and fsync on. Generator and server share the host.

mod in_process;
mod load;
mod watches;

use std::time::Duration;

use tokio::time::Instant;

use bytes::Bytes;
use http::Method;
use serde_json::json;

use self::load::{Connection, Server, Until, run};
use crate::calibration::Basis;
use crate::process::{Knarr, LIMIT, Result};
use crate::report::{Report, Target};

/// Connections of the loads with "64" in their name.
const MANY: usize = 64;
/// How long a load lasts that is not counted.
const SPAN: Duration = Duration::from_secs(3);
/// Numbers of pods at which growth is measured.
const GROWTH: [usize; 4] = [1_000, 10_000, 100_000, 150_000];
/// Objects of the list that ten clients read at once come to this, MB.
const LARGE_LIST_MB: f64 = 100.0;

/// All of it, or the part of this name.
pub async fn all(only: &str) -> Result<Vec<Report>> {
    let selected = |part: &str| part.contains(only);
    let mut reports = Vec::new();
    if selected("small") {
        reports.push(small().await?);
    }
    if selected("pods") {
        reports.extend(pods().await?);
    }
    if selected("watches") {
        reports.push(watches::report().await?);
    }
    if selected("leases") {
        reports.push(in_process::leases().await?);
    }
    Ok(reports)
}

/// A server that has the default service account, and where it is.
async fn start() -> Result<(Knarr, Server)> {
    let begin = Instant::now();
    let mut knarr = Knarr::start("server")?;
    let client = knarr.ready(tokio::time::Instant::now()).await?;
    let accounts: kube::Api<k8s_openapi::api::core::v1::ServiceAccount> =
        kube::Api::namespaced(client, "default");
    while accounts.get_opt("default").await?.is_none() {
        if begin.elapsed() > LIMIT {
            return Err("there is no default service account".into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let server = Server::of(&knarr.kubeconfig())?;
    Ok((knarr, server))
}

const PODS: &str = "/api/v1/namespaces/default/pods";

/// Where a pod's text names the pod.
const NAME: &str = "pod-000000";

/// The pod of this number. It is encoded once and only renamed, because the client shares the server's cores.
fn pod(n: usize) -> Bytes {
    static PODS: std::sync::LazyLock<Vec<String>> =
        std::sync::LazyLock::new(|| (0..APPS).map(pod_of_app).collect());
    PODS[n % APPS].replacen(NAME, &format!("pod-{n:06}"), 1).into()
}

/// How many apps the pods are of.
const APPS: usize = 100;

/// A typical user's pod: about 5 KB as it is stored. No scheduler handles it.
fn pod_of_app(n: usize) -> String {
    let env: Vec<_> = (0..12)
        .map(|i| json!({"name": format!("SETTING_{i}"), "value": format!("the value of setting number {i}")}))
        .collect();
    let probe = json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": NAME,
            "labels": {"app": format!("app-{n}"), "tier": "backend", "version": "v1.2.3"},
            "annotations": {"example.com/owner": "a team that runs many of these", "example.com/commit": "0123456789abcdef"},
        },
        "spec": {
            "schedulerName": "none",
            "containers": [{
                "name": "main", "image": "registry.example.com/team/service:1.2.3",
                "args": ["--listen=:8080", "--log-level=info", "--region=north"],
                "env": env, "ports": [{"containerPort": 8080, "name": "http"}],
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
                "readinessProbe": probe, "livenessProbe": probe,
            }],
        },
    });
    pod.to_string()
}

async fn create_pod(connection: &mut Connection, n: usize) -> Result<()> {
    connection.send(Method::POST, PODS, pod(n)).await?;
    Ok(())
}

/// Small objects: one read again and again, and leases renewed as kubelets do.
async fn small() -> Result<Report> {
    let mut report = Report::new(
        "api, small objects",
        format!(
            "HTTPS, {MANY} connections for {} s each: GET of one ConfigMap; PUT of a Lease of its own with its resourceVersion",
            SPAN.as_secs()
        ),
    );
    let (_knarr, server) = start().await?;
    let mut connections = server.connections(MANY).await?;
    let config_map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "small"}, "data": {"key": "value"}});
    let collection = "/api/v1/namespaces/default/configmaps";
    let body = config_map.to_string().into();
    connections[0].send(Method::POST, collection, body).await?;
    let path = format!("{collection}/small");
    let (got, connections) = run(connections, Until::Elapsed(SPAN), async |c, _| {
        c.count(&path).await.map(drop)
    })
    .await?;
    report
        .record("GET", got.per_second, "/s", Basis::TwoCpus)
        .target(Target::AtLeast(30_000.0))
        .kubernetes(3_121.0);
    report
        .record("GET, p99", got.p99_ms, "ms", Basis::TwoCpus)
        .kubernetes(67.0);

    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let mut loads = Vec::new();
    for (n, mut connection) in connections.into_iter().enumerate() {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": format!("node-{n}")},
            "spec": {"holderIdentity": format!("node-{n}"), "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"},
        });
        let made = connection
            .send(Method::POST, leases, lease.to_string().into())
            .await?;
        let path = format!("{leases}/node-{n}");
        loads.push(async move {
            let current = std::cell::RefCell::new(made);
            run(vec![connection], Until::Elapsed(SPAN), async |c, _| {
                let body = current.borrow().clone();
                let next = c.send(Method::PUT, &path, body).await?;
                current.replace(next);
                Ok(())
            })
            .await
        });
    }
    let done = futures::future::try_join_all(loads).await?;
    report
        .record(
            "Lease renewals",
            done.iter().map(|(l, _)| l.per_second).sum(),
            "/s",
            Basis::TwoCpus,
        )
        .target(Target::AtLeast(10_000.0));
    Ok(report)
}

/// Pods: created, listed, and what they weigh, while there are more and more.
async fn pods() -> Result<Vec<Report>> {
    let mut creates = Report::new(
        "api, pods",
        format!(
            "HTTPS, embedded store with fsync: pods of about 5 KB created by {MANY} connections into an empty cluster; by one at last"
        ),
    );
    let (knarr, server) = start().await?;
    let connections = server.connections(MANY).await?;
    let mut growth = Report::new(
        "api, growth",
        "the same cluster as it fills; complete lists over one connection",
    );
    let mut connections = connections;
    let mut there = 0;
    for level in GROWTH {
        let first = there;
        let before = knarr.cpu_seconds()?;
        let (load, back) = run(connections, Until::Requests(level - first), async |c, n| {
            create_pod(c, first + n).await
        })
        .await?;
        connections = back;
        there = level;
        let micros = (knarr.cpu_seconds()? - before) * 1e6 / (level - first) as f64;
        growth.record(
            format!("creates up to {level} pods"),
            load.per_second,
            "/s",
            Basis::TwoCpus,
        );
        growth.record(
            format!("the server's CPU time for one of up to {level} pods"),
            micros,
            "µs",
            Basis::Cpu,
        );
        if level == 10_000 {
            creates
                .record(
                    format!("creates, {MANY} connections"),
                    load.per_second,
                    "/s",
                    Basis::TwoCpus,
                )
                .target(Target::AtLeast(9_000.0))
                .kubernetes(893.0);
            creates
                .record("creates, p99", load.p99_ms, "ms", Basis::Fdatasync)
                .target(Target::AtMost(20.0))
                .kubernetes(218.0);
        }
        let memory = knarr.memory_mb()?;
        let record = growth.record(format!("memory with {level} pods"), memory, "MB", Basis::None);
        match level {
            10_000 => record.target(Target::AtMost(150.0)).kubernetes(579.0),
            150_000 => record.target(Target::AtMost(2_000.0)),
            _ => record,
        };
        let one = vec![connections.remove(0)];
        let bytes = std::cell::Cell::new(0);
        let begin = Instant::now();
        let (load, back) = run(one, Until::Elapsed(SPAN), async |c, _| {
            bytes.set(bytes.get() + c.count(PODS).await?);
            Ok(())
        })
        .await?;
        connections.extend(back);
        let rate = bytes.get() as f64 / 1e6 / begin.elapsed().as_secs_f64();
        let record = growth.record(format!("list of {level} pods"), rate, "MB/s", Basis::MemoryCopy);
        if level == 10_000 {
            record.target(Target::AtLeast(600.0)).kubernetes(48.0 / 0.78);
        }
        growth.record(
            format!("one list of {level} pods, p50"),
            load.p50_ms,
            "ms",
            Basis::MemoryCopy,
        );
        if level == 100_000 {
            creates
                .measurements
                .append(&mut parallel_lists(&knarr, &server).await?.measurements);
        }
    }
    let (load, _) = run(vec![connections.remove(0)], Until::Elapsed(SPAN), async |c, n| {
        create_pod(c, there + n).await
    })
    .await?;
    creates
        .record("creates, one connection", load.per_second, "/s", Basis::Fdatasync)
        .target(Target::AtLeast(1_000.0));
    Ok(vec![creates, growth])
}

/// Ten clients read a hundred megabytes each at once.
async fn parallel_lists(knarr: &Knarr, server: &Server) -> Result<Report> {
    let mut report = Report::new("lists", "");
    let mut connections = server.connections(10).await?;
    let one = connections[0].count(&format!("{PODS}?limit=1000")).await?;
    let limit = (LARGE_LIST_MB * 1e6 / (one as f64 / 1000.0)) as usize;
    let path = format!("{PODS}?limit={limit}");
    let before = knarr.memory_mb()?;
    knarr.forget_peak()?;
    let begin = Instant::now();
    let lists = connections.iter_mut().map(|c| c.count(&path));
    let bytes: usize = futures::future::try_join_all(lists).await?.iter().sum();
    let took = begin.elapsed().as_secs_f64();
    let what = format!("ten lists of {LARGE_LIST_MB} MB at once");
    report
        .record(
            format!("{what}: memory they add at most"),
            knarr.peak_memory_mb()? - before,
            "MB",
            Basis::None,
        )
        .target(Target::AtMost(300.0));
    report.record(what, bytes as f64 / 1e6 / took, "MB/s", Basis::MemoryCopy);
    Ok(report)
}
