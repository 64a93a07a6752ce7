//! Measures the DNS server with Debian's dnsperf, both on this machine, in their own network namespace: `cargo run
//! --release -p knarr-node-network --example dns_load [services] [seconds] [clients] [notrack]`.

use std::fmt::Write as _;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_client::TokioClock;
use knarr_client::api::TypedApi;
use knarr_client::fake::FakeApi;
use knarr_node_network::catalog::Shared;
use knarr_node_network::dns;
use serde_json::json;

type Failure = Box<dyn std::error::Error>;

const ADDRESS: &str = "10.96.0.10";

fn run(command: &mut Command) -> Result<String, Failure> {
    let output = command.output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

async fn fill(api: &FakeApi, services: usize) -> Result<(), Failure> {
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "load"}}))?;
    api.create_as(namespace).await?;
    for n in 0..services {
        let address = format!("10.{}.{}.{}", 97 + (n >> 16), (n >> 8) & 255, n & 255);
        let service: Service = serde_json::from_value(json!({
            "metadata": {"namespace": "load", "name": format!("service-{n}")},
            "spec": {"clusterIP": address, "clusterIPs": [address], "ports": [{"name": "http", "port": 80}]},
        }))?;
        api.create_as(service).await?;
    }
    Ok(())
}

async fn measure(services: usize, seconds: u32, clients: &str, notrack: bool) -> Result<(), Failure> {
    run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    let api = Arc::new(FakeApi::new(Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH))));
    fill(&api, services).await?;
    let addresses = vec![ADDRESS.parse()?];
    let catalog = Arc::new(Shared::start(api.clone()));
    let config = dns::Config {
        addresses: addresses.clone(),
        port: 53,
        cluster_domain: "cluster.local".to_string(),
        ttl_seconds: dns::TTL_SECONDS,
        resolv_conf: "/dev/null".into(),
        namespace_of: None,
        serial: 1,
    };
    let server = dns::start(config, api, catalog).await?;
    while !server.is_ready() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let directory = tempfile::tempdir()?;
    if notrack {
        let rules = directory.path().join("rules");
        std::fs::write(&rules, dns::notrack_rules("knarr-dns", &addresses, 53))?;
        run(Command::new("nft").arg("-f").arg(rules))?;
    }
    let mut questions = String::new();
    for n in 0..services {
        let record_type = if n % 2 == 0 { "A" } else { "AAAA" };
        writeln!(questions, "service-{n}.load.svc.cluster.local {record_type}")?;
    }
    let file = directory.path().join("questions");
    std::fs::write(&file, questions)?;
    let mut dnsperf = Command::new("dnsperf");
    dnsperf.args([
        "-s",
        ADDRESS,
        "-c",
        clients,
        "-T",
        "1",
        "-q",
        "64",
        "-l",
        &seconds.to_string(),
        "-d",
    ]);
    dnsperf.arg(&file);
    let report = tokio::task::spawn_blocking(move || run(&mut dnsperf).map_err(|e| e.to_string())).await??;
    println!("{report}");
    let status = std::fs::read_to_string("/proc/self/status")?;
    for line in status.lines().filter(|line| line.starts_with("VmRSS")) {
        println!("{line}");
    }
    for line in server
        .metrics()
        .lines()
        .filter(|line| line.contains("duration_seconds"))
    {
        println!("{line}");
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let services = arguments.next().map_or(Ok(1000), |a| a.parse())?;
    let seconds = arguments.next().map_or(Ok(5), |a| a.parse())?;
    let clients = arguments.next().unwrap_or_else(|| "8".to_string());
    let notrack = arguments.next().is_some();
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(measure(services, seconds, &clients, notrack))
}
