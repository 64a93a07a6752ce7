//! `knarr status`: whether a cluster runs, and how it is; with `--wait`, until it is well.

use std::time::Duration;

use clap::Args;
use knarr_api::k8s_openapi::api::core::v1::{Node, Pod};
use knarr_api::registry;
use knarr_client::ListOptions;
use serde::Serialize;
use tokio::time::Instant;

use super::version::Output;
use super::{Failure, cluster};
use crate::config::Config;
use crate::lock;

/// Between two looks while waiting.
const POLL: Duration = Duration::from_millis(50);

#[derive(Args)]
pub struct StatusArgs {
    /// Wait until the API answers and every node is Ready, at most so long.
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
    /// With --wait: give up at once when this process ends.
    #[arg(long, value_name = "PID")]
    pid: Option<i32>,
    /// Print as `text` or `json`.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

/// What there is to tell.
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
    fn is_well(&self) -> bool {
        !self.nodes.is_empty() && self.nodes.iter().all(|n| n.ready)
    }
}

pub async fn run(config: Config, args: StatusArgs) -> Result<(), Failure> {
    let begin = Instant::now();
    let limit = args.wait.map(Duration::from_secs);
    let status = loop {
        let looked = look(&config).await;
        let waited_enough = limit.is_none_or(|limit| begin.elapsed() >= limit);
        match looked {
            Ok(status) if status.is_well() || waited_enough => break status,
            Err(failure) if waited_enough => return Err(failure),
            _ => {}
        }
        if let Some(pid) = args.pid
            && !std::path::Path::new("/proc").join(pid.to_string()).exists()
        {
            return Err(Failure::new(format!("knarr (process {pid}) has ended")));
        }
        tokio::time::sleep(POLL).await;
    };
    print(&status, args.output)?;
    if args.wait.is_some() && !status.is_well() {
        let waited = begin.elapsed().as_secs();
        return Err(Failure::new(format!("not every node is Ready after {waited} s")));
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
    println!("knarr runs{process}, its API is {}", status.server);
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

async fn look(config: &Config) -> Result<Status, Failure> {
    let pid = lock::holder(&config.data_dir);
    if pid.is_none() {
        return Err(Failure::new(format!(
            "no knarr runs with the data directory {}",
            config.data_dir.display()
        )));
    }
    let (api, server) = cluster::admin(config).await?;
    let asked = |e| Failure::new(format!("the API at {server} does not answer as it should")).because(e);
    let nodes = api
        .list(&registry::NODE, ListOptions::default())
        .await
        .map_err(asked)?;
    let pods = api
        .list(&registry::POD, ListOptions::default())
        .await
        .map_err(asked)?;
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

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|c| c.type_ == "Ready" && c.status == "True")
}
