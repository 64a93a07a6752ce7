//! The service proxy: how long Services take to the kernel, cold and one change alone; what a connection through a cluster
//! IP costs; how much memory it all takes. Then cluster DNS and the way between nodes.
//!
//! Each workload of proxy and DNS runs in its own process and network namespace: an API server with the embedded store,
//! and the network agent's catalog and proxy.

mod dns;
mod routes;
mod workload;

use serde::{Deserialize, Serialize};

use crate::calibration::Basis;
use crate::process::Result;
use crate::report::{Report, Target};

/// So many Services with so many endpoints each.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    services: usize,
    endpoints: usize,
    /// Endpoints are changed one at a time, and connections are made.
    changes: bool,
    /// Promised, and measured with kube-proxy.
    cold: Compared,
    change_p99: Compared,
    memory: Compared,
    connect: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Compared {
    at_most: Option<f64>,
    kubernetes: Option<f64>,
}

const fn compared(at_most: f64, kubernetes: f64) -> Compared {
    Compared {
        at_most: Some(at_most),
        kubernetes: Some(kubernetes),
    }
}

const fn at_most(at_most: f64) -> Compared {
    Compared {
        at_most: Some(at_most),
        kubernetes: None,
    }
}

const NOTHING: Compared = Compared {
    at_most: None,
    kubernetes: None,
};

pub const WORKLOADS: [Workload; 5] = [
    Workload {
        services: 1_000,
        endpoints: 5,
        changes: false,
        cold: compared(100.0, 360.0),
        change_p99: NOTHING,
        memory: compared(5.0, 76.0),
        connect: None,
    },
    Workload {
        services: 10_000,
        endpoints: 5,
        changes: true,
        cold: compared(600.0, 58_000.0),
        change_p99: compared(10.0, 5_500.0),
        memory: compared(40.0, 288.0),
        connect: None,
    },
    Workload {
        services: 5_000,
        endpoints: 50,
        changes: false,
        cold: at_most(3_000.0),
        change_p99: NOTHING,
        memory: NOTHING,
        connect: None,
    },
    Workload {
        services: 50_000,
        endpoints: 4,
        changes: true,
        cold: NOTHING,
        change_p99: NOTHING,
        memory: NOTHING,
        connect: Some(5.0),
    },
    Workload {
        services: 100_000,
        endpoints: 4,
        changes: false,
        cold: at_most(6_000.0),
        change_p99: NOTHING,
        memory: NOTHING,
        connect: None,
    },
];

/// What one workload came to, in milliseconds, microseconds and megabytes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Found {
    listed_ms: f64,
    cold_ms: f64,
    restart_ms: f64,
    memory_mb: f64,
    anonymous_mb: f64,
    changes: Option<Changes>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Changes {
    /// From the write's acknowledgement to the kernel.
    acknowledged_p50_ms: f64,
    acknowledged_p99_ms: f64,
    /// From the request, so with the store's fsync.
    requested_p99_ms: f64,
    direct_p50_us: f64,
    service_p50_us: f64,
}

/// One workload, in this process, which is in a network namespace of its own: what it found, as JSON.
pub async fn run(number: usize) -> Result<serde_json::Value> {
    let Some(workload) = WORKLOADS.get(number) else {
        return Ok(serde_json::to_value(dns::run().await?)?);
    };
    Ok(serde_json::to_value(workload::run(workload).await?)?)
}

/// Runs a workload in a process and a network namespace of its own.
fn measure<T: serde::de::DeserializeOwned>(number: usize, title: &str) -> Result<T> {
    let out = std::process::Command::new("unshare")
        .arg("--net")
        .arg(std::env::current_exe()?)
        .args(["network", "--workload", &number.to_string()])
        .stderr(std::process::Stdio::inherit())
        .output()?;
    if !out.status.success() {
        return Err(format!("{title} could not be measured").into());
    }
    Ok(serde_json::from_slice(&out.stdout)?)
}

/// All of them whose title has this in it.
pub async fn all(only: &str) -> Result<Vec<Report>> {
    let mut reports = Vec::new();
    for (number, workload) in WORKLOADS.iter().enumerate() {
        let title = format!(
            "{} Services x {} endpoints",
            workload.services, workload.endpoints
        );
        if !title.contains(only) {
            continue;
        }
        let found: Found = measure(number, &title)?;
        reports.push(report(workload, &title, &found));
    }
    if "DNS".contains(only) {
        reports.push(dns::report(&measure(WORKLOADS.len(), "DNS")?));
    }
    if "pods across nodes".contains(only) {
        reports.push(routes::run().await?);
    }
    Ok(reports)
}

fn report(workload: &Workload, title: &str, found: &Found) -> Report {
    let mut report = Report::new(
        "network, service proxy",
        format!("{title}; API server with the embedded store, catalog and proxy in one process, IPv4"),
    );
    let mut record = |what: &str, value: f64, unit: &'static str, basis: Basis, compared: Compared| {
        let record = report.record(what, value, unit, basis);
        if let Some(limit) = compared.at_most {
            record.target(Target::AtMost(limit));
        }
        if let Some(kubernetes) = compared.kubernetes {
            record.kubernetes(kubernetes);
        }
    };
    record(
        "cold: listed to all in the kernel",
        found.cold_ms,
        "ms",
        Basis::Cpu,
        workload.cold,
    );
    record("listing before that", found.listed_ms, "ms", Basis::Cpu, NOTHING);
    record(
        "new process: listed to all compared",
        found.restart_ms,
        "ms",
        Basis::Cpu,
        NOTHING,
    );
    record(
        "memory that catalog and proxy add",
        found.memory_mb,
        "MB",
        Basis::None,
        workload.memory,
    );
    record(
        "of it not pages of the program",
        found.anonymous_mb,
        "MB",
        Basis::None,
        NOTHING,
    );
    if let Some(changes) = &found.changes {
        record(
            "one endpoint changes: slice written to kernel, p50",
            changes.acknowledged_p50_ms,
            "ms",
            Basis::Cpu,
            NOTHING,
        );
        record(
            "one endpoint changes: slice written to kernel, p99",
            changes.acknowledged_p99_ms,
            "ms",
            Basis::Cpu,
            workload.change_p99,
        );
        record(
            "the same from the request, with fsync, p99",
            changes.requested_p99_ms,
            "ms",
            Basis::Fdatasync,
            NOTHING,
        );
        record(
            "connect to the endpoint, p50",
            changes.direct_p50_us,
            "µs",
            Basis::Loopback,
            NOTHING,
        );
        record(
            "connect to the cluster IP, p50",
            changes.service_p50_us,
            "µs",
            Basis::Loopback,
            NOTHING,
        );
        let more = Compared {
            at_most: workload.connect,
            kubernetes: None,
        };
        record(
            "what the cluster IP adds",
            changes.service_p50_us - changes.direct_p50_us,
            "µs",
            Basis::Loopback,
            more,
        );
    }
    report
}
