//! The one-node benchmarks: a `knarr up` with real containerd, driven through its HTTPS API by kube-rs.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;
use tokio::time::Instant;

use crate::calibration::Basis;
use crate::process::{Knarr, LIMIT, Result, Setup, kube_client};
use crate::report::{Report, Target};
use crate::stats::percentile;

/// Single pods created and deleted one after the other.
const SINGLES: usize = 20;
/// Pods created at once.
const MANY: usize = 30;
/// How long idle CPU is measured.
const IDLE: Duration = Duration::from_secs(20);

/// Until the API is ready; then until the node is. In ms.
pub async fn ready(cluster: &mut Knarr, since: Instant) -> Result<(f64, f64)> {
    let begun = Timestamp::now();
    let client = cluster.ready(since).await?;
    let api_ready = ms(since);
    let nodes: Api<Node> = Api::all(client);
    loop {
        let listed = nodes.list(&ListParams::default()).await?;
        if listed.items.iter().any(|n| is_ready_since(n, begun)) {
            return Ok((api_ready, ms(since)));
        }
        cluster.check_running(since)?;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Ready by a heartbeat of this run: after a restart the node's status of the earlier run is still there. Times in
/// status have whole seconds.
fn is_ready_since(node: &Node, begun: Timestamp) -> bool {
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.into_iter().any(|c| {
        let has_reported = c
            .last_heartbeat_time
            .as_ref()
            .is_some_and(|t| t.0.as_second() >= begun.as_second());
        c.type_ == "Ready" && c.status == "True" && has_reported
    })
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}

/// Serves until TERM, and ends at once on it.
pub fn pod(name: &str) -> Result<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { "bench": "pods" } },
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "c", "image": "localhost/knarr/busybox:1",
                "command": ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait; done"],
            }],
        },
    }))?)
}

/// Creates pods at once; ms until each is Running, then deletes them; ms until each is deleted.
async fn cycle(pods: &Api<Pod>, names: &[String]) -> Result<(Vec<f64>, Vec<f64>)> {
    let from = pods
        .list_metadata(&ListParams::default().limit(1))
        .await?
        .metadata
        .resource_version
        .unwrap_or_default();
    let watch = WatchParams::default().labels("bench=pods").timeout(280);
    let events = pods.watch(&watch, &from).await?;
    let mut events = std::pin::pin!(events);
    let begin = Instant::now();
    let created = names.iter().map(|n| async move {
        Ok::<_, Box<dyn std::error::Error>>(pods.create(&PostParams::default(), &pod(n)?).await?)
    });
    futures::future::try_join_all(created).await?;
    let mut running = BTreeMap::new();
    while running.len() < names.len() {
        match tokio::time::timeout(LIMIT, events.try_next()).await?? {
            Some(WatchEvent::Added(p) | WatchEvent::Modified(p)) => {
                let all_run = p
                    .status
                    .as_ref()
                    .is_some_and(|s| s.phase.as_deref() == Some("Running"));
                if all_run && let Some(name) = p.metadata.name {
                    running.entry(name).or_insert_with(|| ms(begin));
                }
            }
            Some(WatchEvent::Error(e)) => return Err(e.message.clone().into()),
            Some(_) => {}
            None => return Err("the watch ended".into()),
        }
    }
    let begin = Instant::now();
    futures::future::try_join_all(
        names
            .iter()
            .map(|n| async move { pods.delete(n, &DeleteParams::default()).await }),
    )
    .await?;
    let mut deleted = BTreeMap::new();
    while deleted.len() < names.len() {
        match tokio::time::timeout(LIMIT, events.try_next()).await?? {
            Some(WatchEvent::Deleted(p)) => {
                deleted.insert(p.metadata.name.unwrap_or_default(), ms(begin));
            }
            Some(WatchEvent::Error(e)) => return Err(e.message.clone().into()),
            Some(_) => {}
            None => return Err("the watch ended".into()),
        }
    }
    Ok((running.into_values().collect(), deleted.into_values().collect()))
}

/// Process start to API and node ready.
pub async fn start(setup: &Setup) -> Result<Vec<Report>> {
    let mut report = Report::new(
        "start",
        "process start to /readyz ok and to node Ready, embedded store; first start makes the CA, later ones (p50 of 5, after kill -9) find everything in place",
    );
    let begin = Instant::now();
    let mut cluster = Knarr::start_with("up", setup)?;
    let (api, node) = ready(&mut cluster, begin).await?;
    report
        .record("first start to API ready", api, "ms", Basis::Cpu)
        .target(Target::AtMost(300.0))
        .kubernetes(2400.0);
    report
        .record("first start to node Ready", node, "ms", Basis::Cpu)
        .target(Target::AtMost(1500.0));
    let (mut apis, mut nodes) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        // Heartbeats have whole seconds: the next run's must differ from this one's.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        let begin = Instant::now();
        cluster.restart()?;
        let (api, node) = ready(&mut cluster, begin).await?;
        apis.push(api);
        nodes.push(node);
    }
    report
        .record(
            "later start to API ready, p50",
            percentile(&mut apis, 50.0),
            "ms",
            Basis::Cpu,
        )
        .target(Target::AtMost(300.0));
    report
        .record(
            "later start to node Ready, p50",
            percentile(&mut nodes, 50.0),
            "ms",
            Basis::Cpu,
        )
        .target(Target::AtMost(1500.0));
    Ok(vec![report])
}

/// Pods on one node: singly, thirty at once, and what knarr itself costs.
pub async fn pods(setup: &Setup) -> Result<Vec<Report>> {
    let mut cluster = Knarr::start_with("up", setup)?;
    cluster.ready(Instant::now()).await?;
    let pods: Api<Pod> = Api::namespaced(kube_client(&cluster.kubeconfig()).await?, "default");

    let mut cost = Report::new(
        "cost",
        format!(
            "resident memory and CPU of the knarr process, containerd not counted; idle over {} s",
            IDLE.as_secs()
        ),
    );
    let before = (cluster.cpu_seconds()?, Instant::now());
    tokio::time::sleep(IDLE).await;
    let idle = (cluster.cpu_seconds()? - before.0) / before.1.elapsed().as_secs_f64() * 100.0;
    cost.record("idle CPU of a core", idle, "%", Basis::Cpu)
        .target(Target::AtMost(1.0));
    cost.record("memory idle", cluster.memory_mb()?, "MB", Basis::None)
        .target(Target::AtMost(60.0))
        .kubernetes(576.0);

    let mut single = Report::new(
        "pod",
        format!(
            "{SINGLES} pods one after the other, image present, process obeys TERM; seen through a watch over HTTPS"
        ),
    );
    let (mut ups, mut downs) = (Vec::new(), Vec::new());
    for i in 0..SINGLES {
        let (up, down) = cycle(&pods, &[format!("single-{i}")]).await?;
        ups.extend(up);
        downs.extend(down);
    }
    single
        .record(
            "create to Running, p50",
            percentile(&mut ups, 50.0),
            "ms",
            Basis::RuncRun,
        )
        .target(Target::AtMost(200.0))
        .kubernetes(220.0);
    single.record(
        "create to Running, p99",
        percentile(&mut ups, 99.0),
        "ms",
        Basis::RuncRun,
    );
    single
        .record(
            "delete to deleted, p50",
            percentile(&mut downs, 50.0),
            "ms",
            Basis::RuncRun,
        )
        .target(Target::AtMost(200.0))
        .kubernetes(780.0);
    single.record(
        "delete to deleted, p99",
        percentile(&mut downs, 99.0),
        "ms",
        Basis::RuncRun,
    );

    let mut many = Report::new(
        "pods",
        format!("{MANY} pods at once on one node, image present, processes obey TERM"),
    );
    let names: Vec<String> = (0..MANY).map(|i| format!("many-{i}")).collect();
    let (mut up, mut down) = cycle(&pods, &names).await?;
    many.record("all Running", percentile(&mut up, 100.0), "ms", Basis::RuncRun)
        .target(Target::AtMost(3500.0))
        .kubernetes(4300.0);
    many.record("all deleted", percentile(&mut down, 100.0), "ms", Basis::RuncRun)
        .target(Target::AtMost(2000.0))
        .kubernetes(3700.0);

    let kept: Vec<String> = (0..MANY).map(|i| format!("kept-{i}")).collect();
    keep(&pods, &kept).await?;
    cost.record(
        format!("memory with {MANY} pods"),
        cluster.memory_mb()?,
        "MB",
        Basis::None,
    )
    .target(Target::AtMost(80.0));
    Ok(vec![single, many, cost])
}

/// Creates pods and waits until all run.
async fn keep(pods: &Api<Pod>, names: &[String]) -> Result<()> {
    for name in names {
        pods.create(&PostParams::default(), &pod(name)?).await?;
    }
    let begin = Instant::now();
    let selected = ListParams::default()
        .labels("bench=pods")
        .fields("status.phase=Running");
    while pods.list(&selected).await?.items.len() < names.len() {
        if begin.elapsed() > LIMIT {
            return Err("the pods do not run".into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}
