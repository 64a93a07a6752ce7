//! The scheduler through the API: a server with the embedded store and fsync, the scheduler's driver and the load
//! generator in one process, so on the same cores. Nodes are objects without hosts.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use knarr_api::registry::Registered;
use knarr_api::{k8s_openapi, registry};
use knarr_apiserver::seams::{Clock as _, SystemClock, SystemEntropy};
use knarr_apiserver::{Config, Seams, Server, ServiceRange};
use knarr_client::metrics::Registry;
use knarr_client::{Api, Caches, Conn, EventRecorder, NodeDialer, TypedApi};
use knarr_control::Base;
use knarr_control::scheduler::Metrics;
use knarr_scheduler::Scheduler;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::{PRIORITIES, Workload, node, stuck};
use crate::process::{Result, cpu_seconds, memory_mb};

/// Creating requests under way at one time.
const CREATORS: usize = 64;
/// How long a workload may take.
const LIMIT: Duration = Duration::from_secs(600);

/// What one workload came to.
#[derive(Debug, Serialize, Deserialize)]
pub struct Found {
    pub pods_per_second: f64,
    /// In the second in which the fewest pods were bound.
    pub worst_second: f64,
    /// 99 of 100 attempts took no longer, binding included.
    pub p99_attempt_ms: f64,
    /// CPU time of server, scheduler and load generator for one measured pod: the value least affected by other load.
    pub cpu_micros: f64,
    /// Resident in the end, server and load generator included.
    pub memory_mb: f64,
}

struct NoNodes;

#[async_trait]
impl NodeDialer for NoNodes {
    async fn dial(&self, _: &str) -> std::io::Result<Box<dyn Conn>> {
        Err(std::io::ErrorKind::NotFound.into())
    }
}

/// A server whose store is in the build's output, so that it is a disk and not a tmpfs that is measured.
pub async fn server() -> Result<(Arc<Server>, tempfile::TempDir)> {
    server_with("10.96.0.0/16").await
}

/// With these addresses for Services.
pub async fn server_with(service_range: &str) -> Result<(Arc<Server>, tempfile::TempDir)> {
    let dir = tempfile::Builder::new()
        .prefix("api-bench-")
        .tempdir_in(std::env::current_exe()?.with_file_name(""))?;
    let clock = SystemClock;
    let pki = knarr_apiserver::pki::Pki::open(dir.path(), clock.now())?;
    let config = Config {
        advertised: "192.0.2.1:6443".into(),
        address: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        port: 6443,
        service_range: ServiceRange::parse(service_range)?,
        static_tokens: Default::default(),
        issuer: knarr_apiserver::ISSUER.into(),
        service_account_key: pki.service_account_key()?,
        options: knarr_apiserver::Options::default(),
    };
    let seams = Seams {
        clock: Arc::new(clock),
        entropy: Arc::new(SystemEntropy),
        nodes: Arc::new(NoNodes),
    };
    let store = knarr_store::open(knarr_store::Config::Embedded {
        dir: dir.path().join("store"),
    })
    .await?;
    Ok((Server::new(config, seams, store).await?, dir))
}

/// Which pods were bound, and when.
#[derive(Default)]
struct Bound {
    at: Mutex<Vec<Instant>>,
    more: Notify,
}

impl Bound {
    /// Counts bound pods that are not stuck.
    fn follow(self: &Arc<Self>, caches: &Caches) {
        let bound = self.clone();
        caches.store(&registry::POD).add_event_handler(move |change| {
            // As an index is queried: without reading objects again.
            let on_node = |pod: Option<&Arc<knarr_api::Object>>| {
                pod.is_some_and(|o| o.field("spec.nodeName").is_ok_and(|node| !node.is_empty()))
            };
            if !on_node(change.before()) && on_node(change.after()) {
                bound.at.lock().push(Instant::now());
                bound.more.notify_one();
            }
        });
    }

    async fn wait_for(&self, count: usize) -> Result<()> {
        let all = async {
            while self.at.lock().len() < count {
                self.more.notified().await;
            }
        };
        let waited = timeout(LIMIT, all).await;
        waited.map_err(|_| format!("{} of {count} pods were bound in time", self.at.lock().len()).into())
    }
}

pub async fn create<T: Registered + Clone>(api: &Arc<dyn Api>, objects: Vec<Value>) -> Result<()> {
    create_and::<T>(api, objects, None).await
}

/// `change` is made to each object after it is created; it is written if that returns true.
async fn create_and<T: Registered + Clone>(
    api: &Arc<dyn Api>,
    objects: Vec<Value>,
    change: Option<fn(&mut T) -> bool>,
) -> Result<()> {
    let mut typed = Vec::with_capacity(objects.len());
    for object in objects {
        typed.push(serde_json::from_value::<T>(object)?);
    }
    let share = typed.len().div_ceil(CREATORS).max(1);
    let mut creators = JoinSet::new();
    let mut typed = typed.into_iter().peekable();
    while typed.peek().is_some() {
        let share: Vec<T> = typed.by_ref().take(share).collect();
        let api = api.clone();
        creators.spawn(async move {
            for object in share {
                let created = api.create_as(object).await?;
                let Some(change) = change else { continue };
                let mut changed: T = (*created).clone();
                if change(&mut changed) {
                    api.update_as(changed).await?;
                }
            }
            Ok::<_, knarr_apimachinery::Error>(())
        });
    }
    while let Some(done) = creators.join_next().await {
        done??;
    }
    Ok(())
}

fn numbered(of: fn(usize) -> Value, from: usize, count: usize) -> Vec<Value> {
    (from..from + count).map(of).collect()
}

pub async fn run(workload: &Workload) -> Result<Found> {
    let (server, _dir) = server().await?;
    let api = server.api_as("system:kube-scheduler", ["system:masters"]);
    let account = json!({"metadata": {"name": "default", "namespace": "default"}});
    create::<ServiceAccount>(&api, vec![account]).await?;
    let classes = PRIORITIES.map(|(name, value)| json!({"metadata": {"name": name}, "value": value}));
    create::<PriorityClass>(&api, classes.to_vec()).await?;
    // New nodes are tainted until they are ready.
    let ready: fn(&mut Node) -> bool = |node| node.spec.as_mut().and_then(|s| s.taints.take()).is_some();
    create_and(&api, numbered(node, 0, workload.nodes), Some(ready)).await?;

    let caches = Arc::new(Caches::new(api.clone()));
    let clock = Arc::new(knarr_client::SystemClock);
    let base = Base {
        identities: server.identities(),
        caches: caches.clone(),
        events: EventRecorder::new(api.clone(), "bench", "", clock.clone()),
        clock,
        metrics: Default::default(),
    };
    let bound = Arc::new(Bound::default());
    bound.follow(&caches);
    let registry = Registry::default();
    let metrics = Metrics::new(&registry);
    let scheduler = knarr_control::scheduler::run(base, Scheduler::default(), metrics);
    let scheduler = tokio::spawn(scheduler);

    create::<Pod>(&api, numbered(stuck, 0, workload.stuck)).await?;
    let (count, of) = workload.initial;
    create::<Pod>(&api, numbered(of, 0, count)).await?;
    bound.wait_for(count).await?;
    let before = buckets(&registry.text());

    let (measured, of) = workload.measured;
    let pods = numbered(of, count, measured);
    let cpu_before = cpu_seconds(std::process::id())?;
    let begin = Instant::now();
    create::<Pod>(&api, pods).await?;
    bound.wait_for(count + measured).await?;
    let at: Vec<f64> = {
        let at = bound.at.lock();
        let measured = at.iter().skip(count).take(measured);
        measured.map(|at| (*at - begin).as_secs_f64()).collect()
    };
    let seconds = at.last().copied().unwrap_or_default();
    let cpu_seconds = cpu_seconds(std::process::id())? - cpu_before;
    let after = buckets(&registry.text());
    scheduler.abort();
    Ok(Found {
        pods_per_second: measured as f64 / seconds.max(1e-9),
        worst_second: worst_second(&at),
        p99_attempt_ms: quantile(&before, &after, 0.99) * 1000.0,
        cpu_micros: cpu_seconds * 1e6 / measured as f64,
        memory_mb: memory_mb(std::process::id())?,
    })
}

/// The fewest in any second from the first to the last, sampled every tenth of a second; the average where there is
/// less than a second.
fn worst_second(at: &[f64]) -> f64 {
    let (Some(first), Some(last)) = (at.first(), at.last()) else {
        return 0.0;
    };
    let tenths = ((last - first - 1.0) * 10.0).floor();
    if tenths < 0.0 {
        return at.len() as f64 / (last - first).max(1e-9);
    }
    let in_second = |tenth: usize| {
        let from = first + tenth as f64 / 10.0;
        let after = |time: f64| at.partition_point(|t| *t < time);
        after(from + 1.0) - after(from)
    };
    let fewest = (0..=tenths as usize).map(in_second).min();
    fewest.unwrap_or_default() as f64
}

/// The upper bounds of the attempts' durations, and how many were no longer.
fn buckets(page: &str) -> Vec<(f64, f64)> {
    const NAME: &str = "scheduler_scheduling_attempt_duration_seconds_bucket{";
    let scheduled = page
        .lines()
        .filter(|l| l.starts_with(NAME) && l.contains("result=\"scheduled\""));
    let bucket = |line: &str| {
        let (labels, count) = line.rsplit_once(' ')?;
        let (_, bound) = labels.split_once(",le=\"")?;
        let bound = bound.split('"').next()?.replace("+Inf", "inf");
        Some((bound.parse().ok()?, count.parse().ok()?))
    };
    scheduled.filter_map(bucket).collect()
}

/// Within its bucket a value is taken to be anywhere with the same probability, as Prometheus does it.
fn quantile(before: &[(f64, f64)], after: &[(f64, f64)], q: f64) -> f64 {
    let more = |i: usize| {
        let then = before.get(i).map_or(0.0, |(_, n)| *n);
        after.get(i).map_or(0.0, |(_, n)| *n) - then
    };
    let all = more(after.len().saturating_sub(1));
    let rank = q * all;
    let mut lower = (0.0, 0.0);
    for (i, (bound, _)) in after.iter().enumerate() {
        let count = more(i);
        if count >= rank && count > lower.1 {
            if bound.is_infinite() {
                return lower.0;
            }
            return lower.0 + (bound - lower.0) * (rank - lower.1) / (count - lower.1);
        }
        lower = (*bound, count);
    }
    lower.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_second_is_the_one_with_the_fewest() {
        let mut at: Vec<f64> = (0..100).map(|n| f64::from(n) / 100.0).collect();
        at.extend((0..10).map(|n| 1.0 + f64::from(n) / 10.0));
        at.extend((0..=100).map(|n| 2.0 + f64::from(n) / 100.0));
        assert_eq!(worst_second(&at), 10.0);
        assert_eq!(worst_second(&[0.0, 0.5]), 4.0, "less than a second");
    }

    #[test]
    fn a_quantile_is_of_what_came_after() {
        let page = |n: [u32; 3]| {
            let bound = ["0.001", "0.002", "+Inf"];
            let line = |(le, n)| {
                format!(
                    "scheduler_scheduling_attempt_duration_seconds_bucket{{profile=\"p\",result=\"scheduled\",le=\"{le}\"}} {n}\n"
                )
            };
            bound.into_iter().zip(n).map(line).collect::<String>()
        };
        let (before, after) = (buckets(&page([5, 5, 5])), buckets(&page([15, 105, 105])));
        assert!((quantile(&before, &after, 0.5) - 0.001_444).abs() < 1e-5);
        assert_eq!(quantile(&before, &after, 0.1), 0.001);
    }
}
