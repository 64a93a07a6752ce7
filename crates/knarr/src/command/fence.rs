//! `knarr fence NODE`: requests a node's fencing (SPEC S6), and reports its outcome.

use std::time::Duration;

use clap::Args;
use knarr_api::k8s_openapi::api::core::v1::Node;
use knarr_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_client::TypedApi;
use knarr_control::fencing_kinds::{Custom, FencingSpec, NodeFencing, Phase};
use tokio::time::{Instant, sleep};

use super::{Failure, cluster};
use crate::config::Config;

/// How often the NodeFencing is read while waiting.
const POLL: Duration = Duration::from_millis(250);

pub const AFTER_HELP: &str = "\
A FencingPolicy defines which agents fence which nodes (kubectl explain fencingpolicy.spec). The node's pods and volumes are
released when every agent of one level reports that it has switched the node off; if none does, nothing is released, and this
command fails. The policy's budgets do not limit this command. `kubectl get nodefencings` lists all requests.";

#[derive(Args)]
pub struct FenceArgs {
    /// The node to fence, lost or not.
    node: String,
    /// Why the node is fenced; it is recorded in the NodeFencing.
    #[arg(long, default_value = "requested with knarr fence")]
    reason: String,
    /// The FencingPolicy to use [default: the first that selects the node].
    #[arg(long, default_value = "")]
    policy: String,
    /// How long to wait for the outcome; 0 does not wait.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    wait: u64,
}

pub async fn run(config: Config, args: FenceArgs) -> Result<(), Failure> {
    let (api, _) = cluster::admin(&config).await?;
    let failed =
        |e: knarr_apimachinery::Error| Failure::new(format!("cannot fence {}", args.node)).because(e);
    let node = api.get_as::<Node>("", &args.node).await.map_err(failed)?;
    let fencing = NodeFencing {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", args.node)),
            ..ObjectMeta::default()
        },
        spec: FencingSpec {
            node_name: args.node.clone(),
            node_uid: node.object().uid().into(),
            policy: args.policy.clone(),
            reason: args.reason.clone(),
            automatic: false,
        },
        ..NodeFencing::default()
    };
    let object = fencing.to_object().map_err(failed)?;
    let made = api.create(NodeFencing::kind(), object).await.map_err(failed)?;
    let name = made.name().to_string();
    println!("nodefencing.safety.knarr.io/{name} created");
    if args.wait == 0 {
        return Ok(());
    }
    let end = Instant::now() + Duration::from_secs(args.wait);
    let mut printed = String::new();
    loop {
        let live = api.get(NodeFencing::kind(), "", &name).await.map_err(failed)?;
        let status = NodeFencing::of(&live).map(|f| f.status).unwrap_or_default();
        let line = format!("{:?}: {}", status.phase, status.message);
        if line != printed && !status.message.is_empty() {
            println!("{line}");
            printed = line;
        }
        match status.phase {
            Phase::Fenced | Phase::Returning | Phase::Returned => return Ok(()),
            Phase::Failed | Phase::Cancelled => {
                return Err(Failure::new(format!(
                    "{} is not fenced: {}",
                    args.node, status.message
                )));
            }
            Phase::Pending | Phase::Fencing if Instant::now() >= end => {
                return Err(Failure::new(format!(
                    "{} is not fenced after {} s: {}; see kubectl describe nodefencing {name}",
                    args.node, args.wait, status.message
                )));
            }
            Phase::Pending | Phase::Fencing => sleep(POLL).await,
        }
    }
}
