//! `knarr fence NODE`: asks for a node's fencing (SPEC S6), and tells what comes of it.

use std::time::Duration;

use clap::Args;
use knarr_api::k8s_openapi::api::core::v1::Node;
use knarr_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_client::TypedApi;
use knarr_control::fencing_kinds::{Custom, FencingSpec, NodeFencing, Phase};
use tokio::time::{Instant, sleep};

use super::{Failure, cluster};
use crate::config::Config;

/// Between two looks while waiting.
const POLL: Duration = Duration::from_millis(250);

pub const AFTER_HELP: &str = "\
A FencingPolicy says which agents fence which nodes (kubectl explain fencingpolicy.spec). The node's pods and volumes are
released when every agent of one level has switched it off and says so; if none does, nothing is released, and this
command fails. It asks whatever the policy's budgets say. `kubectl get nodefencings` shows all that was asked for.";

#[derive(Args)]
pub struct FenceArgs {
    /// The node to be fenced, lost or not.
    node: String,
    /// Why; stays in the record.
    #[arg(long, default_value = "asked for with knarr fence")]
    reason: String,
    /// The FencingPolicy to go by [default: the first that selects the node].
    #[arg(long, default_value = "")]
    policy: String,
    /// How long to wait for the outcome; 0 only asks.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    wait: u64,
}

pub async fn run(config: Config, args: FenceArgs) -> Result<(), Failure> {
    let (api, _) = cluster::admin(&config).await?;
    let failed = |e: knarr_api::Error| Failure::new(format!("cannot fence {}", args.node)).because(e);
    let node = api.get_as::<Node>("", &args.node).await.map_err(failed)?;
    let wanted = NodeFencing {
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
    let object = wanted.to_object().map_err(failed)?;
    let made = api.create(NodeFencing::kind(), object).await.map_err(failed)?;
    let name = made.name().to_string();
    println!("nodefencing.safety.knarr.io/{name} created");
    if args.wait == 0 {
        return Ok(());
    }
    let end = Instant::now() + Duration::from_secs(args.wait);
    let mut told = String::new();
    loop {
        let live = api.get(NodeFencing::kind(), "", &name).await.map_err(failed)?;
        let status = NodeFencing::of(&live).map(|f| f.status).unwrap_or_default();
        let line = format!("{:?}: {}", status.phase, status.message);
        if line != told && !status.message.is_empty() {
            println!("{line}");
            told = line;
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
                    "{} is not fenced after {} s: {}; kubectl get nodefencing {name} tells more",
                    args.node, args.wait, status.message
                )));
            }
            Phase::Pending | Phase::Fencing => sleep(POLL).await,
        }
    }
}
