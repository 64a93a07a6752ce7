//! The controllers, with scheduler and API server in the same process: many StatefulSets coming up on nodes without
//! hosts, the pods of a lost node, and the cost of ten thousand idle pods.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, PodCondition, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::kinds::pod::is_ready;
use knarr_api::registry::Registered;
use knarr_api::{Shared, k8s_openapi, registry};
use knarr_client::{Api, Caches, Store, SystemClock, TypedApi};
use knarr_control::node_lifecycle::Lifecycle;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::calibration::Basis;
use crate::process::{Result, cpu_seconds};
use crate::report::{Report, Target};
use crate::scheduler::cluster::{create, server};

const NODES: usize = 1_000;
const SETS: usize = 1_000;
const REPLICAS: usize = 3;
/// Of the idle cluster.
const PODS: usize = 10_000;
const IDLE: Duration = Duration::from_secs(30);
/// A node's, by default.
const LOST_PODS: usize = 110;
/// Kubelets' writes under way at one time.
const WRITERS: usize = 32;
const LIMIT: Duration = Duration::from_secs(600);

/// A server with all control loops, and kubelets that report every pod as running.
struct Cluster {
    api: Arc<dyn Api>,
    caches: Arc<Caches>,
    _control: DropGuard,
    _kubelets: JoinSet<()>,
    _dir: tempfile::TempDir,
}

impl Cluster {
    async fn start(lost_after: SignedDuration) -> Result<Self> {
        let (server, dir) = server().await?;
        let api = server.api_as("system:kube-controller-manager", ["system:masters"]);
        let account = json!({"metadata": {"name": "default", "namespace": "default"}});
        create::<ServiceAccount>(&api, vec![account]).await?;
        let mut config = knarr_control::Config::default();
        config.controllers.node_lifecycle = Lifecycle {
            grace: lost_after,
            ..Lifecycle::default()
        };
        let cancel = CancellationToken::new();
        tokio::spawn(knarr_control::run(
            server.identities(),
            config,
            Arc::new(SystemClock),
            cancel.clone(),
        ));
        let caches = Arc::new(Caches::new(api.clone()));
        let kubelets = kubelets(&api, &caches.store(&registry::POD));
        Ok(Cluster {
            api,
            caches,
            _control: cancel.drop_guard(),
            _kubelets: kubelets,
            _dir: dir,
        })
    }

    fn store<T: Registered>(&self) -> Arc<Store> {
        self.caches.store(T::kind_of())
    }

    /// Waits until so many objects satisfy the condition.
    async fn wait_for<T: Registered>(&self, count: usize, is: impl Fn(&T) -> bool) -> Result<()> {
        let store = self.store::<T>();
        let enough = |store: &Store| {
            let all = store
                .list("")
                .into_iter()
                .filter_map(|o| Shared::<T>::new(o).ok());
            all.filter(|o| is(o)).count() >= count
        };
        let waited = async {
            // Counting all of them at each change would be what is measured.
            while !enough(&store) {
                sleep(Duration::from_millis(100)).await;
            }
        };
        let waited = timeout(LIMIT, waited).await;
        waited.map_err(|_| format!("{count} {} were not ready in time", T::kind_of().plural()).into())
    }
}

fn kubelets(api: &Arc<dyn Api>, pods: &Arc<Store>) -> JoinSet<()> {
    let (bound, to_run) = mpsc::unbounded_channel::<(String, String)>();
    pods.add_event_handler(move |change| {
        let on_node =
            |o: &Arc<knarr_api::Object>| o.field("spec.nodeName").is_ok_and(|node| !node.is_empty());
        let was = change.before().is_some_and(on_node);
        if let Some(pod) = change.after().filter(|o| !was && on_node(o)) {
            // The kubelets go when the cluster does.
            let _ = bound.send((pod.namespace().into(), pod.name().into()));
        }
    });
    let to_run = Arc::new(tokio::sync::Mutex::new(to_run));
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let (api, to_run) = (api.clone(), to_run.clone());
        writers.spawn(async move {
            loop {
                let next = to_run.lock().await.recv().await;
                let Some((namespace, name)) = next else { return };
                while let Err(error) = runs(&*api, &namespace, &name).await {
                    if error.is_not_found() {
                        break;
                    }
                    sleep(Duration::from_millis(50)).await;
                }
            }
        });
    }
    writers
}

async fn runs(api: &dyn Api, namespace: &str, name: &str) -> knarr_apimachinery::Result<()> {
    let pod = api.get_as::<Pod>(namespace, name).await?;
    let mut pod = (*pod).clone();
    let status = pod.status.get_or_insert_default();
    status.phase = Some("Running".into());
    let now = Time(Timestamp::now());
    let conditions = ["Initialized", "ContainersReady", "Ready"].map(|kind| PodCondition {
        type_: kind.into(),
        status: "True".into(),
        last_transition_time: Some(now.clone()),
        ..PodCondition::default()
    });
    status.conditions.get_or_insert_default().extend(conditions);
    api.update_status_as(pod).await.map(drop)
}

fn node(name: &str) -> Value {
    let now = Timestamp::now().to_string();
    json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {
            "allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady",
                "lastHeartbeatTime": now, "lastTransitionTime": now}],
        },
    })
}

fn pod(name: &str, node: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}})
}

fn set(n: usize) -> Value {
    let name = format!("set-{n}");
    let labels = json!({"set": name});
    json!({"metadata": {"name": name, "namespace": "default"},
        "spec": {"serviceName": name, "replicas": REPLICAS, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i",
                "resources": {"requests": {"cpu": "10m"}}}]}}}})
}

pub async fn all() -> Result<Vec<Report>> {
    Ok(vec![many().await?, lost().await?])
}

async fn many() -> Result<Report> {
    let mut report = Report::new(
        "controllers",
        format!(
            "{SETS} StatefulSets of {REPLICAS} (in order) on {NODES} nodes without hosts, then {PODS} pods at rest for {} s; \
             API server, embedded store with fsync, scheduler, all controllers and the kubelets' writes in one process",
            IDLE.as_secs()
        ),
    );
    let hour = SignedDuration::from_hours(1);
    let cluster = Cluster::start(hour).await?;
    create::<Node>(
        &cluster.api,
        (0..NODES).map(|n| node(&format!("node-{n}"))).collect(),
    )
    .await?;
    let untainted = |node: &Node| {
        node.spec
            .as_ref()
            .and_then(|s| s.taints.as_ref())
            .is_none_or(Vec::is_empty)
    };
    cluster.wait_for::<Node>(NODES, untainted).await?;
    let (begin, cpu) = (Instant::now(), cpu_seconds(std::process::id())?);
    create::<StatefulSet>(&cluster.api, (0..SETS).map(set).collect()).await?;
    let replicas = i32::try_from(REPLICAS)?;
    let up = |set: &StatefulSet| set.status.as_ref().and_then(|s| s.ready_replicas) == Some(replicas);
    cluster.wait_for::<StatefulSet>(SETS, up).await?;
    let spent = cpu_seconds(std::process::id())? - cpu;
    report
        .record(
            "StatefulSets: until all are ready, time of all cores",
            spent,
            "s",
            Basis::Cpu,
        )
        .target(Target::AtMost(60.0));
    report.record(
        "the same by the clock",
        begin.elapsed().as_secs_f64(),
        "s",
        Basis::TwoCpus,
    );

    let rest = PODS.saturating_sub(SETS * REPLICAS);
    let pods = (0..rest).map(|n| pod(&format!("pod-{n}"), &format!("node-{}", n % NODES)));
    create::<Pod>(&cluster.api, pods.collect()).await?;
    cluster.wait_for::<Pod>(PODS, is_ready).await?;
    // What the last of them has set off.
    sleep(Duration::from_secs(10)).await;
    let cpu = cpu_seconds(std::process::id())?;
    sleep(IDLE).await;
    let idle = cpu_seconds(std::process::id())? - cpu;
    report
        .record(
            "idle, of one core",
            idle / IDLE.as_secs_f64() * 100.0,
            "%",
            Basis::Cpu,
        )
        .target(Target::AtMost(1.0));
    Ok(report)
}

/// When the node was seen to be lost, and when each of its pods was.
#[derive(Default)]
struct Marked {
    lost: Mutex<Option<Instant>>,
    pods: Mutex<Vec<Instant>>,
    more: Notify,
}

async fn lost() -> Result<Report> {
    const GRACE: SignedDuration = SignedDuration::from_secs(10);
    const OTHERS: usize = 4;
    let mut report = Report::new(
        "controllers, a lost node",
        format!("one node of {} with {LOST_PODS} pods falls silent", OTHERS + 1),
    );
    let cluster = Cluster::start(GRACE).await?;
    let name = |n: usize| format!("node-{n}");
    create::<Node>(&cluster.api, (0..=OTHERS).map(|n| node(&name(n))).collect()).await?;
    let lease = |n: usize| {
        json!({"metadata": {"name": name(n), "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": name(n), "leaseDurationSeconds": 40, "renewTime": MicroTime(Timestamp::now())}})
    };
    create::<Lease>(&cluster.api, (0..=OTHERS).map(lease).collect()).await?;
    let silent = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut renewing = JoinSet::new();
    let (api, quiet) = (cluster.api.clone(), silent.clone());
    renewing.spawn(async move {
        loop {
            let from = usize::from(quiet.load(std::sync::atomic::Ordering::Relaxed));
            for n in from..=OTHERS {
                if let Ok(lease) = api.get_as::<Lease>("kube-node-lease", &format!("node-{n}")).await {
                    let mut next = (*lease).clone();
                    next.spec.get_or_insert_default().renew_time = Some(MicroTime(Timestamp::now()));
                    // The next one comes in a second.
                    let _ = api.update_as(next).await;
                }
            }
            sleep(Duration::from_secs(1)).await;
        }
    });
    create::<Pod>(
        &cluster.api,
        (0..LOST_PODS)
            .map(|n| pod(&format!("pod-{n}"), &name(0)))
            .collect(),
    )
    .await?;
    cluster.wait_for::<Pod>(LOST_PODS, is_ready).await?;

    let marked = Arc::new(Marked::default());
    let seen = marked.clone();
    cluster.store::<Pod>().add_event_handler(move |change| {
        let ready = |o: Option<&Arc<knarr_api::Object>>| o.and_then(|o| o.get::<Pod>()).map(is_ready);
        if ready(change.before()) == Some(true) && ready(change.after()) == Some(false) {
            seen.pods.lock().push(Instant::now());
            seen.more.notify_one();
        }
    });
    let seen = marked.clone();
    cluster.store::<Node>().add_event_handler(move |change| {
        let node = change.after().and_then(|o| o.get::<Node>());
        let mut conditions = node
            .iter()
            .flat_map(|n| n.status.iter())
            .flat_map(|s| s.conditions.iter().flatten());
        if conditions.any(|c| c.type_ == "Ready" && c.status == "Unknown") {
            seen.lost.lock().get_or_insert_with(Instant::now);
            seen.more.notify_one();
        }
    });
    silent.store(true, std::sync::atomic::Ordering::Relaxed);
    let all = async {
        while marked.lost.lock().is_none() || marked.pods.lock().len() < LOST_PODS {
            marked.more.notified().await;
        }
    };
    timeout(LIMIT, all)
        .await
        .map_err(|_| "the pods of a lost node were not marked in time")?;
    let lost = marked.lost.lock().ok_or("the node was never marked as lost")?;
    let last = marked
        .pods
        .lock()
        .iter()
        .max()
        .copied()
        .ok_or("no pod was marked")?;
    report
        .record(
            "its node Unknown to its last pod not ready",
            last.saturating_duration_since(lost).as_secs_f64() * 1000.0,
            "ms",
            Basis::TwoCpus,
        )
        .target(Target::AtMost(1_000.0));
    Ok(report)
}
