//! Leases renewed through the server's own path (admission, validation, store with fsync, cache) without HTTPS, as
//! components of the same process do.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use async_trait::async_trait;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use knarr_api::{k8s_openapi, registry};
use knarr_apiserver::seams::{SystemClock, SystemEntropy};
use knarr_apiserver::{Config, Seams, ServiceRange};
use knarr_client::{Conn, NodeDialer};

use crate::process::Result;
use crate::report::{Report, Target};

const WRITERS: usize = 256;
const SPAN: Duration = Duration::from_secs(3);

struct NoNodes;

#[async_trait]
impl NodeDialer for NoNodes {
    async fn dial(&self, _: &str) -> std::io::Result<Box<dyn Conn>> {
        Err(std::io::ErrorKind::NotFound.into())
    }
}

pub async fn leases() -> Result<Report> {
    let mut report = Report::new(
        "api, leases in process",
        format!(
            "{WRITERS} tasks, each renews a Lease of its own for {} s; embedded store, fsync on",
            SPAN.as_secs()
        ),
    );
    // Beside the build's output, so that it is a disk and not a tmpfs that is measured.
    let dir = tempfile::Builder::new()
        .prefix("api-bench-")
        .tempdir_in(std::env::current_exe()?.with_file_name(""))?;
    let clock = SystemClock;
    let pki = knarr_apiserver::pki::Pki::open(dir.path(), knarr_apiserver::seams::Clock::now(&clock))?;
    let config = Config {
        advertised: "192.0.2.1:6443".into(),
        address: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        port: 6443,
        service_range: ServiceRange::parse("10.96.0.0/16")?,
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
    let server = knarr_apiserver::Server::new(config, seams, store).await?;
    let api = server.api("system:admin", ["system:masters"]);
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
            Ok::<_, knarr_api::Error>(done)
        });
    }
    let mut renewed = 0;
    while let Some(done) = tasks.join_next().await {
        renewed += done??;
    }
    report
        .figure(
            "Lease renewals",
            renewed as f64 / begin.elapsed().as_secs_f64(),
            "/s",
        )
        .target(Target::AtLeast(100_000.0));
    Ok(report)
}
