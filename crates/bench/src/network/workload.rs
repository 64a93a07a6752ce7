//! One workload of the service proxy.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_api::{k8s_openapi, registry};
use knarr_client::{Api, ListOptions, SystemClock, TypedApi};
use knarr_node_network::catalog::Shared;
use knarr_node_network::proxy::{Config, ServiceProxy};
use serde_json::{Value, json};
use tokio::net::TcpSocket;
use tokio::time::{Instant, sleep, timeout};

use super::{Changes, Found, Workload};
use crate::process::{Result, anonymous_mb, memory_mb};
use crate::scheduler::cluster::{create, server_with};
use crate::stats::percentile;

const NODE: &str = "bench";
/// Of the Service whose endpoint is really there.
const TARGET: &str = "target";
const ENDPOINT: &str = "10.1.0.1:8080";
const CHANGES: usize = 300;
/// Between two changes: a change alone is measured.
const PAUSE: Duration = Duration::from_millis(5);
const CONNECTS: usize = 3000;
const LIMIT: Duration = Duration::from_secs(300);
/// The allocator gives memory back some seconds after it was freed.
const ALLOCATOR: Duration = Duration::from_secs(12);

pub(super) fn ip(arguments: &str) -> Result<()> {
    let status = std::process::Command::new("ip")
        .args(arguments.split(' '))
        .status()?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("ip {arguments}: {status}").into()),
    }
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}

/// Measures it in the namespace of this process.
pub async fn run(workload: &Workload) -> Result<Found> {
    ip("link set lo up")?;
    ip("address add 10.1.0.1/32 dev lo")?;
    ip("route add 10.96.0.0/12 dev lo")?;
    let (server, _dir) = server_with("10.96.0.0/12").await?;
    let api = server.api_as("system:admin", ["system:masters"]);
    fill(&api, workload).await?;
    sleep(ALLOCATOR).await;

    let own = std::process::id();
    let (before, anonymous_before) = (memory_mb(own)?, anonymous_mb(own)?);
    let begin = Instant::now();
    let catalog = Arc::new(Shared::start(api.clone()));
    catalog.wait_for(|_, reached| reached.is_synced()).await;
    let listed_ms = milliseconds(begin);
    let begin = Instant::now();
    let proxy = start(&api, &catalog);
    in_kernel(&proxy, 0).await?;
    let cold_ms = milliseconds(begin);
    sleep(ALLOCATOR).await;
    let memory = memory_mb(own)? - before;
    let anonymous = anonymous_mb(own)? - anonymous_before;
    let changes = match workload.changes {
        true => Some(change(&api, &proxy).await?),
        false => None,
    };
    drop((proxy, catalog));
    let catalog = Arc::new(Shared::start(api.clone()));
    catalog.wait_for(|_, reached| reached.is_synced()).await;
    let begin = Instant::now();
    let proxy = start(&api, &catalog);
    in_kernel(&proxy, 0).await?;
    Ok(Found {
        listed_ms,
        cold_ms,
        restart_ms: milliseconds(begin),
        memory_mb: memory,
        anonymous_mb: anonymous,
        changes,
    })
}

fn start(api: &Arc<dyn Api>, catalog: &Arc<Shared>) -> ServiceProxy {
    let config = Config {
        proxy: knarr_network::proxy::Config::default(),
        node_name: NODE.into(),
        conntrack_sysctls: false,
        conntrack_tcp_be_liberal: false,
        healthz_address: None,
    };
    ServiceProxy::start(config, api.clone(), catalog.clone(), Arc::new(SystemClock))
}

/// The kernel has all slices up to this revision.
async fn in_kernel(proxy: &ServiceProxy, revision: u64) -> Result<()> {
    let reached = proxy.reached();
    let has = reached.wait_for(|kernel| kernel.is_synced() && kernel.slices >= Some(revision));
    timeout(LIMIT, has)
        .await
        .map_err(|_| "the kernel was not programmed in time")?;
    Ok(())
}

/// No address twice, so that nothing is shared.
fn address(number: usize) -> String {
    let number = u32::try_from(number).unwrap_or(0) + (10 << 24) + (128 << 16);
    std::net::Ipv4Addr::from(number).to_string()
}

fn slice(service: &str, port: u16, addresses: &[String]) -> Value {
    let endpoints = addresses
        .iter()
        .map(|address| json!({"addresses": [address], "nodeName": "other"}));
    json!({
        "metadata": {"name": service, "namespace": "default", "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": "", "port": port, "protocol": "TCP"}],
        "endpoints": endpoints.collect::<Vec<_>>(),
    })
}

async fn fill(api: &Arc<dyn Api>, workload: &Workload) -> Result<()> {
    create::<Node>(api, vec![json!({"metadata": {"name": NODE}})]).await?;
    let service = |name: &str| json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"ports": [{"port": 80, "targetPort": 8080}]}});
    let names: Vec<String> = (0..workload.services).map(|n| format!("s{n}")).collect();
    create::<Service>(api, vec![service(TARGET)]).await?;
    create::<Service>(api, names.iter().map(|name| service(name)).collect()).await?;
    create::<EndpointSlice>(api, vec![slice(TARGET, 8080, &["10.1.0.1".into()])]).await?;
    let each = workload.endpoints;
    let slices = names.iter().enumerate().map(|(n, name)| {
        let addresses: Vec<String> = (n * each..(n + 1) * each).map(address).collect();
        slice(name, 8080, &addresses)
    });
    create::<EndpointSlice>(api, slices.collect()).await
}

async fn change(api: &Arc<dyn Api>, proxy: &ServiceProxy) -> Result<Changes> {
    let mut acknowledged = Vec::with_capacity(CHANGES);
    let mut requested = Vec::with_capacity(CHANGES);
    for round in 0..CHANGES {
        let name = format!("s{}", round * 7 % 1000);
        let mut slice = (*api.get_as::<EndpointSlice>("default", &name).await?).clone();
        for endpoint in slice.endpoints.iter_mut().flatten().take(1) {
            endpoint.addresses = vec![address(4_000_000 + round)];
        }
        sleep(PAUSE).await;
        let begin = Instant::now();
        let written = api.update_as(slice).await?;
        let answered = Instant::now();
        in_kernel(proxy, written.object().revision()).await?;
        acknowledged.push(milliseconds(answered));
        requested.push(milliseconds(begin));
    }
    let (direct_p50_us, service_p50_us) = connect(api).await?;
    Ok(Changes {
        acknowledged_p50_ms: percentile(&mut acknowledged, 50.0),
        acknowledged_p99_ms: percentile(&mut acknowledged, 99.0),
        requested_p99_ms: percentile(&mut requested, 99.0),
        direct_p50_us,
        service_p50_us,
    })
}

/// New connections in turn to the endpoint and to its Service, in microseconds.
async fn connect(api: &Arc<dyn Api>) -> Result<(f64, f64)> {
    let listener = TcpListener::bind(ENDPOINT)?;
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let scope = ListOptions {
        namespace: "default".into(),
        field_selector: format!("metadata.name={TARGET}"),
        ..ListOptions::default()
    };
    let services = api.list(&registry::SERVICE, scope).await?;
    let service = services.items.first().and_then(|s| s.to_typed::<Service>());
    let cluster_ip = service.and_then(|s| s.spec.as_ref()?.cluster_ip.clone());
    let service: SocketAddr = format!("{}:80", cluster_ip.ok_or("no cluster IP")?).parse()?;
    let direct: SocketAddr = ENDPOINT.parse()?;
    let mut took = [Vec::with_capacity(CONNECTS), Vec::with_capacity(CONNECTS)];
    for _ in 0..CONNECTS {
        for (to, took) in [direct, service].into_iter().zip(&mut took) {
            let socket = TcpSocket::new_v4()?;
            // Nothing is left behind that would make later connections slower.
            socket.set_zero_linger()?;
            let begin = Instant::now();
            let stream = timeout(LIMIT, socket.connect(to)).await??;
            took.push(begin.elapsed().as_secs_f64() * 1e6);
            drop(stream);
        }
    }
    let [mut direct, mut service] = took;
    Ok((percentile(&mut direct, 50.0), percentile(&mut service, 50.0)))
}
