//! `./dev bench pods --trace`: the way of a pod's start and end, step by step, one pod at a time.
//!
//! The times are those of the spans that knarr exports (OTLP, to a collector in this process), of containerd's task events (`ctr
//! events`) and of this client. Nothing in knarr is measured by other means than in production; only the export costs something.

mod collector;
mod events;
mod print;
mod steps;

use std::time::Duration;

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use tokio::time::{Instant, sleep, timeout};

use crate::calibration::Calibration;
use crate::cluster::{pod, ready};
use crate::container_runtime::ContainerRuntime;
use crate::process::{Knarr, LIMIT, Result, Setup, kube_client};
use crate::progress::Progress;
use collector::Collector;
use events::TaskEvents;
use steps::{Marks, Nanos, Traced};

pub use print::{Document, table};

/// Pods by default: the 90th percentile is the 18th of them, so that two slow ones do not decide it.
pub const PODS: usize = 20;
/// Between a pod's start and its deletion, so that what the one leaves to do is not counted to the other.
const REST: Duration = Duration::from_millis(300);
/// How long a pod's last spans and events may take to arrive, after the pod is deleted.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(10);

/// Traces so many pods; one more before them is not counted.
pub async fn run(pods: usize, containers: ContainerRuntime, calibration: Calibration) -> Result<Document> {
    let collector = Collector::start().await?;
    let setup = Setup {
        containers,
        collector: Some(collector.address()),
    };
    let progress = Progress::start("starting a cluster");
    let mut cluster = Knarr::start_with("up", &setup)?;
    ready(&mut cluster, Instant::now()).await?;
    let client: Api<Pod> = Api::namespaced(kube_client(&cluster.kubeconfig()).await?, "default");
    let events = TaskEvents::start(&cluster.containerd());
    drop(progress);
    let _progress = Progress::start(format!("tracing {pods} pods"));
    let mut traced = Vec::new();
    for n in 0..=pods {
        let marks = one(&client, &format!("traced-{n}")).await?;
        let found = arrived(&collector, &events, &marks).await?;
        if n > 0 {
            traced.push(found);
        }
        collector.clear();
        events.clear();
    }
    Ok(Document::new(
        &traced,
        setup.containers,
        calibration,
        events.missing(),
    ))
}

/// The steps, once all spans of the pod have arrived.
async fn arrived(collector: &Collector, events: &TaskEvents, marks: &Marks) -> Result<Traced> {
    let begin = Instant::now();
    loop {
        match steps::trace(marks, &collector.spans(), &events.all()) {
            Ok(traced) => return Ok(traced),
            Err(missing) if begin.elapsed() > ARRIVAL_LIMIT => return Err(missing.into()),
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

fn now() -> Nanos {
    // The range of an i64 ends in the year 2262.
    i64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}

/// Creates a pod, waits until it is Running, deletes it and waits until it is deleted.
async fn one(pods: &Api<Pod>, name: &str) -> Result<Marks> {
    let from = pods.list_metadata(&ListParams::default().limit(1)).await?;
    let from = from.metadata.resource_version.unwrap_or_default();
    let watch = WatchParams::default()
        .fields(&format!("metadata.name={name}"))
        .timeout(280);
    let events = pods.watch(&watch, &from).await?;
    let mut events = std::pin::pin!(events);
    let created = now();
    let made = pods.create(&PostParams::default(), &pod(name)?).await?;
    let running = loop {
        match timeout(LIMIT, events.try_next()).await?? {
            Some(WatchEvent::Added(p) | WatchEvent::Modified(p)) => {
                let phase = p.status.as_ref().and_then(|s| s.phase.as_deref());
                if phase == Some("Running") {
                    break now();
                }
            }
            Some(WatchEvent::Error(e)) => return Err(e.message.clone().into()),
            Some(_) => {}
            None => return Err("the watch ended".into()),
        }
    };
    sleep(REST).await;
    let deleted = now();
    pods.delete(name, &DeleteParams::default()).await?;
    let gone = loop {
        match timeout(LIMIT, events.try_next()).await?? {
            Some(WatchEvent::Deleted(_)) => break now(),
            Some(WatchEvent::Error(e)) => return Err(e.message.clone().into()),
            Some(_) => {}
            None => return Err("the watch ended".into()),
        }
    };
    Ok(Marks {
        name: name.to_owned(),
        uid: made.metadata.uid.ok_or("the created pod has no UID")?,
        created,
        running,
        deleted,
        gone,
    })
}
