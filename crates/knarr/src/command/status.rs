//! `knarr status`: whether the cluster runs, and the state of its nodes; with `--wait`, until all are Ready.

use std::time::Duration;

use clap::Args;
use knarr_api::k8s_openapi::api::core::v1::{Node, Pod};
use knarr_api::kinds::node::is_ready;
use knarr_api::registry;
use knarr_client::ListOptions;
use serde::Serialize;
use tokio::time::Instant;

use super::version::Output;
use super::{Failure, cluster};
use crate::config::Config;
use crate::lock;

/// How often the status is read while waiting.
const POLL: Duration = Duration::from_millis(50);

#[derive(Args)]
pub struct StatusArgs {
    /// Wait until the API answers and every node is Ready, at most this long.
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
    /// With --wait: fail at once when the process with this id exits.
    #[arg(long, value_name = "PID")]
    pid: Option<i32>,
    /// Print as `text` or `json`.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

/// The output of the command.
#[derive(Serialize)]
struct Status {
    pid: Option<i32>,
    server: String,
    nodes: Vec<NodeStatus>,
    pods: usize,
}

#[derive(Serialize)]
struct NodeStatus {
    name: String,
    ready: bool,
}

impl Status {
    fn is_healthy(&self) -> bool {
        !self.nodes.is_empty() && self.nodes.iter().all(|n| n.ready)
    }
}

pub async fn run(config: Config, args: StatusArgs) -> Result<(), Failure> {
    let begin = Instant::now();
    let limit = args.wait.map(Duration::from_secs);
    let status = loop {
        let read = read_status(&config).await;
        let is_timed_out = limit.is_none_or(|limit| begin.elapsed() >= limit);
        match read {
            Ok(status) if status.is_healthy() || is_timed_out => break status,
            Err(failure) if is_timed_out => return Err(failure),
            _ => {}
        }
        if let Some(pid) = args.pid
            && !std::path::Path::new("/proc").join(pid.to_string()).exists()
        {
            return Err(Failure::new(format!("knarr (process {pid}) has exited")));
        }
        tokio::time::sleep(POLL).await;
    };
    print(&status, args.output)?;
    if args.wait.is_some() && !status.is_healthy() {
        let waited = begin.elapsed().as_secs();
        return Err(Failure::new(format!("after {waited} s not every node is Ready")));
    }
    Ok(())
}

fn print(status: &Status, output: Output) -> Result<(), Failure> {
    if output == Output::Json {
        return super::print_json(status);
    }
    let process = status
        .pid
        .map_or_else(String::new, |pid| format!(" (process {pid})"));
    println!("knarr is running{process}, its API server is {}", status.server);
    for node in &status.nodes {
        println!(
            "node {}: {}",
            node.name,
            if node.ready { "Ready" } else { "NotReady" }
        );
    }
    println!("{} pods", status.pods);
    Ok(())
}

async fn read_status(config: &Config) -> Result<Status, Failure> {
    let pid = lock::holder(&config.data_dir);
    if pid.is_none() {
        return Err(Failure::new(format!(
            "knarr is not running with the data directory {}",
            config.data_dir.display()
        )));
    }
    let (api, server) = cluster::admin(config).await?;
    let failed = |e| Failure::new(format!("cannot list nodes and pods from {server}")).because(e);
    let nodes = api
        .list(&registry::NODE, ListOptions::default())
        .await
        .map_err(failed)?;
    let pods = api
        .list(&registry::POD, ListOptions::default())
        .await
        .map_err(failed)?;
    let nodes = nodes
        .items
        .iter()
        .filter_map(|o| o.get::<Node>())
        .map(|node| NodeStatus {
            name: node.metadata.name.clone().unwrap_or_default(),
            ready: is_ready(node),
        });
    let pods = pods.items.iter().filter(|o| o.get::<Pod>().is_some()).count();
    Ok(Status {
        pid,
        server: server.clone(),
        nodes: nodes.collect(),
        pods,
    })
}
