//! Leases renewed through the server's own path (admission, validation, store with fsync, cache) without HTTPS, as
//! components of the same process do.

use std::time::Duration;

use tokio::time::Instant;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use knarr_api::{k8s_openapi, registry};

use crate::calibration::Basis;
use crate::process::Result;
use crate::report::{Report, Target};
use crate::scheduler::cluster;

const WRITERS: usize = 256;
const SPAN: Duration = Duration::from_secs(3);

pub async fn leases() -> Result<Report> {
    let mut report = Report::new(
        "api, leases in process",
        format!(
            "{WRITERS} tasks, each renews a Lease of its own for {} s; embedded store, fsync on",
            SPAN.as_secs()
        ),
    );
    let (server, _dir) = cluster::server().await?;
    let api = server.api_as("system:admin", ["system:masters"]);
    let begin = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..WRITERS {
        let api = api.clone();
        tasks.spawn(async move {
            let mut lease = Lease::default();
            lease.metadata.name = Some(format!("node-{n}"));
            lease.metadata.namespace = Some("kube-node-lease".into());
            lease.spec = Some(LeaseSpec {
                holder_identity: Some(format!("node-{n}")),
                lease_duration_seconds: Some(40),
                ..LeaseSpec::default()
            });
            let mut current = api.create(&registry::LEASE, Box::new(lease)).await?;
            let mut done = 0_usize;
            while begin.elapsed() < SPAN {
                current = api
                    .update(&registry::LEASE, current.typed().clone_box(), "")
                    .await?;
                done += 1;
            }
            Ok::<_, knarr_apimachinery::Error>(done)
        });
    }
    let mut renewed = 0;
    while let Some(done) = tasks.join_next().await {
        renewed += done??;
    }
    report
        .record(
            "Lease renewals",
            renewed as f64 / begin.elapsed().as_secs_f64(),
            "/s",
            Basis::TwoCpus,
        )
        .target(Target::AtLeast(100_000.0));
    Ok(report)
}
