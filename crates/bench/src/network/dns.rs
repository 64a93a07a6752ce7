//! Cluster DNS: queries for names of Services over UDP by Debian's `dnsperf`, on the same cores as the server.

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use knarr_api::k8s_openapi;
use knarr_node_network::catalog::Shared;
use knarr_node_network::dns::{self, TTL_SECONDS};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::workload::ip;
use crate::calibration::Basis;
use crate::process::Result;
use crate::report::{Report, Target};
use crate::scheduler::cluster::{create, server_with};
use crate::stats::percentile;

const ADDRESS: &str = "10.96.0.10";
const SERVICES: usize = 1_000;
const SECONDS: &str = "5";
const LIMIT: Duration = Duration::from_secs(60);

/// What dnsperf counted, and how long its queries took.
#[derive(Debug, Serialize, Deserialize)]
pub struct Found {
    queries_per_second: f64,
    lost: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// Measures it in the namespace of this process.
pub async fn run() -> Result<Found> {
    ip("link set lo up")?;
    let (server, directory) = server_with("10.96.0.0/12").await?;
    let api = server.api_as("system:admin", ["system:masters"]);
    let service = |n| json!({"metadata": {"name": format!("service-{n}"), "namespace": "default"}, "spec": {"ports": [{"name": "http", "port": 80}]}});
    create::<Service>(&api, (0..SERVICES).map(service).collect()).await?;
    let addresses = vec![ADDRESS.parse()?];
    let config = dns::Config {
        addresses: addresses.clone(),
        port: 53,
        cluster_domain: "cluster.local".into(),
        ttl_seconds: TTL_SECONDS,
        resolv_conf: "/dev/null".into(),
        namespace_of: None,
        serial: 1,
    };
    let catalog = Arc::new(Shared::start(api.clone()));
    let server = dns::start(config, api, catalog).await?;
    timeout(LIMIT, async {
        while !server.is_ready() {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .map_err(|_| "the DNS server has not synced in time")?;
    let rules = directory.path().join("rules");
    std::fs::write(&rules, dns::notrack_rules("knarr-dns", &addresses, 53))?;
    if !Command::new("nft").arg("-f").arg(&rules).status()?.success() {
        return Err("nft did not take the rules that exempt DNS from connection tracking".into());
    }
    let mut names = String::new();
    for n in 0..SERVICES {
        let record = if n % 2 == 0 { "A" } else { "AAAA" };
        writeln!(names, "service-{n}.default.svc.cluster.local {record}")?;
    }
    let file = directory.path().join("names");
    std::fs::write(&file, names)?;
    let report = dnsperf(&file, &[]).await?;
    let number = |label: &str| number_after(&report, label).ok_or(format!("dnsperf did not print {label:?}"));
    let (queries_per_second, lost) = (number("Queries per second:")?, number("Queries lost:")?);
    // Printing every query makes dnsperf slower, so times come from a run of their own.
    let every_query = dnsperf(&file, &["-v"]).await?;
    let mut times: Vec<f64> = every_query.lines().filter_map(time_of).collect();
    if times.is_empty() {
        return Err("dnsperf did not print any query".into());
    }
    Ok(Found {
        queries_per_second,
        lost,
        p50_ms: percentile(&mut times, 50.0),
        p99_ms: percentile(&mut times, 99.0),
    })
}

async fn dnsperf(names: &std::path::Path, more: &[&str]) -> Result<String> {
    let mut command = tokio::process::Command::new("dnsperf");
    command
        .args([
            "-s", ADDRESS, "-c", "8", "-T", "1", "-q", "64", "-l", SECONDS, "-d",
        ])
        .arg(names)
        .args(more)
        .stderr(Stdio::inherit())
        .kill_on_drop(true);
    let out = timeout(LIMIT, command.output()).await??;
    match out.status.success() {
        true => Ok(String::from_utf8(out.stdout)?),
        false => Err(format!("dnsperf: {}", out.status).into()),
    }
}

fn number_after(report: &str, label: &str) -> Option<f64> {
    let line = report.lines().find_map(|line| line.trim().strip_prefix(label))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Milliseconds of a line `> NOERROR service-1.default.svc.cluster.local A 0.000123`.
fn time_of(line: &str) -> Option<f64> {
    let line = line.strip_prefix("> NOERROR ")?;
    let seconds: f64 = line.split_whitespace().last()?.parse().ok()?;
    Some(seconds * 1000.0)
}

pub fn report(found: &Found) -> Report {
    let mut report = Report::new(
        "network, DNS",
        format!(
            "{SERVICES} Services' names over UDP for {SECONDS} s, A and AAAA in turn, dnsperf with 8 clients and 64 \
             outstanding queries on the same cores; Kubernetes: CoreDNS' own page, 2 vCPU"
        ),
    );
    report
        .record("answers", found.queries_per_second, "/s", Basis::TwoCpus)
        .target(Target::AtLeast(100_000.0))
        .kubernetes(33_667.0);
    report
        .record("lost", found.lost, "", Basis::None)
        .target(Target::AtMost(0.0));
    report.record("query to answer, p50", found.p50_ms, "ms", Basis::TwoCpus);
    report
        .record("query to answer, p99", found.p99_ms, "ms", Basis::TwoCpus)
        .target(Target::AtMost(1.0));
    report
}
